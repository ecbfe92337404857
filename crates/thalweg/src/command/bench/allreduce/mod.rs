//! `thalweg bench allreduce`: the time of an all-reduce between ranks of this machine.
//!
//! The local launcher starts this same command once per rank (threads for `mem`), or another launcher started the
//! ranks, on any hosts, with the variables that `train` reads too. The measured calls are those of training: message
//! algorithms, and on `shm`, unless an algorithm is named, sums of tensors that live in shared memory (`arena`) and of
//! private ones copied through it (`arena-copying`).
//!
//! A measurement is the time of the slowest rank from a barrier on; the median is reported. Every rank fills its buffer
//! before the call and checks every element of the result after it: in each call where the sum replaces the buffer, in
//! every eighth where the sum is stored beside it and the input stays valid.

mod measure;

use super::ranks::{DEADLINE, launch, run_rank, settle, size};
use clap::{Args, ValueEnum};
use measure::{Variant, measure};
use serde::Serialize;
use thalweg_cluster::engine::environment;
use thalweg_cluster::rendezvous::mpi;
use thalweg_cluster::{AllReduceMethod, PartialSums, Rank, rank};
use thalweg_core::spec::nearest;
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, Result};

/// Arguments of `bench allreduce`.
#[derive(Args, Debug)]
pub struct AllreduceArgs {
    /// Numbers of ranks; under another launcher there are as many as it started
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "2,4,8")]
    ranks: Vec<usize>,
    /// Sizes of the buffer
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...", value_parser = size)]
    #[arg(default_value = "4KiB,64KiB,1MiB,16MiB,100MiB")]
    sizes: Vec<usize>,
    /// What connects the ranks
    #[arg(long, value_enum, default_value_t = Connection::Shm)]
    transport: Connection,
    /// The algorithm: as strategy.exchange.algorithm; auto on shm: in arenas
    #[arg(long, default_value = "auto", value_parser = algorithm)]
    algorithm: AlgorithmArg,
    /// How long to measure each size
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// The transport between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Connection {
    /// Processes, connected by shared memory
    Shm,
    /// Processes, connected by sockets
    Tcp,
    /// Threads, connected by memory
    Mem,
    /// Processes that mpirun has started: mpirun -n 4 thalweg bench allreduce --transport mpi
    Mpi,
}

impl Connection {
    fn name(self) -> &'static str {
        match self {
            Connection::Shm => "shm",
            Connection::Tcp => "tcp",
            Connection::Mem => "mem",
            Connection::Mpi => "mpi",
        }
    }

    fn carrier(self) -> TransportChoice {
        match self {
            Connection::Tcp => TransportChoice::Tcp,
            Connection::Mpi => TransportChoice::Mpi,
            Connection::Shm | Connection::Mem => TransportChoice::Shm,
        }
    }
}

/// A named algorithm; `None` is the one that a job would choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AlgorithmArg(Option<AllReduceMethod>);

fn algorithm(name: &str) -> Result<AlgorithmArg, String> {
    let names = || std::iter::once("auto").chain(AllReduceMethod::all().map(AllReduceMethod::name));
    match AllReduceMethod::named(name) {
        None if name != "auto" => Err(nearest::unknown("algorithm", name, names())),
        found => Ok(AlgorithmArg(found)),
    }
}

/// One line of the output; the keys are those of the benchmark scripts for other libraries.
#[derive(Serialize)]
struct Measurement {
    peer: &'static str,
    transport: &'static str,
    algorithm: &'static str,
    n: usize,
    bytes: usize,
    us: f64,
    us_min: f64,
    bus_gbps: f64,
}

