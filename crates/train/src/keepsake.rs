//! What training leaves behind: checkpoints on the way, the model at the end.

use crate::finite;
use crate::modelfile::{SavedModel, unflatten};
use crate::worker::{Parts, Worker};
use thalweg_cluster::checkpoint::Checkpoint;
use thalweg_core::Result;
use thalweg_core::event::{Event, Metrics, Outcome};

impl Worker<'_> {
    /// Rank 0 writes down where training stands; the others wait for it.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        let start = self.rank.now();
        self.rank.begin_preparation("a checkpoint");
        self.collect_ledgers()?;
        self.collect_shares()?;
        if self.rank.index() == 0 {
            self.write_checkpoint()?;
        }
        // However long the disk takes, no step's deadline runs meanwhile.
        self.rank.all_gather("a checkpoint", &[])?;
        self.aside += self.rank.now() - start;
        Ok(())
    }

    fn write_checkpoint(&mut self) -> Result<()> {
        let Parts { parameters, optimizer, model, .. } = &self.parts;
        finite::check_model(0, self.next, 0.0, parameters, model.layout())?;
        let checkpoint = Checkpoint {
            step: self.next,
            job: self.job.to_toml(),
            data: self.data_digest.clone(),
            loss: self.epoch_loss,
            audit: self.ledger.to_bytes(),
            parameters: parameters.clone(),
            slots: optimizer
                .slots()
                .into_iter()
                .map(|(name, values)| (name.to_string(), values.to_vec()))
                .collect(),
        };
        let folder = self.folder.join("checkpoints");
        let path = checkpoint.write(&folder, model.layout(), self.job.fault.checkpoint_keep)?;
        self.rank.emit(Event::Checkpoint { step: self.next, path: path.display().to_string() });
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
        if self.next > self.first_step && !self.next.is_multiple_of(steps) {
            let validation = if interrupted { Metrics::new() } else { self.last.clone() };
            self.close_epoch(self.next / steps, validation)?;
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
            onnx: self.parts.onnx.clone(),
            job: self.job.recipe(),
            step: self.next,
            tensors: unflatten(self.parts.model.layout(), &self.parts.parameters),
        }
        .write(&path)?;
        self.rank.emit(Event::Saved { path: path.display().to_string() });
        Ok(())
    }
}
