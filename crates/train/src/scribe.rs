//! The scribe: writes checkpoints while training goes on.
//!
//! At a step's boundary the state is copied onto its page, which is all that training waits for. A background task checks the
//! copy, writes it beside its place, syncs, renames and prunes; then the checkpoint counts and is told. There is one page:
//! if a checkpoint is due while the last is still being written, it waits its turn. So memory is bounded, every
//! checkpoint that is due comes about, and a disk that cannot keep up slows training down instead of being lied about.
//!
//! Whoever owns a scribe writes: rank 0, or whoever takes its place. What is still being written when a scribe is
//! dropped comes about or does not; nobody is told, and nothing half-written ever has a checkpoint's name.

use crate::finite;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::background_task::{BackgroundTask, TaskContext};
use thalweg_cluster::checkpoint::Checkpoint;
use thalweg_core::event::{Event, Level};
use thalweg_core::{Layout, Result};

/// A wait for the disk that is worth telling.
const LONG: Duration = Duration::from_secs(1);

/// Where checkpoints go and what they look like.
struct Shelf {
    folder: PathBuf,
    layout: Layout,
    keep: usize,
}

/// What comes back from the background task: the page, for the next one, and how it went.
type Written = (Checkpoint, Result<()>);

/// Writes checkpoints, one at a time.
pub(crate) struct Scribe {
    shelf: Arc<Shelf>,
    page: Checkpoint,
    writing: Option<BackgroundTask<Written>>,
    has_complained: bool,
}

impl Scribe {
    /// One that writes to this folder and keeps that many.
    pub(crate) fn new(folder: &Path, layout: &Layout, keep: usize) -> Scribe {
        let shelf = Shelf { folder: folder.to_path_buf(), layout: layout.clone(), keep };
        let page = Checkpoint::default();
        Scribe { shelf: Arc::new(shelf), page, writing: None, has_complained: false }
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

    /// Waits until the page is free for the next checkpoint: until the last one is on disk.
    pub(crate) fn take_turn(&mut self, rank: &mut Rank, every: u64) -> Result<()> {
        let start = rank.now();
        self.finish(rank)?;
        let waited = rank.now().saturating_sub(start);
        if waited > LONG && !std::mem::replace(&mut self.has_complained, true) {
            let message = format!(
                "training waited {:.1} s for the last checkpoint to be written: the disk does not keep up with one in \
                 {every} steps; raise fault.checkpoint_every",
                waited.as_secs_f64()
            );
            rank.emit(Event::Notice { level: Level::Warning, message });
        }
        Ok(())
    }

    /// The page to fill. What stands on it is from the last checkpoint: its memory is used again.
    pub(crate) fn page(&mut self) -> &mut Checkpoint {
        &mut self.page
    }

    /// The page is filled, after training stood still for that time: sends it on its way. `asked`: a signal asked for it.
    pub(crate) fn write(&mut self, rank: &Rank, pause: Duration, asked: bool) -> Result<()> {
        let (page, shelf, writer) = (std::mem::take(&mut self.page), Arc::clone(&self.shelf), rank.index());
        let name = format!("writing the checkpoint of step {}", page.step);
        let task = rank.start_background_task(&name, move |context| {
            let written = shelf.put(&page, writer, (pause, asked), context);
            (page, written)
        })?;
        self.writing = Some(task);
        self.look()
    }

    /// If the last checkpoint could not be written, now is the time to say so.
    pub(crate) fn look(&mut self) -> Result<()> {
        let Some(task) = &self.writing else { return Ok(()) };
        match task.poll()? {
            Some(written) => {
                self.writing = None;
                self.take_back(written)
            }
            None => Ok(()),
        }
    }

    fn take_back(&mut self, (page, written): Written) -> Result<()> {
        self.page = page;
        written
    }
}

impl Shelf {
    fn put(
        &self,
        page: &Checkpoint,
        writer: usize,
        (pause, asked): (Duration, bool),
        context: &TaskContext,
    ) -> Result<()> {
        let start = context.now();
        finite::check_model(writer, page.step, 0.0, &page.parameters, &self.layout)?;
        let path = page.write(&self.folder, &self.layout, self.keep)?;
        context.emit(Event::Checkpoint {
            step: page.step,
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

    fn fill(scribe: &mut Scribe, step: u64) {
        let page = scribe.page();
        (page.step, page.parameters) = (step, vec![step as f32; 6]);
        page.job = "format = 1\n".into();
    }

    #[test]
    fn one_after_the_other_and_the_memory_is_used_again() {
        let (folder, mut rank) = (tempfile::tempdir().unwrap(), in_memory(1, LONG).remove(0));
        let mut scribe = Scribe::new(folder.path(), &layout(), 2);
        for step in [1, 2, 3] {
            scribe.take_turn(&mut rank, 1).unwrap();
            assert_eq!(scribe.page().step, step - 1, "the page came back");
            fill(&mut scribe, step);
            scribe.write(&rank, Duration::ZERO, false).unwrap();
        }
        scribe.finish(&mut rank).unwrap();
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
        let mut scribe = Scribe::new(&file, &layout(), 2);
        fill(&mut scribe, 1);
        let told = scribe.write(&rank, Duration::ZERO, false).and_then(|()| scribe.finish(&mut rank));
        assert!(told.unwrap_err().message.contains("cannot make"));
        let mut scribe = Scribe::new(folder.path(), &layout(), 2);
        fill(&mut scribe, 1);
        scribe.page().parameters[4] = f32::NAN;
        let told = scribe.write(&rank, Duration::ZERO, false).and_then(|()| scribe.finish(&mut rank));
        assert!(told.unwrap_err().message.contains("the parameter `w` is NaN"));
        assert!(checkpoint::list(folder.path()).is_empty());
    }
}
