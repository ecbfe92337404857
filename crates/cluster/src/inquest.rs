//! Why a job ended: the evidence of all witnesses, weighed. Pure; the launcher and the coordinator both ask it.
//!
//! A rank's own words about its own failure weigh most, then what the kernel says about its end, then its silence,
//! then a broken connection, then what others say about it. Weak evidence waits a moment for stronger.

mod hearsay;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::{Culprit, Error, Kind};

/// Something a witness saw.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// A rank gives up and says why.
    Failed {
        /// Who says it.
        rank: usize,
        /// Its words.
        error: Error,
        /// What it was doing.
        pulse: Pulse,
    },
    /// An operation of a rank with others failed, and it does not know why yet.
    Lost {
        /// Whose.
        rank: usize,
        /// What it saw.
        error: Error,
        /// What it was doing.
        pulse: Pulse,
    },
    /// The kernel says that a rank's process ended, without a word of its own.
    Exited {
        /// Whose.
        rank: usize,
        /// `was killed by signal 9 (SIGKILL)`.
        how: String,
        /// What it was doing when last heard of.
        pulse: Pulse,
    },
    /// No sign of life for too long.
    Silent {
        /// Whose.
        rank: usize,
        /// For how long.
        seconds: f64,
        /// What it was doing when last heard of.
        pulse: Pulse,
    },
    /// Alive, but holding up the others for too long.
    Stuck {
        /// Who.
        rank: usize,
        /// What it is doing.
        pulse: Pulse,
    },
    /// Its connection closed without a goodbye.
    Vanished {
        /// Whose.
        rank: usize,
        /// What it was doing when last heard of.
        pulse: Pulse,
    },
}

/// How long weak evidence waits for stronger.
pub const PATIENCE: Duration = Duration::from_millis(300);

/// How long the launcher, which hears the coordinator's verdict from its ranks, waits for it when all it has is what a
/// rank saw.
pub const PATIENCE_FOR_A_VERDICT: Duration = Duration::from_secs(1);

/// What to do about a rank that does not get done with its data.
const PREPARING: &str = "look at the disk or network file system it reads from; fault.prepare_deadline sets how long the others wait";

/// Collects evidence and comes to a verdict.
pub struct Inquest {
    /// Host and process of each rank, as far as known: `box (pid 17)`.
    names: Vec<Option<String>>,
    /// What each rank was doing when last heard of.
    pulses: Vec<Pulse>,
    evidence: Vec<(Duration, Evidence)>,
    /// From whom a rank has it that another was lost: the witness and the accused, then the source.
    sources: BTreeMap<(usize, usize), usize>,
    /// How long what a rank saw waits for anything better.
    patience: Duration,
}

impl Inquest {
    /// Over so many ranks; what a rank saw waits so long for anything better.
    pub fn new(world: usize, patience: Duration) -> Inquest {
        let pulses = vec![Pulse::default(); world];
        let (evidence, sources) = (Vec::new(), BTreeMap::new());
        Inquest { names: vec![None; world], pulses, evidence, sources, patience }
    }

    /// Where a rank runs.
    pub fn name(&mut self, rank: usize, name: String) {
        if rank >= self.names.len() {
            // Somebody who joined later.
            self.names.resize(rank + 1, None);
            self.pulses.resize(rank + 1, Pulse::default());
        }
        self.names[rank] = Some(name);
    }

    /// `rank 3 on box (pid 17)`.
    pub fn who(&self, rank: usize) -> String {
        let on = self
            .names
            .get(rank)
            .and_then(Option::as_ref)
            .map_or(String::new(), |place| format!(" on {place}"));
        format!("rank {rank}{on}")
    }

    /// What a rank is doing.
    pub fn see(&mut self, rank: usize, pulse: Pulse) {
        if let Some(slot) = self.pulses.get_mut(rank) {
            *slot = pulse;
        }
    }

    /// Hears a witness.
    pub fn hear(&mut self, now: Duration, evidence: Evidence) {
        self.evidence.push((now, evidence));
    }

