//! Schedules with one thing changed: the checker finds what is wrong with them, or nothing is.

use thalweg_comm::collective::checker::check;
use thalweg_comm::collective::{Action, Executor, Goal, Schedule, Sum, Way};
use thalweg_comm::transport::{Transport, mesh};
use thalweg_testkit::transport::exchange::{check_numbers, number};
use thalweg_testkit::transport::{PLENTY, each, tag};

/// How many small changes there are.
const KINDS: usize = 10;

/// One small change to a rank's schedule: a step lost, doubled or moved, another chunk, partner or action.
fn mutate(schedule: &mut Schedule, world: usize, at: usize, kind: usize) {
    let (count, chunks) = (schedule.steps.len(), schedule.chunks);
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

/// Every way to every goal.
fn collectives() -> Vec<(Goal, &'static Way)> {
    let goals = [
        Goal::AllReduce,
        Goal::Reduce { root: 1 },
        Goal::Broadcast { root: 1 },
        Goal::ReduceScatter,
        Goal::AllGather,
        Goal::AllToAll,
        Goal::Barrier,
    ];
    goals.into_iter().flat_map(|goal| goal.ways().iter().map(move |way| (goal, way))).collect()
}

/// Runs the schedules on numbers, with threads as ranks, and compares the results.
fn run_on_numbers(goal: Goal, schedules: &[Schedule]) {
    let world = schedules.len();
    each(mesh(world), |mut transport| {
        let (rank, chunks) = (transport.rank(), schedules[0].chunks);
        let mut buffer: Vec<i32> = (0..chunks).map(|chunk| number(rank, chunk)).collect();
        Executor::new()
            .run(&schedules[rank], &mut transport, tag(1), &mut buffer, &Sum, PLENTY)
            .expect("what the checker passes runs");
        check_numbers(goal, rank, world, &buffer, "changed schedules");
        transport.close();
    });
}

/// Every rank's part in every way to every goal, on several hosts.
fn originals(world: usize) -> impl Iterator<Item = (Goal, &'static Way, Vec<Schedule>)> {
    let placed =
        (1..4).flat_map(|hosts| collectives().into_iter().map(move |(goal, way)| (goal, way, hosts)));
    let all = placed.map(move |(goal, way, hosts)| {
        let hosts: Vec<usize> = (0..world).map(|rank| rank % hosts).collect();
        (goal, way, (0..world).map(|rank| (way.schedule)(goal.seat(rank, &hosts))).collect::<Vec<_>>())
    });
    let mut seen: Vec<(Goal, Vec<Schedule>)> = Vec::new();
    all.filter(move |(goal, _, schedules)| {
        let known = seen.iter().any(|(other, before)| other == goal && before == schedules);
        seen.push((*goal, schedules.clone()));
        !known
    })
}

/// Whatever is changed is found, or the changed schedules have no effect on the result, which a run on numbers confirms:
/// two independent steps may change places.
#[test]
fn broken_schedules_are_found() {
    let (mut broken, mut harmless) = (0, 0);
    for (goal, way, original) in (2..9).flat_map(originals) {
        for (rank, at) in
            original.iter().enumerate().flat_map(|(rank, of)| (0..of.steps.len()).map(move |at| (rank, at)))
        {
            for kind in 0..KINDS {
                let mut changed = original.clone();
                mutate(&mut changed[rank], original.len(), at, kind);
                if changed == original {
                    continue;
                }
                broken += 1;
                if check(goal, &changed).is_ok() {
                    harmless += 1;
                    assert!(kind == 2, "unnoticed: {goal:?} by {}, {changed:?}", way.name);
                    run_on_numbers(goal, &changed);
                }
            }
        }
    }
    assert!(broken > 10_000 && harmless > 100, "{broken} {harmless}");
}
