//! `thalweg bench messages`: how long a message to the next rank and an all-reduce take, each alone and both at once.
//!
//! Both use the same links. At once, each rank sends its message, takes part in the all-reduce, then waits for the message
//! of the rank before it. If neither delays the other by more than its bytes, both together take at most the sum of the
//! times alone. The three cases take turns, each from a barrier on; the median over the slowest rank's times is reported.
//! All results are checked.

use super::ranks::{Connection, launch, run_rank, settle, size};
use clap::Args;
use serde::Serialize;
use std::time::Instant;
use thalweg_cluster::collective::operator::Max;
use thalweg_cluster::engine::environment;
use thalweg_cluster::{Collective, MessageTag, Rank};
use thalweg_core::{Error, Result};

const MODEL: MessageTag = MessageTag { number: 1, name: "a model" };

/// Rounds at least; the first `WARM_UP` are not counted.
const MIN_ROUNDS: usize = 6;
const WARM_UP: usize = 2;

/// Arguments of `bench messages`.
#[derive(Args, Debug)]
pub struct MessagesArgs {
    /// Ranks; under another launcher there are as many as it started
    #[arg(long, value_name = "N", default_value_t = 2)]
    ranks: usize,
    /// Sizes of the message and of the all-reduce
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...", value_parser = size)]
    #[arg(default_value = "64KiB,3MiB,100MiB")]
    sizes: Vec<usize>,
    /// What connects the ranks
    #[arg(long, value_enum, default_value_t = Connection::Shm)]
    transport: Connection,
    /// How long to measure each size
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// One line of the output.
#[derive(Serialize)]
struct Measurement {
    peer: &'static str,
    transport: &'static str,
    n: usize,
    bytes: usize,
    /// Alone.
    message_us: f64,
    allreduce_us: f64,
    /// At once.
    message_at_once_us: f64,
    allreduce_at_once_us: f64,
    /// The longer of the two at once, as a part of the sum of both alone.
    ratio: f64,
}

/// What a round does.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Message,
    AllReduce,
    AtOnce,
}

/// Measures every size; in a process that a launcher started, runs one rank.
pub fn run(args: &MessagesArgs) -> Result<()> {
    if args.seconds.is_nan() || args.seconds <= 0.0 {
        return Err(Error::job(format!("--seconds {}: it takes some time to measure", args.seconds)));
    }
    if args.ranks < 2 {
        return Err(Error::job(format!("--ranks {}: a message needs two ranks", args.ranks)));
    }
    if let Some(rank_env) = environment::detect(&|name| std::env::var(name).ok())? {
        return run_rank(&rank_env, args.transport.carrier(), |rank| measure_all(args, rank));
    }
    launch(args.ranks)
}

fn measure_all(args: &MessagesArgs, rank: &mut Rank) -> Result<()> {
    rank.begin_preparation("measuring");
    if args.transport == Connection::Shm && !rank.world().agree_on_shared_memory()? {
        return Err(
            Error::job("--transport shm: the ranks are not all on one host").hint("use --transport tcp")
        );
    }
    settle(rank)?;
    rank.open_messages(2 * args.sizes.iter().max().copied().unwrap_or(0).max(64));
    if rank.index() == 0 && !args.json {
        println!(
            "transport  ranks       bytes  message us  all-reduce us  at once: message  all-reduce  of the sum"
        );
    }
    for &bytes in &args.sizes {
        let method = rank.world().default_all_reduce_method(bytes);
        rank.world().set_allreduce_algorithm(method, bytes);
        let line = measure(args, rank, bytes)?;
        if rank.index() == 0 {
            print(&line, args.json)?;
        }
    }
    Ok(())
}

fn measure(args: &MessagesArgs, rank: &mut Rank, bytes: usize) -> Result<Measurement> {
    let (start, mut times) = (Instant::now(), [const { Vec::new() }; 4]);
    for round in 0.. {
        let [message, _] = time_case(rank, Case::Message, bytes, round)?;
        let [_, allreduce] = time_case(rank, Case::AllReduce, bytes, round)?;
        let [message_at_once, allreduce_at_once] = time_case(rank, Case::AtOnce, bytes, round)?;
        // Rank 0's clock decides for all ranks when to stop.
        let enough = rank.index() == 0 && round >= MIN_ROUNDS && start.elapsed().as_secs_f64() > args.seconds;
        let enough = if enough { 1.0 } else { 0.0 };
        let mut slowest = [message, allreduce, message_at_once, allreduce_at_once, enough];
        rank.world().collective(Collective::AllReduce, "times", &mut slowest, &Max)?;
        if round >= WARM_UP {
            times.iter_mut().zip(slowest).for_each(|(times, slowest)| times.push(slowest));
        }
        if slowest[4] > 0.0 {
            break;
        }
    }
    let [message_us, allreduce_us, message_at_once_us, allreduce_at_once_us] = times.map(median_us);
    let alone = message_us + allreduce_us;
    Ok(Measurement {
        peer: "thalweg",
        transport: args.transport.name(),
        n: rank.size(),
        bytes,
        message_us,
        allreduce_us,
        message_at_once_us,
        allreduce_at_once_us,
        ratio: message_at_once_us.max(allreduce_at_once_us) / alone.max(1e-3),
    })
}

/// Seconds from a barrier until this rank has the message, and until it has the sum.
fn time_case(rank: &mut Rank, case: Case, bytes: usize, round: usize) -> Result<[f64; 2]> {
    let (index, size) = (rank.index(), rank.size());
    let (next, before) = ((index + 1) % size, (index + size - 1) % size);
    let content = |rank: usize| (rank + round) as u8;
    let mut message = Vec::new();
    if case != Case::AllReduce {
        message = rank.message_buffer(bytes);
        message.resize(bytes, content(index));
    }
    let mut sum = vec![index as f32; bytes / size_of::<f32>()];
    rank.world().barrier("start")?;
    let begun = Instant::now();
    let mut took = [0.0; 2];
    if case != Case::AllReduce {
        rank.world().send_waiting(next, MODEL, message)?;
    }
    if case != Case::Message {
        rank.world().all_reduce("buffer", &mut sum)?;
        took[1] = begun.elapsed().as_secs_f64();
    }
    if case != Case::AllReduce {
        let received = rank.world().receive(before, MODEL)?.bytes;
        took[0] = begun.elapsed().as_secs_f64();
        if received.len() != bytes || received.iter().any(|byte| *byte != content(before)) {
            return Err(Error::internal("a message has other bytes than were sent"));
        }
        rank.recycle(received);
    }
    let expected = (size * (size - 1) / 2) as f32;
    if case != Case::Message && sum.iter().any(|element| *element != expected) {
        return Err(Error::internal("a sum is wrong"));
    }
    Ok(took)
}

fn median_us(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(0.0);
    (median * 1e8).round() / 1e2
}

fn print(line: &Measurement, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string(line).map_err(|error| Error::internal(error.to_string()))?;
        println!("{text}");
        return Ok(());
    }
    let Measurement { transport, n, bytes, message_us, allreduce_us, message_at_once_us, .. } = line;
    let Measurement { allreduce_at_once_us, ratio, .. } = line;
    println!(
        "{transport:<10} {n:>5} {bytes:>11} {message_us:>11.2} {allreduce_us:>14.2} {message_at_once_us:>17.2} \
         {allreduce_at_once_us:>11.2} {ratio:>11.3}"
    );
    Ok(())
}
