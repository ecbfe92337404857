//! `thalweg bench allreduce`: how long an all-reduce takes between ranks of this machine.
//!
//! The ranks are processes that the local launcher starts from this very command (threads for `mem`), or that another
//! launcher started, on any hosts, by the variables that `train` understands as well; what is measured are the calls
//! training makes: schedules of messages, and on `shm`, unless an algorithm is named, sums in place of tensors that live in
//! shared memory (`arena`) and of private ones that pass through it (`arena-copying`).
//!
//! A measurement is the time of the slowest rank from a barrier on; the median counts. Every rank fills its buffer before
//! and checks every element of the result when all are done: at each call where the sum replaces the buffer, at every
//! eighth where it stands beside it and the buffer is still there for the next call.

use crate::signals::Signals;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_cluster::collective::operator::Max;
use thalweg_cluster::engine::environment::{self, Place};
use thalweg_cluster::engine::local::{self, Ended, Plan};
use thalweg_cluster::membership::Limits;
use thalweg_cluster::rendezvous::local_token;
use thalweg_cluster::rendezvous::mpi;
use thalweg_cluster::session::{self, Surroundings, Terms};
use thalweg_cluster::{Commons, Goal, Method, Rank, rank};
use thalweg_core::spec::nearest;
use thalweg_core::spec::setting::{Bytes, Setting};
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Kind, Result};

/// What `bench allreduce` takes.
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
    algorithm: Choice,
    /// How long to measure each size
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// What connects the ranks.
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

    fn carrier(self) -> Carrier {
        match self {
            Connection::Tcp => Carrier::Tcp,
            Connection::Mpi => Carrier::Mpi,
            Connection::Shm | Connection::Mem => Carrier::Shm,
        }
    }
}

/// An algorithm, or the choice that a job would make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice(Option<Method>);

fn algorithm(name: &str) -> Result<Choice, String> {
    let names = || std::iter::once("auto").chain(Method::all().map(Method::name));
    match Method::named(name) {
        None if name != "auto" => Err(nearest::unknown("algorithm", name, names())),
        found => Ok(Choice(found)),
    }
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = Bytes::read(&toml::Value::String(text.into()))?.0;
    let size = usize::try_from(bytes).ok().filter(|size| size % size_of::<f32>() == 0);
    size.ok_or_else(|| format!("{text} is not a whole number of 4-byte elements"))
}

/// The most calls that are measured, and those at the beginning that are not.
const MOST: usize = 3000;
const WARM_UP: usize = 2;
const LEAST: usize = 6;
/// Of so many calls one is on fresh values.
const FRESH: usize = 8;

/// How long the system gets to spread ranks over its cores before anything is measured.
const SETTLING: Duration = Duration::from_millis(200);

/// The longest any rank may be away; a bench that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// One line of the answer, with the keys of other libraries' benchmarks.
#[derive(Serialize)]
struct Line {
    peer: &'static str,
    transport: &'static str,
    algorithm: &'static str,
    n: usize,
    bytes: usize,
    us: f64,
    us_min: f64,
    bus_gbps: f64,
}

/// How an all-reduce is carried out.
enum Means<'a> {
    /// By messages.
    Messages(Method),
    /// In place, in shared memory.
    Arena(&'a mut Commons),
    /// By way of shared memory.
    Copying(&'a mut Commons),
}

impl Means<'_> {
    fn name(&self) -> &'static str {
        match self {
            Means::Messages(method) => method.name(),
            Means::Arena(_) => "arena",
            Means::Copying(_) => "arena-copying",
        }
    }
}

