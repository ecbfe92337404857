//! `events.jsonl`: everything that happened, one JSON object per line. A resumed run goes on in the same file.

use super::View;
use super::journal::Journal;
use std::path::Path;
use thalweg_core::event::{Event, Record};
use thalweg_core::{Error, Result};

/// Name of the file in the run folder.
pub const FILE: &str = "events.jsonl";

/// Appends events to the file.
pub struct Jsonl {
    journal: Journal,
}

impl Jsonl {
    /// Begins or goes on with the file in the run folder.
    pub fn open(folder: &Path) -> Result<Jsonl> {
        Ok(Jsonl { journal: Journal::append_lines(folder.join(FILE))? })
    }
}

impl View for Jsonl {
    fn record(&mut self, record: &Record) -> Result<()> {
        // A pulse is not written, but its time passes.
        if !matches!(record.event, Event::Pulse(_)) {
            let mut line = serde_json::to_vec(record)
                .map_err(|error| Error::internal(format!("an event cannot be written as JSON: {error}")))?;
            line.push(b'\n');
            self.journal.push(&line);
        }
        match record.event {
            // What can be relied on, or is the last that is heard, is on record at once.
            Event::Checkpoint { .. } | Event::Epoch { .. } | Event::Failed { .. } | Event::Done { .. } => {
                self.journal.flush()
            }
            _ => self.journal.flush_if_due(record.time),
        }
    }

    fn wants_pulses(&self) -> bool {
        true
    }

    fn close(&mut self) -> Result<()> {
        self.journal.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::event::{Level, Pulse};

    #[test]
    fn lines_are_read_back_as_they_were_and_a_second_run_appends() {
        let folder = tempfile::tempdir().unwrap();
        let notice = |message: &str| Record {
            time: 7.25,
            rank: None,
            event: Event::Notice { level: Level::Info, message: message.into() },
        };
        for message in ["first", "second\nline"] {
            let mut view = Jsonl::open(folder.path()).unwrap();
            view.record(&notice(message)).unwrap();
            view.record(&Record { event: Event::Pulse(Pulse::default()), ..notice("") }).unwrap();
            view.close().unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records, [notice("first"), notice("second\nline")]);
    }
}
