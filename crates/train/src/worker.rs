//! A worker: a rank with rows, a model and an optimizer, and the verbs a strategy's program is written in.
//!
//! Longer than 400 lines because the programs of all strategies are written against this one type.

use crate::accumulate::Accumulator;
use crate::apprenticeship::Apprenticeship;
use crate::audit::Ledger;
use crate::buckets::Plan;
use crate::contributions::Contributions;
use crate::finite;
use crate::overlap::Overlap;
use crate::progress::Progress;
use crate::rider::{self, Rider, Rows};
use crate::scribe::Scribe;
use crate::shared::{Shared, move_statistics};
use crate::slowdown::Slowdown;
use crate::split::Split;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::{PartialSums, Rank};
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::schema::RowShape;
use thalweg_core::spec::inject::FaultKind;
use thalweg_core::spec::schedule::LearningRateSchedule;
use thalweg_core::spec::strategy::{Algorithm as NamedAlgorithm, Exchange};
use thalweg_core::{Batch, Error, JobSpec, Model, Result};
use thalweg_data::{Data, Sampler};
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::GradientTransform;

/// How long a slow spell lasts.
const SLOW_STEPS: u64 = 20;

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
    /// The structure of an ONNX file, if that is where it comes from.
    pub onnx: Option<Vec<u8>>,
}

/// Where a worker starts from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// Steps done before.
    pub(crate) step: u64,
    /// Sum of losses and rows of the epoch so far.
    pub(crate) loss: (f64, u64),
    /// The rows of the epoch consumed so far, on rank 0.
    pub(crate) audit: Vec<u8>,
    /// What the rows are, and what is trained on them.
    pub(crate) data_digest: String,
    pub(crate) model_digest: Vec<u8>,
    /// Whether the parameters are those of that step; not so for one that comes later and has yet to be told.
    pub(crate) is_told: bool,
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
    /// Its number among those who compute gradients, and how many they are; a server has none.
    pub(crate) place: Option<usize>,
    pub(crate) workers: usize,
    /// Who computes which rows, and how what they compute lies in memory.
    pub(crate) split: Split,
    pub(crate) slots: PartialSums,
    pub(crate) slowdown: Option<Slowdown>,
    /// The rows that batches brought to the model in this step: they count, not what was planned.
    pub(crate) consumed: Vec<u64>,
    pub(crate) accumulator: Accumulator,
    pub(crate) schedule: LearningRateSchedule,
    pub(crate) correction: GradientTransform,
    /// The gradient and, behind it, what rides along; empty where they are in memory that all share.
    pub(crate) buffer: Vec<f32>,
    pub(crate) shared: Option<Shared>,
    /// How gradients travel as messages.
    pub(crate) plan: Plan,
    /// The buckets that leave during the pass, if any do.
    pub(crate) overlap: Option<Overlap>,
    /// What workers pushed to this server, one after the other.
    pub(crate) pushed: Vec<f32>,
    pub(crate) rider: Rider,
    pub(crate) ledger: Ledger,
    pub(crate) first_step: u64,
    pub(crate) next: u64,
    pub(crate) epoch_loss: (f64, u64),
    /// What the rows are, for the checkpoints.
    pub(crate) data_digest: String,
    /// Writes them, if this rank does.
    pub(crate) scribe: Option<Scribe>,
    pub(crate) recent: Progress,
    pub(crate) contributions: Contributions,
    pub(crate) rows: u64,
    pub(crate) begun: Duration,
    /// Time of training before that, in earlier generations of the group.
    pub(crate) trained_before: Duration,
    /// Time spent on anything but steps: validation, files.
    pub(crate) aside: Duration,
    pub(crate) last: Metrics,
    pub(crate) validated_at: Option<u64>,
    pub(crate) ended: Option<Outcome>,
    /// Epochs that are closed: validated, and their rows counted.
    pub(crate) closed: u64,
    /// The end of the last epoch, if another rank was to tell it and may not have.
    pub(crate) untold: Option<Event>,
    /// Digest of what is trained.
    pub(crate) model_digest: Vec<u8>,
    /// Whether parameters and position are the job's.
    pub(crate) is_told: bool,
    /// Those who are taught the job's state while the others train, if any are.
    pub(crate) apprenticeship: Option<Apprenticeship>,
    /// Whether the next step was begun.
    pub(crate) begun_step: bool,
    /// Whether the group is formed anew before the next step.
    pub(crate) regroups: bool,
    /// Whether this rank leaves the group then: all others have heard of it.
    pub(crate) leaves: bool,
    /// Whether this rank has left the job, which goes on.
    pub(crate) has_left: bool,
    /// The step after which the job is done, if somebody asked for an early end.
    pub(crate) last_step: Option<u64>,
    /// Steps for which this rank acts as a slow one.
    pub(crate) slow_steps: u64,
    /// Whether the faults that the job asks for are known.
    pub(crate) expects_faults: bool,
    /// Whether the next checkpoint is to find the disk full.
    pub(crate) disk_is_full: bool,
}

