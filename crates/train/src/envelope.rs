//! Messages between workers and parts: a header, then values of parameters or gradients.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thalweg_core::{Error, Result};

/// Bytes of the header's length.
const LENGTH: usize = size_of::<u32>();

/// Values of a received message.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a>(&'a [[u8; 4]]);

impl Values<'_> {
    pub fn len(self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = f32> + '_ {
        self.0.iter().map(|bytes| f32::from_le_bytes(*bytes))
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

/// A message with this header before the values.
pub fn encode(header: &impl Serialize, values: &[f32]) -> Result<Vec<u8>> {
    let header = postcard::to_stdvec(header).map_err(|error| Error::internal(error.to_string()))?;
    let mut message = Vec::with_capacity(LENGTH + header.len() + size_of_val(values));
    message.extend_from_slice(&(header.len() as u32).to_le_bytes());
    message.extend_from_slice(&header);
    values.iter().for_each(|value| message.extend_from_slice(&value.to_le_bytes()));
    Ok(message)
}

/// Header and values of a message; else what the sender did wrong.
pub fn decode<T: DeserializeOwned>(message: &[u8]) -> std::result::Result<(T, Values<'_>), String> {
    let invalid = || format!("sent a message of {} bytes that cannot be read", message.len());
    let (length, rest) = message.split_first_chunk::<LENGTH>().ok_or_else(invalid)?;
    let (header, values) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(invalid)?;
    let (header, unread) = postcard::take_from_bytes(header).map_err(|_| invalid())?;
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
        for length in 0..message.len() {
            let read = decode::<(u64, String)>(&message[..length]);
            assert!(read.is_err() || length % 4 == message.len() % 4, "{length} bytes");
        }
        let huge = [u32::MAX.to_le_bytes(), [0; 4]].concat();
        assert!(decode::<u64>(&huge).unwrap_err().contains("8 bytes"));
    }
}