    /// What was heard so far is about a group that is over.
    pub fn forget(&mut self) {
        self.evidence.clear();
        self.sources.clear();
    }

    /// Whether a rank has said that it failed, and does not blame another for it.
    pub fn has_own_words(&self) -> bool {
        self.evidence.iter().any(|(_, evidence)| self.weight(evidence).0 == 0)
    }

    /// Whether the evidence so far is more than hearsay.
    pub fn is_settled(&self) -> bool {
        self.evidence.iter().any(|(_, evidence)| self.weight(evidence).0 <= 2)
    }

    /// The verdict, once the evidence is strong enough or old enough.
    pub fn conclude(&self, now: Duration) -> Option<Error> {
        let (since, _) = self.evidence.first()?;
        let best = self
            .evidence
            .iter()
            .map(|(_, evidence)| evidence)
            .min_by_key(|evidence| self.weight(evidence))?;
        let patience = if matches!(best, Evidence::Lost { .. }) { self.patience } else { PATIENCE };
        let ripe = now.saturating_sub(*since) >= patience;
        // Even the strongest evidence waits until the others have said what they waited in, or the patience is over.
        let seen = matches!(best, Evidence::Silent { .. } | Evidence::Stuck { .. });
        let tells = |evidence: &Evidence| match evidence {
            Evidence::Failed { error, rank, .. } => blames_other(*rank, error),
            evidence => matches!(evidence, Evidence::Lost { .. }),
        };
        let witnesses = seen || self.evidence.iter().any(|(_, evidence)| tells(evidence));
        (ripe || (self.is_settled() && (witnesses || self.weight(best).0 == 0 || self.names.len() == 1)))
            .then(|| {
                let mut error = self.explain(best);
                if let Some(culprit) = &mut error.culprit {
                    culprit.detect_s = Some(match best {
                        Evidence::Silent { seconds, .. } => *seconds,
                        Evidence::Stuck { pulse, .. } => pulse.since,
                        _ => now.saturating_sub(*since).as_secs_f64(),
                    });
                }
                error
            })
    }

    /// How little a piece of evidence weighs: the smallest wins, lower ranks first. Of those who vanished it is the first
    /// one that had not seen another vanish before: the launcher of a lost rank ends its neighbours too.
    /// Of those who lost another it is one whose culprit has lost nobody itself, for the others only waited in a chain; then
    /// one whom most accuse, for who is alone elsewhere accuses another, too; then what a rank saw itself.
    fn weight(&self, evidence: &Evidence) -> (u8, bool, Reverse<usize>, bool, usize) {
        let nobody = Reverse(0);
        match evidence {
            Evidence::Failed { rank, error, .. } if !blames_other(*rank, error) => {
                (0, false, nobody, false, *rank)
            }
            Evidence::Exited { rank, .. } => (1, false, nobody, false, *rank),
            Evidence::Silent { rank, .. } | Evidence::Stuck { rank, .. } => (2, false, nobody, false, *rank),
            Evidence::Vanished { rank, .. } => (3, self.has_spoken(*rank), nobody, false, 0),
            Evidence::Failed { rank, .. } => (4, false, nobody, false, *rank),
            Evidence::Lost { rank, error, .. } => {
                let accused = error.culprit.as_ref().map(|culprit| culprit.rank);
                let excused = accused.is_none_or(|accused| self.has_spoken(accused));
                (5, excused, Reverse(self.accusers(accused)), hearsay::is_one(error), *rank)
            }
        }
    }

    /// How many say that they lost this rank.
    fn accusers(&self, accused: Option<usize>) -> usize {
        let accuses = |error: &Error| error.culprit.as_ref().map(|culprit| culprit.rank) == accused;
        let lost = |(_, evidence): &&(Duration, Evidence)| matches!(evidence, Evidence::Lost { error, .. } if accuses(error));
        self.evidence.iter().filter(lost).count()
    }

    /// Whether a rank has said that it lost another.
    fn has_spoken(&self, witness: usize) -> bool {
        self.evidence.iter().any(|(_, evidence)| {
            matches!(evidence, Evidence::Lost { rank, .. } | Evidence::Failed { rank, .. } if *rank == witness)
        })
    }

