//! Who is lost, whether the job goes on, and who the next group is: all that is heard of the ranks, and the rules.
//!
//! Pure: it hears what ranks say and what becomes of their connections, is told the time, and answers with rulings.
//! Whoever holds the coordinator's role carries them out, on real connections (`coordinator`) or on simulated ones
//! (`engine::simulated`).

use crate::dispute;
mod progress;
#[cfg(test)]
mod tests;

use crate::inquest::{Evidence, Inquest, PATIENCE, blames_other};
use crate::membership::{Formed, Limits, Membership, Order};
use crate::rendezvous::message::Control;
use crate::rendezvous::welcome;
use crate::watch::Watch;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::{Culprit, Error, Kind};

/// Times in a row that a rank's connections may break without a step in between before it is given up.
const STRIKES: u32 = 3;

/// The same for connections that cannot be made, each of which takes the ranks a deadline to find out, and for links that
/// carry damaged bytes or stand still while both their ends make progress, within [`RECENT`] steps.
const DISPUTES: u32 = 1;

/// Steps after which an earlier dispute no longer counts against a rank.
const RECENT: u64 = 100;

/// What the job asks for.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Whether the others go on when one is lost.
    pub elastic: bool,
    /// How many there must and may be, and how long to wait for them.
    pub limits: Limits,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
    /// The wall-clock time, in seconds, at which the time that is passed in began.
    pub epoch: f64,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Ruling {
    /// Nobody speaks to this rank any more.
    Dismiss(usize),
    /// Tell the members that this generation is over, and why.
    Interrupt(u32, Box<Error>),
    /// Ask the members to report at the next boundary of steps.
    Pause,
    /// This rank is connected but makes no progress: end it, then [`Judgement::lose`] it.
    Expel(usize, Box<Culprit>),
    /// Tell these members that they are the group, and who was lost before.
    Form(Formed, Vec<Culprit>),
    /// The job is over, for all.
    Abort(Box<Error>),
}

/// All that is known of a group.
pub struct Judgement {
    rules: Rules,
    /// Who belongs to it.
    pub membership: Membership,
    /// What its ranks do.
    pub watch: Watch,
    /// What speaks against whom.
    pub inquest: Inquest,
    /// Who was lost since the last group, and how.
    pub lost: Vec<Culprit>,
    /// How often a rank's connections broke at a step.
    strikes: BTreeMap<usize, (u64, u32)>,
    /// How often a rank was part of a dispute, and the step of the last one.
    disputes: BTreeMap<usize, (u64, u32)>,
    /// Who alone said what another was dropped for: its word against a further member is not enough.
    accusers: BTreeSet<usize>,
    /// Whom the others went on without, and why.
    given_up: BTreeMap<usize, String>,
    /// Who came while the others worked.
    newcomers: BTreeSet<usize>,
    /// Who came to the group that works, or worked last.
    joined: BTreeSet<usize>,
    /// What the ranks waited in when their generation was interrupted because none made progress.
    stall: Option<Pulse>,
    /// When the members were told to leave their operations, if they were since the last group.
    interrupted: Option<Duration>,
    /// The step of the last such interruption after which all ranks reported: no rank was to blame for it.
    blameless: Option<u64>,
}

impl Judgement {
    /// Over these ranks, after that generation (0: there was none yet), before which those were `lost`; the job began
    /// with so many.
    pub fn new(
        rules: Rules,
        expected: &[usize],
        after: u32,
        lost: &[usize],
        world: usize,
        now: Duration,
    ) -> Judgement {
        Judgement {
            membership: Membership::new(expected.iter().copied(), after, rules.limits, now),
            watch: Watch::new(world, rules.step_deadline, rules.step_deadline, rules.prepare_deadline),
            inquest: Inquest::new(world, PATIENCE),
            lost: lost.iter().map(|rank| welcome::ended(*rank)).collect(),
            strikes: BTreeMap::new(),
            disputes: BTreeMap::new(),
            accusers: BTreeSet::new(),
            given_up: BTreeMap::new(),
            newcomers: BTreeSet::new(),
            joined: BTreeSet::new(),
            stall: None,
            interrupted: None,
            blameless: None,
            rules,
        }
    }

