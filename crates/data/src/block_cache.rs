//! Cache of decoded blocks: all of them if they fit into memory, else the most recently used.

use crate::block::Block;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use thalweg_core::Result;

#[derive(Debug)]
pub(crate) enum BlockCache {
    /// One slot per block, never evicted; a lookup takes no lock.
    All(Box<[OnceLock<Arc<Block>>]>),
    /// Bounded in bytes; the block requested last always stays.
    Lru { capacity: u64, state: Mutex<LruState> },
}

#[derive(Clone)]
pub(crate) enum BlockRef<'a> {
    Borrowed(&'a Block),
    Shared(Arc<Block>),
}

impl Deref for BlockRef<'_> {
    type Target = Block;
    fn deref(&self) -> &Block {
        match self {
            BlockRef::Borrowed(block) => block,
            BlockRef::Shared(block) => block,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct LruState {
    blocks: HashMap<usize, CachedBlock>,
    bytes: u64,
    clock: u64,
}

#[derive(Debug)]
struct CachedBlock {
    block: Arc<Block>,
    used: u64,
}

impl BlockCache {
    /// A cache for `blocks` blocks of `bytes` bytes in total that holds at most `capacity` bytes.
    pub(crate) fn new(blocks: usize, bytes: u64, capacity: u64) -> BlockCache {
        if bytes <= capacity {
            return BlockCache::All((0..blocks).map(|_| OnceLock::new()).collect());
        }
        BlockCache::Lru { capacity, state: Mutex::default() }
    }

    /// Returns a block, decoding it on a miss. Two threads may decode the same block at once; one result is
    /// kept.
    pub(crate) fn get(
        &self,
        number: usize,
        decode: impl FnOnce() -> Result<Arc<Block>>,
    ) -> Result<BlockRef<'_>> {
        match self {
            BlockCache::All(slots) => {
                if let Some(block) = slots[number].get() {
                    return Ok(BlockRef::Borrowed(block));
                }
                let block = decode()?;
                Ok(BlockRef::Borrowed(slots[number].get_or_init(|| block)))
            }
            BlockCache::Lru { capacity, state } => {
                if let Some(block) = lock(state).touch(number) {
                    return Ok(BlockRef::Shared(block));
                }
                let block = decode()?;
                let mut state = lock(state);
                state.evict_to(capacity.saturating_sub(block.bytes()));
                Ok(BlockRef::Shared(state.insert(number, block)))
            }
        }
    }
}

fn lock(state: &Mutex<LruState>) -> MutexGuard<'_, LruState> {
    // A panic while the lock is held leaves the cache consistent.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LruState {
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
            CachedBlock { block, used }
        });
        entry.used = used;
        entry.block.clone()
    }

    fn evict_to(&mut self, limit: u64) {
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
        let cache = BlockCache::new(3, 300, 250);
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
            let cache = BlockCache::new(1, 100, capacity);
            assert!(cache.get(0, || Err(Error::data("bad"))).is_err());
            assert!(cache.get(0, || Ok(block())).is_ok());
            assert!(cache.get(0, || Err(Error::data("bad"))).is_ok());
        }
    }
}
