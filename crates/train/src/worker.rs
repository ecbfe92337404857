//! A worker: a rank with rows, a model and an optimizer, and the verbs a strategy's program is written in.

use crate::audit::Ledger;
use crate::progress::Progress;
use crate::rider::{self, Rider};
use crate::strategy;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::{Batch, Culprit, Error, JobSpec, Kind, Model, NoHooks, Result, Tally};
use thalweg_data::{Data, Sampler, share};
use thalweg_graph::Optimizer;

/// What a worker works with.
pub struct Parts {
    /// Rows, fitted.
    pub data: Data,
    /// The model.
    pub model: Box<dyn Model>,
    /// Its parameters.
    pub parameters: Vec<f32>,
    /// The update rule and its state.
    pub optimizer: Optimizer,
    /// The layers as a job writes them, if that is where the model comes from.
    pub layers: Vec<String>,
}

/// One step of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counted from 0 over the whole job.
    pub number: u64,
    /// Counted from 0.
    pub epoch: u64,
    /// Counted from 0 within the epoch.
    pub index: u64,
}

/// A worker of a synchronous job.
pub struct Worker<'a> {
    pub(crate) rank: &'a mut Rank,
    pub(crate) job: &'a JobSpec,
    pub(crate) folder: &'a Path,
    pub(crate) parts: Parts,
    pub(crate) sampler: Sampler,
    pub(crate) batch: Batch,
    /// The gradient and, behind it, what rides along.
    pub(crate) buffer: Vec<f32>,
    pub(crate) rider: Rider,
    pub(crate) ledger: Ledger,
    pub(crate) first_step: u64,
    pub(crate) next: u64,
    pub(crate) epoch_loss: (f64, u64),
    pub(crate) recent: Progress,
    pub(crate) rows: u64,
    pub(crate) begun: Duration,
    /// Time spent on anything but steps: validation, files.
    pub(crate) aside: Duration,
    pub(crate) last: Metrics,
    pub(crate) validated_at: Option<u64>,
    pub(crate) ended: Option<Outcome>,
}

