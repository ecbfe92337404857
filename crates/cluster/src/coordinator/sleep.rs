//! A coordinator that was stopped: the others do not wait for it longer than for anybody else.
//!
//! With a launcher the role has passed on by then. Without one nobody else can take it: ranks that saw it silent for the
//! deadline have ended, and a job that went on without them would report a success that is none.

use super::Chair;
use crate::rendezvous::message::Control;
use std::time::{Duration, Instant};
use thalweg_core::{Culprit, Error, Kind};

/// A gap between two looks that is no ordinary delay.
const GAP: Duration = Duration::from_secs(1);

/// What ranks that gave this one up while it was stopped have said by then.
const NEWS: Duration = Duration::from_secs(5);

impl Chair {
    /// So much time passed since the last look: this process was stopped, or the machine was, if it is much.
    pub(super) fn wake(&mut self, gap: Duration) {
        if self.overslept.is_some_and(|(when, _)| when.elapsed() > NEWS) {
            self.overslept = None;
        }
        if gap <= GAP {
            return;
        }
        let now = self.now();
        self.judgement.watch.forgive(now);
        let deadline = self.charge.rules.step_deadline;
        // The others give up a little before the deadline.
        if self.charge.launcher.is_none() && gap >= deadline - deadline.min(Duration::from_secs(2)) / 10 {
            self.overslept = Some((Instant::now(), gap));
        }
    }

    /// Whether a rank says that it gave up this one, which was stopped for too long.
    pub(super) fn is_given_up_by(&self, number: usize, said: &Control) -> bool {
        let blames =
            |error: &Error| error.culprit.as_ref().is_some_and(|culprit| culprit.rank == self.charge.own);
        let gives_up = matches!(said, Control::Failed(error, _) if blames(error));
        self.overslept.is_some() && number != self.charge.own && gives_up
    }

    /// The others have given this rank up: the job ends for those who are left.
    pub(super) fn give_up_role(&mut self) {
        let (rank, (_, gap)) = (self.charge.own, self.overslept.unwrap_or((self.start, Duration::ZERO)));
        let deadline = self.charge.rules.step_deadline.as_secs_f64();
        let cause = format!("was stopped for {:.1} s, and the others did not wait for it", gap.as_secs_f64());
        let message = format!("rank {rank}, the coordinator, {cause}: fault.step_deadline is {deadline} s");
        let culprit = Culprit { rank, cause, ..Culprit::default() };
        let error = Error::new(Kind::RankFailed, message).blame(culprit);
        self.abort(error.hint("`thalweg resume` goes on from the last checkpoint"));
    }
}
