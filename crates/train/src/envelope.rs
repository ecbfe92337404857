//! Messages between workers and parts: a header, then values of parameters or gradients, as the machine has them in
//! memory (like all tensors that ranks send each other).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use thalweg_core::{Error, Result};

/// Bytes of the header's length.
const LENGTH: usize = size_of::<u32>();

/// Values of a received message.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a>(&'a [[u8; 4]]);

impl<'a> Values<'a> {
    pub fn of(values: &'a [f32]) -> Values<'a> {
        Values(bytemuck::cast_slice(values))
    }

    /// Of bytes that [`Values::as_bytes`] has returned.
    pub fn of_bytes(bytes: &'a [u8]) -> Values<'a> {
        Values(bytes.as_chunks().0)
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }

    pub fn len(self) -> usize {
        self.0.len()
    }

    /// # Panics
    ///
    /// If the range is not within the values.
    pub fn slice(self, range: Range<usize>) -> Values<'a> {
        Values(&self.0[range])
    }

    pub fn iter(&self) -> impl Iterator<Item = f32> + '_ {
        self.0.iter().map(|bytes| f32::from_ne_bytes(*bytes))
    }

    pub fn copy_to(self, values: &mut [f32]) {
        values.iter_mut().zip(self.iter()).for_each(|(value, received)| *value = received);
    }

    pub fn add_to(self, values: &mut [f32]) {
        values.iter_mut().zip(self.iter()).for_each(|(value, received)| *value += received);
    }

    pub fn are_finite(self) -> bool {
        self.iter().all(f32::is_finite)
    }
}

/// Where the values of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// Behind the header.
    Message,
    /// In the sender's window of that generation, from this element on.
    Window { generation: u32, start: u64, length: u64 },
}

/// A message with this header before the values.
pub fn encode(header: &impl Serialize, values: &[f32]) -> Result<Vec<u8>> {
    Ok(assemble(Place::Message, &header_bytes(header)?, values))
}

/// The bytes of a header.
pub fn header_bytes(header: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(header).map_err(|error| Error::internal(error.to_string()))
}

/// Where the values of a received message are. If they are in a window, they are to be appended before it is decoded.
pub fn place(message: &[u8]) -> Place {
    let header = message.get(LENGTH..).unwrap_or_default();
    postcard::take_from_bytes(header).map_or(Place::Message, |(place, _)| place)
}

/// A message of a header's bytes and, unless they are in a window, the values.
pub fn assemble(place: Place, header: &[u8], values: &[f32]) -> Vec<u8> {
    // No number that is written there fails to be.
    let place = postcard::to_stdvec(&place).unwrap_or_default();
    let mut message = Vec::with_capacity(LENGTH + place.len() + header.len() + size_of_val(values));
    message.extend_from_slice(&((place.len() + header.len()) as u32).to_le_bytes());
    message.extend_from_slice(&place);
    message.extend_from_slice(header);
    message.extend_from_slice(Values::of(values).as_bytes());
    message
}

/// Header and values of a message; else what the sender did wrong.
pub fn decode<T: DeserializeOwned>(message: &[u8]) -> std::result::Result<(T, Values<'_>), String> {
    let invalid = || format!("sent a message of {} bytes that cannot be read", message.len());
    let (length, rest) = message.split_first_chunk::<LENGTH>().ok_or_else(invalid)?;
    let (header, values) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(invalid)?;
    let read = postcard::take_from_bytes::<(Place, T)>(header);
    let ((_, header), unread) = read.map_err(|_| invalid())?;
    match values.as_chunks() {
        (values, []) if unread.is_empty() => Ok((header, Values(values))),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_values_come_back_and_other_bytes_are_refused() {
        let message = encode(&(7u64, "a"), &[1.5, -2.0]).unwrap();
        let (header, values) = decode::<(u64, String)>(&message).unwrap();
        assert_eq!((header, values.len()), ((7, "a".to_string()), 2));
        let mut sum = [1.0, 1.0];
        values.add_to(&mut sum);
        assert_eq!(sum, [2.5, -1.0]);
        values.copy_to(&mut sum);
        assert_eq!((sum, values.are_finite()), ([1.5, -2.0], true));
        let kept = values.as_bytes().to_vec();
        assert_eq!(Values::of_bytes(&kept).slice(1..2).iter().collect::<Vec<f32>>(), [-2.0]);
        for length in 0..message.len() {
            let read = decode::<(u64, String)>(&message[..length]);
            assert!(read.is_err() || length % 4 == message.len() % 4, "{length} bytes");
        }
        let place = Place::Window { generation: 3, start: 5, length: 1 };
        let mut referring = assemble(place, &header_bytes(&(7u64, "a")).unwrap(), &[]);
        assert_eq!((super::place(&referring), super::place(&message)), (place, Place::Message));
        referring.extend_from_slice(Values::of(&[4.5]).as_bytes());
        let (header, values) = decode::<(u64, String)>(&referring).unwrap();
        assert_eq!((header.1, values.iter().collect::<Vec<f32>>()), ("a".to_string(), vec![4.5]));
        let huge = [u32::MAX.to_le_bytes(), [0; 4]].concat();
        assert!(decode::<u64>(&huge).unwrap_err().contains("8 bytes"));
    }
}
