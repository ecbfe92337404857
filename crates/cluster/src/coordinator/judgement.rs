//! What the coordinator hears of the ranks, and what it makes of it: who is lost, and whether the job is over.

use super::{Chair, STRIKES};
use crate::inquest::{Evidence, blames_other};
use crate::rendezvous::message::{Answer, Control, send};
use crate::rendezvous::welcome;
use crate::session::unix_time;
use std::time::Instant;
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::{Culprit, Error};

impl Chair {
    pub(super) fn hear(&mut self, number: usize, said: Control) {
        let now = self.now();
        match said {
            Control::Pulse(pulse) => {
                self.inquest.see(number, pulse.clone());
                if self.membership.has(number) {
                    self.watch.heard(number, now, pulse);
                }
            }
            Control::Witness(error, pulse) => {
                self.inquest.hear(now, Evidence::Lost { rank: number, error: *error, pulse });
            }
            Control::Report(after, standing, pulse) => {
                self.see_waiting(&pulse);
                let orders = self.membership.report(number, after, standing, now);
                self.carry_out(orders);
            }
            Control::Failed(error, pulse) => {
                self.dismiss(number);
                if self.charge.elastic && blames_other(number, &error) {
                    // It could not wait for the next group: for the others it is lost.
                    self.judge(Evidence::Vanished { rank: number, pulse }, Instant::now());
                } else {
                    self.inquest.hear(now, Evidence::Failed { rank: number, error: *error, pulse });
                }
            }
            Control::Leave | Control::Goodbye => {
                self.dismiss(number);
                let orders = self.membership.leave(number, said == Control::Goodbye, now);
                self.carry_out(orders);
            }
            Control::Interrupt(..) | Control::Roster(_) | Control::Abort(_) => {}
        }
    }

    /// What a rank was in when it had to leave it is where the others waited for those who were lost.
    pub(super) fn see_waiting(&mut self, pulse: &Pulse) {
        if pulse.phase != Phase::Exchanging {
            return;
        }
        for culprit in &mut self.lost {
            if culprit.step.is_none_or(|step| step <= pulse.step) {
                (culprit.step, culprit.operation) = (Some(pulse.step), Some(pulse.name.clone()));
            }
        }
    }

    fn dismiss(&mut self, number: usize) {
        self.watch.dismiss(number);
        self.guests.remove(&number);
    }

    pub(super) fn close(&mut self, number: usize, when: Instant) {
        let pulse = self.watch.last(number).cloned().unwrap_or_default();
        self.dismiss(number);
        if self.membership.generation() == 0 {
            // It may come again: the rendezvous has its own deadline, and the launcher knows whether it died.
            self.membership.expect(number);
        } else if self.membership.has(number) {
            self.judge(Evidence::Vanished { rank: number, pulse }, when);
        } else {
            let _ = self.membership.lose(number, self.now());
        }
    }

    /// The launcher says that a rank's process has ended. Of one that is here the end of its connection tells, too.
    pub(super) fn miss(&mut self, number: usize) {
        if !self.charge.elastic || self.guests.contains_key(&number) || !self.membership.has(number) {
            return;
        }
        self.lose(number, welcome::ended(number));
    }

    /// Evidence that a rank is lost: the others go on without it at once, or it joins the rest of the evidence.
    pub(super) fn judge(&mut self, evidence: Evidence, seen: Instant) {
        let now = self.now();
        let (Evidence::Vanished { rank, .. } | Evidence::Silent { rank, .. } | Evidence::Stuck { rank, .. }) =
            &evidence
        else {
            return self.inquest.hear(now, evidence);
        };
        let rank = *rank;
        if !self.charge.elastic {
            return self.inquest.hear(now, evidence);
        }
        let mut culprit =
            self.inquest.explain(&evidence).culprit.map_or_else(Culprit::default, |culprit| *culprit);
        culprit.detect_s = Some(match &evidence {
            Evidence::Silent { seconds, .. } => *seconds,
            Evidence::Stuck { pulse, .. } => pulse.since,
            _ => seen.elapsed().as_secs_f64(),
        });
        culprit.noticed = Some(unix_time());
        self.lose(rank, culprit);
    }

    pub(super) fn lose(&mut self, number: usize, culprit: Culprit) {
        self.dismiss(number);
        self.lost.push(culprit);
        let orders = self.membership.lose(number, self.now());
        self.carry_out(orders);
    }

    /// All the evidence, weighed: the job is over, or only what connected its ranks is broken.
    pub(super) fn conclude(&mut self, error: Error) {
        let accused = error.culprit.as_ref().map(|culprit| culprit.rank);
        let own_words = self.inquest.has_own_words();
        match accused {
            Some(number) if self.charge.elastic && !own_words => {
                self.inquest.forget();
                if !self.membership.has(number) || !self.membership.is_working() {
                    // It was lost meanwhile: there is nothing more to do about it.
                    return;
                }
                let step = error.culprit.as_ref().and_then(|culprit| culprit.step).unwrap_or(0);
                let strikes = self.strikes.entry(number).or_insert((step, 0));
                *strikes = if strikes.0 == step { (step, strikes.1 + 1) } else { (step, 1) };
                let mut culprit = error.culprit.map_or_else(Culprit::default, |culprit| *culprit);
                culprit.noticed = Some(unix_time());
                if strikes.1 > STRIKES {
                    return self.lose(number, culprit);
                }
                self.lost.push(culprit);
                let orders = self.membership.break_up(self.now());
                self.carry_out(orders);
            }
            _ => self.abort(error),
        }
    }

    pub(super) fn abort(&mut self, error: Error) {
        self.verdict = Some(Instant::now());
        let culprit = error.culprit.as_ref().map(|culprit| culprit.rank);
        for guest in self.guests.values_mut() {
            let _ = if guest.settled {
                send(&mut guest.stream, &Control::Abort(Box::new(error.clone())))
            } else {
                send(&mut guest.stream, &Answer::Refused(error.clone()))
            };
        }
        // Nobody waits for the one that cannot leave.
        if let Some(culprit) = culprit {
            self.guests.remove(&culprit);
        }
    }
}
