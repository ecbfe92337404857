//! Decoded blocks: all of them if memory allows, else the most recently used.

use crate::block::Block;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use thalweg_core::Result;

/// A cache of decoded blocks.
#[derive(Debug)]
pub(crate) enum Cache {
    /// Every block has its place for good; finding one takes no lock.
    All(Box<[OnceLock<Arc<Block>>]>),
    /// Bounded in bytes; the block asked for last is always kept.
    Recent { capacity: u64, state: Mutex<State> },
}

/// A block, for as long as it is looked at.
#[derive(Clone)]
pub(crate) enum Held<'a> {
    Kept(&'a Block),
    Shared(Arc<Block>),
}

impl Deref for Held<'_> {
    type Target = Block;
    fn deref(&self) -> &Block {
        match self {
            Held::Kept(block) => block,
            Held::Shared(block) => block,
        }
    }
}

/// The blocks at hand.
#[derive(Debug, Default)]
pub(crate) struct State {
    blocks: HashMap<usize, Entry>,
    bytes: u64,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    block: Arc<Block>,
    used: u64,
}

impl Cache {
    /// A cache for so many blocks of so many bytes together, which holds at most `capacity` bytes.
    pub(crate) fn new(blocks: usize, bytes: u64, capacity: u64) -> Cache {
        if bytes <= capacity {
            return Cache::All((0..blocks).map(|_| OnceLock::new()).collect());
        }
        Cache::Recent { capacity, state: Mutex::default() }
    }

    /// The block, decoded now if it is not at hand. Two threads may decode the same block at once; one result is kept.
    pub(crate) fn get(&self, number: usize, decode: impl FnOnce() -> Result<Arc<Block>>) -> Result<Held<'_>> {
        match self {
            Cache::All(slots) => {
                if let Some(block) = slots[number].get() {
                    return Ok(Held::Kept(block));
                }
                let block = decode()?;
                Ok(Held::Kept(slots[number].get_or_init(|| block)))
            }
            Cache::Recent { capacity, state } => {
                if let Some(block) = lock(state).touch(number) {
                    return Ok(Held::Shared(block));
                }
                let block = decode()?;
                let mut state = lock(state);
                state.make_room(capacity.saturating_sub(block.bytes()));
                Ok(Held::Shared(state.insert(number, block)))
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic while the lock is held leaves a cache that is still consistent.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn touch(&mut self, number: usize) -> Option<Arc<Block>> {
        self.clock += 1;
        let entry = self.blocks.get_mut(&number)?;
        entry.used = self.clock;
        Some(entry.block.clone())
    }

    fn insert(&mut self, number: usize, block: Arc<Block>) -> Arc<Block> {
        self.clock += 1;
        let used = self.clock;
        let entry = self.blocks.entry(number).or_insert_with(|| {
            self.bytes += block.bytes();
            Entry { block, used }
        });
        entry.used = used;
        entry.block.clone()
    }

    fn make_room(&mut self, limit: u64) {
        while self.bytes > limit {
            let oldest = self.blocks.iter().min_by_key(|(_, entry)| entry.used).map(|(&number, _)| number);
            let Some(entry) = oldest.and_then(|number| self.blocks.remove(&number)) else { return };
            self.bytes -= entry.block.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockFeatures;
    use std::cell::Cell;
    use thalweg_core::{Error, Targets};

    fn block() -> Arc<Block> {
        let targets = Targets::Classes(Vec::new());
        Arc::new(Block::new(BlockFeatures::Dense(vec![0.0; 25]), targets))
    }

    #[test]
    fn the_least_recently_used_block_goes_first() {
        let cache = Cache::new(3, 300, 250);
        let decoded = Cell::new(0);
        let get = |number| {
            let decode = || {
                decoded.set(decoded.get() + 1);
                Ok(block())
            };
            cache.get(number, decode).unwrap();
            decoded.get()
        };
        assert_eq!([get(0), get(1), get(0)], [1, 2, 2]);
        assert_eq!(get(2), 3, "100 bytes each: block 1 has to go");
        assert_eq!([get(0), get(2)], [3, 3]);
        assert_eq!(get(1), 4);
    }

    #[test]
    fn a_block_larger_than_the_cache_is_still_served_and_errors_are_not_kept() {
        for capacity in [10, 100] {
            let cache = Cache::new(1, 100, capacity);
            assert!(cache.get(0, || Err(Error::data("bad"))).is_err());
            assert!(cache.get(0, || Ok(block())).is_ok());
            assert!(cache.get(0, || Err(Error::data("bad"))).is_ok());
        }
    }
}
