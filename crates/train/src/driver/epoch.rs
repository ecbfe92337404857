//! The end of an epoch: validation, audit, target; and evaluations on the way.

use super::Driver;
use crate::ensembles::{self, combination};
use crate::finite;
use crate::recent_steps::RecentSteps;
use crate::validate::{validate, validate_alone};
use crate::work::local_rows::LocalRows;
use std::time::Duration;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::report::Audit;
use thalweg_core::{Result, Tally};

impl Driver<'_> {
    /// Closes the epoch that ends here, unless that was done. A rank may have been lost in the middle of it.
    pub(super) fn close_due_epoch(&mut self) -> Result<()> {
        let (next, steps) = (self.cx.work.next(), self.cx.work.steps_per_epoch());
        let epochs = next / steps;
        if next.is_multiple_of(steps) && self.progress.closed < epochs {
            self.finish_epoch(epochs - 1)?;
            self.progress.closed = epochs;
        }
        Ok(())
    }

    fn finish_epoch(&mut self, epoch: u64) -> Result<()> {
        let start = self.cx.rank.now();
        self.cx.rank.begin_interval("end of the epoch");
        let trained = self.trained();
        let members = self.measure_members()?;
        self.validate_published(trained)?;
        self.close_epoch(epoch, self.progress.last.clone(), members)?;
        self.adapt_interval();
        self.cx.work.begin_epoch();
        self.cx.local_rows.iter_mut().for_each(LocalRows::close_epoch);
        self.progress.epoch_loss = (0.0, 0);
        (self.progress.at_risk, self.progress.mixed) = (0, 0);
        self.end_if_target_is_reached();
        let now = self.cx.rank.now();
        self.progress.time.exclude(now - start);
        self.recent = RecentSteps::since(now);
        Ok(())
    }

    /// Shorter rounds for the next epoch, if they adapt.
    fn adapt_interval(&mut self) {
        let (loss, rows) = self.progress.epoch_loss;
        let merge = &self.cx.job.merge;
        if merge.adaptive_every {
            self.progress.interval.close_epoch(merge.every as u64, loss / rows.max(1) as f64);
        }
        self.cx.merge_every = self.progress.interval.of(self.cx.job);
    }

    fn end_if_target_is_reached(&mut self) {
        if self.progress.target_reached(self.cx.job) == Some(true) {
            self.progress.ended = Some(Outcome::TargetReached);
        }
    }

    /// Evaluates the published model if that is due since the step `before`, unless the epoch that ends here did. Its time
    /// does not count, nor do the waits of workers at their own speed, this one's being `waited`. It is left out while new
    /// members have not all of the state.
    pub(super) fn evaluate_if_due(&mut self, before: u64, waited: Duration) -> Result<()> {
        let (work, progress) = (&self.cx.work, &self.progress);
        let next = work.next();
        let is_due = work.evaluations().are_due(before, next);
        let is_done = progress.validated_at == Some(next) || progress.ended.is_some();
        if !is_due || is_done || self.membership.transfer.is_some() {
            return Ok(());
        }
        let start = self.cx.rank.now();
        self.cx.rank.begin_interval("an evaluation");
        if self.claims.at_own_speed() {
            self.exclude_waits(waited)?;
        }
        let trained = self.trained();
        self.validate_published(trained)?;
        self.end_if_target_is_reached();
        let took = self.cx.rank.now() - start;
        self.progress.time.exclude(took);
        self.recent.exclude(took);
        Ok(())
    }

    /// Time of training until now, in this run and those that it resumes.
    pub(super) fn trained(&mut self) -> Duration {
        self.progress.trained_before + self.progress.time.report(self.cx.rank.now())
    }

    /// Evaluates the published model, after so much time of training, on the validation rows or, without any, on the training
    /// rows.
    pub(super) fn validate_published(&mut self, trained: Duration) -> Result<()> {
        self.publish()?;
        let (cx, published) = (&mut self.cx, self.strategy.published());
        let (data, model) = (&cx.compute.data, &mut cx.compute.model);
        let rows = if !data.validation.is_empty() { &data.validation } else { &data.training };
        let mut batch = rows.empty_batch();
        let tally: Tally = validate(cx.rank, model.as_mut(), published, rows, &mut batch)?;
        let step = cx.work.next();
        finite::check_model(cx.rank.member_id(), step, tally.loss, published, model.layout())?;
        self.progress.last = tally.metrics(&data.schema);
        self.progress.validated_at = Some(step);
        if cx.rank.index() == 0 {
            cx.rank.emit(Event::Evaluated {
                step,
                rows: match (&cx.local_rows, &cx.pool) {
                    (Some(local), _) => local.agreed_rows(),
                    (None, Some(_)) => self.progress.leased_rows,
                    (None, None) => {
                        // Those that a sample leaves out are not trained on.
                        let rows = cx.work.evaluations().rows_at(step);
                        (rows as f64 * cx.job.train.sample).round() as u64
                    }
                },
                train_s: trained.as_secs_f64(),
                metrics: self.progress.last.clone(),
            });
        }
        Ok(())
    }

    /// Whether a loss may leave servers with parts of different gradients.
    fn mixes_parts(&self) -> bool {
        self.claims.at_own_speed() && self.roles.servers().len() > 1
    }

    /// All ranks take over the rows that the others have consumed since the last time, unless they know them from proofs.
    pub(super) fn collect_rows(&mut self) -> Result<()> {
        if self.claims.proves_rows || self.claims.at_own_speed() {
            return Ok(());
        }
        let (rank, work) = (&mut self.cx.rank, &mut self.cx.work);
        let all = rank.world().all_gather("audit", &work.own().to_bytes())?;
        work.collect(&all)
    }

    /// How each model does alone on the rows on which the published one is evaluated: every member of an ensemble, or the model of
    /// each worker, in the order of ranks.
    pub(super) fn measure_members(&mut self) -> Result<Vec<Metrics>> {
        self.publish()?;
        if combination(self.cx.job).is_none() {
            return self.measure_own_models();
        }
        let (cx, published) = (&mut self.cx, self.strategy.published());
        let (data, model) = (&cx.compute.data, &mut cx.compute.model);
        let length = model.layout().len().max(1);
        let rows = if !data.validation.is_empty() { &data.validation } else { &data.training };
        let mut batch = rows.empty_batch();
        let members = ensembles::parts(cx.job, published, length, data.schema.outputs()).0;
        let tallies = members
            .chunks_exact(length)
            .map(|member| validate(cx.rank, model.as_mut(), member, rows, &mut batch));
        tallies.map(|tally| Ok(tally?.metrics(&data.schema))).collect()
    }

    /// Every worker evaluates its own model on all validation rows. Without any it would be on all rows that all workers
    /// train on together.
    fn measure_own_models(&mut self) -> Result<Vec<Metrics>> {
        if !self.claims.has_own_models() || self.cx.compute.data.validation.is_empty() {
            return Ok(Vec::new());
        }
        let (cx, own) = (&mut self.cx, self.strategy.state().parameters());
        let (data, model) = (&cx.compute.data, &mut cx.compute.model);
        let rows = &data.validation;
        let tally: Option<Tally> = match cx.work.ranks().contains(&cx.rank.index()) {
            true => Some(validate_alone(cx.rank, model.as_mut(), own, rows, &mut rows.empty_batch())?),
            false => None,
        };
        let all: Vec<Option<Tally>> = self.all_gather("metrics of the workers' models", &tally)?;
        let schema = &self.cx.compute.data.schema;
        Ok(all.into_iter().flatten().map(|tally| tally.metrics(schema)).collect())
    }

    /// With models of their own, how far the workers are apart: the root mean square of their distances from the published
    /// model.
    fn measure_consensus(&mut self) -> Result<Option<f64>> {
        if !self.claims.has_own_models() {
            return Ok(None);
        }
        let (own, published) = (self.strategy.state().parameters(), self.strategy.published());
        let outputs = self.cx.compute.data.schema.outputs();
        let published = ensembles::parts(self.cx.job, published, own.len(), outputs).0;
        // Of an ensemble, from the mean of its members.
        let members = (published.len() / own.len().max(1)).max(1);
        let mean = |index: usize| {
            let values = published.iter().skip(index).step_by(own.len().max(1));
            values.map(|value| f64::from(*value)).sum::<f64>() / members as f64
        };
        let squares = own.iter().enumerate().map(|(index, own)| (f64::from(*own) - mean(index)).powi(2));
        let is_worker = self.cx.work.ranks().contains(&self.cx.rank.index());
        let square = is_worker.then(|| squares.sum::<f64>());
        let all: Vec<Option<f64>> = self.all_gather("distances from the published model", &square)?;
        let all: Vec<f64> = all.into_iter().flatten().collect();
        Ok(Some((all.iter().sum::<f64>() / all.len().max(1) as f64).sqrt()))
    }

    /// Reports the epoch: its loss, its validation, that of the members, and the rows consumed against those planned.
    pub(super) fn close_epoch(
        &mut self,
        epoch: u64,
        validation: Metrics,
        members: Vec<Metrics>,
    ) -> Result<()> {
        self.collect_rows()?;
        let consensus = self.measure_consensus()?;
        let mixed = self.mixes_parts().then_some(self.progress.mixed);
        let cx = &mut self.cx;
        let reports = cx.rank.index() == 0;
        if !reports && !cx.rank.is_elastic() {
            return Ok(());
        }
        let has_own_models = self.claims.own_models.is_some() || self.claims.spreads_later;
        let (loss, rows) = self.progress.epoch_loss;
        let closed = Event::Epoch {
            epoch,
            step: cx.work.next(),
            loss: loss / rows.max(1) as f64,
            validation,
            audit: match &cx.local_rows {
                Some(local) => local.audit(epoch),
                None => Audit {
                    at_risk: has_own_models.then_some(self.progress.at_risk),
                    mixed,
                    ..cx.work.audit(&cx.compute.data.training, epoch)
                },
            },
            consensus,
            members,
            merge_every: cx.job.merge.adaptive_every.then_some(cx.merge_every),
        };
        // Rank 0 may be lost before its event is written: until the next unit is done, the others keep it.
        self.membership.unreported = match reports {
            true => {
                cx.rank.emit(closed);
                None
            }
            false => Some(closed),
        };
        Ok(())
    }
}
