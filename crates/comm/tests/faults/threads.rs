//! Fault injection on threads, in real time: a fault is due when the ranks have sent a given number of bytes.

use super::outcome::Outcome;
use super::scenario::{Scenario, is_long};
use super::work::perform;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_comm::transport::sim::SimulatedFaultKind;
use thalweg_comm::transport::{LinkControl, Transport, mesh};
use thalweg_testkit::transport::{run_ranks, tag};

/// Runs a scenario twice: without faults, to count the bytes it sends, then with them.
pub fn run(scenario: &Scenario, _seed: u64) -> Outcome {
    let ranks = mesh(scenario.world);
    let links = ranks[0].link_control();
    let ended = run_ranks(ranks, |transport| perform(scenario, transport));
    assert!(ended.iter().all(Option::is_none), "no fault was injected, but {ended:?}");
    let total = links.bytes_sent();

    let ranks = mesh(scenario.world);
    let links = ranks[0].link_control();
    links.block_sends_at(due_at(scenario, 0, total));
    let done: Vec<AtomicBool> = (0..scenario.world).map(|_| AtomicBool::new(false)).collect();
    let (injected, ended) = std::thread::scope(|scope| {
        let injector = scope.spawn(|| inject_faults(scenario, &links, total, &done));
        let ended = run_ranks(ranks, |transport| {
            let rank = transport.rank();
            let error = perform(scenario, transport);
            done[rank].store(true, Ordering::Release);
            error
        });
        (injector.join().expect("the injector"), ended)
    });
    Outcome { injected, ended }
}

/// Bytes that all ranks have sent when a fault is due.
fn due_at(scenario: &Scenario, index: usize, total: u64) -> u64 {
    scenario.faults.get(index).map_or(u64::MAX, |fault| (total as f64 * fault.at.as_secs_f64()) as u64)
}

/// Injects each fault when it is due, or when the ranks send nothing more; resumes stopped ranks when all others are
/// done. Returns the injected faults.
fn inject_faults(
    scenario: &Scenario,
    links: &LinkControl,
    total: u64,
    done: &[AtomicBool],
) -> Vec<SimulatedFaultKind> {
    let is_done = |rank: usize| done[rank].load(Ordering::Acquire);
    let all_done = || (0..scenario.world).all(is_done);
    let (mut injected, mut stopped) = (Vec::new(), Vec::new());
    for (index, fault) in scenario.faults.iter().enumerate() {
        let due = due_at(scenario, index, total);
        links.block_sends_at(due);
        let (mut sent, mut idle) = (links.bytes_sent(), 0);
        // A stopped rank may block all others: many polls without a byte mean that nothing more is sent.
        while sent < due && idle < 1000 && !all_done() {
            std::thread::yield_now();
            let now = links.bytes_sent();
            idle = if now == sent { idle + 1 } else { 0 };
            sent = now;
        }
        if all_done() {
            break;
        }
        match fault.kind {
            SimulatedFaultKind::Kill { rank } => links.kill(rank),
            SimulatedFaultKind::Stop { rank, duration } if is_long(duration) => {
                links.stop(rank);
                stopped.push(rank);
            }
            SimulatedFaultKind::Stop { rank, duration } => {
                links.stop(rank);
                std::thread::sleep(duration.min(Duration::from_millis(5)));
                if !stopped.contains(&rank) {
                    links.resume(rank);
                }
            }
            SimulatedFaultKind::Livelock { rank } => {
                links.stop(rank);
                stopped.push(rank);
            }
            SimulatedFaultKind::Cut { one, other }
            | SimulatedFaultKind::CutOneWay { from: one, to: other } => links.cut(one, other),
            SimulatedFaultKind::Forge { from, to, frame } => {
                links.inject(from, to, &frame.encode(tag(0).generation))
            }
            SimulatedFaultKind::Garbage { from, to } => links.inject(from, to, &[0x55; 64]),
            SimulatedFaultKind::Slow { .. }
            | SimulatedFaultKind::Join { .. }
            | SimulatedFaultKind::Leave { .. }
            | SimulatedFaultKind::FalseReport { .. } => {}
        }
        injected.push(fault.kind.clone());
    }
    links.block_sends_at(u64::MAX);
    // The ranks that wait for stopped ones fail at their deadline.
    while !(0..scenario.world).all(|rank| is_done(rank) || stopped.contains(&rank)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    stopped.iter().for_each(|rank| links.resume(*rank));
    injected
}