/// Measures every number of ranks; in a worker, does its part.
pub fn run(args: &AllreduceArgs) -> Result<()> {
    if args.algorithm.0 == Some(Method::Native) && args.transport != Connection::Mpi {
        let name = args.transport.name();
        return Err(Error::job(format!("--algorithm native: `{name}` has no all-reduce of its own"))
            .hint("use --transport mpi"));
    }
    mpi::check(args.transport.carrier())?;
    if let Some(place) = environment::detect(&|name| std::env::var(name).ok())? {
        if args.transport == Connection::Mem {
            return Err(Error::job("--transport mem: ranks that a launcher started are no threads")
                .hint("use --transport shm or tcp"));
        }
        let by_us = std::env::var_os(thalweg_cluster::uplink::VARIABLE).is_some();
        if place.rank == 0 && !by_us {
            print_header(args);
        }
        return as_worker(args, &place);
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
            Connection::Mem => in_threads(args, world)?,
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

/// Starts this very command once per rank and waits for all.
fn launch(world: usize) -> Result<()> {
    let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
    let plan = Plan {
        command: std::iter::once(program.into_os_string()).chain(std::env::args_os().skip(1)).collect(),
        variables: vec![("THALWEG_TOKEN".into(), local_token::fresh()?.into())],
        ranks: 0..world,
        world,
        master: None,
        step_deadline: DEADLINE,
        join_deadline: DEADLINE,
        prepare_deadline: DEADLINE,
        elastic: false,
        respawn: false,
    };
    let signals = Signals::watch()?;
    match local::launch(&plan, &signals.pass_on(), None, &mut |_| Ok(()))? {
        Ended::Done => Ok(()),
        Ended::Interrupted(_) => Err(Error::new(Kind::Interrupted, "interrupted")),
    }
}

fn as_worker(args: &AllreduceArgs, place: &Place) -> Result<()> {
    let terms = Terms {
        job: [0; 32],
        seed: 0,
        token: std::env::var_os("THALWEG_TOKEN").unwrap_or_default().into_encoded_bytes(),
        step_deadline: DEADLINE,
        join_deadline: DEADLINE,
        prepare_deadline: DEADLINE,
        carrier: args.transport.carrier(),
        port: 0,
        text: String::new(),
        model: Vec::new(),
        data: String::new(),
        elastic: false,
        limits: Limits { least: 1, most: usize::MAX, patience: Duration::from_secs(30) },
    };
    let surroundings =
        Surroundings { signals: None, on_record: Arc::new(|_| Ok(())), on_leave: Arc::new(|_| {}) };
    session::run(place, &terms, surroundings, |rank| measure_all(args, rank))
}

/// Every rank a thread of this process.
fn in_threads(args: &AllreduceArgs, world: usize) -> Result<()> {
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
    if args.transport == Connection::Shm && rank.world() > 1 && !rank.shares_memory()? {
        return Err(
            Error::job("--transport shm: the ranks are not all on one host").hint("use --transport tcp")
        );
    }
    settle(rank)?;
    for &bytes in &args.sizes {
        let length = bytes / size_of::<f32>();
        if args.transport == Connection::Shm && args.algorithm.0.is_none() && rank.world() > 1 {
            let opened = rank.open_commons("buffers", length, 1)?;
            let mut commons = opened.map_err(|words| Error::job(format!("--sizes: {words}")))?;
            report(args, rank, Means::Arena(&mut commons), length)?;
            report(args, rank, Means::Copying(&mut commons), length)?;
        } else {
            let method = args.algorithm.0.unwrap_or_else(|| rank.choose_method(bytes));
            rank.exchange_by(method, bytes);
            report(args, rank, Means::Messages(method), length)?;
        }
    }
    Ok(())
}

/// Ranks that have just begun may stand three on one core and one on the other; they meet until the system has seen it.
fn settle(rank: &mut Rank) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut time_left = [if rank.index() == 0 && start.elapsed() < SETTLING { 1.0 } else { 0.0 }];
        rank.collective(Goal::AllReduce, "settling", &mut time_left, &Max)?;
        if time_left == [0.0] {
            return Ok(());
        }
    }
}

/// Measures one size by one means; rank 0 prints.
fn report(args: &AllreduceArgs, rank: &mut Rank, mut means: Means<'_>, length: usize) -> Result<()> {
    let (median, fastest) = measure(rank, &mut means, length, args.seconds)?;
    let (world, bytes) = (rank.world(), length * size_of::<f32>());
    let carried = 2.0 * (world as f64 - 1.0) / world as f64 * bytes as f64;
    let microseconds = |seconds: f64| (seconds * 1e8).round() / 1e2;
    let line = Line {
        peer: "thalweg",
        transport: args.transport.name(),
        algorithm: means.name(),
        n: world,
        bytes,
        us: microseconds(median),
        us_min: microseconds(fastest),
        bus_gbps: (carried / median.max(1e-9) / 1e6).round() / 1e3,
    };
    if rank.index() == 0 { print(&line, args.json) } else { Ok(()) }
}

