//! What the rows are made of, as one number per file: ranks that read other bytes must not train together, and a run
//! must not go on with other bytes than it began with.

/// The CRC-32C of bytes that are gone through once, from the start.
#[derive(Debug, Default)]
pub(crate) struct Checksum {
    value: u32,
    /// Bytes taken in so far.
    length: u64,
}

impl Checksum {
    /// Takes in the bytes that follow.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.value = crc32c::crc32c_append(self.value, bytes);
        self.length += bytes.len() as u64;
    }

    /// Looks over the shoulder of whoever reads bytes at a place: takes in what goes on from where it stands, and
    /// nothing of what it has seen or cannot join.
    pub(crate) fn follow(&mut self, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        if start <= self.length && self.length < end {
            self.take(&bytes[(self.length - start) as usize..]);
        }
    }

    /// How many bytes were taken in.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The checksum of all of them.
    pub(crate) fn value(&self) -> u32 {
        self.value
    }

    /// The checksum of some bytes.
    pub(crate) fn of(bytes: &[u8]) -> u32 {
        crc32c::crc32c(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn following_a_reader_that_turns_back_sees_every_byte_once() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut checksum = Checksum::default();
        for (start, end) in [(0, 10), (0, 4), (3, 30), (50, 100), (30, 30), (30, 60), (59, 100), (0, 100)] {
            checksum.follow(start as u64, &bytes[start..end]);
        }
        assert_eq!((checksum.length(), checksum.value()), (100, Checksum::of(&bytes)));
    }
}