impl<'a> Worker<'a> {
    /// Takes its place before step `first_step`.
    pub(crate) fn new(
        rank: &'a mut Rank,
        job: &'a JobSpec,
        folder: &'a Path,
        parts: Parts,
        first_step: u64,
        epoch_loss: (f64, u64),
    ) -> Worker<'a> {
        let sampler = Sampler::new(&parts.data.training, job.train.seed, job.train.global_batch);
        let world = rank.world();
        let now = rank.now();
        let worker = Worker {
            sampler,
            batch: parts.data.training.empty_batch(),
            buffer: vec![0.0; parts.parameters.len() + rider::len(world)],
            rider: Rider::default(),
            ledger: Ledger::new(parts.data.training.source_len()),
            first_step,
            next: first_step,
            epoch_loss,
            recent: Progress::since(now),
            rows: 0,
            begun: now,
            aside: Duration::ZERO,
            last: Metrics::new(),
            validated_at: None,
            ended: None,
            rank,
            job,
            folder,
            parts,
        };
        worker.announce();
        worker
    }

    fn announce(&self) {
        if self.rank.index() == 0 {
            let data = &self.parts.data;
            self.rank.emit(Event::Started {
                rows: data.training.len(),
                validation_rows: data.validation.len(),
                width: data.schema.width(),
                classes: data.schema.classes.clone(),
                parameters: self.parts.parameters.len(),
                model: self.parts.layers.join(", "),
                epochs: self.job.train.epochs,
                steps_per_epoch: self.sampler.steps_per_epoch(),
                first_step: self.first_step,
                algorithm: strategy::algorithm(self.job).into(),
            });
        }
    }

    /// Steps of the whole job.
    fn total_steps(&self) -> u64 {
        let all = self.job.train.epochs.saturating_mul(self.sampler.steps_per_epoch());
        self.job.train.max_steps.map_or(all, |most| most.min(all))
    }

    /// The next step, unless the job is done.
    pub fn next_step(&mut self) -> Result<Option<Step>> {
        if self.ended.is_some() || self.next >= self.total_steps() {
            return Ok(None);
        }
        let number = self.next;
        let steps = self.sampler.steps_per_epoch();
        self.rank.begin_step(number);
        Ok(Some(Step { number, epoch: number / steps, index: number % steps }))
    }

    /// `g_i`: the gradients of this worker's share of the step's rows, divided by the rows of the whole step.
    pub fn compute_gradient(&mut self, step: &Step) -> Result<()> {
        let (rank, world) = (self.rank.index(), self.rank.world());
        let start = self.rank.now();
        let Parts { data, model, parameters, .. } = &mut self.parts;
        let rows = self.sampler.rows(step.epoch, step.index);
        let mine = &rows[share(rows.len(), rank, world)];
        let (gradient, tail) = self.buffer.split_at_mut(parameters.len());
        let batch = &mut self.batch;
        let operations = model.flops_per_row() * mine.len() as u64;
        let tally = self.rank.compute("back-propagation", operations, || {
            data.training.load(mine, step.epoch, batch)?;
            model.gradient(parameters, batch, 1.0 / rows.len() as f32, gradient, &mut NoHooks)
        })?;
        check_finite(rank, step, &tally, gradient, model.as_ref())?;
        let milliseconds = (self.rank.now() - start).as_secs_f32() * 1e3;
        Rider::write(tally.loss, tally.rows, self.rank.stop_requested(), rank, milliseconds, tail);
        Ok(())
    }

    /// `g`: the sum of all workers' `g_i`, the same bits everywhere.
    pub fn all_reduce_gradient(&mut self) -> Result<()> {
        let took = self.rank.all_reduce("gradients", &mut self.buffer)?;
        let parameters = self.parts.parameters.len();
        self.rider.read(&self.buffer[parameters..]);
        let mine = self.rider.compute_ms[self.rank.index()];
        let waited = f64::from(self.rider.slowest().1 - mine) / 1e3;
        self.rank.book_wait(waited.min(took.as_secs_f64()));
        Ok(())
    }

    /// `w`: the update rule's answer to `g`.
    pub fn update(&mut self) -> Result<()> {
        let Parts { parameters, optimizer, .. } = &mut self.parts;
        let gradient = &self.buffer[..parameters.len()];
        self.rank.compute("update", 10 * parameters.len() as u64, || {
            optimizer.update(parameters, gradient);
            Ok(())
        })
    }

    /// The step counts: audit, progress, and at the end of an epoch validation.
    pub fn finish(&mut self, step: &Step) -> Result<()> {
        if self.rank.world() == 1 {
            self.rider.read(&self.buffer[self.parts.parameters.len()..]);
        }
        let rows = self.sampler.rows(step.epoch, step.index);
        self.ledger.enter(&rows[share(rows.len(), self.rank.index(), self.rank.world())]);
        self.next = step.number + 1;
        self.rows += self.rider.rows;
        self.epoch_loss.0 += self.rider.loss;
        self.epoch_loss.1 += self.rider.rows;
        self.recent.add(&self.rider);
        let last_of_epoch = step.index + 1 == self.sampler.steps_per_epoch();
        let now = self.rank.now();
        if self.rank.index() == 0 && (last_of_epoch || self.recent.is_due(now)) {
            self.rank.emit(self.recent.event(step, self.sampler.steps_per_epoch(), now));
            self.recent = Progress::since(now);
        }
        if self.rider.stop {
            self.ended = Some(Outcome::Interrupted);
        } else if last_of_epoch {
            self.finish_epoch(step.epoch)?;
        }
        let every = self.job.fault.checkpoint_every;
        if every > 0 && self.next.is_multiple_of(every) && self.ended.is_none() {
            self.checkpoint()?;
        }
        Ok(())
    }
}

/// A loss or gradient that is not finite ends the job here, before it reaches anybody else.
fn check_finite(rank: usize, step: &Step, tally: &Tally, gradient: &[f32], model: &dyn Model) -> Result<()> {
    // The bits of finite numbers, without the sign, are smaller than infinity's: one fast pass over whole numbers.
    let largest = gradient.iter().fold(0, |most, value| most.max((value.to_bits() & 0x7fff_ffff) as i32));
    let what = if largest >= f32::INFINITY.to_bits() as i32 {
        let place = gradient.iter().position(|value| !value.is_finite()).unwrap_or(0);
        let tensor = model.layout().at(place).map_or("?", |tensor| tensor.name.as_str());
        format!("the gradient of `{tensor}` is {}", gradient[place])
    } else if !tally.loss.is_finite() {
        format!("the loss is {}", tally.loss)
    } else {
        return Ok(());
    };
    let message = format!("rank {rank}: {what} at step {} (epoch {})", step.number, step.epoch + 1);
    let culprit = Culprit {
        rank,
        step: Some(step.number),
        operation: Some("back-propagation".into()),
        cause: what,
        host: None,
    };
    Err(Error::new(Kind::NotFinite, message)
        .hint("lower the learning rate (train.optimizer.lr), scale the data (data.scale) or look for huge values in it")
        .blame(culprit))
}
