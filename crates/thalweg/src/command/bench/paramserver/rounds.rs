//! Rounds of pushes, pulls and, on tcp, plain streams, which take turns.

use super::carrier::{Carrier, acknowledge, await_acknowledgements};
use super::stream::{self, Stream};
use super::values::{check_sum, fill_gradient, fill_parameters, parameter_bits, sum_bits};
use super::{Connection, Measurement, Op, ParamserverArgs, Roles};
use std::time::Instant;
use thalweg_cluster::collective::operator::Max;
use thalweg_cluster::{Collective, Rank};
use thalweg_core::{Error, Result};

/// Bounds of the number of rounds; the first `WARM_UP` are not counted.
const MAX_ROUNDS: u64 = 3000;
const MIN_ROUNDS: u64 = 6;
const WARM_UP: u64 = 2;

/// The rounds of one rank.
struct Rounds<'a> {
    rank: &'a mut Rank,
    roles: Roles,
    carrier: &'a mut dyn Carrier,
    /// A server's sum of gradients, of its shard; a worker's copy of the parameters.
    memory: Vec<f32>,
    stream: Option<Stream>,
}

/// What takes turns in a round.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Push,
    Pull,
    Stream,
}

impl Turn {
    fn name(self) -> &'static str {
        match self {
            Turn::Push => "push",
            Turn::Pull => "pull",
            Turn::Stream => stream::OP,
        }
    }
}

/// Measures pushes and pulls, as far as they are asked for; all ranks return the same.
pub(super) fn measure(
    args: &ParamserverArgs,
    rank: &mut Rank,
    roles: Roles,
    carrier: &mut dyn Carrier,
) -> Result<Vec<Measurement>> {
    let mut turns = Vec::new();
    turns.extend(args.ops.contains(&Op::Push).then_some(Turn::Push));
    turns.extend(args.ops.contains(&Op::Pull).then_some(Turn::Pull));
    let index = rank.index();
    let memory = if roles.servers().contains(&index) { roles.shard(index).len() } else { roles.length };
    let beside_stream = args.transport == Connection::Tcp && !turns.is_empty() && rank.size() == 2;
    let stream = if beside_stream { Stream::open(rank, roles.length)? } else { None };
    turns.extend(stream.as_ref().map(|_| Turn::Stream));
    let mut rounds = Rounds { rank, roles, carrier, memory: vec![0.0; memory], stream };
    let times = rounds.run(&turns, args.seconds)?;
    let lines = turns.iter().zip(times).map(|(turn, mut times)| {
        times.sort_by(f64::total_cmp);
        let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
        let (median, fastest) = (at(times.len() / 2), at(0));
        let bytes = (roles.workers * roles.length * size_of::<f32>()) as f64;
        let microseconds = |seconds: f64| Some((seconds * 1e8).round() / 1e2);
        Measurement {
            us: microseconds(median),
            us_min: microseconds(fastest),
            ..Measurement::new(args, roles, turn.name(), bytes / median.max(1e-9) / 1e9)
        }
    });
    Ok(lines.collect())
}

impl Rounds<'_> {
    /// Seconds of each turn, by round, of the slowest rank.
    fn run(&mut self, turns: &[Turn], seconds: f64) -> Result<Vec<Vec<f64>>> {
        let mut times = vec![Vec::new(); turns.len()];
        let begun = Instant::now();
        for round in 0..MAX_ROUNDS {
            let mut enough = turns.is_empty();
            for (turn, times) in turns.iter().zip(&mut times) {
                let mine = match turn {
                    Turn::Push => self.push(round)?,
                    Turn::Pull => self.pull(round)?,
                    Turn::Stream => self.stream(round)?,
                };
                // Rank 0's clock decides for all ranks when to stop.
                let elapsed = begun.elapsed().as_secs_f64() / turns.len() as f64;
                let over = self.rank.index() == 0 && round >= MIN_ROUNDS && elapsed > seconds;
                let mut slowest = [mine, if over { 1.0 } else { 0.0 }];
                self.rank.world().collective(Collective::AllReduce, "times", &mut slowest, &Max)?;
                if round >= WARM_UP {
                    times.push(slowest[0]);
                }
                enough |= slowest[1] > 0.0;
            }
            if enough {
                break;
            }
        }
        Ok(times)
    }

    fn serves(&self) -> bool {
        self.roles.servers().contains(&self.rank.index())
    }

    fn push(&mut self, round: u64) -> Result<f64> {
        let index = self.rank.index();
        if !self.serves() {
            self.carrier.write_gradient(&mut |gradient| fill_gradient(gradient, index, round));
            self.rank.world().barrier("start")?;
            let begun = Instant::now();
            self.carrier.push(self.rank)?;
            await_acknowledgements(self.rank, self.roles)?;
            return Ok(begun.elapsed().as_secs_f64());
        }
        self.memory.fill(0.0);
        self.rank.world().barrier("start")?;
        for _ in self.roles.workers() {
            let (worker, _) = self.carrier.next_push(self.rank)?;
            self.carrier.add(self.rank, worker, &mut self.memory)?;
            acknowledge(self.rank, worker)?;
        }
        check_sum(&self.memory, self.roles.shard(index).start, self.roles.workers, round)?;
        Ok(0.0)
    }

    fn pull(&mut self, round: u64) -> Result<f64> {
        let index = self.rank.index();
        if self.serves() {
            let start = self.roles.shard(index).start;
            self.carrier.write_parameters(round, &mut |parameters| fill_parameters(parameters, start, round));
            self.rank.world().barrier("start")?;
            for worker in self.roles.workers() {
                self.carrier.await_request(self.rank, worker)?;
                self.carrier.serve(self.rank, worker)?;
            }
            return Ok(0.0);
        }
        self.rank.world().barrier("start")?;
        let (begun, mut bits) = (Instant::now(), 0u32);
        self.carrier.request(self.rank)?;
        self.carrier.pull(self.rank, &mut self.memory, &mut |_, values| {
            bits = bits.wrapping_add(sum_bits(values));
        })?;
        let took = begun.elapsed().as_secs_f64();
        if bits != parameter_bits(self.roles.length, round) || bits != sum_bits(&self.memory) {
            return Err(Error::internal("the pulled parameters are not those of the servers"));
        }
        Ok(took)
    }

    fn stream(&mut self, round: u64) -> Result<f64> {
        let Some(stream) = &mut self.stream else { return Ok(0.0) };
        stream.fill(round);
        self.rank.world().barrier("start")?;
        stream.run(round)
    }
}