fn print(line: &Line, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string(line).map_err(|error| Error::internal(error.to_string()))?;
        println!("{text}");
    } else {
        let Line { transport, algorithm, n, bytes, us, us_min, bus_gbps, .. } = line;
        println!(
            "{transport:<10} {algorithm:<20} {n:>6} {bytes:>11} {us:>13.2} {us_min:>13.2} {bus_gbps:>9.3}"
        );
    }
    Ok(())
}

/// Once, from a barrier on: the seconds it takes this rank. Arenas keep what they hold unless they are to be filled afresh.
/// There, who is done waits where it holds up nobody who is not.
fn once(rank: &mut Rank, means: &mut Means<'_>, buffer: &mut [f32], fresh: bool) -> Result<f64> {
    let index = rank.index();
    let took;
    match means {
        Means::Messages(_) => {
            fill(buffer, index);
            rank.barrier("start")?;
            let begun = Instant::now();
            rank.all_reduce("buffer", buffer)?;
            took = begun.elapsed();
        }
        Means::Arena(commons) => {
            let length = commons.length();
            if fresh {
                fill(commons.arena(), index);
            }
            rank.meet("start", commons)?;
            let begun = Instant::now();
            rank.sum_and("buffer", commons, length, |_, _| ())?;
            took = begun.elapsed();
            rank.meet("end", commons)?;
        }
        Means::Copying(commons) => {
            fill(buffer, index);
            rank.meet("start", commons)?;
            let begun = Instant::now();
            rank.all_reduce_copying("buffer", commons, buffer)?;
            took = begun.elapsed();
            rank.meet("end", commons)?;
        }
    }
    Ok(took.as_secs_f64())
}

/// Median and least, over repeats, of the seconds the slowest rank takes.
fn measure(rank: &mut Rank, means: &mut Means<'_>, length: usize, seconds: f64) -> Result<(f64, f64)> {
    let mut buffer = if matches!(means, Means::Arena(_)) { Vec::new() } else { vec![0.0; length] };
    let mut times = Vec::new();
    let start = Instant::now();
    for call in 0..MOST {
        let fresh = call % FRESH == 0;
        let mine = once(rank, means, &mut buffer, fresh)?;
        // Rank 0's clock decides for all when it is enough.
        let enough = rank.index() == 0 && call >= LEAST && start.elapsed().as_secs_f64() > seconds;
        let mut slowest = [mine, if enough { 1.0 } else { 0.0 }];
        rank.collective(Goal::AllReduce, "times", &mut slowest, &Max)?;
        let [slowest, enough] = slowest;
        // Only now: where ranks are more than cores, who checks holds up who is not done yet.
        match means {
            Means::Arena(commons) if fresh => check(commons.column(0), rank.world())?,
            Means::Arena(_) => {}
            Means::Messages(_) | Means::Copying(_) => check(&buffer, rank.world())?,
        }
        if call >= WARM_UP {
            times.push(slowest);
        }
        if enough > 0.0 {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |index: usize| times.get(index).copied().unwrap_or(0.0);
    Ok((at(times.len() / 2), at(0)))
}

/// Small whole numbers, so that the sum is exact in any order.
fn fill(buffer: &mut [f32], rank: usize) {
    for (index, element) in buffer.iter_mut().enumerate() {
        *element = ((index & 1023) + rank) as f32;
    }
}

fn check(buffer: &[f32], world: usize) -> Result<()> {
    let ranks = world * (world - 1) / 2;
    let wrong = |(index, element): (usize, &f32)| *element != ((index & 1023) * world + ranks) as f32;
    match buffer.iter().enumerate().position(wrong) {
        None => Ok(()),
        Some(index) => Err(Error::internal(format!("element {index} of the sum is {}", buffer[index]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_algorithms_are_read() {
        assert_eq!(size("64KiB"), Ok(65536));
        assert!(size("7B").is_err() && size("much").is_err());
        assert_eq!(algorithm("auto"), Ok(Choice(None)));
        assert_eq!(algorithm("direct"), Ok(Choice(Method::named("direct"))));
        assert!(algorithm("rign").unwrap_err().contains("ring"));
    }

    #[test]
    fn a_wrong_element_is_found() {
        let mut buffer = vec![0.0; 3000];
        fill(&mut buffer, 0);
        assert!(check(&buffer, 1).is_ok());
        buffer[2049] += 1.0;
        assert!(check(&buffer, 1).unwrap_err().to_string().contains("element 2049"));
    }
}
