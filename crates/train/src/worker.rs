//! A worker: a rank with rows, a model and an optimizer, and the verbs a strategy's program is written in.

use crate::audit::Ledger;
use crate::modelfile::{SavedModel, unflatten};
use crate::rider::{self, Rider};
use crate::strategy;
use crate::validate::validate;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::checkpoint::Checkpoint;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::{Batch, Culprit, Error, JobSpec, Kind, Model, NoHooks, Result, Tally};
use thalweg_data::{Data, Sampler, share};
use thalweg_graph::Optimizer;

/// The least time between two progress events.
const PROGRESS: Duration = Duration::from_millis(100);

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
    rank: &'a mut Rank,
    job: &'a JobSpec,
    folder: &'a Path,
    parts: Parts,
    sampler: Sampler,
    batch: Batch,
    /// The gradient and, behind it, what rides along.
    buffer: Vec<f32>,
    rider: Rider,
    ledger: Ledger,
    first_step: u64,
    next: u64,
    epoch_loss: (f64, u64),
    recent: Recent,
    rows: u64,
    begun: Duration,
    /// Time spent on anything but steps: validation, files.
    aside: Duration,
    last: Metrics,
    validated_at: Option<u64>,
    ended: Option<Outcome>,
}

/// What happened since the last progress event.
struct Recent {
    since: Duration,
    loss: f64,
    rows: u64,
    steps: u64,
    compute_ms: Vec<f32>,
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
            recent: Recent { since: now, loss: 0.0, rows: 0, steps: 0, compute_ms: vec![0.0; world] },
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
        self.report_progress(step);
        if self.rider.stop {
            self.ended = Some(Outcome::Interrupted);
        } else if step.index + 1 == self.sampler.steps_per_epoch() {
            self.finish_epoch(step.epoch)?;
        }
        let every = self.job.fault.checkpoint_every;
        if every > 0 && self.next.is_multiple_of(every) && self.ended.is_none() {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn report_progress(&mut self, step: &Step) {
        let recent = &mut self.recent;
        recent.loss += self.rider.loss;
        recent.rows += self.rider.rows;
        recent.steps += 1;
        for (sum, ms) in recent.compute_ms.iter_mut().zip(&self.rider.compute_ms) {
            *sum += ms;
        }
        let now = self.rank.now();
        let last_of_epoch = step.index + 1 == self.sampler.steps_per_epoch();
        if self.rank.index() != 0 || (now - recent.since < PROGRESS && !last_of_epoch) {
            return;
        }
        let averages = Rider { compute_ms: recent.compute_ms.clone(), ..Rider::default() };
        let (slowest, milliseconds) = averages.slowest();
        self.rank.emit(Event::Step {
            epoch: step.epoch,
            step: step.number,
            steps_per_epoch: self.sampler.steps_per_epoch(),
            loss: recent.loss / recent.rows.max(1) as f64,
            samples_per_s: recent.rows as f64 / (now - recent.since).as_secs_f64().max(1e-9),
            slowest,
            slowest_ms: f64::from(milliseconds) / recent.steps as f64,
        });
        self.restart_progress();
    }

    fn restart_progress(&mut self) {
        let recent = &mut self.recent;
        (recent.loss, recent.rows, recent.steps) = (0.0, 0, 0);
        recent.compute_ms.fill(0.0);
        recent.since = self.rank.now();
    }

    /// Validates, closes the epoch's audit and sees whether the target is reached.
    fn finish_epoch(&mut self, epoch: u64) -> Result<()> {
        let start = self.rank.now();
        self.rank.begin_preparation("end of the epoch");
        let tally = self.validate()?;
        self.last = tally.metrics(&self.parts.data.schema);
        self.validated_at = Some(self.next);
        self.close_epoch(epoch, self.last.clone())?;
        if self.target_reached() == Some(true) {
            self.ended = Some(Outcome::TargetReached);
        }
        self.aside += self.rank.now() - start;
        self.restart_progress();
        Ok(())
    }

    fn validate(&mut self) -> Result<Tally> {
        let Parts { data, model, parameters, .. } = &mut self.parts;
        // Without rows of their own, the training rows have to do.
        let rows = if !data.validation.is_empty() { &data.validation } else { &data.training };
        let mut batch = rows.empty_batch();
        validate(self.rank, model.as_mut(), parameters, rows, &mut batch)
    }

    /// The ranks' ledgers, compared with what should have been seen.
    fn close_epoch(&mut self, epoch: u64, validation: Metrics) -> Result<()> {
        let ledgers = self.rank.all_gather("audit", &self.ledger.to_bytes())?;
        self.ledger.clear();
        if self.rank.index() == 0 {
            let expected = self.expected_rows(epoch);
            self.rank.emit(Event::Epoch {
                epoch,
                step: self.next,
                loss: self.epoch_loss.0 / self.epoch_loss.1.max(1) as f64,
                validation,
                audit: Ledger::close(epoch, &ledgers, &expected)?,
            });
        }
        self.epoch_loss = (0.0, 0);
        Ok(())
    }

    /// All training rows; of an epoch that this run did only a part of, the rows of that part.
    fn expected_rows(&mut self, epoch: u64) -> Ledger {
        let training = &self.parts.data.training;
        let mut expected = Ledger::new(training.source_len());
        let steps = self.sampler.steps_per_epoch();
        let from = self.first_step.max(epoch * steps);
        let to = self.next.min((epoch + 1) * steps);
        if to - from == steps {
            let all: Vec<u64> = (0..training.len()).map(|index| training.id(index)).collect();
            expected.enter(&all);
        } else {
            for step in from..to {
                expected.enter(self.sampler.rows(epoch, step % steps));
            }
        }
        expected
    }

    /// Whether the target is reached; nothing if there is none.
    fn target_reached(&self) -> Option<bool> {
        let target = &self.job.target;
        let accuracy = target.accuracy.map(|least| self.last.get("accuracy").is_some_and(|is| *is >= least));
        let loss = target.loss.map(|most| self.last.get("loss").is_some_and(|is| *is <= most));
        match (accuracy, loss) {
            (None, None) => None,
            (accuracy, loss) => Some(accuracy.unwrap_or(true) && loss.unwrap_or(true)),
        }
    }

    /// Rank 0 writes down where training stands.
    fn checkpoint(&mut self) -> Result<()> {
        if self.rank.index() != 0 {
            return Ok(());
        }
        let start = self.rank.now();
        self.rank.begin_preparation("writing a checkpoint");
        let slots = self.parts.optimizer.slots();
        let checkpoint = Checkpoint {
            step: self.next,
            job: self.job.to_toml(),
            loss: self.epoch_loss,
            parameters: self.parts.parameters.clone(),
            slots: slots.into_iter().map(|(name, values)| (name.to_string(), values.to_vec())).collect(),
        };
        let folder = self.folder.join("checkpoints");
        let path = checkpoint.write(&folder, self.parts.model.layout(), self.job.fault.checkpoint_keep)?;
        self.rank.emit(Event::Checkpoint { step: self.next, path: path.display().to_string() });
        self.aside += self.rank.now() - start;
        Ok(())
    }

    /// After the last step: what is left behind.
    pub(crate) fn conclude(mut self) -> Result<Outcome> {
        let train = self.rank.now().saturating_sub(self.begun + self.aside);
        self.rank.begin_preparation("the end");
        let interrupted = self.ended == Some(Outcome::Interrupted);
        if !interrupted && self.validated_at != Some(self.next) {
            self.last = self.validate()?.metrics(&self.parts.data.schema);
        }
        let steps = self.sampler.steps_per_epoch();
        let checkpoint_loss = self.epoch_loss;
        if self.next > self.first_step && !self.next.is_multiple_of(steps) {
            self.close_epoch(self.next / steps, self.last.clone())?;
            self.epoch_loss = checkpoint_loss;
        }
        self.checkpoint()?;
        if !interrupted {
            self.save()?;
        }
        let outcome = self.ended.unwrap_or(match self.target_reached() {
            Some(false) => Outcome::TargetMissed,
            Some(true) => Outcome::TargetReached,
            None => Outcome::Completed,
        });
        crate::prepare::settle(self.rank)?;
        if self.rank.index() == 0 {
            let (steps, rows) = (self.next, self.rows);
            self.rank.emit(Event::Done {
                outcome,
                last: self.last,
                steps,
                rows,
                train_s: train.as_secs_f64(),
            });
        }
        Ok(outcome)
    }

    fn save(&self) -> Result<()> {
        if self.rank.index() != 0 {
            return Ok(());
        }
        let path = self.folder.join("model.safetensors");
        SavedModel {
            schema: self.parts.data.schema.clone(),
            layers: self.parts.layers.clone(),
            job: self.job.to_toml(),
            step: self.next,
            tensors: unflatten(self.parts.model.layout(), &self.parts.parameters),
        }
        .write(&path)?;
        self.rank.emit(Event::Saved { path: path.display().to_string() });
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
