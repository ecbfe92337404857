//! What training leaves behind: checkpoints on the way, the model at the end.

use crate::modelfile::{SavedModel, about, kept, unflatten};
use crate::prepare::rows_digest;
use crate::worker::{Parts, Worker};
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::{Error, Result};

impl Worker<'_> {
    /// Writes down where training stands, as far as the others are needed for it: the state is copied, and the scribe
    /// does the rest while training goes on.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        let start = self.rank.now();
        self.rank.begin_preparation("a checkpoint");
        // However long the disk takes, no step's deadline runs meanwhile.
        if let Some(scribe) = &mut self.scribe {
            scribe.take_turn(self.rank, self.job.fault.checkpoint_every)?;
        }
        self.collect_ledgers()?;
        self.show_state();
        if std::mem::take(&mut self.disk_is_full) && self.scribe.is_some() {
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(Error::io("cannot write the checkpoint (fault.inject)", &full));
        }
        let asked = std::mem::take(&mut self.rider.checkpointing);
        if let Some(scribe) = &mut self.scribe {
            let page = scribe.page();
            (page.step, page.loss) = (self.next, self.epoch_loss);
            page.job = kept(self.job).to_toml();
            page.data.clone_from(&self.data_digest);
            if page.model.is_empty() {
                let Parts { data, layers, onnx, .. } = &self.parts;
                page.model = about(&data.schema, layers, onnx.as_deref(), Some(&rows_digest(data)))?;
            }
            page.audit = self.ledger.to_bytes();
            let pause = self.rank.now().saturating_sub(start);
            scribe.write(self.rank, pause, asked)?;
        }
        self.rank.checkpoint_taken(asked);
        self.aside += self.rank.now() - start;
        Ok(())
    }

    /// After the last step: what is left behind.
    pub(crate) fn conclude(&mut self) -> Result<Outcome> {
        if self.has_left {
            return Ok(Outcome::Completed);
        }
        let train = self.trained_before + self.rank.now().saturating_sub(self.begun + self.aside);
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
        if let Some(scribe) = &mut self.scribe {
            scribe.finish(self.rank)?;
        }
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
                last: self.last.clone(),
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
        let own = &self.parts.parameters;
        let parameters = self.shared.as_ref().map_or(&own[..], |shared| shared.parameters(own));
        SavedModel {
            schema: self.parts.data.schema.clone(),
            layers: self.parts.layers.clone(),
            onnx: self.parts.onnx.clone(),
            // With paths as the job has them: the same training in another folder gives the same file.
            job: self.job.recipe(),
            step: self.next,
            notices: Vec::new(),
            rows: Some(rows_digest(&self.parts.data)),
            tensors: unflatten(self.parts.model.layout(), parameters),
            path: path.clone(),
        }
        .write(&path)?;
        self.rank.emit(Event::Saved { path: path.display().to_string() });
        Ok(())
    }
}
