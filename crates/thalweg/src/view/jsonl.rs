//! `events.jsonl`: all events, one JSON object per line. A resumed run appends to the file: its `started` event
//! replaces earlier events of later steps.

use super::View;
use super::journal::Journal;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use thalweg_cluster::regular_file;
use thalweg_core::event::{Event, Record};
use thalweg_core::{Error, Result};

/// Name of the file in the run folder.
pub const FILE: &str = "events.jsonl";

/// Limit of the length of a line; those of the history are far shorter.
const MAX_LINE: u64 = 1 << 20;

/// Events of which a report is rebuilt; others, mainly steps, are skipped without parsing.
const HISTORY: [&str; 6] = ["joined", "started", "regrouped", "epoch", "checkpoint", "done"];

/// Passes the `HISTORY` events of earlier runs in a folder to `on_record`, oldest first. Returns the number of damaged
/// lines.
pub fn history(folder: &Path, mut on_record: impl FnMut(&Record) -> Result<()>) -> Result<u64> {
    let path = folder.join(FILE);
    let unreadable =
        |error: &std::io::Error| Error::io(format_args!("cannot read {}", path.display()), error);
    let mut reader = match regular_file::open(&path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(unreadable(&error)),
    };
    let (mut line, mut damaged) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut bounded = Read::by_ref(&mut reader).take(MAX_LINE);
        if bounded.read_until(b'\n', &mut line).map_err(|error| unreadable(&error))? == 0 {
            return Ok(damaged);
        }
        if !kind_of(&line).is_some_and(|kind| HISTORY.contains(&kind)) {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(record) => on_record(&record)?,
            Err(_) => damaged += 1,
        }
    }
}

/// The event name on a line. It precedes all text of users, so the first match is the key.
fn kind_of(line: &[u8]) -> Option<&str> {
    const KEY: &[u8] = b"\"event\":\"";
    let start = line.windows(KEY.len()).position(|part| part == KEY)? + KEY.len();
    let length = line[start..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&line[start..start + length]).ok()
}

/// Appends events to the file.
pub struct Jsonl {
    journal: Journal,
}

impl Jsonl {
    /// Opens the file in the run folder for appending.
    pub fn open(folder: &Path) -> Result<Jsonl> {
        Ok(Jsonl { journal: Journal::append_lines(folder.join(FILE))? })
    }
}

impl View for Jsonl {
    fn record(&mut self, record: &Record) -> Result<()> {
        // A heartbeat is not written, but its time may make a flush due.
        if !matches!(record.event, Event::Heartbeat(_)) {
            let mut line = serde_json::to_vec(record)
                .map_err(|error| Error::internal(format!("an event cannot be written as JSON: {error}")))?;
            line.push(b'\n');
            self.journal.push(&line);
        }
        match record.event {
            // Flushed at once: a reader may act on these, or the process may end after them.
            Event::Checkpoint { .. } | Event::Epoch { .. } | Event::Failed { .. } | Event::Done { .. } => {
                self.journal.flush()
            }
            _ => self.journal.flush_if_due(record.time),
        }
    }

    fn wants_heartbeats(&self) -> bool {
        true
    }

    fn close(&mut self) -> Result<()> {
        self.journal.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress_state::tests::{at, epoch, started, step};
    use super::*;
    use thalweg_core::event::{Heartbeat, Level};

    #[test]
    fn the_history_excludes_steps_and_damaged_lines_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let read = |folder: &Path| {
            let mut kinds = Vec::new();
            let damaged = history(folder, |record| {
                kinds.push(match &record.event {
                    Event::Started { first_step, .. } => format!("started {first_step}"),
                    Event::Epoch { epoch, .. } => format!("epoch {epoch}"),
                    other => format!("{other:?}"),
                });
                Ok(())
            });
            (kinds, damaged.unwrap())
        };
        assert_eq!(read(folder.path()), (Vec::new(), 0), "there is no file");
        let mut view = Jsonl::open(folder.path()).unwrap();
        let message = r#""event":"epoch""#.to_string();
        let notice = Event::Notice { level: Level::Info, message };
        for event in [started(0), step(3, 1.0), notice, epoch(0), started(5)] {
            view.record(&at(1.0, event)).unwrap();
        }
        view.close().unwrap();
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"time\":1,\"rank\":0,\"event\":\"epoch\",\"epoch\":-1}\n\xff\xfe\n{\n");
        bytes.extend(std::iter::repeat_n(b'x', 3 << 20));
        std::fs::write(&path, bytes).unwrap();
        let expected = ["started 0", "epoch 0", "started 5"].map(String::from).to_vec();
        assert_eq!(read(folder.path()), (expected, 1));
    }

    #[test]
    fn records_round_trip_and_a_second_run_appends() {
        let folder = tempfile::tempdir().unwrap();
        let notice = |message: &str| Record {
            time: 7.25,
            rank: None,
            event: Event::Notice { level: Level::Info, message: message.into() },
        };
        for message in ["first", "second\nline"] {
            let mut view = Jsonl::open(folder.path()).unwrap();
            view.record(&notice(message)).unwrap();
            view.record(&Record { event: Event::Heartbeat(Heartbeat::default()), ..notice("") }).unwrap();
            view.close().unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records, [notice("first"), notice("second\nline")]);
    }
}