    /// A rank says something.
    pub fn hear(&mut self, number: usize, said: Control, now: Duration) -> Vec<Ruling> {
        if !self.membership.has(number) {
            return self.hear_outsider(number, &said, now);
        }
        match said {
            Control::Pulse(pulse) => {
                self.inquest.see(number, pulse.clone());
                self.watch.heard(number, now, pulse);
                Vec::new()
            }
            Control::Witness(error, pulse, source) => {
                // What a rank has from another is that one's word.
                let source = source.filter(|source| self.membership.has(*source));
                if let (Some(source), Some(accused)) = (source, &error.culprit) {
                    self.inquest.trace(number, source, accused.rank);
                }
                let rank = source.unwrap_or(number);
                self.inquest.hear(now, Evidence::Lost { rank, error: *error, pulse });
                Vec::new()
            }
            Control::Report(after, standing, pulse) => {
                self.see_waiting(&pulse);
                let orders = self.membership.report(number, after, standing, now);
                self.rule(orders, now)
            }
            Control::Failed(error, pulse) => {
                let mut rulings = vec![self.dismiss(number)];
                if self.rules.elastic && blames_other(number, &error) {
                    // It could not wait for the next group: for the others it is lost.
                    rulings.extend(self.judge(Evidence::Vanished { rank: number, pulse }, now, now));
                } else if self.can_spare(number) {
                    // The others have done without it before.
                    let cause = format!("failed: {}", error.message);
                    let noticed = Some(self.rules.epoch + now.as_secs_f64());
                    let culprit =
                        Culprit { rank: number, cause, detect_s: Some(0.0), noticed, ..Culprit::default() };
                    rulings.extend(self.lose(number, culprit, now));
                } else {
                    self.inquest.hear(now, Evidence::Failed { rank: number, error: *error, pulse });
                }
                rulings
            }
            Control::Leave | Control::Goodbye => {
                let mut rulings = vec![self.dismiss(number)];
                if said == Control::Goodbye {
                    self.watch.begin_ending(now);
                }
                let orders = self.membership.leave(number, said == Control::Goodbye, now);
                rulings.extend(self.rule(orders, now));
                rulings
            }
            Control::Interrupt(..)
            | Control::Roster(_)
            | Control::Abort(_)
            | Control::Moved
            | Control::Pause
            | Control::Probe(_)
            | Control::Probed { .. } => Vec::new(),
        }
    }

    /// One that does not belong to the group can only go: what it says of others, or of itself, changes nothing for them.
    fn hear_outsider(&mut self, number: usize, said: &Control, now: Duration) -> Vec<Ruling> {
        match said {
            Control::Failed(..) | Control::Leave | Control::Goodbye => {
                let _ = self.membership.lose(number, now);
                vec![self.dismiss(number)]
            }
            _ => Vec::new(),
        }
    }

    /// What a rank was in when it had to leave it is where the others waited for those who were lost.
    pub fn see_waiting(&mut self, pulse: &Pulse) {
        if pulse.phase != Phase::Exchanging {
            return;
        }
        for culprit in &mut self.lost {
            if culprit.step.is_none_or(|step| step <= pulse.step) {
                (culprit.step, culprit.operation) = (Some(pulse.step), Some(pulse.name.clone()));
            }
        }
    }

    fn dismiss(&mut self, number: usize) -> Ruling {
        self.watch.dismiss(number);
        Ruling::Dismiss(number)
    }

    /// A rank's connection was `seen` to close.
    pub fn close(&mut self, number: usize, seen: Duration, now: Duration) -> Vec<Ruling> {
        let pulse = self.watch.last(number).cloned().unwrap_or_default();
        let mut rulings = vec![self.dismiss(number)];
        if self.membership.generation() == 0 {
            // It may come again: the rendezvous has its own deadline, and the launcher knows whether it died.
            self.membership.expect(number);
        } else if self.membership.has(number) {
            rulings.extend(self.judge(Evidence::Vanished { rank: number, pulse }, seen, now));
        } else {
            let _ = self.membership.lose(number, now);
        }
        rulings
    }

