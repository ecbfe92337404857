//! `[engine]`: where the ranks run.

use super::JobSpec;
use super::factors::Factors;
use super::inject::Faults;
use super::links::Links;
use super::section::section;
use super::setting::{Bytes, choice};
use std::time::Duration;

/// Most threads of a worker.
pub const MOST_THREADS: usize = 64;

choice! {
    /// Who starts the ranks.
    EngineKind {
        /// Processes of this binary on this machine; with torchrun, mpirun or srun variables set, their ranks.
        Local = "local",
        /// Nobody: the ranks are threads on a simulated network, in virtual time. The same job gives the same bytes and the
        /// same trace.
        Sim = "sim",
    }
}

section! {
    /// Where the ranks run.
    "engine" EngineSpec {
        /// Who starts the ranks.
        kind: EngineKind = EngineKind::Local;
        /// How many workers there are, over all machines.
        workers: usize = 2;
        /// How many threads each worker computes with.
        threads: usize = 1;
        /// The port rank 0 listens on; 0: any free one (one machine only).
        port: u64 = 0;
        /// To try out uneven machines: ranks that compute so many times slower than they could, by sleeping.
        slow: Factors = Factors::default();
        /// To try out many machines on few cores: the time an even share of a full step is to take; shorter computations are drawn out by sleeping, in proportion to their rows.
        pace: Option<Duration> = None;
        /// To try out unsteady machines: a computation takes up to this share longer, drawn by seed for every rank and step.
        jitter: f64 = 0.0;
    }
}

/// Complaints about values that no machine has.
pub(super) fn check(spec: &JobSpec, complain: &mut dyn FnMut(&str, String)) {
    let EngineSpec { threads, port, slow, pace, jitter, .. } = &spec.engine;
    if !(1..=MOST_THREADS).contains(threads) {
        complain("engine.threads", format!("must be between 1 and {MOST_THREADS}, is {threads}"));
    }
    if *port > 65535 {
        complain("engine.port", format!("must be at most 65535, is {port}"));
    }
    for (rank, factor) in slow.iter() {
        if rank >= spec.ranks() {
            complain("engine.slow", format!("there is no rank {rank}: there are {} ranks", spec.ranks()));
        }
        if !(1.0..=1e6).contains(&factor) {
            complain("engine.slow", format!("rank {rank}: must be between 1 and a million, is {factor}"));
        }
    }
    if pace.is_some_and(|pace| pace.is_zero()) {
        complain("engine.pace", "must be above 0".into());
    }
    if !(0.0..=10.0).contains(jitter) {
        complain("engine.jitter", format!("must be between 0 and 10, is {jitter}"));
    }
    check_network(spec, complain);
}

section! {
    /// The network of `engine.kind = "sim"`.
    "engine.network" NetworkSpec {
        /// What a message needs from one rank to another, however short it is.
        latency: Duration = Duration::from_micros(50);
        /// By how much latency varies: 0.2 makes it up to a fifth longer, drawn from the seed.
        variation: f64 = 0.2;
        /// Bytes per second that a rank can send, and that it can receive.
        bandwidth: Bytes = Bytes(1 << 30);
        /// Links that are not like the others. Each entry is one direction, from one rank or several to one or several; it gives a latency, a bandwidth or both. What is said last of a link counts; no link passes more than its ranks' bandwidth.
        links: Links = Links::default();
        /// Floating-point operations per second of a rank.
        speed: f64 = 1e10;
    }
}

/// Floating-point operations per second that a simulated rank can do.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e3..=1e18;

/// What a network can be.
fn check_network(spec: &JobSpec, complain: &mut dyn FnMut(&str, String)) {
    let NetworkSpec { variation, bandwidth, speed, .. } = spec.network;
    spec.network.links.check(spec.ranks(), &mut |what| complain("engine.network.links", what));
    if !(0.0..=100.0).contains(&variation) {
        complain("engine.network.variation", format!("must be between 0 and 100, is {variation}"));
    }
    if bandwidth.0 == 0 {
        complain("engine.network.bandwidth", "must be above 0".into());
    }
    if !SPEEDS.contains(&speed) {
        complain("engine.network.speed", format!("must be between 1e3 and 1e18, is {speed:e}"));
    }
    if spec.engine.kind == EngineKind::Sim && spec.fault.inject != Faults::default() {
        complain("fault.inject", "faults are done to processes, and simulated ranks are none".into());
    }
    if spec.engine.kind == EngineKind::Sim && spec.engine.port != 0 {
        complain("engine.port", "simulated ranks have no port; drop one of the two".into());
    }
}
