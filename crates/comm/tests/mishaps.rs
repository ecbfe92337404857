//! A thousand random mishaps on the simulated network and as many on threads: never a hang, never a wrong sum, always
//! the right culprit. A failing seed is printed and gives the same run again.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::time::Duration;
use thalweg_comm::collective::{Executor, Sum, ring};
use thalweg_comm::transport::sim::{Kind, Mishap, Network, Simulation};
use thalweg_comm::transport::{Cause, Fault, Transport, culprit, mesh};
use thalweg_testkit::transport::{each, tag};

const SEEDS: u64 = 1000;
const ROUNDS: u64 = 4;
const LENGTH: usize = 3000;
const DEADLINE: Duration = Duration::from_secs(1);

fn random(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// A few all-reduces in a row; how often the sum was right, and the fault that ended it.
fn program<T: Transport>(mut transport: T) -> (u64, Option<Fault>) {
    let (rank, world) = (transport.rank(), transport.world());
    let (schedule, mut executor) = (ring::all_reduce(rank, world), Executor::new());
    for round in 0..ROUNDS {
        let mut buffer = vec![(rank + 1) as f32; LENGTH];
        if let Err(fault) = executor.run(&schedule, &mut transport, tag(round), &mut buffer, &Sum, DEADLINE) {
            return (round, Some(fault));
        }
        let sum = (world * (world + 1) / 2) as f32;
        assert!(buffer.iter().all(|value| *value == sum), "a wrong sum in round {round}");
    }
    transport.close();
    (ROUNDS, None)
}

/// What everybody but one (who may be dead) says.
fn reports(ended: &[(u64, Option<Fault>)], without: Option<usize>) -> Vec<(usize, Fault)> {
    let named = ended.iter().enumerate().filter(|(rank, _)| Some(*rank) != without);
    named.filter_map(|(rank, (_, fault))| Some((rank, fault.clone()?))).collect()
}

fn draw(random: &mut TestRng, world: usize, span: Duration) -> Mishap {
    let rank = random.random_range(0..world);
    let other = (rank + random.random_range(1..world)) % world;
    let kind = match random.random_range(0..5) {
        0 => Kind::Kill { rank },
        1 => Kind::Stop { rank, duration: Duration::from_millis(random.random_range(1..60_000)) },
        2 => Kind::Slow { rank, factor: 3.0 },
        3 => Kind::Cut { one: rank, other },
        // Where nobody reads, garbage harms nobody.
        _ => Kind::Garbage { from: rank, to: (rank + 1) % world },
    };
    Mishap::at(span.mul_f64(random.random_range(0.0..1.0)), kind)
}

#[test]
fn on_the_simulated_network() {
    let mut ended_early = 0;
    for seed in 0..SEEDS {
        let mut random = random(seed);
        let world = random.random_range(2..7);
        let network = Network { jitter: 3.0, ..Network::ordinary(world, seed) };
        // About as long as the undisturbed run takes.
        let mishap = draw(&mut random, world, Duration::from_micros(800 * world as u64));
        let simulation = Simulation::new(network, std::slice::from_ref(&mishap));
        let ended = each(simulation.ranks(), program);
        let found = |without| culprit(&reports(&ended, without));
        let failed = ended.iter().any(|(_, fault)| fault.is_some());
        ended_early += u64::from(failed);
        let right = match mishap.kind {
            _ if !failed => true,
            Kind::Kill { rank } => found(Some(rank)).is_none_or(|found| found == rank),
            Kind::Stop { rank, duration } => {
                duration + duration / 10 > DEADLINE && found(Some(rank)).is_none_or(|found| found == rank)
            }
            Kind::Slow { .. } | Kind::Join { .. } | Kind::Leave { .. } => false,
            Kind::Cut { one, other } => found(None).is_none_or(|found| found == one || found == other),
            Kind::Garbage { from, .. } => found(None) == Some(from),
        };
        let told: Vec<String> = reports(&ended, None).iter().map(|(r, f)| format!("{r}: {f}")).collect();
        assert!(right, "seed {seed}: {mishap:?} of {world}, but they say {told:?}");
    }
    assert!(ended_early > SEEDS / 3, "only {ended_early} mishaps came in time");
}

#[test]
fn on_threads() {
    for seed in 0..SEEDS {
        let mut random = random(seed);
        let world = random.random_range(2..6);
        let (rank, garbage) = (random.random_range(0..world), random.random_bool(0.3));
        let next = (rank + 1) % world;
        let ranks = mesh(world);
        let links = ranks[0].links();
        let delay = random.random_range(0..2000);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Busy, as no sleep is short enough.
                (0..delay).for_each(|_| std::hint::spin_loop());
                match garbage {
                    true => links.inject(rank, next, &[0x55; 64]),
                    false => links.kill(rank),
                }
            });
            each(ranks, program)
        });
        let victim = (!garbage).then_some(rank);
        let reports = reports(&ended, victim);
        if let Some((_, fault)) = reports.first() {
            let expected = culprit(&reports);
            assert_eq!(expected, Some(rank), "seed {seed}, garbage {garbage}: {fault}, {reports:?}");
            assert!(!matches!(fault.cause, Cause::Silent { .. }), "seed {seed}: nobody had to wait: {fault}");
        }
    }
}
