//! What training leaves behind: checkpoints on the way, the model at the end.

use crate::modelfile::{SavedModel, unflatten};
use crate::worker::Worker;
use thalweg_cluster::checkpoint::Checkpoint;
use thalweg_core::Result;
use thalweg_core::event::{Event, Outcome};

impl Worker<'_> {
    /// Rank 0 writes down where training stands.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
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
