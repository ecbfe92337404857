//! Starts the ranks of a benchmark: the local launcher runs this same command once per rank, or another launcher did.

use crate::signals::Signals;
use clap::ValueEnum;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_cluster::collective::operator::Max;
use thalweg_cluster::engine::environment::RankEnvironment;
use thalweg_cluster::engine::local::{self, LaunchOutcome, LaunchPlan};
use thalweg_cluster::membership::Limits;
use thalweg_cluster::rendezvous::local_token;
use thalweg_cluster::session::{self, RankConfig, RankHooks};
use thalweg_cluster::{Collective, Rank};
use thalweg_core::spec::setting::{Bytes, Setting};
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, Kind, Result};

/// Step deadline: a rank without progress for this long counts as hung.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Time for the scheduler to spread the ranks over the cores before the first measurement.
const SETTLING: Duration = Duration::from_millis(200);

/// The transport between the ranks, where memory of the caller is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Connection {
    /// Shared memory
    Shm,
    /// Sockets
    Tcp,
}

impl Connection {
    pub(super) fn name(self) -> &'static str {
        match self {
            Connection::Shm => "shm",
            Connection::Tcp => "tcp",
        }
    }

    pub(super) fn carrier(self) -> TransportChoice {
        match self {
            Connection::Shm => TransportChoice::Shm,
            Connection::Tcp => TransportChoice::Tcp,
        }
    }
}

/// Starts this same command once per rank and waits for all of them.
pub(super) fn launch(world: usize) -> Result<()> {
    let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
    let plan = LaunchPlan {
        command: std::iter::once(program.into_os_string()).chain(std::env::args_os().skip(1)).collect(),
        variables: vec![("THALWEG_TOKEN".into(), local_token::fresh()?.into())],
        ranks: (0..world).collect(),
        world,
        master: None,
        step_deadline: DEADLINE,
        join_deadline: DEADLINE,
        prepare_deadline: DEADLINE,
        elastic: false,
        respawn: false,
    };
    let signals = Signals::install()?;
    match local::launch(&plan, &signals.forward(), None, &mut |_| Ok(()))? {
        LaunchOutcome::Done => Ok(()),
        LaunchOutcome::Interrupted(_) => Err(Error::new(Kind::Interrupted, "interrupted")),
    }
}

/// Runs the program of one rank.
pub(super) fn run_rank(
    rank_env: &RankEnvironment,
    carrier: TransportChoice,
    program: impl FnOnce(&mut Rank) -> Result<()>,
) -> Result<()> {
    let rank_config = RankConfig {
        job: [0; 32],
        seed: 0,
        token: std::env::var_os("THALWEG_TOKEN").unwrap_or_default().into_encoded_bytes(),
        step_deadline: DEADLINE,
        join_deadline: DEADLINE,
        prepare_deadline: DEADLINE,
        carrier,
        port: 0,
        text: String::new(),
        model: Vec::new(),
        data: String::new(),
        elastic: false,
        limits: Limits { min: 1, max: usize::MAX, timeout: Duration::from_secs(30), unit: 1 },
        servers: 0..0,
    };
    let hooks =
        RankHooks { signals: None, on_record: Arc::new(|_| Ok(())), on_forced_exit: Arc::new(|_| {}) };
    session::run(rank_env, &rank_config, hooks, program)
}

/// Exchanges small messages for `SETTLING`: new processes may share one core while another is idle until the scheduler
/// moves them.
pub(super) fn settle(rank: &mut Rank) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut time_left = [if rank.index() == 0 && start.elapsed() < SETTLING { 1.0 } else { 0.0 }];
        rank.world().collective(Collective::AllReduce, "settling", &mut time_left, &Max)?;
        if time_left == [0.0] {
            return Ok(());
        }
    }
}

/// A size of float32 elements: a value parser.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let bytes = Bytes::read(&toml::Value::String(text.into()))?.0;
    let size = usize::try_from(bytes).ok().filter(|size| size % size_of::<f32>() == 0);
    size.ok_or_else(|| format!("{text} is not a whole number of 4-byte elements"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_elements() {
        assert_eq!(size("64KiB"), Ok(65536));
        assert!(size("7B").is_err() && size("much").is_err());
    }
}
