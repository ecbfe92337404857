//! The checkpoint writer: writes checkpoints while training goes on.
//!
//! Between two steps the state is copied into its buffer, which is all that training waits for. A background task checks
//! the copy, writes it to a temporary file, syncs, renames and prunes; then the checkpoint is reported. There is one
//! buffer: a checkpoint that is due while the last is still being written waits. So memory is bounded, every checkpoint
//! that is due is written, and a disk that cannot keep up slows training down.
//!
//! Rank 0 has a writer. A checkpoint that is being written when the writer is dropped may or may not be completed; it is
//! not reported, and no incomplete file has a checkpoint's name.

use crate::finite;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::background_task::{BackgroundTask, TaskContext};
use thalweg_cluster::checkpoint::Checkpoint;
use thalweg_core::event::{Event, Level};
use thalweg_core::{Layout, Result};

/// A wait for the disk that is reported.
const LONG: Duration = Duration::from_secs(1);

/// The folder of checkpoints and their layout.
struct Store {
    folder: PathBuf,
    layout: Layout,
    keep: usize,
}

/// The result of the background task: the buffer, for the next checkpoint, and the outcome.
type Written = (Checkpoint, Result<()>);

/// Writes checkpoints, one at a time.
pub(crate) struct CheckpointWriter {
    store: Arc<Store>,
    buffer: Checkpoint,
    writing: Option<BackgroundTask<Written>>,
    has_warned: bool,
}

impl CheckpointWriter {
    /// Writes to this folder and keeps the newest `keep`.
    pub(crate) fn new(folder: &Path, layout: &Layout, keep: usize) -> CheckpointWriter {
        let store = Store { folder: folder.to_path_buf(), layout: layout.clone(), keep };
        let buffer = Checkpoint::default();
        CheckpointWriter { store: Arc::new(store), buffer, writing: None, has_warned: false }
    }

    /// Waits until the last checkpoint is on disk.
    pub(crate) fn finish(&mut self, rank: &mut Rank) -> Result<()> {
        match self.writing.take() {
            Some(task) => {
                let written = rank.await_background_task(&task)?;
                self.take_back(written)
            }
            None => Ok(()),
        }
    }

    /// Waits until the buffer is free: until the last checkpoint is on disk.
    pub(crate) fn await_buffer(&mut self, rank: &mut Rank, every: u64) -> Result<()> {
        let start = rank.now();
        self.finish(rank)?;
        let waited = rank.now().saturating_sub(start);
        if waited > LONG && !std::mem::replace(&mut self.has_warned, true) {
            let message = format!(
                "training waited {:.1} s for the last checkpoint to be written: the disk does not keep up with one in \
                 {every} steps; raise fault.checkpoint_every",
                waited.as_secs_f64()
            );
            rank.emit(Event::Notice { level: Level::Warning, message });
        }
        Ok(())
    }

    /// The buffer to fill. It holds the last checkpoint, whose memory is used again.
    pub(crate) fn buffer(&mut self) -> &mut Checkpoint {
        &mut self.buffer
    }

    /// Starts to write the filled buffer, for which training paused that long. `asked`: on request, not on schedule.
    pub(crate) fn write(&mut self, rank: &Rank, pause: Duration, asked: bool) -> Result<()> {
        let (buffer, store, index) =
            (std::mem::take(&mut self.buffer), Arc::clone(&self.store), rank.index());
        let name = format!("writing the checkpoint of step {}", buffer.step);
        let task = rank.start_background_task(&name, move |context| {
            let written = store.write(&buffer, index, (pause, asked), context);
            (buffer, written)
        })?;
        self.writing = Some(task);
        self.poll()
    }

    /// Fails if the last checkpoint could not be written.
    pub(crate) fn poll(&mut self) -> Result<()> {
        let Some(task) = &self.writing else { return Ok(()) };
        match task.poll()? {
            Some(written) => {
                self.writing = None;
                self.take_back(written)
            }
            None => Ok(()),
        }
    }

    fn take_back(&mut self, (buffer, written): Written) -> Result<()> {
        self.buffer = buffer;
        written
    }
}

impl Store {
    fn write(
        &self,
        buffer: &Checkpoint,
        writer: usize,
        (pause, asked): (Duration, bool),
        context: &TaskContext,
    ) -> Result<()> {
        let start = context.now();
        finite::check_model(writer, buffer.step, 0.0, &buffer.parameters, &self.layout)?;
        let path = buffer.write(&self.folder, &self.layout, self.keep)?;
        context.emit(Event::Checkpoint {
            step: buffer.step,
            path: path.display().to_string(),
            asked,
            pause_s: pause.as_secs_f64(),
            write_s: context.now().saturating_sub(start).as_secs_f64(),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_cluster::checkpoint;
    use thalweg_cluster::rank::in_memory;
    use thalweg_core::model::{Density, TensorRole};

    fn layout() -> Layout {
        let mut layout = Layout::default();
        layout.push("w", &[2, 3], TensorRole::Trainable, Density::Dense);
        layout
    }

    fn fill(writer: &mut CheckpointWriter, step: u64) {
        let buffer = writer.buffer();
        (buffer.step, buffer.parameters) = (step, vec![step as f32; 6]);
        buffer.job = "format = 1\n".into();
    }

    #[test]
    fn one_after_the_other_and_the_memory_is_used_again() {
        let (folder, mut rank) = (tempfile::tempdir().unwrap(), in_memory(1, LONG).remove(0));
        let mut writer = CheckpointWriter::new(folder.path(), &layout(), 2);
        for step in [1, 2, 3] {
            writer.await_buffer(&mut rank, 1).unwrap();
            assert_eq!(writer.buffer().step, step - 1, "the buffer came back");
            fill(&mut writer, step);
            writer.write(&rank, Duration::ZERO, false).unwrap();
        }
        writer.finish(&mut rank).unwrap();
        let found = checkpoint::newest(folder.path(), &layout()).unwrap().unwrap();
        assert_eq!((found.checkpoint.step, found.checkpoint.parameters), (3, vec![3.0; 6]));
        assert_eq!(checkpoint::list(folder.path()).len(), 2);
    }

    #[test]
    fn what_cannot_be_written_is_told_to_whoever_waits_or_looks() {
        let mut rank = in_memory(1, LONG).remove(0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let mut writer = CheckpointWriter::new(&file, &layout(), 2);
        fill(&mut writer, 1);
        let told = writer.write(&rank, Duration::ZERO, false).and_then(|()| writer.finish(&mut rank));
        assert!(told.unwrap_err().message.contains("cannot make"));
        let mut writer = CheckpointWriter::new(folder.path(), &layout(), 2);
        fill(&mut writer, 1);
        writer.buffer().parameters[4] = f32::NAN;
        let told = writer.write(&rank, Duration::ZERO, false).and_then(|()| writer.finish(&mut rank));
        assert!(told.unwrap_err().message.contains("the parameter `w` is NaN"));
        assert!(checkpoint::list(folder.path()).is_empty());
    }
}
