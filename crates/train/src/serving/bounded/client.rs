//! A worker's side.

use super::super::{part, shards, workers};
use super::{Answer, Content, Done, Request, TaskOf};
use crate::context::Context;
use crate::envelope::{self, Values};
use crate::step_report::StepReport;
use crate::strategy::NextActivity;
use crate::work::clock_table::Task;
use crate::work::pool::Worker;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::{Error, Result};

#[derive(Debug, Default)]
pub struct Client {
    worker: Worker,
    phase: Phase,
    version: u64,
    /// Whether the clock of its task is known to be closed.
    closed: bool,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Waiting(Exchange),
    Holding(Task),
}

/// A request under way, and the parts of the next answer that are there.
#[derive(Debug)]
struct Exchange {
    request: Request,
    /// The servers that have been sent it.
    sent: usize,
    /// That of the first server.
    answer: Option<Answer>,
    /// The servers whose answers are there.
    parts: usize,
    values: Vec<f32>,
}

impl Exchange {
    fn new(request: Request) -> Exchange {
        Exchange { request, sent: 0, answer: None, parts: 0, values: Vec::new() }
    }

    /// Sends the request to those that have not been sent it: a change of the group may have come between.
    fn send(&mut self, cx: &mut Context<'_>, pushed: &[f32]) -> Result<()> {
        let servers = shards::of(cx)?;
        let (to, pushed) = match self.request {
            Request::Push(_) => (&servers[..], pushed),
            _ => (&servers[..1], &[][..]),
        };
        for (server, range) in &to[self.sent..] {
            let part = pushed.get(range.clone()).unwrap_or_default();
            part::push(cx, *server, &self.request, range.start, part)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Adds the answer of the next of so many servers, whose shard has that length; whether it is complete.
    fn add(
        &mut self,
        answer: Answer,
        values: Values<'_>,
        (length, servers): (usize, usize),
    ) -> std::result::Result<bool, String> {
        let is_first = self.parts == 0;
        let of = self.answer.as_ref().map_or(answer.number, |first| first.number);
        // An answer of the first server without values is complete.
        if answer.number != of || values.len() != length && !(is_first && values.len() == 0) {
            return Err(format!("sent {} parameters as a part of another answer", values.len()));
        }
        self.answer.get_or_insert(answer);
        self.values.extend(values.iter());
        self.parts += 1;
        Ok(self.values.is_empty() || self.parts == servers)
    }

    /// The complete answer; the next one may follow.
    fn take(&mut self) -> (Option<Content>, Vec<f32>) {
        self.parts = 0;
        (self.answer.take().map(|answer| answer.content), std::mem::take(&mut self.values))
    }
}

/// Parameters that have arrived.
pub struct Read<'a> {
    pub values: &'a [f32],
    /// Whether they are without the update that this worker has pushed last.
    pub is_ahead: bool,
}

impl Client {
    /// What this worker does next. `pushed` is what it has pushed last; `take` gets parameters as they arrive. Waits for the
    /// servers.
    pub fn next(
        &mut self,
        cx: &mut Context<'_>,
        pushed: &[f32],
        mut take: impl FnMut(Read<'_>),
    ) -> Result<NextActivity> {
        let servers = shards::of(cx)?;
        loop {
            match &mut self.phase {
                Phase::Holding(_) => return Ok(NextActivity::Unit),
                Phase::Idle => self.phase = Phase::Waiting(Exchange::new(Request::Ask(self.worker))),
                Phase::Waiting(exchange) => {
                    exchange.send(cx, pushed)?;
                    let (server, range) = &servers[exchange.parts];
                    let (bytes, _) = part::await_answer(cx, *server)?;
                    let read = envelope::decode::<Answer>(&bytes).and_then(|(answer, values)| {
                        // Others are for an earlier worker with this id, or about a task that is pushed.
                        let is_own = answer.worker == self.worker;
                        let answers = is_own && !matches!(answer.content, Content::Closed { .. });
                        Ok(answers && exchange.add(answer, values, (range.len(), servers.len()))?)
                    });
                    let is_complete =
                        read.map_err(|cause| part::invalid(cx.rank.member_id_at(*server), cause))?;
                    if is_complete && self.begin(cx.rank.generation(), &mut take)? {
                        return Ok(NextActivity::Meeting);
                    }
                }
            }
        }
    }

    /// Begins what the complete answer says; whether that is a meeting.
    fn begin(&mut self, generation: u32, take: &mut impl FnMut(Read<'_>)) -> Result<bool> {
        let Phase::Waiting(exchange) = &mut self.phase else { return Ok(false) };
        let (content, values) = exchange.take();
        if !values.is_empty() {
            take(Read { values: &values, is_ahead: matches!(content, Some(Content::Ahead { .. })) });
        }
        match content {
            Some(Content::Task { task, version }) => {
                if !values.is_empty() {
                    self.version = version;
                }
                (self.phase, self.closed) = (Phase::Holding(task), false);
            }
            Some(Content::Ahead { version }) => self.version = version,
            Some(Content::Meeting { generation: called }) => {
                self.phase = Phase::Idle;
                // Of a call from before a change of the group nobody else may know.
                return Ok(called == generation);
            }
            Some(Content::Part | Content::Closed { .. }) | None => {
                return Err(Error::internal("a part of an answer instead of the first"));
            }
        }
        Ok(false)
    }

    /// The task that this worker has.
    pub fn task(&self) -> Result<&Task> {
        match &self.phase {
            Phase::Holding(task) => Ok(task),
            Phase::Idle | Phase::Waiting(_) => Err(Error::internal("a unit without a task")),
        }
    }

    /// The rows of the task are computed, as the report says.
    pub fn push(&mut self, cx: &mut Context<'_>, report: &StepReport, values: &[f32]) -> Result<()> {
        let of = TaskOf { worker: self.worker, task: self.task()?.number };
        self.request(cx, Request::Push(Done { of, version: self.version, report: *report }), values)
    }

    fn request(&mut self, cx: &mut Context<'_>, request: Request, values: &[f32]) -> Result<()> {
        let mut exchange = Exchange::new(request);
        let sent = exchange.send(cx, values);
        // What is not sent is sent in the next generation.
        self.phase = Phase::Waiting(exchange);
        sent
    }

    /// What says whether the clock of this worker's task is closed by now.
    pub fn is_closed(
        &mut self,
        first_server: usize,
    ) -> impl FnMut(&mut Rank, Duration) -> Result<bool> + use<'_> {
        move |rank, rest| {
            let (end, Phase::Holding(task)) = (rank.now() + rest, &self.phase) else { return Ok(false) };
            while !self.closed {
                let left = end.saturating_sub(rank.now());
                let Some(message) = part::slow_down_until_answer(rank, left, first_server)? else { break };
                let (answer, _) = envelope::decode::<Answer>(&message.bytes)
                    .map_err(|cause| part::invalid(message.member, cause))?;
                let is_own = answer.worker == self.worker;
                self.closed =
                    is_own && matches!(answer.content, Content::Closed { task: of } if of == task.number);
            }
            Ok(self.closed)
        }
    }

    /// Leaves the task, whose clock is closed.
    pub fn abandon(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let of = TaskOf { worker: self.worker, task: self.task()?.number };
        self.request(cx, Request::Abandon(of), &[])
    }

    /// A new group: the server learns which worker this is. All ranks must call it or [`super::Server`]'s.
    pub fn change(&mut self, cx: &mut Context<'_>) -> Result<()> {
        if self.worker.since == 0 {
            self.worker = Worker { member: cx.rank.member_id(), since: cx.rank.generation() };
        }
        workers::gather_workers(cx, self.worker).map(drop)
    }
}
