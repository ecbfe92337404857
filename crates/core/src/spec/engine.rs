//! `[engine]`: processes, threads and the simulated network.

use super::factors::RankFactors;
use super::links::LinkSpecs;
use super::section::section;
use super::setting::{Bytes, choice};
use super::{JobSpec, Refuse};
use std::time::Duration;

const MAX_THREADS: usize = 64;

/// The most workers of a job.
pub const MAX_WORKERS: usize = 4096;

choice! {
    /// How ranks are started.
    EngineKind {
        /// Processes of this binary on this machine; with torchrun, mpirun or srun variables set, their ranks.
        Local = "local",
        /// Threads on a simulated network, in virtual time. The same job gives the same bytes and the same trace.
        Sim = "sim",
    }
}

choice! {
    /// The distribution of the extension by `engine.jitter`.
    JitterKind {
        /// Evenly between nothing and `engine.jitter`.
        Uniform = "uniform",
        /// Exponential, with `engine.jitter` as its mean: mostly short, rarely many times as long. With a large jitter of a small pace, computation times themselves are exponential.
        Exponential = "exponential",
    }
}

section! {
    /// Processes and threads.
    "engine" EngineSpec {
        /// How ranks are started.
        kind: EngineKind = EngineKind::Local;
        /// Number of workers over all hosts.
        workers: usize = 2;
        /// Compute threads per worker.
        threads: usize = 1;
        /// The port of rank 0; 0: any free port (one host only).
        port: u64 = 0;
        /// Simulates slow hosts: the listed workers compute this many times slower, by sleeping.
        slow: RankFactors = RankFactors::default();
        /// Simulates many hosts on few cores: the minimum time of an even share of a step, which is global_batch / workers rows; shorter computations are extended by sleeping, in proportion to their rows.
        pace: Option<Duration> = None;
        /// Simulates variable speed: a computation takes up to this share longer, drawn by seed for every worker and step.
        jitter: f64 = 0.0;
        /// The distribution of that extension.
        jitter_kind: JitterKind = JitterKind::Uniform;
        /// A thread in every worker moves its messages while the model computes. For models of Rust programs that do not call the hook `progress`, with strategies that send messages.
        progress_thread: bool = false;
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let EngineSpec { threads, port, slow, pace, jitter, .. } = &spec.engine;
    if !(1..=MAX_THREADS).contains(threads) {
        refuse("engine.threads", format!("must be between 1 and {MAX_THREADS}, is {threads}"));
    }
    if *port > 65535 {
        refuse("engine.port", format!("must be at most 65535, is {port}"));
    }
    for (rank, factor) in slow.iter() {
        if !(1.0..=1e6).contains(&factor) {
            refuse("engine.slow", format!("rank {rank}: must be between 1 and a million, is {factor}"));
        }
    }
    if pace.is_some_and(|pace| pace.is_zero()) {
        refuse("engine.pace", "must be above 0".into());
    }
    if !(0.0..=1000.0).contains(jitter) {
        refuse("engine.jitter", format!("must be between 0 and 1000, is {jitter}"));
    }
    check_stragglers(&spec.stragglers, refuse);
    if spec.engine.progress_thread && spec.engine.kind == EngineKind::Sim {
        refuse("engine.progress_thread", "in virtual time one simulated rank runs at a time".into());
    }
    check_network(spec, refuse);
}

section! {
    /// Simulates passing stragglers: single steps of any worker take longer, by sleeping.
    "engine.stragglers" StragglerSpec {
        /// The share of all computations that take longer, drawn by seed for every worker and step.
        probability: f64 = 0.0;
        /// How many times longer they take.
        factor: f64 = 3.0;
    }
}

fn check_stragglers(stragglers: &StragglerSpec, refuse: &mut Refuse<'_>) {
    let StragglerSpec { probability, factor } = stragglers;
    if !(0.0..=1.0).contains(probability) {
        refuse("engine.stragglers.probability", format!("must be between 0 and 1, is {probability}"));
    }
    if !(1.0..=1e6).contains(factor) {
        refuse("engine.stragglers.factor", format!("must be between 1 and a million, is {factor}"));
    }
}

section! {
    /// The network of `engine.kind = "sim"`.
    "engine.network" NetworkSpec {
        /// Latency of a message.
        latency: Duration = Duration::from_micros(50);
        /// Jitter of the latency: 0.2 adds up to a fifth, drawn by seed.
        variation: f64 = 0.2;
        /// Bytes per second of a rank, in each direction.
        bandwidth: Bytes = Bytes(1 << 30);
        /// Whether a rank's connection carries one direction at a time, so that sending and receiving take turns.
        half_duplex: bool = false;
        /// Exceptions for single links. Each entry is one direction, from one or more ranks to one or more ranks, with a latency, a bandwidth or both. The last entry for a link applies; no link exceeds the bandwidth of its ranks.
        links: LinkSpecs = LinkSpecs::default();
        /// Floating-point operations per second of a rank.
        speed: f64 = 1e10;
    }
}

/// Floating-point operations per second.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e3..=1e18;

fn check_network(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let NetworkSpec { variation, bandwidth, speed, .. } = spec.network;
    spec.network.links.check(&mut |what| refuse("engine.network.links", what));
    if !(0.0..=100.0).contains(&variation) {
        refuse("engine.network.variation", format!("must be between 0 and 100, is {variation}"));
    }
    if bandwidth.0 == 0 {
        refuse("engine.network.bandwidth", "must be above 0".into());
    }
    if !SPEEDS.contains(&speed) {
        refuse("engine.network.speed", format!("must be between 1e3 and 1e18, is {speed:e}"));
    }
    if spec.engine.kind == EngineKind::Sim && spec.fault.respawn {
        refuse(
            "fault.respawn",
            "simulated ranks are not started again: drop this key, or engine.kind".into(),
        );
    }
    if spec.engine.kind == EngineKind::Sim && spec.engine.port != 0 {
        refuse("engine.port", "simulated ranks have no port; drop one of the two keys".into());
    }
}
