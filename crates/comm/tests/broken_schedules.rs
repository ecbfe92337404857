//! Schedules with one thing changed: the checker finds what is wrong with them.

use proptest::prelude::*;
use thalweg_comm::collective::checker::check;
use thalweg_comm::collective::{Action, Goal, Schedule, binomial, direct, doubling, halving, pairwise, ring};

fn world(n: usize, schedule: fn(usize, usize) -> Schedule) -> Vec<Schedule> {
    (0..n).map(|rank| schedule(rank, n)).collect()
}

/// One small change to one rank's schedule: a step lost, doubled or moved, another chunk, partner or action.
fn mutate(schedules: &mut [Schedule], rank: usize, at: usize, kind: usize) {
    let world = schedules.len();
    let schedule = &mut schedules[rank % world];
    let (count, chunks) = (schedule.steps.len(), schedule.chunks);
    if count == 0 {
        return;
    }
    let at = at % count;
    match kind {
        0 => drop(schedule.steps.remove(at)),
        1 => schedule.steps.insert(at, schedule.steps[at].clone()),
        2 => schedule.steps.swap(at, (at + 1) % count),
        3 => drop(schedule.steps[at].sends.pop()),
        4 => drop(schedule.steps[at].receives.pop()),
        _ => {
            for send in &mut schedule.steps[at].sends {
                match kind {
                    5 => send.chunks.first = (send.chunks.first + 1) % chunks,
                    6 => send.to = (send.to + 1) % world,
                    _ => {}
                }
            }
            for receive in &mut schedule.steps[at].receives {
                match (kind, receive.action) {
                    (7, Action::Reduce) => receive.action = Action::Copy,
                    (7, _) => receive.action = Action::Reduce,
                    (8, _) => receive.from = (receive.from + 1) % world,
                    (9, _) => receive.chunks.first = (receive.chunks.first + 1) % chunks,
                    _ => {}
                }
            }
        }
    }
}

type Collective = (Goal, fn(usize, usize) -> Schedule);

const COLLECTIVES: [Collective; 9] = [
    (Goal::AllReduce, ring::all_reduce),
    (Goal::AllReduce, binomial::all_reduce),
    (Goal::AllReduce, doubling::all_reduce),
    (Goal::AllReduce, halving::all_reduce),
    (Goal::AllReduce, direct::all_reduce),
    (Goal::ReduceScatter, ring::reduce_scatter),
    (Goal::AllGather, direct::all_gather),
    (Goal::AllToAll, pairwise::all_to_all),
    (Goal::Broadcast { root: 0 }, |rank, world| binomial::broadcast(rank, world, 0)),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Whatever is changed is found, or the changed schedules have no effect on the result: then they are right,
    /// which a run on numbers confirms.
    #[test]
    fn broken_schedules_are_found(which in 0..COLLECTIVES.len(), n in 2usize..9, rank: usize, at: usize, kind in 0..10usize) {
        let (goal, schedule) = COLLECTIVES[which];
        let original = world(n, schedule);
        let mut changed = original.clone();
        mutate(&mut changed, rank, at, kind);
        if changed != original && check(goal, &changed).is_ok() {
            // Two independent steps may change places, and a message nobody needed may go.
            prop_assert!(kind == 2, "unnoticed: {goal:?}, n = {n}, {changed:?}");
        }
    }
}
