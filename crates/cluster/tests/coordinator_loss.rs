//! The end of the coordinator of a simulated group: another rank takes the role, and the members form the next group.

use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::engine::threads::RankOutcome;
use thalweg_cluster::membership::{Limits, MemberPosition, Position};
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_cluster::sim::{Network, SimulatedFault, SimulatedFaultKind, Trace};
use thalweg_core::Result;

/// Steps of a millisecond each.
const STEPS: u64 = 500;

/// A change of the group, as its members see it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Change {
    members: Vec<usize>,
    lost: Vec<(usize, String)>,
    joined: Vec<usize>,
    left: Vec<usize>,
}

/// One step: whether the group changes after it, and whether this rank leaves.
fn step(rank: &mut Rank, step: u64) -> Result<(bool, bool)> {
    rank.begin_step(step);
    let leaves = rank.leave_requested();
    let request = [u8::from(leaves || rank.pause_requested())];
    let all = rank.world().all_gather("requests", &request)?;
    rank.sleep(Duration::from_millis(1));
    Ok((all.iter().any(|request| request[..] == [1]), leaves))
}

/// Works until the steps are done, in as many generations as it takes; returns the changes.
fn program(rank: &mut Rank) -> Result<Vec<Change>> {
    let resumed = |rank: &Rank| rank.change().resume_position().map_or(0, |position| position.step);
    let (mut done, mut changes) = (resumed(rank), Vec::new());
    while done < STEPS {
        let orderly = match step(rank, done) {
            Ok((_, true)) => {
                rank.depart();
                return Ok(changes);
            }
            Ok((changes, false)) => {
                done += 1;
                if !changes {
                    continue;
                }
                true
            }
            Err(error) if !rank.generation_is_over() => return Err(error),
            Err(_) => false,
        };
        let position = Some(Position { step: done, stage: 0 });
        rank.regroup(MemberPosition { position, begun: false }, orderly)?;
        done = resumed(rank);
        let change = rank.change().clone();
        let lost = change.lost.into_iter().map(|culprit| (culprit.rank, culprit.cause)).collect();
        changes.push(Change { members: rank.member_ids(), lost, joined: change.joined, left: change.left });
        rank.forget_change();
    }
    Ok(changes)
}

fn run(world: usize, faults: &[(u64, SimulatedFaultKind)]) -> (Vec<RankOutcome<Vec<Change>>>, Trace) {
    let config = MembershipConfig {
        elastic: true,
        limits: Limits { min: 1, max: 8, timeout: Duration::from_secs(30), unit: 1 },
        servers: 0..0,
        step_deadline: Duration::from_secs(4),
        prepare_deadline: Duration::from_secs(60),
        epoch: 0.0,
    };
    let at =
        |(at, kind): &(u64, SimulatedFaultKind)| SimulatedFault::at(Duration::from_millis(*at), kind.clone());
    let faults: Vec<SimulatedFault> = faults.iter().map(at).collect();
    simulate(Network::ordinary(world, 1), &faults, &config, program)
}

/// The changes that this rank saw until the end.
fn changes(ended: &[RankOutcome<Vec<Change>>], rank: usize) -> &[Change] {
    ended[rank].result.as_ref().unwrap_or_else(|error| panic!("rank {rank}: {error}"))
}

fn kill(rank: usize) -> SimulatedFaultKind {
    SimulatedFaultKind::Kill { rank }
}

const VANISHED: &str = "vanished: its connection closed without a goodbye";

fn lost(ranks: &[usize]) -> Vec<(usize, String)> {
    ranks.iter().map(|rank| (*rank, VANISHED.into())).collect()
}

#[test]
fn the_death_of_a_coordinator_costs_one_generation_and_names_it() {
    let (ended, trace) = run(4, &[(40, kill(0)), (200, kill(1))]);
    let first = Change { members: vec![1, 2, 3], lost: lost(&[0]), ..Change::default() };
    let second = Change { members: vec![2, 3], lost: lost(&[1]), ..Change::default() };
    assert_eq!([changes(&ended, 2), changes(&ended, 3)], [&[first.clone(), second.clone()][..]; 2]);
    assert!(trace == run(4, &[(40, kill(0)), (200, kill(1))]).1, "reproducible");
}

#[test]
fn its_successor_may_die_before_a_group_is_formed() {
    for gap in [0, 1, 10, 20, 21, 25] {
        let (ended, _) = run(4, &[(40, kill(0)), (40 + gap, kill(1))]);
        for rank in [2, 3] {
            let all = changes(&ended, rank);
            assert_eq!(all.last().unwrap().members, [2, 3], "{gap} ms");
            let mut named: Vec<usize> =
                all.iter().flat_map(|change| change.lost.iter().map(|(rank, _)| *rank)).collect();
            named.sort_unstable();
            assert_eq!(named, [0, 1], "{gap} ms");
        }
    }
}

#[test]
fn a_coordinator_that_dies_before_the_first_group_is_replaced() {
    let (ended, _) = run(3, &[(0, kill(0))]);
    assert_eq!([changes(&ended, 1), changes(&ended, 2)], [&[][..]; 2]);
}

#[test]
fn a_coordinator_that_is_stopped_for_longer_than_the_deadline_is_killed() {
    let stop = |seconds| SimulatedFaultKind::Stop { rank: 0, duration: Duration::from_secs(seconds) };
    let (ended, _) = run(3, &[(40, stop(600))]);
    let all = changes(&ended, 1);
    assert_eq!((all.len(), &all[0].members[..]), (1, &[1, 2][..]));
    assert!(all[0].lost[0].1.starts_with("has been silent for 3."), "{:?}", all[0].lost);
    assert!(ended[0].result.as_ref().is_err_and(|error| error.message.ends_with("was killed")));
    let (ended, _) = run(3, &[(40, stop(2))]);
    assert!((0..3).all(|rank| changes(&ended, rank).is_empty()), "a short stop");
}

#[test]
fn a_coordinator_that_leaves_hands_its_role_over() {
    let (ended, _) = run(4, &[(40, SimulatedFaultKind::Leave { rank: 0 }), (300, kill(1))]);
    let first = Change { members: vec![1, 2, 3], left: vec![0], ..Change::default() };
    let second = Change { members: vec![2, 3], lost: lost(&[1]), ..Change::default() };
    assert_eq!(changes(&ended, 3), [first, second]);
    assert_eq!(changes(&ended, 0), []);
}

#[test]
fn a_rank_that_waits_to_be_admitted_asks_the_next_coordinator() {
    let (ended, _) = run(3, &[(40, SimulatedFaultKind::Join { rank: 3 }), (40, kill(0))]);
    let all = changes(&ended, 2);
    assert_eq!(all.last().unwrap().members, [1, 2, 3], "{all:?}");
    assert!(all.iter().any(|change| change.joined == [3]) && ended[3].result.is_ok());
}

#[test]
fn without_a_member_alive_no_rank_takes_the_role() {
    let (ended, _) = run(2, &[(40, SimulatedFaultKind::Join { rank: 2 }), (40, kill(0)), (40, kill(1))]);
    assert!(ended[2].result.as_ref().is_err_and(|error| error.message.contains("cannot join")));
}
