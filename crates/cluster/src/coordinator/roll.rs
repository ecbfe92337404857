//! Whom the others wait for: told now and then, and at last given up.

use super::{Chair, FAREWELL, NEXT_REMINDER};
use crate::rendezvous::message::{Answer, send};
use crate::rendezvous::{REMINDER, welcome};
use std::time::Duration;
use thalweg_core::Culprit;

/// When it is told that more workers are wanted.
const SOON: Duration = Duration::from_secs(1);

impl Chair {
    /// Says whom the others wait for, once it takes long.
    pub(super) fn remind(&mut self) {
        match self.judgement.watch.awaited() {
            Some((rank, pulse, waited)) if waited >= self.reminder => {
                self.reminder = waited + NEXT_REMINDER;
                let who = self.judgement.inquest.who(rank);
                (self.voice.say)(format!("waiting for {who}: {} for {:.0} s", pulse.name, pulse.since));
            }
            Some(_) => {}
            None => self.reminder = REMINDER.as_secs_f64(),
        }
    }

    /// While a group is being formed: who is missing is told now and then, and at last given up.
    pub(super) fn call_roll(&mut self, now: Duration) {
        let Some(since) = self.judgement.membership.forming_since() else { return };
        let waited = now.saturating_sub(since);
        let missing = self.judgement.membership.missing();
        let again = self.judgement.membership.generation() > 0;
        let absent: Vec<usize> =
            missing.iter().copied().filter(|number| !self.guests.contains_key(number)).collect();
        let deadline = if again {
            self.judgement.watch.deadline().max(FAREWELL)
        } else {
            self.charge.rules.limits.patience
        };
        if waited >= deadline && !absent.is_empty() {
            if again {
                for number in absent {
                    let cause = format!("did not come back within {:.1} s", waited.as_secs_f64());
                    self.lose(number, Culprit { rank: number, cause, ..Culprit::default() });
                }
                return;
            }
            let error = {
                let (listener, turned_away) = (self.listener.as_ref(), &self.turned_away);
                welcome::gave_up(listener, &absent, turned_away, &self.strangers, deadline)
            };
            return self.abort(error);
        }
        // All are here and still too few: nobody is on the way, which the user should know soon.
        let head_start = if missing.is_empty() { REMINDER - SOON } else { Duration::ZERO };
        if waited + head_start >= self.roll_call {
            self.roll_call += REMINDER;
            self.tell_missing(&missing, waited.as_secs());
        }
    }

    fn tell_missing(&mut self, missing: &[usize], seconds: u64) {
        let here = self.guests.len();
        let at = welcome::place(self.listener.as_ref());
        (self.voice.say)(if missing.is_empty() {
            let wanted = self.judgement.membership.wanted();
            welcome::wanting(wanted, seconds, &at, &self.judgement.lost)
        } else {
            welcome::waiting(missing, seconds, here, self.charge.expected.len(), &at)
        });
        for guest in self.guests.values_mut().filter(|guest| !guest.settled) {
            let _ = send(&mut guest.stream, &Answer::Waiting { missing: missing.to_vec(), seconds });
        }
    }
}