    /// What a single piece of evidence says, by itself.
    pub fn explain(&self, best: &Evidence) -> Error {
        let (rank, cause, pulse) = match best {
            Evidence::Failed { error, pulse, .. } | Evidence::Lost { error, pulse, .. } => {
                return self.complete(error.clone(), pulse);
            }
            Evidence::Exited { rank, how, pulse } => (*rank, how.clone(), pulse),
            Evidence::Silent { rank, seconds, pulse } => (
                *rank,
                format!("has been silent for {seconds:.1} s (stopped, swapped out or unreachable)"),
                pulse,
            ),
            Evidence::Stuck { rank, pulse } => (
                *rank,
                format!("has been busy with {} for {:.1} s while the others waited", pulse.name, pulse.since),
                pulse,
            ),
            Evidence::Vanished { rank, pulse } => {
                (*rank, "vanished: its connection closed without a goodbye".into(), pulse)
            }
        };
        let place = self.names.get(rank).cloned().flatten();
        let waited = self.waited_for(rank);
        // The culprit's last pulse may be a moment old; those who waited know in which step they did.
        let step = waited.as_ref().map_or(0, |(_, wait)| wait.step).max(pulse.step);
        let preparing = matches!(best, Evidence::Stuck { .. }) && pulse.phase == Phase::Preparing;
        let at = match (pulse.phase, step) {
            (_, 0) if preparing => String::new(),
            (Phase::Starting | Phase::Preparing, 0) => " while it was starting".to_string(),
            _ => format!(" at step {step}"),
        };
        let mut message = format!("{} {cause}{at}", self.who(rank));
        if let Some((ranks, wait)) = &waited {
            message += &format!("; {} waited for it in {}", crate::rendezvous::ranks(ranks), wait.name);
        }
        // A rank that is silent before the ranks have met did not arrive.
        let arriving = matches!(best, Evidence::Silent { .. }) && pulse.phase == Phase::Starting;
        let kind = if arriving { Kind::Rendezvous } else { Kind::RankFailed };
        let error = Error::new(kind, message).blame(Culprit {
            rank,
            host: place.map(|place| place.split(' ').next().unwrap_or("").to_string()),
            step: Some(step),
            operation: Some(waited.map_or(pulse, |(_, wait)| wait).name.clone()),
            cause,
            detect_s: None,
            noticed: None,
        });
        if preparing { error.hint(PREPARING) } else { error }
    }

    /// What a witness says of another, and what that one was in, if it was the same operation by another name: a rank
    /// knows only its own.
    fn complete(&self, mut error: Error, pulse: &Pulse) -> Error {
        let Some(accused) = error.culprit.as_ref().map(|culprit| culprit.rank) else { return error };
        let said = self.evidence.iter().find_map(|(_, evidence)| match evidence {
            Evidence::Failed { rank, pulse, .. } | Evidence::Lost { rank, pulse, .. } if *rank == accused => {
                Some(pulse)
            }
            _ => None,
        });
        let theirs = said.or_else(|| self.pulses.get(accused));
        let place = |pulse: &Pulse| (pulse.phase == Phase::Exchanging, pulse.operation);
        if let Some(theirs) =
            theirs.filter(|theirs| place(theirs) == place(pulse) && theirs.name != pulse.name)
        {
            error.message += &format!("; rank {accused} was in {}", theirs.name);
        }
        error
    }

    /// The ranks that waited for the culprit, and in which operation: as they say themselves, or as last seen. What one
    /// of them was last seen in may be over; the latest operation is the one they ended in.
    fn waited_for(&self, culprit: usize) -> Option<(Vec<usize>, &Pulse)> {
        let said = self.evidence.iter().filter_map(|(_, evidence)| match evidence {
            Evidence::Failed { rank, pulse, .. } | Evidence::Lost { rank, pulse, .. } => Some((*rank, pulse)),
            _ => None,
        });
        let waiting: Vec<(usize, &Pulse)> = said
            .chain(self.pulses.iter().enumerate())
            .filter(|(rank, pulse)| *rank != culprit && pulse.phase == Phase::Exchanging)
            .collect();
        let (_, latest) = waiting.iter().max_by_key(|(_, pulse)| pulse.operation)?;
        let mut ranks: Vec<usize> = waiting.iter().map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        Some((ranks, latest))
    }
}

