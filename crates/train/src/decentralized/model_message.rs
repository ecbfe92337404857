//! Models as messages between workers: of a step, between neighbours that wait for each other; or with the rows that are in
//! them, between workers at their own speed.

use crate::work::local_rows::RowsComputed;
use thalweg_core::{Culprit, Error, Kind, Result};

/// What precedes the parameters in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub generation: u64,
    pub step: u64,
    /// The step of the next meeting on request, if there is one.
    pub meeting: Option<u64>,
}

impl Header {
    pub const BYTES: usize = 24;

    pub fn before(self, parameters: &[f32]) -> Vec<u8> {
        let mut message = Vec::with_capacity(Header::BYTES + 4 * parameters.len());
        for number in [self.generation, self.step, self.meeting.unwrap_or(u64::MAX)] {
            message.extend_from_slice(&number.to_le_bytes());
        }
        parameters.iter().for_each(|value| message.extend_from_slice(&value.to_le_bytes()));
        message
    }

    /// Reads a message with as many parameters, expected in that generation and step.
    pub fn read(
        message: &[u8],
        parameters: usize,
        (generation, step): (u64, u64),
    ) -> std::result::Result<(Header, Vec<f32>), String> {
        let (header, values) = match message.split_first_chunk::<{ Header::BYTES }>() {
            Some((header, values)) if values.len() == 4 * parameters => (header, values),
            _ => return Err(format!("sent a model of {} bytes", message.len())),
        };
        let number = |at: usize| header[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let meeting = Some(number(2)).filter(|meeting| *meeting != u64::MAX);
        let header = Header { generation: number(0), step: number(1), meeting };
        if header.generation == generation && header.step != step || header.generation > generation {
            return Err(format!(
                "sent the model of step {} of generation {}",
                header.step, header.generation
            ));
        }
        if header.generation == generation && meeting.is_some_and(|after| after < step) {
            return Err(format!("announced a meeting before step {step}"));
        }
        let values: Vec<f32> = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        match values.iter().all(|value| value.is_finite()) {
            true => Ok((header, values)),
            false => Err("sent parameters that are not finite".into()),
        }
    }
}

/// Bytes of a model with that many parameters and its sender's rows.
pub fn own_bytes(parameters: usize) -> usize {
    16 + 4 * parameters
}

/// The message with a worker's model after so many rows.
pub fn before_own(rows: RowsComputed, parameters: &[f32]) -> Vec<u8> {
    let mut message = Vec::with_capacity(own_bytes(parameters.len()));
    message.extend_from_slice(&rows.count.to_le_bytes());
    message.extend_from_slice(&rows.since.to_le_bytes());
    parameters.iter().for_each(|value| message.extend_from_slice(&value.to_le_bytes()));
    message
}

/// Reads a message of a member with as many parameters.
pub fn read_own(member: usize, message: &[u8], parameters: usize) -> Result<(RowsComputed, Vec<f32>)> {
    let invalid = |cause: String| {
        let culprit = Culprit { rank: member, cause: cause.clone(), ..Culprit::default() };
        Err(Error::new(Kind::RankFailed, format!("rank {member} {cause}")).blame(culprit))
    };
    let (numbers, values) = match message.split_first_chunk::<16>() {
        Some((numbers, values)) if values.len() == 4 * parameters => (numbers, values),
        _ => return invalid(format!("sent a model of {} bytes", message.len())),
    };
    let number = |at: usize| numbers[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let rows = RowsComputed { count: number(0), since: number(1) };
    let values: Vec<f32> = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match values.iter().all(|value| value.is_finite()) {
        true => Ok((rows, values)),
        false => invalid("sent parameters that are not finite".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_with_rows_are_read_or_refused() {
        let rows = RowsComputed { count: 7, since: 2 };
        let message = before_own(rows, &[1.0, -2.0]);
        assert_eq!((message.len(), read_own(3, &message, 2)), (own_bytes(2), Ok((rows, vec![1.0, -2.0]))));
        for wrong in [&message[1..], &before_own(rows, &[f32::NAN, 0.0]), &[]] {
            let error = read_own(3, wrong, 2).unwrap_err();
            assert_eq!(error.culprit.map(|culprit| culprit.rank), Some(3));
        }
    }

    #[test]
    fn models_are_read_or_refused() {
        let header = Header { generation: 2, step: 5, meeting: Some(7) };
        let read = |message: &[u8]| Header::read(message, 2, (2, 5));
        assert_eq!(read(&header.before(&[1.0, 2.0])), Ok((header, vec![1.0, 2.0])));
        let none = Header { meeting: None, ..header };
        assert_eq!(read(&none.before(&[1.0, 2.0])), Ok((none, vec![1.0, 2.0])));
        // What was sent before a change is read, and dropped by the caller.
        let before = Header { generation: 1, step: 9, ..none };
        assert_eq!(read(&before.before(&[1.0, 2.0])), Ok((before, vec![1.0, 2.0])));
        for (wrong, reason) in [
            (Header { step: 4, ..header }.before(&[1.0, 2.0]), "the model of step 4 of generation 2"),
            (Header { generation: 3, ..header }.before(&[1.0, 2.0]), "of generation 3"),
            (Header { meeting: Some(4), ..header }.before(&[1.0, 2.0]), "a meeting before step 5"),
            (header.before(&[1.0]), "28 bytes"),
            (header.before(&[1.0, f32::NAN]), "not finite"),
            (Vec::new(), "0 bytes"),
        ] {
            assert!(read(&wrong).unwrap_err().contains(reason));
        }
    }
}
