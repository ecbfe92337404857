use super::Activity::{Progressing, Standing, WaitsForAll, WaitsForAny};
use super::*;
use proptest::prelude::*;

fn set(ranks: &[usize]) -> RankSet {
    ranks.iter().copied().collect()
}

fn all(ranks: &[usize]) -> Activity {
    WaitsForAll(set(ranks))
}

fn any(ranks: &[usize]) -> Activity {
    WaitsForAny(set(ranks))
}

#[test]
fn a_wait_is_followed_to_the_rank_that_does_not_wait() {
    let chain = [all(&[1]), all(&[2]), all(&[3]), Standing];
    assert_eq!(judge(&chain), Verdict::Ranks(vec![3]));
    assert_eq!(waiting_for(&chain, &[3]), [0, 1, 2]);
    assert_eq!(judge(&[all(&[1]), all(&[2]), all(&[3]), Progressing]), Verdict::NoneBlocked);
    assert_eq!(judge(&[Standing, Standing, Progressing]), Verdict::NoneBlocked, "no rank waits");
    // Ranks without a common operation: two pairs and a rank apart from both.
    let pairs = [all(&[1]), Standing, all(&[3]), Progressing, Standing];
    assert_eq!((judge(&pairs), waiting_for(&pairs, &[1])), (Verdict::Ranks(vec![1]), vec![0]));
}

#[test]
fn a_cycle_is_a_deadlock_of_its_members_alone() {
    let cycle = [all(&[2]), all(&[0]), all(&[3]), all(&[0]), Progressing];
    assert_eq!(judge(&cycle), Verdict::Deadlock(vec![0, 2, 3]), "rank 1 only waits for a member");
    assert_eq!(judge(&[all(&[1]), any(&[0])]), Verdict::Deadlock(vec![0, 1]));
    let with_exit = |exit| judge(&[all(&[1, 2]), all(&[0]), exit]);
    assert_eq!(with_exit(Standing), Verdict::Ranks(vec![2]));
    assert_eq!(with_exit(Progressing), Verdict::NoneBlocked, "each operation can advance by itself");
}

#[test]
fn any_of_blames_only_if_all_candidates_are_blocked() {
    assert_eq!(judge(&[any(&[1, 2]), Standing, Progressing]), Verdict::NoneBlocked);
    assert_eq!(judge(&[any(&[1, 2]), Standing, Standing]), Verdict::Ranks(vec![1, 2]));
    assert_eq!(judge(&[any(&[1, 2]), Standing, all(&[0])]), Verdict::Ranks(vec![1]));
    assert_eq!(judge(&[all(&[1, 2]), Standing, Progressing]), Verdict::Ranks(vec![1]));
    // Two that wait for any of the other and a rank that waits for a standing one: its progress does not help.
    let behind = [any(&[1, 2]), any(&[0]), all(&[3, 4]), Progressing, Standing];
    assert_eq!(judge(&behind), Verdict::Ranks(vec![4]));
}

#[test]
fn a_wait_for_nothing_is_no_wait() {
    assert_eq!(judge(&[all(&[1]), all(&[])]), Verdict::Ranks(vec![1]));
    assert_eq!(judge(&[all(&[1]), any(&[99])]), Verdict::Ranks(vec![1]));
    assert_eq!((judge(&[]), judge(&[any(&[])])), (Verdict::NoneBlocked, Verdict::NoneBlocked));
}

/// The definition, word by word: the intersection of all sets that are closed under its three rules.
mod definition {
    use super::*;

    /// By rank, the ranks waited for as bits; `None` if it does not wait.
    fn awaited(activity: &Activity) -> Option<usize> {
        activity.awaited().map(|ranks| ranks.iter().map(|rank| 1 << rank).sum())
    }

    fn is_closed(ranks: &[Activity], candidate: usize) -> bool {
        let has = |rank: usize| candidate & (1 << rank) != 0;
        (0..ranks.len()).filter(|rank| !has(*rank)).all(|rank| match &ranks[rank] {
            Standing => false,
            WaitsForAll(_) if awaited(&ranks[rank]).is_some_and(|bits| bits & candidate != 0) => false,
            _ => has_path(ranks, rank, candidate),
        })
    }

    /// Whether a simple path that avoids `cut` leads from a rank to one that makes progress.
    fn has_path(ranks: &[Activity], from: usize, cut: usize) -> bool {
        let Some(next) = awaited(&ranks[from]).map(|bits| bits & !cut) else {
            return ranks[from] == Progressing;
        };
        let mut steps = (0..ranks.len()).filter(|rank| next & (1 << rank) != 0);
        steps.any(|rank| has_path(ranks, rank, cut | 1 << from))
    }

    pub fn blocked(ranks: &[Activity]) -> usize {
        let everything = (1usize << ranks.len()) - 1;
        (0..=everything)
            .filter(|candidate| is_closed(ranks, *candidate))
            .fold(everything, |one, other| one & other)
    }

