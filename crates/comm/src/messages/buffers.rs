//! Memory of messages that were delivered or taken, for the next ones: new pages and zeros cost as much as a copy.

/// The memory that is kept at most.
const CAPACITY: usize = 16 << 20;

/// Shorter buffers are not kept: the allocator has them at hand.
const SHORTEST: usize = 16 << 10;

/// Buffers of any contents.
#[derive(Default)]
pub(super) struct Buffers {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    pub fn put(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes >= SHORTEST && self.bytes + bytes <= CAPACITY {
            self.bytes += bytes;
            self.free.push(buffer);
        }
    }

    /// A buffer of this length and of any contents, not much larger.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| (length..=length.saturating_mul(2)).contains(&buffer.capacity());
        let found = self.free.iter().rposition(fits).filter(|_| length >= SHORTEST);
        match found.map(|index| self.free.swap_remove(index)) {
            Some(mut buffer) => {
                self.bytes -= buffer.capacity();
                buffer.resize(length, 0);
                buffer
            }
            None => vec![0; length],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_fit_are_used_again() {
        let mut buffers = Buffers::default();
        buffers.put(vec![1; 20_000]);
        buffers.put(vec![2; SHORTEST - 1]);
        assert_eq!(buffers.take(100), vec![0; 100]);
        assert_eq!(buffers.take(20_001), vec![0; 20_001], "too short");
        assert_eq!(buffers.take(SHORTEST), vec![1; SHORTEST]);
        assert_eq!((buffers.free.len(), buffers.bytes), (0, 0));
        buffers.put(vec![1; 20_000]);
        assert_eq!(buffers.take(0), []);
        assert_eq!(buffers.free.len(), 1);
    }

    #[test]
    fn no_more_than_the_capacity_is_kept() {
        let mut buffers = Buffers::default();
        (0..100).for_each(|_| buffers.put(vec![0; 1 << 20]));
        assert_eq!((buffers.free.len(), buffers.bytes), (16, 16 << 20));
        buffers.put(vec![0; CAPACITY + 1]);
        assert_eq!(buffers.free.len(), 16);
    }
}