/// Whether a rank only reports that another one failed it.
pub fn blames_other(rank: usize, error: &Error) -> bool {
    match &error.culprit {
        Some(culprit) => culprit.rank != rank,
        None => matches!(error.kind, Kind::RankFailed | Kind::Interrupted),
    }
}

/// A rank's error about itself gets its name on it; what it says about others stays as it is.
pub fn sign(mut error: Error, rank: usize, world: usize, host: &str, pulse: &Pulse) -> Error {
    if error.culprit.is_some() || error.kind == Kind::RankFailed || error.kind == Kind::Rendezvous {
        return error;
    }
    error.culprit = Some(Box::new(Culprit {
        rank,
        host: Some(host.into()),
        step: Some(pulse.step),
        operation: Some(pulse.name.clone()),
        cause: error.message.clone(),
        detect_s: None,
        noticed: None,
    }));
    if world > 1 {
        error.message = format!("rank {rank}: {}", error.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchanging() -> Pulse {
        Pulse {
            step: 40,
            phase: Phase::Exchanging,
            operation: 41,
            name: "all-reduce of gradients".into(),
            since: 0.1,
            ..Pulse::default()
        }
    }

    fn blames(rank: usize) -> Error {
        Error::new(Kind::RankFailed, format!("lost rank {rank}"))
            .blame(Culprit { rank, ..Culprit::default() })
    }

    const T0: Duration = Duration::from_secs(1);

    #[test]
    fn a_kill_names_rank_signal_step_and_what_the_others_waited_in() {
        let mut inquest = Inquest::new(3, PATIENCE);
        inquest.name(1, "box (pid 17)".into());
        inquest.hear(T0, Evidence::Failed { rank: 0, error: blames(1), pulse: exchanging() });
        assert_eq!(inquest.conclude(T0), None, "hearsay waits for the kernel");
        let how = "was killed by signal 9 (SIGKILL)".to_string();
        inquest.hear(
            T0,
            Evidence::Exited { rank: 1, how, pulse: Pulse { phase: Phase::Computing, ..exchanging() } },
        );
        let error = inquest.conclude(T0).unwrap();
        assert_eq!(
            error.message,
            "rank 1 on box (pid 17) was killed by signal 9 (SIGKILL) at step 40; rank 0 waited for it in all-reduce of gradients"
        );
        assert_eq!(error.exit_code(), 3);
        assert_eq!(error.culprit.unwrap().rank, 1);
    }

    #[test]
    fn the_end_of_a_chain_of_waiting_is_named() {
        let mut inquest = Inquest::new(4, PATIENCE);
        for rank in 0..3 {
            inquest.hear(T0, Evidence::Lost { rank, error: blames(rank + 1), pulse: exchanging() });
        }
        assert_eq!(inquest.conclude(T0 + PATIENCE).unwrap().culprit.unwrap().rank, 3);
    }

    #[test]
    fn who_is_in_another_operation_says_itself_in_which() {
        let mut inquest = Inquest::new(2, PATIENCE);
        let elsewhere = Pulse { name: "all-reduce of means".into(), ..exchanging() };
        inquest.hear(T0, Evidence::Lost { rank: 0, error: blames(1), pulse: exchanging() });
        inquest.hear(T0, Evidence::Lost { rank: 1, error: blames(0), pulse: elsewhere.clone() });
        let words = inquest.conclude(T0 + PATIENCE).unwrap().message;
        assert_eq!(words, "lost rank 1; rank 1 was in all-reduce of means");
        inquest.forget();
        inquest.see(1, Pulse { operation: 7, ..elsewhere });
        inquest.hear(T0, Evidence::Lost { rank: 0, error: blames(1), pulse: exchanging() });
        assert_eq!(
            inquest.conclude(T0 + PATIENCE).unwrap().message,
            "lost rank 1",
            "it was in another before"
        );
    }

    #[test]
    fn who_is_alone_elsewhere_is_named_and_not_the_lowest_of_the_others() {
        let mut inquest = Inquest::new(3, PATIENCE);
        for (rank, accused) in [(0, 1), (1, 0), (2, 0)] {
            inquest.hear(T0, Evidence::Lost { rank, error: blames(accused), pulse: exchanging() });
        }
        let verdict = inquest.conclude(T0 + PATIENCE).expect("all have spoken");
        assert_eq!(verdict.culprit.map(|culprit| culprit.rank), Some(0));
    }

    #[test]
    fn a_ranks_own_words_win_over_everything() {
        let mut inquest = Inquest::new(2, PATIENCE);
        inquest.hear(T0, Evidence::Vanished { rank: 1, pulse: exchanging() });
        inquest.hear(T0, Evidence::Failed { rank: 0, error: blames(1), pulse: exchanging() });
        let own = sign(Error::data("people.csv line 17: `abc` is not a number"), 1, 2, "box", &exchanging());
        // Whoever hears it repeats it, and is not taken for its author.
        inquest.hear(T0, Evidence::Failed { rank: 0, error: own.clone(), pulse: exchanging() });
        inquest.hear(T0, Evidence::Failed { rank: 1, error: own, pulse: exchanging() });
        let error = inquest.conclude(T0).unwrap();
        assert_eq!(error.message, "rank 1: people.csv line 17: `abc` is not a number");
        assert_eq!(error.culprit.unwrap().rank, 1);
    }

    #[test]
    fn hearsay_alone_counts_after_the_patience() {
        let mut inquest = Inquest::new(2, PATIENCE);
        inquest.hear(T0, Evidence::Failed { rank: 0, error: blames(1), pulse: exchanging() });
        assert_eq!(inquest.conclude(T0 + PATIENCE).unwrap().culprit.unwrap().rank, 1);
    }

    #[test]
    fn a_verdict_outweighs_what_a_rank_saw() {
        let mut inquest = Inquest::new(4, PATIENCE_FOR_A_VERDICT);
        inquest.hear(T0, Evidence::Lost { rank: 0, error: blames(2), pulse: exchanging() });
        assert_eq!(inquest.conclude(T0 + PATIENCE), None, "the coordinator needs that long itself");
        let verdict = blames(3);
        inquest.hear(T0 + PATIENCE, Evidence::Failed { rank: 1, error: verdict, pulse: exchanging() });
        assert_eq!(inquest.conclude(T0 + PATIENCE).unwrap().culprit.unwrap().rank, 3);
    }

    #[test]
    fn the_first_to_vanish_is_named_and_not_those_who_followed() {
        let vanished = |rank| Evidence::Vanished { rank, pulse: exchanging() };
        let lost = Evidence::Lost { rank: 2, error: blames(3), pulse: exchanging() };
        let blamed = |evidence: [Evidence; 3]| {
            let mut inquest = Inquest::new(4, PATIENCE);
            evidence.into_iter().for_each(|evidence| inquest.hear(T0, evidence));
            inquest.conclude(T0 + PATIENCE).unwrap().culprit.unwrap().rank
        };
        assert_eq!(blamed([vanished(3), vanished(2), vanished(1)]), 3);
        assert_eq!(blamed([lost, vanished(2), vanished(3)]), 3, "2 lived to see that 3 was gone");
    }

    #[test]
    fn the_silent_rank_is_named() {
        let mut inquest = Inquest::new(3, PATIENCE);
        inquest.hear(T0, Evidence::Silent { rank: 2, seconds: 2.0, pulse: exchanging() });
        inquest.see(0, exchanging());
        let error = inquest.conclude(T0 + PATIENCE).unwrap();
        assert!(error.message.starts_with("rank 2 has been silent for 2.0 s"), "{}", error.message);
        assert!(
            error.message.ends_with("rank 0 waited for it in all-reduce of gradients"),
            "{}",
            error.message
        );
    }
}