    /// The waits between blocked ranks, made transitive by Warshall's algorithm.
    fn paths(ranks: &[Activity], blocked: usize) -> Vec<usize> {
        let of = |rank: usize| {
            if blocked & (1 << rank) == 0 { 0 } else { awaited(&ranks[rank]).unwrap_or(0) & blocked }
        };
        let mut paths: Vec<usize> = (0..ranks.len()).map(of).collect();
        for through in 0..ranks.len() {
            for from in 0..ranks.len() {
                if paths[from] & (1 << through) != 0 {
                    paths[from] |= paths[through];
                }
            }
        }
        paths
    }

    /// Checks a verdict: the ranks to blame are all that must be, a deadlock is one of those that exist.
    pub fn check(ranks: &[Activity], verdict: &Verdict) {
        let blocked = blocked(ranks);
        let paths = paths(ranks, blocked);
        let ends = |rank: &usize| {
            let from_a_rank = |from: usize| from != *rank && paths[from] & (1 << rank) != 0;
            (0..ranks.len()).any(from_a_rank) && paths[*rank] == 0
        };
        let to_blame: Vec<usize> = (0..ranks.len()).filter(ends).collect();
        let is_deadlock = |members: &[usize]| {
            let bits: usize = members.iter().map(|rank| 1 << rank).sum();
            members.len() > 1 && members.iter().all(|rank| paths[*rank] == bits)
        };
        match verdict {
            Verdict::Ranks(named) => assert_eq!(*named, to_blame, "{ranks:?}"),
            Verdict::Deadlock(members) => {
                assert!(to_blame.is_empty() && is_deadlock(members), "{members:?} of {ranks:?}")
            }
            Verdict::NoneBlocked => assert!(paths.iter().all(|paths| *paths == 0), "{ranks:?}"),
        }
        let waiting: Vec<usize> = (0..ranks.len())
            .filter(|rank| {
                !to_blame.contains(rank) && to_blame.iter().any(|end| paths[*rank] & (1 << end) != 0)
            })
            .collect();
        assert_eq!(waiting_for(ranks, &to_blame), waiting, "{ranks:?}");
    }
}

/// The `choice`th activity of a rank in a world of `world`: two that do not wait, and the waits for each set of others.
fn activity(choice: usize, rank: usize, world: usize) -> Activity {
    let others = |bits: usize| {
        (0..world)
            .filter(|other| *other != rank)
            .enumerate()
            .filter(move |(index, _)| bits & (1 << index) != 0)
            .map(|(_, other)| other)
            .collect()
    };
    match choice {
        0 => Progressing,
        1 => Standing,
        choice if choice % 2 == 0 => WaitsForAll(others(choice / 2)),
        choice => WaitsForAny(others(choice / 2)),
    }
}

/// All graphs of a world: 2 + 2 (2^(world - 1) - 1) activities per rank.
fn all_graphs(world: usize) -> impl Iterator<Item = Vec<Activity>> {
    let choices = 1usize << world;
    let graph = move |number: usize| {
        let digit = |rank: usize| number / choices.pow(rank as u32) % choices;
        (0..world).map(|rank| activity(digit(rank), rank, world)).collect()
    };
    (0..choices.pow(world as u32)).map(graph)
}

#[test]
fn every_graph_of_up_to_4_ranks_is_judged_by_the_definition() {
    for world in 1..=4 {
        let judged = all_graphs(world).inspect(|ranks| definition::check(ranks, &judge(ranks))).count();
        assert_eq!(judged, [2, 16, 512, 65_536][world - 1]);
    }
}

fn graphs() -> impl Strategy<Value = Vec<Activity>> {
    (5usize..9).prop_flat_map(|world| {
        let choices = proptest::collection::vec(0usize..1 << world, world);
        choices.prop_map(move |choices| {
            choices.iter().enumerate().map(|(rank, choice)| activity(*choice, rank, world)).collect()
        })
    })
}

proptest! {
    #[test]
    fn larger_graphs_are_judged_by_the_definition(ranks in graphs()) {
        definition::check(&ranks, &judge(&ranks));
    }

    /// Once the ranks to blame go on, others may be to blame, until waits end or a deadlock is left. A rank that makes
    /// progress is never named, and a deadlock stays one whatever the other ranks do.
    #[test]
    fn verdicts_lead_to_an_end(mut ranks in graphs()) {
        for _ in 0..=ranks.len() {
            match judge(&ranks) {
                Verdict::NoneBlocked => return Ok(()),
                Verdict::Ranks(named) => {
                    prop_assert!(named.iter().all(|rank| ranks[*rank] == Standing));
                    named.into_iter().for_each(|rank| ranks[rank] = Progressing);
                }
                Verdict::Deadlock(members) => {
                    prop_assert!(members.iter().all(|rank| ranks[*rank].awaited().is_some()));
                    let others = (0..ranks.len()).filter(|rank| !members.contains(rank));
                    others.for_each(|rank| ranks[rank] = Progressing);
                    prop_assert_eq!(judge(&ranks), Verdict::Deadlock(members));
                    return Ok(());
                }
            }
        }
        prop_assert!(false, "a rank was named twice");
    }
}
