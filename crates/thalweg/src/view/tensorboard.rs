//! A TensorBoard event file: loss, speed and validation metrics over steps.
//!
//! The format is TFRecord framing (length, checksum, bytes, checksum) around `Event` messages of TensorFlow's
//! `event.proto`, of which five fields are used here. A resumed run begins a file of its own; TensorBoard joins them, and
//! the log of a session's start tells it to forget what earlier files say of later steps.

use super::View;
use super::journal::{Journal, cannot_write};
use std::io::ErrorKind;
use std::path::Path;
use thalweg_core::Result;
use thalweg_core::event::{Event, Record};

/// Writes scalars.
pub struct TensorBoard {
    journal: Journal,
    /// The rows on which metrics are taken, as a tag.
    rows: &'static str,
}

impl TensorBoard {
    /// Begins a file in the run folder, named for the time (seconds since 1970) and the host.
    pub fn create(folder: &Path, time: f64, host: &str) -> Result<TensorBoard> {
        let host: String =
            host.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
        let name = format!("events.out.tfevents.{:010}.{host}", time as u64);
        let mut path = folder.join(&name);
        let mut others = 0;
        loop {
            match Journal::create(path.clone()) {
                Ok(mut journal) => {
                    journal.push(&framed(&version_event(time)));
                    return Ok(TensorBoard { journal, rows: "validation" });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    others += 1;
                    path = folder.join(format!("{name}.{others}"));
                }
                Err(error) => return Err(cannot_write(&path, &error)),
            }
        }
    }
}

impl View for TensorBoard {
    fn record(&mut self, record: &Record) -> Result<()> {
        let mut put = |step: u64, scalars: &[(&str, f64)]| {
            self.journal.push(&framed(&scalar_event(record.time, step, scalars)));
        };
        match &record.event {
            Event::Started { first_step, validation_rows, .. } => {
                self.rows = if *validation_rows > 0 { "validation" } else { "training" };
                self.journal.push(&framed(&start_event(record.time, first_step + 1)));
                self.journal.flush()
            }
            Event::Step { step, loss, samples_per_s, .. } => {
                put(step + 1, &[("train/loss", *loss), ("train/samples_per_s", *samples_per_s)]);
                self.journal.flush_if_due(record.time)
            }
            Event::Epoch { step, validation, .. } => {
                let rows = self.rows;
                let tags: Vec<String> = validation.keys().map(|name| format!("{rows}/{name}")).collect();
                let scalars: Vec<(&str, f64)> =
                    tags.iter().map(String::as_str).zip(validation.values().copied()).collect();
                put(*step, &scalars);
                self.journal.flush()
            }
            Event::Failed { .. } | Event::Done { .. } => self.journal.flush(),
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

/// `Event { wall_time = 1, file_version = 3 }`: what every file begins with.
fn version_event(time: f64) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, time);
    event.bytes(3, b"brain.Event:2");
    event.0
}

/// `Event { wall_time = 1, step = 2, session_log = 7 }` with `SessionLog { status = 1 }` of `START`: what was written before
/// of this step and later ones no longer counts.
fn start_event(time: f64, step: u64) -> Vec<u8> {
    const START: u64 = 1;
    let mut log = Message::default();
    log.varint(1, START);
    let mut event = Message::default();
    event.double(1, time);
    event.varint(2, step);
    event.bytes(7, &log.0);
    event.0
}

/// `Event { wall_time = 1, step = 2, summary = 5 }` with one `Summary.Value { tag = 1, simple_value = 2 }` per scalar.
fn scalar_event(time: f64, step: u64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, value) in scalars {
        let mut entry = Message::default();
        entry.bytes(1, tag.as_bytes());
        entry.float(2, *value as f32);
        summary.bytes(1, &entry.0);
    }
    let mut event = Message::default();
    event.double(1, time);
    event.varint(2, step);
    event.bytes(5, &summary.0);
    event.0
}