impl<'a> Worker<'a> {
    /// Takes its place.
    pub(crate) fn new(
        rank: &'a mut Rank,
        job: &'a JobSpec,
        folder: &'a Path,
        parts: Parts,
        start: Start,
    ) -> Result<Worker<'a>> {
        let sampler = Sampler::new(&parts.data.training, job.train.seed, job.train.global_batch);
        let now = rank.now();
        let mut ledger = Ledger::new(parts.data.training.source_len());
        if !start.audit.is_empty() {
            ledger.absorb(&start.audit)?;
        }
        let worker = Worker {
            place: None,
            workers: 0,
            split: Split::new(job, 0, &[]),
            slots: PartialSums::one(0),
            slowdown: None,
            schedule: LearningRateSchedule::new(job, total_steps(job, &sampler)),
            closed: start.step / sampler.steps_per_epoch().max(1),
            sampler,
            batch: parts.data.training.empty_batch(),
            consumed: Vec::new(),
            accumulator: Accumulator::new(job.train.accumulate),
            correction: GradientTransform::of(job),
            buffer: Vec::new(),
            shared: None,
            plan: Plan::default(),
            overlap: None,
            pushed: Vec::new(),
            rider: Rider::default(),
            ledger,
            first_step: start.step,
            next: start.step,
            epoch_loss: start.loss,
            data_digest: start.data_digest,
            model_digest: start.model_digest,
            is_told: start.is_told,
            apprenticeship: None,
            untold: None,
            begun_step: false,
            regroups: false,
            leaves: false,
            has_left: false,
            last_step: None,
            slow_steps: 0,
            disk_is_full: false,
            expects_faults: false,
            scribe: None,
            recent: Progress::since(now),
            contributions: Contributions::default(),
            rows: 0,
            begun: now,
            trained_before: Duration::ZERO,
            aside: Duration::ZERO,
            last: Metrics::new(),
            validated_at: None,
            ended: None,
            rank,
            job,
            folder,
            parts,
        };
        Ok(worker)
    }

    /// Rebuilds per-generation state: ranks, buffers, exchange plan. Every rank must call it at the same point, as it runs
    /// collectives: the all-gather and the opening of shared arenas ([`Shared::open`]), the agreement on rank 0's bucket plan,
    /// and, with `strategy.tune` in the first generation, the all-reduces of the tuner.
    pub(crate) fn start_generation(&mut self) -> Result<()> {
        let (world, job) = (self.rank.world(), self.job);
        self.place = self.rank.index().checked_sub(job.servers());
        self.workers = world - job.servers().min(world);
        let course = self.apprenticeship.as_ref();
        self.divide(Split::new(job, self.workers, course.map_or(&[], |course| &course.apprentices)));
        self.slowdown = Slowdown::of(job, self.rank.member_id(), self.workers);
        let writes = self.rank.index() == 0;
        self.scribe = match self.scribe.take() {
            scribe if scribe.is_some() == writes => scribe,
            None => {
                let (layout, keep) = (self.parts.model.layout(), job.fault.checkpoint_keep);
                Some(Scribe::new(&self.folder.join("checkpoints"), layout, keep))
            }
            Some(_) => None,
        };
        self.shared = Shared::open(self.rank, job, &self.parts, &self.correction, self.slots, self.next)?;
        self.buffer.clear();
        self.buffer.resize(if self.shared.is_some() { 0 } else { self.slots.elements() }, 0.0);
        let plan = match self.shared {
            Some(_) => Plan::default(),
            // Leaves are summed when the step is computed.
            None if self.split.leaves().is_some() => Plan::default(),
            None => Plan::of(job, self.parts.model.layout(), self.rank.host_numbers()),
        };
        self.travel_by(plan)?;
        // Who has lost a member wants to go on, not to try things out.
        if job.strategy.tune && self.rank.generation() == 1 && self.split.leaves().is_none() {
            self.tune()?;
        }
        Ok(())
    }

    /// From now on rows are divided like this.
    pub(crate) fn divide(&mut self, split: Split) {
        self.slots = split.slots(self.parts.parameters.len(), rider::len(self.rank.world()));
        self.split = split;
    }

    /// From now on gradients travel by the plan of the rank in the first place.
    pub(crate) fn travel_by(&mut self, plan: Plan) -> Result<()> {
        let layout = self.parts.model.layout();
        self.plan = plan.agree(self.rank, layout)?;
        if let Some(method) = self.plan.main_method(layout) {
            // What a job names is for all sums; what was chosen, for those of that size.
            let named = self.job.exchange.algorithm != NamedAlgorithm::Auto;
            self.rank.set_allreduce_algorithm(method, if named { 0 } else { size_of_val(&self.buffer[..]) });
        }
        self.overlap = match self.job.exchange.kind {
            Exchange::Allreduce => Overlap::new(self.rank, &self.plan, layout, self.buffer.len()),
            _ => None,
        };
        Ok(())
    }

    /// Training begins.
    pub(crate) fn announce(&self) {
        if self.rank.index() == 0 {
            let layout = self.parts.model.layout();
            let data = &self.parts.data;
            self.rank.emit(Event::Started {
                rows: data.training.len(),
                validation_rows: data.validation.len(),
                width: data.schema.width(),
                window: match &data.schema.shape {
                    RowShape::Text { window, .. } => *window,
                    _ => 0,
                },
                classes: data.schema.classes.clone(),
                parameters: self.parts.parameters.len(),
                model: match (self.parts.layers.as_slice(), self.job.model.zoo) {
                    ([], _) if self.parts.onnx.is_some() => self.job.model.onnx.clone().unwrap_or_default(),
                    ([], _) => "a network of the program's own".into(),
                    (_, Some(zoo)) => zoo.name().into(),
                    (layers, None) => layers.join(", "),
                },
                epochs: self.job.train.epochs,
                steps_per_epoch: self.sampler.steps_per_epoch(),
                first_step: self.first_step,
                algorithm: match &self.shared {
                    Some(_) => "arena".into(),
                    None if self.split.leaves().is_some() && self.rank.world() > 1 => "leaf-tree".into(),
                    None => self.plan.algorithms(),
                },
                buckets: self.plan.reported(layout, self.buffer.len()),
            });
        }
    }

    /// The next step, unless the job is done.
    pub fn next_step(&mut self) -> Result<Option<Step>> {
        // It may be due from before the group was formed anew.
        self.close_due_epoch()?;
        if self.regroups && self.ended.is_none() && !self.is_done() {
            self.regroup(true)?;
        }
        if self.has_left || self.ended.is_some() || self.is_done() {
            return Ok(None);
        }
        let number = self.next;
        let steps = self.sampler.steps_per_epoch();
        self.rank.begin_step(number);
        self.begun_step = true;
        match self.rank.inject_fault(number) {
            Some(FaultKind::Slow) => self.slow_steps = SLOW_STEPS,
            Some(FaultKind::DiskFull) => self.disk_is_full = true,
            _ => {}
        }
        self.teach(number)?;
        Ok(Some(Step { number, epoch: number / steps, index: number % steps }))
    }

    /// `g`: the sum of all workers' `g_i`, the same bits everywhere.
    pub fn all_reduce_gradient(&mut self) -> Result<()> {
        let took = match (&mut self.shared, &mut self.overlap, self.split.brackets()) {
            (Some(shared), _, brackets) => shared.sum_and(self.rank, brackets, |_, _| ())?.1,
            (None, _, Some(brackets)) => {
                self.rank.all_reduce_tree("gradients", brackets, self.slots, &mut self.buffer)?
            }
            (None, Some(overlap), None) => overlap.arrive(self.rank, &mut self.buffer)?,
            (None, None, None) => self.rank.all_reduce("gradients", &mut self.buffer)?,
        };
        self.take_sum(took)
    }

    /// The sums of all workers are in the buffer, after an exchange of that length: reads and checks them.
    pub(crate) fn take_sum(&mut self, took: Duration) -> Result<()> {
        let gradient = &sums(&self.shared, self.slots, &self.buffer)[..self.parts.parameters.len()];
        finite::check_share(self.rank.member_id(), self.next, gradient, 0, self.parts.model.layout())?;
        self.take_riders(took)
    }

    /// The same for what rode along.
    pub(crate) fn take_riders(&mut self, took: Duration) -> Result<()> {
        self.rider.read(&sums(&self.shared, self.slots, &self.buffer)[self.parts.parameters.len()..]);
        finite::check_loss(self.rank.member_id(), self.next, self.rider.loss, self.parts.model.layout())?;
        let mine = self.rider.compute_ms[self.rank.index()];
        let took = took.as_secs_f64();
        let waited = (f64::from(self.rider.slowest().1 - mine) / 1e3).min(took);
        self.rank.book_wait(waited);
        if let Some(overlap) = &mut self.overlap {
            overlap.book(self.rank, took - waited);
        }
        Ok(())
    }

    /// `w`: the update rule's answer to `g`, corrected, at the rate of this step. As `g` has the same bits everywhere,
    /// penalties count once and clipping is the same on every rank.
    pub fn update(&mut self) -> Result<()> {
        let Parts { parameters, optimizer, model, .. } = &mut self.parts;
        let gradient = &sums(&self.shared, self.slots, &self.buffer)[..parameters.len()];
        let (rate, correction) = (self.schedule.rate(self.next), &self.correction);
        self.rank.compute("update", 10 * parameters.len() as u64, || {
            optimizer.step(rate, correction, parameters, gradient);
            move_statistics(model.layout(), &(0..gradient.len()), parameters, gradient);
            Ok(())
        })
    }

    /// The step counts: audit, progress, and at the end of an epoch validation.
    pub fn finish(&mut self, step: &Step) -> Result<()> {
        if self.rank.world() == 1 {
            self.rider.read(&self.slots.slice(&self.buffer, 0)[self.parts.parameters.len()..]);
        }
        let proves = self.proves_rows();
        let planned = self.sampler.rows(step.epoch, step.index);
        let rows = planned.len() as u64;
        for (place, &took) in self.rider.compute_ms.iter().enumerate().filter(|_| self.rank.is_elastic()) {
            self.contributions.add(place, self.split.share(planned.len(), place).rows.len(), took);
        }
        self.split.observe(&self.rider.compute_ms);
        if proves {
            // The rows that the sum was made of, whoever computed them.
            if self.rider.rows != Rows::of(planned) {
                return Err(Error::internal(format!(
                    "the gradient of step {} was not made of the rows of that step",
                    step.number
                )));
            }
            self.ledger.enter(planned);
        } else {
            self.ledger.enter(&self.consumed);
        }
        (self.next, self.begun_step) = (step.number + 1, false);
        self.rank.forget_change();
        self.untold = None;
        self.rows += rows;
        self.epoch_loss.0 += self.rider.loss;
        self.epoch_loss.1 += rows;
        self.recent.add(rows, &self.rider);
        let last_of_epoch = step.index + 1 == self.sampler.steps_per_epoch();
        let now = self.rank.now();
        if self.rank.index() == 0 && (last_of_epoch || self.recent.is_due(now)) {
            self.rank.emit(self.recent.event(self.rank, step, self.sampler.steps_per_epoch(), now));
            self.recent = Progress::since(now);
        }
        self.heed_wishes();
        self.close_due_epoch()?;
        if let Some(scribe) = &mut self.scribe {
            scribe.look()?;
        }
        let every = self.job.fault.checkpoint_every;
        let due = every > 0 && self.next.is_multiple_of(every);
        if (due || self.rider.checkpointing) && self.ended.is_none() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// What was wished for along with the step. All ranks have read the same wishes.
    fn heed_wishes(&mut self) {
        let Rider { stopping, leaving, pausing, .. } = &self.rider;
        let nobody_stays = !leaving.is_empty() && !self.rank.can_spare(leaving);
        if !stopping.is_empty() || nobody_stays {
            self.ended = Some(Outcome::Interrupted);
            if self.rider.terminating {
                self.rank.note_termination();
            }
            self.rank.announce_stop(if stopping.is_empty() { leaving } else { stopping });
        }
        let changes = match &self.apprenticeship {
            None => *pausing || !leaving.is_empty(),
            // Whoever wants to come waits for those who came before, and so does the last one that could teach them.
            Some(course) => !leaving.is_empty() && course.survives(leaving),
        };
        self.regroups = self.rank.is_elastic() && changes;
        self.leaves = self.regroups && leaving.contains(&self.rank.index());
        if self.rider.finishing && self.last_step.is_none() {
            self.last_step = Some(self.next.next_multiple_of(self.sampler.steps_per_epoch()));
        }
    }

    /// Whether all steps are done.
    pub(crate) fn is_done(&self) -> bool {
        let all = total_steps(self.job, &self.sampler);
        self.next >= self.last_step.map_or(all, |last| last.min(all))
    }

    /// Whether a step's rows are known from what rode along with its gradient, so that every rank keeps the whole audit.
    pub(crate) fn proves_rows(&self) -> bool {
        matches!(self.job.exchange.kind, Exchange::Allreduce | Exchange::None)
    }
}

/// The sums of the last exchange, wherever they are.
fn sums<'a>(shared: &'a Option<Shared>, slots: PartialSums, buffer: &'a [f32]) -> &'a [f32] {
    shared.as_ref().map_or_else(|| slots.slice(buffer, 0), Shared::sums)
}

/// Steps of the whole job.
pub(crate) fn total_steps(job: &JobSpec, sampler: &Sampler) -> u64 {
    let all = job.train.epochs.saturating_mul(sampler.steps_per_epoch());
    job.train.max_steps.map_or(all, |most| most.min(all))
}
