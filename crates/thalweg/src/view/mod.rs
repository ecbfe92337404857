//! Views of the one stream of events: what the user sees, what stays on disk.
//!
//! Every rank's events arrive at one place as [`Record`]s and go from there to each view. A view that must not lose
//! anything (a file on a full disk) returns its error, and the job ends with it; what is only shown never fails.

use std::io::IsTerminal;
use thalweg_core::event::{Event, Record};
use thalweg_core::{Error, Result};

mod course;
mod journal;
pub mod jsonl;
pub mod plain;
pub mod progress;
pub mod report;
pub mod summary;
pub mod tensorboard;
mod terminal;
mod waiting;
pub mod wording;

pub use jsonl::Jsonl;
pub use plain::Plain;
pub use progress::Progress;
pub use report::ReportView;
pub use summary::{Left, summary};
pub use tensorboard::TensorBoard;

/// Something that looks at events as they come.
pub trait View: Send {
    /// Takes in one event.
    fn record(&mut self, record: &Record) -> Result<()>;

    /// Whether it wants to see signs of life, which come many times a second.
    fn wants_pulses(&self) -> bool {
        false
    }

    /// Ends it: what is still in memory goes where it belongs.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// All views of a job.
pub struct Views {
    report: ReportView,
    others: Vec<Box<dyn View>>,
}

impl Views {
    /// The report is always among them.
    pub fn new(report: ReportView) -> Views {
        Views { report, others: Vec::new() }
    }

    /// Adds one.
    pub fn add(&mut self, view: impl View + 'static) {
        self.others.push(Box::new(view));
    }

    /// Adds what the user sees on stderr: a progress bar on a terminal, plain lines otherwise.
    pub fn add_console(&mut self, quiet: bool, max_steps: Option<u64>) {
        if std::io::stderr().is_terminal() && !quiet {
            self.add(Progress::stderr(max_steps));
        } else {
            self.add(Plain::stderr(quiet, max_steps));
        }
    }

    /// Shows an event to every view. All of them see it even if one fails; the first error is returned.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        let pulse = matches!(record.event, Event::Pulse(_));
        let mut failed = None;
        if !pulse {
            self.report.record(record)?;
        }
        for view in self.others.iter_mut().filter(|view| !pulse || view.wants_pulses()) {
            keep_first(&mut failed, view.record(record));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Closes every view and hands back the report. The first error that came up is told.
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

/// Whether colours are welcome on stderr.
pub fn colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use thalweg_core::Job;
    use thalweg_core::event::{Level, Pulse};

    struct Counter {
        seen: Arc<Mutex<Vec<&'static str>>>,
        pulses: bool,
        fails: bool,
    }

    impl View for Counter {
        fn record(&mut self, record: &Record) -> Result<()> {
            let name = if matches!(record.event, Event::Pulse(_)) { "pulse" } else { "other" };
            self.seen.lock().unwrap().push(name);
            if self.fails { Err(Error::internal("no")) } else { Ok(()) }
        }
        fn wants_pulses(&self) -> bool {
            self.pulses
        }
    }

    #[test]
    fn pulses_go_where_they_are_wanted_and_a_failing_view_hides_nothing_from_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let (report, _) = ReportView::open(folder.path(), "x", &Job::default(), false);
        let mut views = Views::new(report);
        let seen: [Arc<Mutex<Vec<&str>>>; 2] = Default::default();
        views.add(Counter { seen: seen[0].clone(), pulses: false, fails: true });
        views.add(Counter { seen: seen[1].clone(), pulses: true, fails: false });

        let record = |event| Record { time: 0.0, rank: Some(0), event };
        assert!(views.record(&record(Event::Pulse(Pulse::default()))).is_ok());
        let notice = Event::Notice { level: Level::Info, message: "hello".into() };
        assert!(views.record(&record(notice)).is_err());
        assert_eq!(*seen[0].lock().unwrap(), ["other"]);
        assert_eq!(*seen[1].lock().unwrap(), ["pulse", "other"]);
        assert!(views.close().1.is_ok());
    }
}
