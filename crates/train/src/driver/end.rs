//! Checkpoints on the way, and the end of the job: last validation, last checkpoint, the model, all accounts.

use super::{Driver, Next};
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::report::RankReport;
use thalweg_core::{Error, Result};

impl Driver<'_> {
    /// Writes a checkpoint. Training waits until the state is copied; the rest is done while it goes on.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        let start = self.cx.rank.now();
        self.cx.rank.begin_interval("a checkpoint");
        self.publish()?;
        self.checkpoints.await_buffer(&mut self.cx)?;
        self.cx.rank.begin_interval("a checkpoint");
        self.collect_rows()?;
        if self.cx.local_rows.is_some() && self.cx.rank.index() == 0 {
            self.cx.work.count_earlier_steps();
        }
        let receivers = self.membership.transfer.as_ref().map_or(&[][..], |transfer| &transfer.receivers);
        let (loss, interval) = (self.progress.epoch_loss, self.progress.interval.parts());
        let trained = self.progress.trained_before + self.progress.time.total(start);
        self.checkpoints.write(
            &mut self.cx,
            self.strategy.as_ref(),
            (loss, interval, trained),
            (start, receivers),
        )?;
        self.progress.time.exclude(self.cx.rank.now() - start);
        Ok(())
    }

    /// After the last unit.
    pub(super) fn conclude(&mut self) -> Result<Outcome> {
        if self.membership.next == Next::Left {
            return Ok(Outcome::Completed);
        }
        let trained = self.progress.time.total(self.cx.rank.now());
        self.cx.rank.begin_interval("the end");
        let interrupted = self.progress.ended == Some(Outcome::Interrupted);
        let (next, steps) = (self.cx.work.next(), self.cx.work.steps_per_epoch());
        let closes = next > self.first_step && !next.is_multiple_of(steps);
        let reported = self.trained();
        let members = if closes && !interrupted { self.measure_members()? } else { Vec::new() };
        if !interrupted && self.progress.validated_at != Some(next) {
            self.validate_published(reported)?;
        }
        if closes {
            let validation = if interrupted { Metrics::new() } else { self.progress.last.clone() };
            self.close_epoch(next / steps, validation, members)?;
        }
        // A server leaves after the last checkpoint, which has what it keeps.
        if !self.server_has_finished() {
            self.checkpoint()?;
        }
        self.checkpoints.finish(self.cx.rank)?;
        if !interrupted {
            self.cx.rank.begin_preparation("the final model");
            self.checkpoints.save_model(&self.cx, self.strategy.published())?;
        }
        let outcome = self.progress.ended.unwrap_or(match self.progress.target_reached(self.cx.job) {
            Some(false) => Outcome::TargetMissed,
            Some(true) => Outcome::TargetReached,
            None => Outcome::Completed,
        });
        self.report_end(Event::Done {
            outcome,
            last: self.progress.last.clone(),
            steps: next,
            units: self.progress.units,
            rows: self.progress.rows,
            train_s: trained.as_secs_f64(),
        })?;
        Ok(outcome)
    }

    /// Whether a server has completed the job, and left. The others have the model that it published.
    pub(super) fn server_has_finished(&self) -> bool {
        self.roles.missing_server(&self.cx.rank.member_ids()).is_some()
    }

    /// Rank 0 reports the accounts of all ranks, and the end.
    fn report_end(&mut self, done: Event) -> Result<()> {
        let internal = |error: postcard::Error| Error::internal(error.to_string());
        let rank = &mut self.cx.rank;
        let account = RankReport { staleness: self.strategy.staleness().cloned(), ..rank.account() };
        let mine = postcard::to_stdvec(&account).map_err(internal)?;
        let accounts = rank.world().gather("accounts", 0, &mine)?;
        if rank.index() == 0 {
            for account in accounts {
                rank.emit(Event::Account { account: postcard::from_bytes(&account).map_err(internal)? });
            }
            rank.emit(done);
        }
        // No rank leaves before rank 0 has reported: if it is lost until then, another rank reports the end.
        rank.world().broadcast("the end of accounts", 0, Vec::new())?;
        Ok(())
    }
}
