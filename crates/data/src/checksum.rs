//! Checksum of each file. Ranks compare them before training, and a resumed run compares them with its
//! checkpoint.

/// CRC-32C over bytes that arrive in order.
#[derive(Debug, Default)]
pub(crate) struct Checksum {
    value: u32,
    length: u64,
}

impl Checksum {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.value = crc32c::crc32c_append(self.value, bytes);
        self.length += bytes.len() as u64;
    }

    /// Adds bytes read at an offset: only the part that continues the bytes added so far. Reads that are out
    /// of order or repeated do not change the value.
    pub(crate) fn update_at(&mut self, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        if start <= self.length && self.length < end {
            self.update(&bytes[(self.length - start) as usize..]);
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn value(&self) -> u32 {
        self.value
    }

    pub(crate) fn of(bytes: &[u8]) -> u32 {
        crc32c::crc32c(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_out_of_order_reads_count_every_byte_once() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut checksum = Checksum::default();
        for (start, end) in [(0, 10), (0, 4), (3, 30), (50, 100), (30, 30), (30, 60), (59, 100), (0, 100)] {
            checksum.update_at(start as u64, &bytes[start..end]);
        }
        assert_eq!((checksum.length(), checksum.value()), (100, Checksum::of(&bytes)));
    }
}
