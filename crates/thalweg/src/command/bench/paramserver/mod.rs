//! `thalweg bench paramserver`: how fast workers push gradients to parameter servers and pull parameters from them.
//!
//! The local launcher starts this same command once per rank. Workers come first, then the servers, each of which owns a
//! range of the elements. On `shm`, gradients and parameters live in windows and small messages say that they are there; on
//! `tcp` they are messages.
//!
//! | operation | begins | ends |
//! |---|---|---|
//! | `push` | the worker has its gradient | the worker knows that the servers have added it to their sum |
//! | `pull` | the worker asks for the parameters | it has copied them and added up all their bits |
//! | `update` | the worker pushes, the servers apply SGD at once | the worker has pulled; workers do not wait for each other |
//! | `stream` | (`tcp` alone) the same bytes in one direction over a plain socket | the receiver has them in its memory |
//!
//! Pushes, pulls and streams take turns, each from a barrier on; the median over the slowest worker's times is reported,
//! and the rate is that of all workers together. All results are checked: every pull by the sum of its bits and every
//! update's pull element by element; every push element by element, outside of the measured time.

mod carrier;
mod messages;
mod rounds;
mod stream;
mod updates;
mod values;
mod windows;

use super::ranks::{Connection, launch, run_rank, settle, size};
use carrier::Carrier;
use clap::{Args, ValueEnum};
use messages::Messages;
use serde::Serialize;
use std::ops::Range;
use thalweg_cluster::collective::partition::shard_range;
use thalweg_cluster::engine::environment;
use thalweg_cluster::{Rank, Window};
use thalweg_core::{Error, Result};
use windows::Windows;

/// Arguments of `bench paramserver`.
#[derive(Args, Debug)]
pub struct ParamserverArgs {
    /// Servers; each owns a range of the elements
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: usize,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "1,8")]
    workers: Vec<usize>,
    /// Sizes of the gradient and of the parameters
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...", value_parser = size)]
    #[arg(default_value = "4MiB,100MiB")]
    sizes: Vec<usize>,
    /// What connects the ranks
    #[arg(long, value_enum, default_value_t = Connection::Shm)]
    transport: Connection,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_value = "push,pull,update")]
    ops: Vec<Op>,
    /// How long to measure each case
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Op {
    /// Synchronous: the servers add the gradients of all workers
    Push,
    /// The workers copy the parameters
    Pull,
    /// Asynchronous: push, apply, pull, each worker at its own speed
    Update,
}

/// One line of the output; the keys are those of the benchmark scripts for other systems.
#[derive(Debug, Default, Serialize)]
struct Measurement {
    peer: &'static str,
    transport: &'static str,
    op: &'static str,
    bytes: usize,
    servers: usize,
    workers: usize,
    /// Bytes of all workers, in both directions, per second.
    gbps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    us_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updates_per_s: Option<f64>,
}

/// Who is who, and which elements each server owns.
#[derive(Clone, Copy, Debug)]
struct Roles {
    workers: usize,
    servers: usize,
    /// Elements.
    length: usize,
}

impl Roles {
    fn workers(self) -> Range<usize> {
        0..self.workers
    }

    fn servers(self) -> Range<usize> {
        self.workers..self.workers + self.servers
    }

    /// The elements of a server: whole blocks of a window, so that a server publishes each of its blocks once per update.
    fn shard(self, server: usize) -> Range<usize> {
        let blocks = self.length.div_ceil(Window::BLOCK);
        let blocks = shard_range(blocks, server - self.workers, self.servers);
        let element = |block: usize| self.length.min(block * Window::BLOCK);
        element(blocks.start)..element(blocks.end)
    }
}

/// Measures every number of workers; in a process that a launcher started, runs one rank.
pub fn run(args: &ParamserverArgs) -> Result<()> {
    if args.servers == 0 || args.workers.contains(&0) {
        return Err(Error::job("--servers, --workers: at least one of each is needed"));
    }
    if !(args.seconds > 0.0 && args.seconds <= 1e6) {
        return Err(Error::job(format!("--seconds {}: must be above 0", args.seconds)));
    }
    if let Some(rank_env) = environment::detect(&|name| std::env::var(name).ok())? {
        let Some(workers) = rank_env.world.checked_sub(args.servers).filter(|workers| *workers > 0) else {
            let world = rank_env.world;
            return Err(Error::job(format!("--servers {}: of {world} ranks none is a worker", args.servers)));
        };
        return run_rank(&rank_env, args.transport.carrier(), |rank| measure_all(args, rank, workers));
    }
    if !args.json {
        println!(
            "peer        transport  op          bytes  servers  workers  microseconds   GB/s  updates/s"
        );
    }
    args.workers.iter().try_for_each(|workers| launch(workers + args.servers))
}

/// Measures every size; rank 0 prints.
fn measure_all(args: &ParamserverArgs, rank: &mut Rank, workers: usize) -> Result<()> {
    rank.begin_preparation("measuring");
    rank.open_messages(messages::WINDOW);
    settle(rank)?;
    for &bytes in &args.sizes {
        let roles = Roles { workers, servers: args.servers, length: bytes / size_of::<f32>() };
        let mut carrier: Box<dyn Carrier> = match args.transport {
            Connection::Shm => Box::new(Windows::open(rank, roles)?),
            Connection::Tcp => Box::new(Messages::new(rank, roles)),
        };
        let mut lines = rounds::measure(args, rank, roles, carrier.as_mut())?;
        if args.ops.contains(&Op::Update) {
            lines.push(updates::measure(args, rank, roles, carrier.as_mut())?);
        }
        // What is in flight when a rank ends is lost.
        rank.world().flush_messages()?;
        rank.world().barrier("the end")?;
        if rank.index() == 0 {
            lines.into_iter().try_for_each(|line| print(&line, args.json))?;
        }
    }
    Ok(())
}

impl Measurement {
    fn new(args: &ParamserverArgs, roles: Roles, op: &'static str, gbps: f64) -> Measurement {
        Measurement {
            peer: if op == stream::OP { "socket" } else { "thalweg" },
            transport: args.transport.name(),
            op,
            bytes: roles.length * size_of::<f32>(),
            servers: roles.servers,
            workers: roles.workers,
            gbps: (gbps * 1e3).round() / 1e3,
            ..Measurement::default()
        }
    }
}

fn print(line: &Measurement, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string(line).map_err(|error| Error::internal(error.to_string()))?;
        println!("{text}");
        return Ok(());
    }
    let Measurement { peer, transport, op, bytes, servers, workers, gbps, us, updates_per_s, .. } = line;
    let shown = |number: &Option<f64>| number.map_or(String::from("-"), |number| format!("{number:.1}"));
    println!(
        "{peer:<11} {transport:<10} {op:<6} {bytes:>10} {servers:>8} {workers:>8} {:>13} {gbps:>6.2} {:>10}",
        shown(us),
        shown(updates_per_s)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_own_whole_blocks() {
        for (length, servers) in [(1, 2), (Window::BLOCK, 1), (5 * Window::BLOCK + 3, 3), (0, 2)] {
            let roles = Roles { workers: 2, servers, length };
            let end = roles.servers().fold(0, |end, server| {
                let shard = roles.shard(server);
                assert_eq!(shard.start, end);
                assert!(shard.end == length || shard.end.is_multiple_of(Window::BLOCK));
                shard.end
            });
            assert_eq!(end, length);
        }
    }
}