/// A protobuf message in the making. A field is its number and wire type, then its value.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.number(value);
    }

    fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, 2);
        self.number(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn float(&mut self, field: u32, value: f32) {
        self.key(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.number(u64::from(field << 3 | wire_type));
    }

    /// Seven bits per byte, the lowest first; the top bit says that more follow.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A TFRecord: length, its checksum, the bytes, their checksum.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked_checksum(&length).to_le_bytes());
    record.extend_from_slice(bytes);
    record.extend_from_slice(&masked_checksum(bytes).to_le_bytes());
    record
}

/// CRC-32C, rotated and offset, so that a checksum of bytes that hold checksums is no trivial one.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::super::course::tests::{at, epoch, started, step};
    use super::*;

    /// Takes the front of the bytes.
    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (front, rest) = bytes.split_at(count);
        *bytes = rest;
        front
    }

    /// The payloads of a file whose checksums hold.
    fn unframe(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut payloads = Vec::new();
        while !bytes.is_empty() {
            let length = take(&mut bytes, 8);
            assert_eq!(take(&mut bytes, 4), masked_checksum(length).to_le_bytes());
            let payload = take(&mut bytes, u64::from_le_bytes(length.try_into().unwrap()) as usize);
            assert_eq!(take(&mut bytes, 4), masked_checksum(payload).to_le_bytes());
            payloads.push(payload);
        }
        payloads
    }

    fn number(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for place in 0.. {
            let byte = take(bytes, 1)[0];
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    /// The fields of a message: number and raw value.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let value = match key & 7 {
                0 => number(&mut bytes).to_le_bytes().to_vec(),
                1 => take(&mut bytes, 8).to_vec(),
                2 => {
                    let length = number(&mut bytes) as usize;
                    take(&mut bytes, length).to_vec()
                }
                5 => take(&mut bytes, 4).to_vec(),
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, value));
        }
        fields
    }

    /// Step and scalars of an event.
    fn scalars(payload: &[u8]) -> (u64, Vec<(String, f32)>) {
        let event = fields(payload);
        assert_eq!(event.iter().map(|(field, _)| *field).collect::<Vec<_>>(), [1, 2, 5]);
        let step = u64::from_le_bytes(event[1].1[..].try_into().unwrap());
        let values = fields(&event[2].1).into_iter().map(|(_, value)| {
            let value = fields(&value);
            let tag = String::from_utf8(value[0].1.clone()).unwrap();
            (tag, f32::from_le_bytes(value[1].1[..].try_into().unwrap()))
        });
        (step, values.collect())
    }

    #[test]
    fn the_file_decodes_to_what_happened() {
        let folder = tempfile::tempdir().unwrap();
        let mut view = TensorBoard::create(folder.path(), 1.7e9, "host/1").unwrap();
        view.record(&at(1.7e9, step(299, 1500.0))).unwrap();
        view.record(&at(1.7e9, epoch(0))).unwrap();
        let bytes = std::fs::read(folder.path().join("events.out.tfevents.1700000000.host_1")).unwrap();
        let payloads = unframe(&bytes);
        assert_eq!(payloads.len(), 3);
        let version = fields(payloads[0]);
        assert_eq!(version[0], (1, 1.7e9f64.to_le_bytes().to_vec()));
        assert_eq!(version[1], (3, b"brain.Event:2".to_vec()));
        let scalar = |tag: &str, value| (tag.to_string(), value);
        let train = vec![scalar("train/loss", 0.5), scalar("train/samples_per_s", 1500.0)];
        assert_eq!(scalars(payloads[1]), (300, train));
        let validation = vec![scalar("validation/accuracy", 0.961), scalar("validation/loss", 0.2)];
        assert_eq!(scalars(payloads[2]), (10, validation));
    }

    #[test]
    fn a_resumed_run_tells_from_which_step_on_it_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut view = TensorBoard::create(folder.path(), 1.7e9, "a").unwrap();
        view.record(&at(1.7e9, started(300))).unwrap();
        let bytes = std::fs::read(folder.path().join("events.out.tfevents.1700000000.a")).unwrap();
        let event = fields(unframe(&bytes)[1]);
        assert_eq!(event[1], (2, 301u64.to_le_bytes().to_vec()), "300 steps are done");
        assert_eq!(event[2].0, 7);
        assert_eq!(fields(&event[2].1), [(1, 1u64.to_le_bytes().to_vec())]);
    }

    #[test]
    fn the_checksum_is_the_known_one() {
        // CRC-32C of "123456789" is 0xe3069283 (RFC 3720); masked as in TensorFlow's crc32c.h.
        assert_eq!(masked_checksum(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn two_runs_in_one_second_have_two_files() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..3 {
            TensorBoard::create(folder.path(), 5.0, "a").unwrap().close().unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
