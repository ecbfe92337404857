//! A TensorBoard event file: loss, speed and validation metrics over steps.
//!
//! The format is TFRecord framing (length, checksum, message, checksum) around `Event` messages of TensorFlow's
//! `event.proto`. A resumed run writes a new file; TensorBoard merges the files, and a session log of `START` makes it
//! drop values of later steps in earlier files.

use super::View;
use super::journal::{Journal, cannot_write};
use prost::Message;
use std::io::ErrorKind;
use std::path::Path;
use thalweg_core::Result;
use thalweg_core::event::{Event, Metrics, Record};

/// Writes scalars to an event file.
pub struct TensorBoard {
    journal: Journal,
    /// First part of the tags of metrics: the rows they are computed on.
    rows: &'static str,
}

impl TensorBoard {
    /// Creates a file in the run folder, named after the time (seconds since 1970) and the host.
    pub fn create(folder: &Path, time: f64, host: &str) -> Result<TensorBoard> {
        let host: String =
            host.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
        let name = format!("events.out.tfevents.{:010}.{host}", time as u64);
        let mut path = folder.join(&name);
        let mut existing = 0;
        loop {
            match Journal::create(path.clone()) {
                Ok(mut journal) => {
                    journal.push(&framed(&version_event(time)));
                    return Ok(TensorBoard { journal, rows: "validation" });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    existing += 1;
                    path = folder.join(format!("{name}.{existing}"));
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
            Event::Epoch { step, consensus, members, .. } => {
                let mut scalars: Vec<(String, f64)> = Vec::new();
                scalars.extend(consensus.map(|distance| ("train/consensus".into(), distance)));
                for name in members.first().into_iter().flat_map(Metrics::keys) {
                    let sum: f64 = members.iter().filter_map(|member| member.get(name)).sum();
                    scalars.push((format!("members/{name}"), sum / members.len() as f64));
                }
                let scalars: Vec<(&str, f64)> =
                    scalars.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
                put(*step, &scalars);
                self.journal.flush()
            }
            Event::Evaluated { step, metrics, .. } => {
                let rows = self.rows;
                let tags: Vec<String> = metrics.keys().map(|name| format!("{rows}/{name}")).collect();
                let scalars: Vec<(&str, f64)> =
                    tags.iter().map(String::as_str).zip(metrics.values().copied()).collect();
                put(*step, &scalars);
                self.journal.flush()
            }
            Event::Failed { .. } | Event::Done { .. } => self.journal.flush(),
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

/// `Event` of `event.proto`, with the fields used here. All are `required` or `optional`, so that zeros are written
/// too.
#[derive(Clone, PartialEq, prost::Message)]
struct EventMessage {
    #[prost(double, required, tag = "1")]
    wall_time: f64,
    #[prost(int64, optional, tag = "2")]
    step: Option<i64>,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Scalar>,
}

/// `Summary.Value`.
#[derive(Clone, PartialEq, prost::Message)]
struct Scalar {
    #[prost(string, required, tag = "1")]
    tag: String,
    #[prost(float, required, tag = "2")]
    simple_value: f32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct SessionLog {
    #[prost(int32, required, tag = "1")]
    status: i32,
}

/// The first event of every file.
fn version_event(time: f64) -> EventMessage {
    EventMessage { wall_time: time, file_version: Some("brain.Event:2".into()), ..EventMessage::default() }
}

/// The start of a session: TensorBoard drops earlier values of this step and later ones.
fn start_event(time: f64, step: u64) -> EventMessage {
    const START: i32 = 1;
    let session_log = Some(SessionLog { status: START });
    EventMessage { wall_time: time, step: Some(step as i64), session_log, ..EventMessage::default() }
}

fn scalar_event(time: f64, step: u64, scalars: &[(&str, f64)]) -> EventMessage {
    let value = |(tag, value): &(&str, f64)| Scalar { tag: (*tag).into(), simple_value: *value as f32 };
    let summary = Some(Summary { values: scalars.iter().map(value).collect() });
    EventMessage { wall_time: time, step: Some(step as i64), summary, ..EventMessage::default() }
}

/// A TFRecord: length, its checksum, the message, its checksum.
fn framed(event: &EventMessage) -> Vec<u8> {
    let bytes = event.encode_to_vec();
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked_checksum(&length).to_le_bytes());
    record.extend_from_slice(&bytes);
    record.extend_from_slice(&masked_checksum(&bytes).to_le_bytes());
    record
}

/// CRC-32C, rotated and offset as in TensorFlow: data that contains CRCs would otherwise have degenerate checksums.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::super::progress_state::tests::{at, started, step};
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
        for index in 0.. {
            let byte = take(bytes, 1)[0];
            value |= u64::from(byte & 0x7f) << (7 * index);
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
    fn the_file_decodes_to_the_recorded_scalars() {
        let folder = tempfile::tempdir().unwrap();
        let mut view = TensorBoard::create(folder.path(), 1.7e9, "host/1").unwrap();
        view.record(&at(1.7e9, step(299, 1500.0))).unwrap();
        let metrics = Metrics::from([("accuracy".into(), 0.961), ("loss".into(), 0.2)]);
        let evaluated = Event::Evaluated { step: 10, rows: 640, train_s: 0.5, metrics };
        view.record(&at(1.7e9, evaluated)).unwrap();
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
    fn a_resumed_run_writes_a_session_start_with_its_first_step() {
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
    fn messages_are_encoded_with_zeros_and_empty_lists() {
        // Encoded by hand from the field numbers of event.proto and summary.proto.
        let version = b"\x09\x00\x00\x00\x00\x00\x00\x00\x00\x1a\x0dbrain.Event:2";
        assert_eq!(version_event(0.0).encode_to_vec(), version);
        let start = b"\x09\x00\x00\x00\x00\x00\x00\xf8?\x10\xad\x02:\x02\x08\x01";
        assert_eq!(start_event(1.5, 301).encode_to_vec(), start);
        let loss =
            b"\x09\x00\x00\x00\x00\x00\x00\xf8?\x10\x00*\x13\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x00\x00";
        assert_eq!(scalar_event(1.5, 0, &[("train/loss", 0.0)]).encode_to_vec(), loss);
        assert_eq!(
            scalar_event(1.5, 7, &[]).encode_to_vec(),
            b"\x09\x00\x00\x00\x00\x00\x00\xf8?\x10\x07*\x00"
        );
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