    /// Evidence that a rank is lost: the others go on without it at once, or it joins the rest of the evidence.
    fn judge(&mut self, evidence: Evidence, seen: Duration, now: Duration) -> Vec<Ruling> {
        let rank = match &evidence {
            Evidence::Vanished { rank, .. }
            | Evidence::Silent { rank, .. }
            | Evidence::Stuck { rank, .. }
                if self.rules.elastic =>
            {
                *rank
            }
            _ => {
                self.inquest.hear(now, evidence);
                return Vec::new();
            }
        };
        let mut culprit =
            self.inquest.explain(&evidence).culprit.map_or_else(Culprit::default, |culprit| *culprit);
        culprit.detect_s = Some(match &evidence {
            Evidence::Silent { seconds, .. } => *seconds,
            Evidence::Stuck { pulse, .. } => pulse.since,
            _ => now.saturating_sub(seen).as_secs_f64(),
        });
        culprit.noticed = Some(self.rules.epoch + now.as_secs_f64());
        match evidence {
            Evidence::Stuck { .. } => vec![Ruling::Expel(rank, Box::new(culprit))],
            _ => self.lose(rank, culprit, now),
        }
    }

    /// Whether a rank came while the others worked, and they can go on without it whatever became of it.
    fn can_spare(&self, number: usize) -> bool {
        self.rules.elastic && self.newcomers.contains(&number) && self.membership.len() > 1
    }

    /// Why the others went on without a rank, if they did.
    pub fn fate(&self, number: usize) -> Option<&str> {
        self.given_up.get(&number).map(String::as_str)
    }

    /// A rank is lost, and it is known how.
    pub fn lose(&mut self, number: usize, culprit: Culprit, now: Duration) -> Vec<Ruling> {
        let mut rulings = vec![self.dismiss(number)];
        if self.membership.has(number) {
            self.given_up.insert(number, culprit.cause.clone());
        }
        self.lost.push(culprit);
        let orders = self.membership.lose(number, now);
        rulings.extend(self.rule(orders, now));
        rulings
    }

    /// What is due without anybody saying anything.
    pub fn look_after(&mut self, now: Duration) -> Vec<Ruling> {
        let mut rulings = Vec::new();
        if !self.inquest.is_settled()
            && let Some(evidence) = self.watch.verdict(now)
        {
            rulings.extend(self.judge(evidence, now, now));
        }
        if let Some(error) = self.inquest.conclude(now) {
            rulings.extend(self.conclude(error, now));
        }
        rulings.extend(self.interrupt_stalled(now));
        rulings.extend(self.expel_unreported(now));
        let orders = self.membership.settle(now);
        rulings.extend(self.rule(orders, now));
        rulings
    }

    /// All the evidence, weighed: the job is over, or only what connected its ranks is broken.
    fn conclude(&mut self, error: Error, now: Duration) -> Vec<Ruling> {
        let hasty = self.inquest.hasty(self.membership.members(), self.watch.deadline());
        let error = hasty.map_or_else(|| error.clone(), |rank| dispute::hasty(rank, &error));
        let accused = error.culprit.as_ref().map(|culprit| culprit.rank);
        let own_words = self.inquest.has_own_words();
        let dropped = dispute::dropped(&self.inquest.disputes(), self.membership.len(), &self.joined);
        if let Some(number) =
            dropped.filter(|number| self.rules.elastic && !own_words && self.membership.has(*number))
        {
            self.inquest.forget();
            let noticed = Some(self.rules.epoch + now.as_secs_f64());
            let culprit = Culprit { noticed, ..dispute::culprit(number, &error) };
            return self.lose(number, culprit, now);
        }
        match accused {
            Some(number) if self.rules.elastic && !own_words => {
                let witnesses = self.inquest.witnesses(number);
                self.inquest.forget();
                if !self.membership.has(number) || !self.membership.is_working() {
                    // It is gone, or others have come to a boundary already where they meet anew: nobody is to blame, but
                    // whoever still waits must not go on doing so.
                    let orders = self.membership.break_up(now);
                    return self.rule(orders, now);
                }
                let step = error.culprit.as_ref().and_then(|culprit| culprit.step).unwrap_or(0);
                let mut culprit = error.culprit.clone().map_or_else(Culprit::default, |culprit| *culprit);
                culprit.noticed = Some(self.rules.epoch + now.as_secs_f64());
                if self.is_beyond_repair(number, step, &error) {
                    let suspects: BTreeSet<usize> = self.newcomers.union(&self.accusers).copied().collect();
                    let weaker = dispute::weaker(number, &witnesses, &suspects);
                    self.accusers.extend(witnesses.iter().filter(|_| witnesses.len() == 1));
                    let culprit = if weaker == number { culprit } else { dispute::culprit(weaker, &error) };
                    return self.lose(weaker, culprit, now);
                }
                self.lost.push(culprit);
                let orders = self.membership.break_up(now);
                self.rule(orders, now)
            }
            _ => vec![Ruling::Abort(Box::new(error))],
        }
    }

