//! What a coordinator does for each command of the policy.

use crate::membership::{MembershipCommand, MembershipView};
use thalweg_core::{Culprit, Error};

/// The effects of the policy's commands, on real or on simulated connections.
pub trait MembershipActions {
    /// Closes the control connection to a member. One that was removed gets the reason: it may only have been unreachable.
    fn disconnect(&mut self, id: usize);

    /// Tells the members that this generation is over.
    fn interrupt(&mut self, generation: u32, reason: Error);

    /// Asks for reports at the next step boundary.
    fn pause(&mut self);

    /// Tells the workers which meeting was called last.
    fn call_meeting(&mut self, number: u64);

    /// Ends a member that is connected but makes no progress, and removes it.
    fn remove_stuck(&mut self, id: usize, culprit: Culprit);

    /// Sends the members their group.
    fn form(&mut self, view: MembershipView, lost: Vec<Culprit>);

    /// Ends the job for all members.
    fn abort(&mut self, error: Error);

    fn execute(&mut self, commands: Vec<MembershipCommand>) {
        for command in commands {
            match command {
                MembershipCommand::Disconnect(id) => self.disconnect(id),
                MembershipCommand::Interrupt(generation, reason) => self.interrupt(generation, *reason),
                MembershipCommand::Pause => self.pause(),
                MembershipCommand::CallMeeting(number) => self.call_meeting(number),
                MembershipCommand::Remove(id, culprit) => self.remove_stuck(id, *culprit),
                MembershipCommand::Form(view, lost) => self.form(view, lost),
                MembershipCommand::Abort(error) => self.abort(*error),
            }
        }
    }
}