/// Measures every world size; in a process that a launcher started, runs one rank.
pub fn run(args: &AllreduceArgs) -> Result<()> {
    if args.algorithm.0 == Some(AllReduceMethod::Native) && args.transport != Connection::Mpi {
        let name = args.transport.name();
        return Err(Error::job(format!("--algorithm native: `{name}` has no all-reduce of its own"))
            .hint("use --transport mpi"));
    }
    mpi::check(args.transport.carrier())?;
    if let Some(rank_env) = environment::detect(&|name| std::env::var(name).ok())? {
        if args.transport == Connection::Mem {
            return Err(Error::job("--transport mem: ranks that a launcher started are no threads")
                .hint("use --transport shm or tcp"));
        }
        let own_launcher = std::env::var_os(thalweg_cluster::launcher_connection::VARIABLE).is_some();
        if rank_env.rank == 0 && !own_launcher {
            print_header(args);
        }
        return run_rank(&rank_env, args.transport.carrier(), |rank| measure_all(args, rank));
    }
    if args.ranks.contains(&0) {
        return Err(Error::job("--ranks: there is no all-reduce among 0 ranks"));
    }
    if args.transport == Connection::Mpi {
        return Err(Error::job("--transport mpi: MPI's launcher did not start this process")
            .hint(mpi::START_WITH_MPIRUN));
    }
    print_header(args);
    for &world in &args.ranks {
        match args.transport {
            Connection::Mem => run_in_threads(args, world)?,
            _ => launch(world)?,
        }
    }
    Ok(())
}

fn print_header(args: &AllreduceArgs) {
    if !args.json {
        println!("transport  algorithm             ranks       bytes  microseconds       fastest  bus GB/s");
    }
}

/// Runs every rank as a thread of this process.
fn run_in_threads(args: &AllreduceArgs, world: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = rank::in_memory(world, DEADLINE)
            .into_iter()
            .map(|mut rank| scope.spawn(move || measure_all(args, &mut rank).inspect(|()| rank.leave())))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(Error::internal("a rank panicked"))))
    })
}

/// Measures every size; rank 0 prints.
fn measure_all(args: &AllreduceArgs, rank: &mut Rank) -> Result<()> {
    rank.begin_preparation("measuring");
    if args.transport == Connection::Shm && rank.size() > 1 && !rank.world().agree_on_shared_memory()? {
        return Err(
            Error::job("--transport shm: the ranks are not all on one host").hint("use --transport tcp")
        );
    }
    settle(rank)?;
    for &bytes in &args.sizes {
        let length = bytes / size_of::<f32>();
        if args.transport == Connection::Shm && args.algorithm.0.is_none() && rank.size() > 1 {
            let opened = rank.world().open_arena("buffers", PartialSums::one(length), 1)?;
            let mut arena = opened.map_err(|message| Error::job(format!("--sizes: {message}")))?;
            report(args, rank, Variant::Arena(&mut arena), length)?;
            report(args, rank, Variant::Copying(&mut arena), length)?;
        } else {
            let method = args.algorithm.0.unwrap_or_else(|| rank.world().default_all_reduce_method(bytes));
            rank.world().set_allreduce_algorithm(method, bytes);
            report(args, rank, Variant::Messages(method), length)?;
        }
    }
    Ok(())
}

/// Measures one buffer size with one variant; rank 0 prints.
fn report(args: &AllreduceArgs, rank: &mut Rank, mut variant: Variant<'_>, length: usize) -> Result<()> {
    let (median, fastest) = measure(rank, &mut variant, length, args.seconds)?;
    let (world, bytes) = (rank.size(), length * size_of::<f32>());
    let carried = 2.0 * (world as f64 - 1.0) / world as f64 * bytes as f64;
    let microseconds = |seconds: f64| (seconds * 1e8).round() / 1e2;
    let line = Measurement {
        peer: "thalweg",
        transport: args.transport.name(),
        algorithm: variant.name(),
        n: world,
        bytes,
        us: microseconds(median),
        us_min: microseconds(fastest),
        bus_gbps: (carried / median.max(1e-9) / 1e6).round() / 1e3,
    };
    if rank.index() == 0 { print(&line, args.json) } else { Ok(()) }
}

fn print(line: &Measurement, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string(line).map_err(|error| Error::internal(error.to_string()))?;
        println!("{text}");
    } else {
        let Measurement { transport, algorithm, n, bytes, us, us_min, bus_gbps, .. } = line;
        println!(
            "{transport:<10} {algorithm:<20} {n:>6} {bytes:>11} {us:>13.2} {us_min:>13.2} {bus_gbps:>9.3}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_read() {
        assert_eq!(algorithm("auto"), Ok(AlgorithmArg(None)));
        assert_eq!(algorithm("direct"), Ok(AlgorithmArg(AllReduceMethod::named("direct"))));
        assert!(algorithm("rign").unwrap_err().contains("ring"));
    }
}
