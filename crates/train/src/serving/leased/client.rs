//! A worker that takes leases from a server.

use super::message::{Answer, Done, Request};
use crate::context::Context;
use crate::envelope::{self, Values};
use crate::serving::workers::gather_workers;
use crate::serving::{part, shards};
use crate::step_report::StepReport;
use crate::strategy::NextActivity;
use crate::work::pool::{Lease, Worker};
use std::collections::BTreeSet;
use std::ops::Range;
use thalweg_core::{Error, Result};

/// A worker's side.
#[derive(Debug, Default)]
pub struct Client {
    worker: Worker,
    phase: Phase,
    /// By server.
    versions: Vec<u64>,
    /// Pushes between two fetches, if there are any, and those since the last.
    skipped_fetches: usize,
    since_fetch: usize,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Waiting(Exchange),
    Holding(Lease),
}

/// A request under way.
#[derive(Debug, Default)]
struct Exchange {
    /// Without it, the worker asks for work.
    done: Option<Done>,
    /// Whether the answers are to have values.
    fetches: bool,
    /// Numbers of the servers that have not been sent it, and of those that have and did not answer.
    unsent: BTreeSet<usize>,
    unanswered: BTreeSet<usize>,
}

impl Exchange {
    fn new(done: Option<Done>, fetches: bool, servers: usize) -> Exchange {
        Exchange { done, fetches, unsent: (0..servers).collect(), unanswered: BTreeSet::new() }
    }

    /// The next server to be sent the request: the first one when all others have answered.
    fn next_to_send(&self) -> Option<usize> {
        let others_have_answered = self.unsent.len() == 1 && self.unanswered.is_empty();
        self.unsent.iter().copied().find(|server| *server > 0 || others_have_answered)
    }
}

impl Client {
    /// A worker that fetches values with every `pushes`-th push only.
    pub fn fetching(pushes: usize) -> Client {
        Client { skipped_fetches: pushes.saturating_sub(1), ..Client::default() }
    }

    /// What this worker does next. `values` are those that it pushed, if it has; `take` gets those of the answers, each with
    /// its range. Waits for the servers.
    pub fn next(
        &mut self,
        cx: &mut Context<'_>,
        values: &[f32],
        mut take: impl FnMut(Range<usize>, Values<'_>) -> std::result::Result<(), String>,
    ) -> Result<NextActivity> {
        let servers = shards::of(cx)?;
        loop {
            match &mut self.phase {
                Phase::Holding(_) => return Ok(NextActivity::Unit),
                Phase::Idle => {
                    cx.windows.drop_earlier(cx.rank.generation());
                    self.phase = Phase::Waiting(Exchange::new(None, true, servers.len()));
                }
                Phase::Waiting(exchange) => {
                    if exchange.next_to_send().is_some() {
                        self.send(cx, values)?;
                        continue;
                    }
                    let Some(number) = exchange.unanswered.first().copied() else {
                        return Err(Error::internal("a request that no server answers"));
                    };
                    let (server, range) = servers[number].clone();
                    let take = |values: Values<'_>| take(range, values);
                    let Some(answer) = self.receive(cx, (number, server), take)? else { continue };
                    if number == 0 && self.begin(cx, answer)? {
                        return Ok(NextActivity::Meeting);
                    }
                }
            }
        }
    }

    /// Sends what can be sent of the request under way.
    fn send(&mut self, cx: &mut Context<'_>, values: &[f32]) -> Result<()> {
        let (servers, generation) = (shards::of(cx)?, cx.rank.generation());
        let Phase::Waiting(exchange) = &mut self.phase else { return Ok(()) };
        while let Some(number) = exchange.next_to_send() {
            let (server, range) = servers[number].clone();
            let version = self.versions.get(number).copied().unwrap_or(0);
            let done = exchange.done.as_ref().map(|done| Done { version, ..done.clone() });
            let part = if done.is_some() { &values[range.clone()] } else { &[] };
            let fetches = exchange.fetches;
            let request = Request { worker: self.worker, generation, done, fetches, meets: false };
            part::push(cx, server, &request, range.start, part)?;
            exchange.unsent.remove(&number);
            exchange.unanswered.insert(number);
        }
        Ok(())
    }

    /// Takes the next answer of a server. One to an earlier worker with this id is dropped.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        (number, server): (usize, usize),
        take: impl FnOnce(Values<'_>) -> std::result::Result<(), String>,
    ) -> Result<Option<Answer>> {
        let (bytes, seen) = part::await_answer(cx, server)?;
        let mut fetched = false;
        let read = envelope::decode::<Answer>(&bytes).and_then(|(answer, values)| {
            if answer.worker == self.worker && values.len() > 0 {
                take(values)?;
                fetched = true;
            }
            Ok(answer)
        });
        let answer = read.map_err(|cause| part::invalid(cx.rank.member_id_at(server), cause))?;
        if answer.worker != self.worker {
            return Ok(None);
        }
        // Shared memory may be more recent than the message.
        self.versions.resize(self.versions.len().max(number + 1), 0);
        if fetched {
            self.versions[number] = seen.unwrap_or(0).max(answer.version);
        }
        if let Phase::Waiting(exchange) = &mut self.phase {
            exchange.unanswered.remove(&number);
        }
        Ok(Some(answer))
    }

    /// Begins what the first server has answered, which all others did before; whether it is a meeting.
    fn begin(&mut self, cx: &mut Context<'_>, answer: Answer) -> Result<bool> {
        match answer.lease {
            Some(lease) => self.phase = Phase::Holding(lease),
            None => self.phase = Phase::Idle,
        }
        if self.since_fetch > self.skipped_fetches || matches!(self.phase, Phase::Idle) {
            self.since_fetch = 0;
        }
        // Of a call from before a change of the group nobody else may know.
        let generation = cx.rank.generation();
        if matches!(self.phase, Phase::Holding(_)) || answer.asks_again || answer.generation != generation {
            return Ok(false);
        }
        for server in part::servers(cx)?.split_off(1) {
            let request =
                Request { worker: self.worker, generation, done: None, fetches: false, meets: true };
            part::push(cx, server, &request, 0, &[])?;
        }
        Ok(true)
    }

    /// The lease that this worker has.
    pub fn lease(&self) -> Result<&Lease> {
        match &self.phase {
            Phase::Holding(lease) => Ok(lease),
            Phase::Idle | Phase::Waiting(_) => Err(Error::internal("a unit without a lease")),
        }
    }

    /// The rows of the lease are computed, as the report says.
    pub fn push(&mut self, cx: &mut Context<'_>, report: &StepReport, values: &[f32]) -> Result<()> {
        let rows = cx.compute.consumed().to_vec();
        let lease = self.lease()?;
        let done = Done { lease: lease.number, version: 0, rows, share: lease.share(), report: *report };
        cx.windows.drop_earlier(cx.rank.generation());
        self.since_fetch += 1;
        let fetches = self.since_fetch > self.skipped_fetches;
        self.phase = Phase::Waiting(Exchange::new(Some(done), fetches, part::servers(cx)?.len()));
        self.send(cx, values)
    }

    /// A new group: the server learns which worker this is. All ranks must call it or [`Server`]'s.
    pub fn change(&mut self, cx: &mut Context<'_>) -> Result<()> {
        if self.worker.since == 0 {
            self.worker = Worker { member: cx.rank.member_id(), since: cx.rank.generation() };
        }
        gather_workers(cx, self.worker).map(drop)
    }
}
