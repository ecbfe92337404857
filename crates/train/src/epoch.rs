//! The end of an epoch: validation, audit, target.

use crate::audit::Ledger;
use crate::finite;
use crate::progress::Progress;
use crate::validate::validate;
use crate::worker::{Parts, Worker};
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::{Result, Tally};

impl Worker<'_> {
    /// At the end of an epoch: closes it, unless that was done. A rank may have been lost in the middle of it.
    pub(crate) fn close_due_epoch(&mut self) -> Result<()> {
        let epochs = self.next / self.sampler.steps_per_epoch();
        if self.next.is_multiple_of(self.sampler.steps_per_epoch()) && self.closed < epochs {
            self.finish_epoch(epochs - 1)?;
            self.closed = epochs;
        }
        Ok(())
    }

    /// Validates, closes the epoch's audit and sees whether the target is reached.
    pub(crate) fn finish_epoch(&mut self, epoch: u64) -> Result<()> {
        let start = self.rank.now();
        self.rank.begin_preparation("end of the epoch");
        let tally = self.validate()?;
        self.last = tally.metrics(&self.parts.data.schema);
        self.validated_at = Some(self.next);
        self.close_epoch(epoch, self.last.clone())?;
        self.ledger.clear();
        self.epoch_loss = (0.0, 0);
        if self.target_reached() == Some(true) {
            self.ended = Some(Outcome::TargetReached);
        }
        self.aside += self.rank.now() - start;
        self.recent = Progress::since(self.rank.now());
        Ok(())
    }

    pub(crate) fn validate(&mut self) -> Result<Tally> {
        let Parts { data, model, parameters, .. } = &mut self.parts;
        let parameters = self.shared.as_ref().map_or(&parameters[..], |shared| shared.parameters(parameters));
        // Without rows of their own, the training rows have to do.
        let rows = if !data.validation.is_empty() { &data.validation } else { &data.training };
        let mut batch = rows.empty_batch();
        let tally = validate(self.rank, model.as_mut(), parameters, rows, &mut batch)?;
        finite::check_model(self.rank.member_id(), self.next, tally.loss, parameters, model.layout())?;
        Ok(tally)
    }

    /// Rank 0's ledger takes over what the others have consumed since the last time.
    pub(crate) fn collect_ledgers(&mut self) -> Result<()> {
        if self.proves_rows() {
            return Ok(());
        }
        let ledgers = self.rank.all_gather("audit", &self.ledger.to_bytes())?;
        if self.rank.index() != 0 {
            self.ledger.clear();
            return Ok(());
        }
        ledgers.iter().skip(1).try_for_each(|ledger| self.ledger.absorb(ledger))
    }

    /// What was consumed of the epoch, by this run and by those it goes on from, against what should have been.
    pub(crate) fn close_epoch(&mut self, epoch: u64, validation: Metrics) -> Result<()> {
        self.collect_ledgers()?;
        let tells = self.rank.index() == 0;
        let could_tell = self.rank.is_elastic() && self.proves_rows();
        if !tells && !could_tell {
            return Ok(());
        }
        let expected = self.expected_rows(epoch);
        let closed = Event::Epoch {
            epoch,
            step: self.next,
            loss: self.epoch_loss.0 / self.epoch_loss.1.max(1) as f64,
            validation,
            audit: self.ledger.close(epoch, &expected),
        };
        // The one that tells it may be lost before it does: until the next step is done, the others could.
        self.untold = match tells {
            true => {
                self.rank.emit(closed);
                None
            }
            false => Some(closed),
        };
        Ok(())
    }

    /// All training rows; of an epoch that is not done yet, the rows of its steps so far.
    fn expected_rows(&mut self, epoch: u64) -> Ledger {
        let training = &self.parts.data.training;
        let mut expected = Ledger::new(training.source_len());
        let steps = self.sampler.steps_per_epoch();
        if self.next >= (epoch + 1) * steps {
            training.ids().for_each(|id| expected.enter(&[id]));
        } else {
            (epoch * steps..self.next)
                .for_each(|step| expected.enter(self.sampler.rows(epoch, step % steps)));
        }
        expected
    }

    /// Whether the target is reached; nothing if there is none.
    pub(crate) fn target_reached(&self) -> Option<bool> {
        let target = &self.job.target;
        let accuracy = target.accuracy.map(|least| self.last.get("accuracy").is_some_and(|is| *is >= least));
        let loss = target.loss.map(|most| self.last.get("loss").is_some_and(|is| *is <= most));
        match (accuracy, loss) {
            (None, None) => None,
            (accuracy, loss) => Some(accuracy.unwrap_or(true) && loss.unwrap_or(true)),
        }
    }
}