    /// Counts what is said of a rank: whether the next group goes on without it. A connection may break and is made again; a
    /// frame that does not belong where it came is sent by a member that is not to be trusted.
    fn is_beyond_repair(&mut self, number: usize, step: u64, error: &Error) -> bool {
        if dispute::is_breach(error) {
            return true;
        }
        let disputed = dispute::is_one(error) || dispute::is_late(error);
        let (limit, window) = if disputed { (DISPUTES, RECENT) } else { (STRIKES, 0) };
        let strikes = if disputed { &mut self.disputes } else { &mut self.strikes };
        let (last, count) = strikes.entry(number).or_insert((step, 0));
        *count = if step.saturating_sub(*last) <= window { *count + 1 } else { 1 };
        *last = step;
        *count > limit
    }

    /// What the membership's orders come to.
    pub fn rule(&mut self, orders: Vec<Order>, now: Duration) -> Vec<Ruling> {
        let mut rulings = Vec::new();
        for order in orders {
            rulings.push(match order {
                Order::Interrupt(generation) => {
                    self.inquest.forget();
                    self.interrupted.get_or_insert(now);
                    let why = welcome::interruption(self.lost.last(), self.stall.as_ref());
                    Ruling::Interrupt(generation, Box::new(why))
                }
                Order::Pause => Ruling::Pause,
                Order::Expel { number, why } => {
                    rulings.extend(self.expel(number, why, now));
                    continue;
                }
                Order::Form(formed) => self.form(formed, now),
                Order::GiveUp { present } => {
                    Ruling::Abort(Box::new(welcome::too_few(present, self.rules.limits, &self.lost)))
                }
            });
        }
        rulings
    }

    /// A member broke the protocol: the others go on without it or, where they cannot, the job ends and names it.
    fn expel(&mut self, number: usize, why: String, now: Duration) -> Vec<Ruling> {
        let cause = format!("broke the protocol: {why}");
        let noticed = Some(self.rules.epoch + now.as_secs_f64());
        let culprit = Culprit { rank: number, cause, detect_s: Some(0.0), noticed, ..Culprit::default() };
        if self.rules.elastic {
            return self.lose(number, culprit, now);
        }
        let message = format!("{} {}", self.inquest.who(number), culprit.cause);
        vec![Ruling::Abort(Box::new(Error::new(Kind::RankFailed, message).blame(culprit)))]
    }

    fn form(&mut self, formed: Formed, now: Duration) -> Ruling {
        // One that was lost while the others had left their operations already was waited for in none but this.
        let positions = formed.members.values().filter_map(|standing| standing.position);
        let step = positions.map(|position| position.step).max();
        let told = self.lost.iter().find_map(|culprit| culprit.operation.clone());
        for culprit in self.lost.iter_mut().filter(|culprit| culprit.operation.is_none()) {
            culprit.operation = told.clone().or_else(|| Some("forming of the group".into()));
            culprit.step = culprit.step.or(step).or(Some(0));
        }
        self.interrupted = None;
        let stall = self.stall.take();
        self.blameless = stall.filter(|_| self.lost.is_empty()).map(|stall| stall.step).or(self.blameless);
        // What was heard so far is about the group that is over: ranks speak before they report.
        self.inquest.forget();
        self.newcomers.extend(&formed.joined);
        self.joined = formed.joined.iter().copied().collect();
        formed.members.keys().for_each(|number| drop(self.given_up.remove(number)));
        formed.members.keys().for_each(|number| self.watch.expect(*number, now, Phase::Preparing));
        Ruling::Form(formed, std::mem::take(&mut self.lost))
    }
}
