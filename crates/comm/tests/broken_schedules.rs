//! Mutation test of the checker: it detects every mutated schedule that gives a wrong result.

use thalweg_comm::collective::checker::check;
use thalweg_comm::collective::{Action, AlgorithmEntry, Collective, Executor, Schedule, Sum};
use thalweg_comm::transport::{Transport, mesh};
use thalweg_testkit::transport::exchange::{check_numbers, number};
use thalweg_testkit::transport::{LONG_TIMEOUT, run_ranks, tag};

/// Number of mutations.
const KINDS: usize = 10;

/// Mutates a rank's schedule: a step removed, duplicated or moved, another chunk, peer or action.
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

/// Every algorithm of every collective.
fn collectives() -> Vec<(Collective, &'static AlgorithmEntry)> {
    let kinds = [
        Collective::AllReduce,
        Collective::Reduce { root: 1 },
        Collective::Broadcast { root: 1 },
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Barrier,
    ];
    let algorithms = |kind: Collective| kind.algorithms().iter().map(move |algorithm| (kind, algorithm));
    kinds.into_iter().flat_map(algorithms).collect()
}

/// Runs the schedules on numbers, with threads as ranks, and compares the results.
fn run_on_numbers(collective: Collective, schedules: &[Schedule]) {
    let world = schedules.len();
    run_ranks(mesh(world), |mut transport| {
        let (rank, chunks) = (transport.rank(), schedules[0].chunks);
        let mut buffer: Vec<i32> = (0..chunks).map(|chunk| number(rank, chunk)).collect();
        Executor::new()
            .run(&schedules[rank], &mut transport, tag(1), &mut buffer, &Sum, LONG_TIMEOUT)
            .expect("a schedule that the checker accepts runs");
        check_numbers(collective, rank, world, &buffer, "mutated schedules");
        transport.close();
    });
}

/// The schedules of all ranks for every algorithm, on one to three hosts, without duplicates.
fn originals(world: usize) -> impl Iterator<Item = (Collective, &'static AlgorithmEntry, Vec<Schedule>)> {
    let placed = (1..4)
        .flat_map(|hosts| collectives().into_iter().map(move |(kind, algorithm)| (kind, algorithm, hosts)));
    let all = placed.map(move |(kind, algorithm, hosts)| {
        let hosts: Vec<usize> = (0..world).map(|rank| rank % hosts).collect();
        let schedule = |rank| (algorithm.schedule)(kind.rank_view(rank, &hosts));
        (kind, algorithm, (0..world).map(schedule).collect::<Vec<_>>())
    });
    let mut seen: Vec<(Collective, Vec<Schedule>)> = Vec::new();
    all.filter(move |(kind, _, schedules)| {
        let known = seen.iter().any(|(other, before)| other == kind && before == schedules);
        seen.push((*kind, schedules.clone()));
        !known
    })
}

/// Every mutation is detected or does not change the result, which a run on numbers confirms: two independent steps may be
/// swapped.
#[test]
fn broken_schedules_are_detected() {
    let (mut broken, mut harmless) = (0, 0);
    for (collective, algorithm, original) in (2..9).flat_map(originals) {
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
                if check(collective, &changed).is_ok() {
                    harmless += 1;
                    assert!(kind == 2, "undetected: {collective:?} by {}, {changed:?}", algorithm.name);
                    run_on_numbers(collective, &changed);
                }
            }
        }
    }
    assert!(broken > 10_000 && harmless > 100, "{broken} {harmless}");
}
