//! How a rank that is connected but makes no progress is ended, so that the others go on without it.

use super::Chair;
use crate::linux;
use crate::rendezvous::message::{Control, send};
use std::time::Duration;
use thalweg_core::event::Event;
use thalweg_core::{Culprit, Error, Kind};

/// How long the launcher may take to end this very process, before it ends itself.
const LAUNCHER: Duration = Duration::from_secs(1);

impl Chair {
    /// The launcher of this host kills the rank if it is one of its own; elsewhere the rank's own threads end its process.
    pub(super) fn expel(&mut self, number: usize, culprit: Culprit) {
        (self.voice.report)(Event::GaveUp { culprit: number, cause: culprit.cause.clone() });
        let words = format!("{} {}", self.judgement.inquest.who(number), culprit.cause);
        let error = Error::new(Kind::RankFailed, words).blame(culprit.clone());
        match (number == self.charge.own, self.charge.launcher) {
            (false, _) => {
                if let Some(guest) = self.guests.get_mut(&number) {
                    // If it cannot hear it, others see to its end.
                    let _ = send(&mut guest.stream, &Control::Abort(Box::new(error)));
                }
                self.lose(number, culprit);
            }
            // The launcher gives the role to another rank.
            (true, Some(_)) => {
                std::thread::sleep(LAUNCHER);
                linux::kill_self();
            }
            // Nobody could take the role: the job is over.
            (true, None) => self.abort(error),
        }
    }
}
