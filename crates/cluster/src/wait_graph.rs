//! Which rank holds up the others, from whom each rank waits for: a pure decision that needs no count common to all
//! ranks, so that it holds for collectives, for messages between two ranks and for strategies without any collective.
//!
//! A rank makes progress, or it stands without waiting, or it waits: for all of a set, or for any of a set. A rank is
//! *blocked* if
//!
//! - it stands without waiting,
//! - it waits for all of a set, and one of them is blocked, or
//! - no path of waits that avoids blocked ranks leads from it to a rank that makes progress.
//!
//! The blocked ranks that do not wait are to blame, if a blocked rank waits for them. If there is none, the paths end in
//! a deadlock: ranks that wait for each other and for no other rank.
//!
//! A cycle of ranks that also wait for one that makes progress is no deadlock yet: a rank with several operations in
//! flight waits for the peers of all of them, and each operation can advance by itself.

#[cfg(test)]
mod tests;

use crate::rank_set::RankSet;

/// What a rank does, as far as others wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Makes progress, or has time left: it is not to blame, and a wait for it may end.
    Progressing,
    /// Makes no progress and waits for no rank: it computes, is silent, or does not poll.
    Standing,
    /// Goes on when all of these have done their part.
    WaitsForAll(RankSet),
    /// Goes on when any of these has done its part.
    WaitsForAny(RankSet),
}

impl Activity {
    /// The ranks waited for.
    fn awaited(&self) -> Option<&RankSet> {
        match self {
            Activity::WaitsForAll(ranks) | Activity::WaitsForAny(ranks) => Some(ranks),
            Activity::Progressing | Activity::Standing => None,
        }
    }

    /// Whether a blocked rank that it waits for blocks this one, whatever the others do.
    fn is_blocked_by(&self, blocked: &RankSet) -> bool {
        matches!(self, Activity::WaitsForAll(ranks) if ranks.intersects(blocked))
    }
}

/// Who holds up the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No wait is without prospect.
    NoneBlocked,
    /// Blocked ranks wait for these, which do not wait themselves. Ascending.
    Ranks(Vec<usize>),
    /// These wait for each other. Ascending.
    Deadlock(Vec<usize>),
}

/// The verdict on ranks with these activities, by id.
pub fn judge(ranks: &[Activity]) -> Verdict {
    let blocked = blocked_ranks(ranks);
    let waits = |rank: usize| ranks[rank].awaited().is_some_and(|awaited| awaited.intersects(&blocked));
    let awaited = |rank: &usize| {
        let mut sets = blocked.iter().filter_map(|waiting| ranks[waiting].awaited());
        sets.any(|set| set.contains(*rank))
    };
    let to_blame: Vec<usize> = blocked.iter().filter(|rank| !waits(*rank)).filter(awaited).collect();
    if !to_blame.is_empty() {
        return Verdict::Ranks(to_blame);
    }
    let first = blocked.iter().find(|rank| waits(*rank));
    first.map_or(Verdict::NoneBlocked, |rank| Verdict::Deadlock(follow(ranks, &blocked, rank)))
}

/// The ranks that wait for one of `targets` without prospect, directly or through others.
pub fn waiting_for(ranks: &[Activity], targets: &[usize]) -> Vec<usize> {
    leading_to(ranks, &blocked_ranks(ranks), targets).iter().filter(|rank| !targets.contains(rank)).collect()
}

/// See the head of the module. Blocked ranks cut paths, which blocks more ranks, until nothing changes.
fn blocked_ranks(ranks: &[Activity]) -> RankSet {
    let all = || ranks.iter().enumerate();
    let mut blocked: RankSet =
        all().filter(|(_, activity)| **activity == Activity::Standing).map(|(rank, _)| rank).collect();
    loop {
        let hopeful = hopeful_ranks(ranks, &blocked);
        let is_blocked = |(rank, activity): &(usize, &Activity)| {
            blocked.contains(*rank) || !hopeful.contains(*rank) || activity.is_blocked_by(&blocked)
        };
        let more: RankSet = all().filter(is_blocked).map(|(rank, _)| rank).collect();
        if more == blocked {
            return blocked;
        }
        blocked = more;
    }
}

/// The ranks from which a path of waits that avoids blocked ranks leads to one that makes progress.
fn hopeful_ranks(ranks: &[Activity], blocked: &RankSet) -> RankSet {
    let mut hopeful = RankSet::default();
    loop {
        let mut grown = false;
        for (rank, activity) in ranks.iter().enumerate().filter(|(rank, _)| !blocked.contains(*rank)) {
            let has_path = match activity.awaited() {
                Some(awaited) => awaited.intersects(&hopeful),
                None => true,
            };
            grown |= has_path && hopeful.insert(rank);
        }
        if !grown {
            return hopeful;
        }
    }
}

/// Follows the waits of a blocked rank to ranks that wait for each other only.
fn follow(ranks: &[Activity], blocked: &RankSet, mut rank: usize) -> Vec<usize> {
    loop {
        let members = reachable(ranks, blocked, rank);
        let leading_back = leading_to(ranks, blocked, &[rank]);
        // What a rank without a way back reaches is a part of this set without `rank`, so this ends.
        match members.iter().find(|next| !leading_back.contains(*next)) {
            Some(next) => rank = next,
            None => return members.iter().collect(),
        }
    }
}

/// The blocked ranks that `rank` waits for, directly or through others; itself included, if they wait for it.
fn reachable(ranks: &[Activity], blocked: &RankSet, rank: usize) -> RankSet {
    let (mut found, mut open) = (RankSet::default(), vec![rank]);
    while let Some(rank) = open.pop() {
        let awaited = ranks[rank].awaited().into_iter().flat_map(RankSet::iter);
        for next in awaited.filter(|next| blocked.contains(*next)) {
            if found.insert(next) {
                open.push(next);
            }
        }
    }
    found
}

/// These ranks, and the blocked ranks that wait for one of them, directly or through others.
fn leading_to(ranks: &[Activity], blocked: &RankSet, targets: &[usize]) -> RankSet {
    let mut found: RankSet = targets.iter().copied().collect();
    loop {
        let waits = |rank: &usize| ranks[*rank].awaited().is_some_and(|awaited| awaited.intersects(&found));
        let fresh: Vec<usize> = blocked.iter().filter(|rank| !found.contains(*rank)).filter(waits).collect();
        if fresh.is_empty() {
            return found;
        }
        found.extend(fresh);
    }
}
