//! Views of a job's event stream: the console, and the files of the run folder.
//!
//! The events of all ranks arrive in one process as [`Record`]s, which passes them to each view. A view that writes a
//! file returns its errors (full disk), and the job ends with them; console views never fail.

use std::io::IsTerminal;
use thalweg_core::event::{Event, Record};
use thalweg_core::{Error, Result};

pub mod formatting;
mod journal;
pub(crate) mod jsonl;
mod plain;
mod progress;
mod progress_state;
pub mod report;
mod summary;
mod tensorboard;
mod terminal;
mod waiting;

pub(crate) use jsonl::Jsonl;
pub(crate) use plain::Plain;
pub(crate) use progress::ProgressView;
pub use report::ReportView;
pub(crate) use summary::{RunFiles, summary};
pub(crate) use tensorboard::TensorBoard;

/// A consumer of events.
pub trait View: Send {
    /// Processes one event.
    fn record(&mut self, record: &Record) -> Result<()>;

    /// Whether `record` is called for heartbeats too, which arrive many times per second.
    fn wants_heartbeats(&self) -> bool {
        false
    }

    /// Writes out buffered data.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// All views of a job.
pub(crate) struct Views {
    report: ReportView,
    others: Vec<Box<dyn View>>,
}

impl Views {
    /// Starts with the report as the only view.
    pub fn new(report: ReportView) -> Views {
        Views { report, others: Vec::new() }
    }

    /// Adds a view.
    pub fn add(&mut self, view: impl View + 'static) {
        self.others.push(Box::new(view));
    }

    /// Adds the console view on stderr: a progress bar on a terminal, plain lines otherwise.
    pub fn add_console(&mut self, quiet: bool, max_steps: Option<u64>) {
        if std::io::stderr().is_terminal() && !quiet {
            self.add(ProgressView::stderr(max_steps));
        } else {
            self.add(Plain::stderr(quiet, max_steps));
        }
    }

    /// Passes an event to every view, also after one has failed; returns the first error.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        let heartbeat = matches!(record.event, Event::Heartbeat(_));
        let mut failed = None;
        if !heartbeat {
            self.report.record(record)?;
        }
        for view in self.others.iter_mut().filter(|view| !heartbeat || view.wants_heartbeats()) {
            keep_first(&mut failed, view.record(record));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Closes every view; returns the report and the first error.
    pub fn close(mut self) -> (ReportView, Result<()>) {
        let mut failed = None;
        for view in &mut self.others {
            keep_first(&mut failed, view.close());
        }
        (self.report, failed.map_or(Ok(()), Err))
    }
}

fn keep_first(failed: &mut Option<Error>, result: Result<()>) {
    if let Err(error) = result {
        failed.get_or_insert(error);
    }
}

/// Whether stderr takes colours: a terminal, and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use thalweg_core::Job;
    use thalweg_core::event::{Heartbeat, Level};

    struct Counter {
        seen: Arc<Mutex<Vec<&'static str>>>,
        heartbeats: bool,
        fails: bool,
    }

    impl View for Counter {
        fn record(&mut self, record: &Record) -> Result<()> {
            let name = if matches!(record.event, Event::Heartbeat(_)) { "heartbeat" } else { "other" };
            self.seen.lock().unwrap().push(name);
            if self.fails { Err(Error::internal("no")) } else { Ok(()) }
        }
        fn wants_heartbeats(&self) -> bool {
            self.heartbeats
        }
    }

    #[test]
    fn heartbeats_go_to_views_that_want_them_and_a_failing_view_does_not_stop_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let (report, _) = ReportView::open(folder.path(), "x", &Job::default(), false);
        let mut views = Views::new(report);
        let seen: [Arc<Mutex<Vec<&str>>>; 2] = Default::default();
        views.add(Counter { seen: seen[0].clone(), heartbeats: false, fails: true });
        views.add(Counter { seen: seen[1].clone(), heartbeats: true, fails: false });

        let record = |event| Record { time: 0.0, rank: Some(0), event };
        assert!(views.record(&record(Event::Heartbeat(Heartbeat::default()))).is_ok());
        let notice = Event::Notice { level: Level::Info, message: "hello".into() };
        assert!(views.record(&record(notice)).is_err());
        assert_eq!(*seen[0].lock().unwrap(), ["other"]);
        assert_eq!(*seen[1].lock().unwrap(), ["heartbeat", "other"]);
        assert!(views.close().1.is_ok());
    }
}
