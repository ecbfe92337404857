//! **Sequence lock** ([`SequenceLock`]): memory of one writer, copied by readers that it never waits for.
//!
//! The writer makes the counter odd, writes the memory, and makes the counter even. A reader loads the counter (acquire),
//! copies the memory, and loads the counter again: its copy is whole if both loads gave the same even value. With a full
//! fence behind the odd store and another before the second load, a reader that copied any byte of a later write sees the
//! counter of that write. The copy races with the writer, so it must use atomic loads; what it got must not be used before
//! the second load.

use super::Counter;

/// The counter of one piece of memory.
pub struct SequenceLock<'a, C>(pub &'a C);

impl<C: Counter> SequenceLock<'_, C> {
    /// For the writer: readers discard what they copy from now on.
    pub fn begin_write(&self) {
        self.0.release(self.0.value() | 1);
        C::fence();
    }

    /// Publishes everything that was written since [`SequenceLock::begin_write`].
    pub fn end_write(&self) {
        self.0.release((self.0.value() | 1) + 1);
    }

    /// For a reader: `None` while the memory is written.
    pub fn begin_read(&self) -> Option<u64> {
        let sequence = self.0.acquire();
        sequence.is_multiple_of(2).then_some(sequence)
    }

    /// Whether what was copied since [`SequenceLock::begin_read`] returned this number is whole.
    pub fn is_unchanged(&self, sequence: u64) -> bool {
        C::fence();
        self.0.value() == sequence
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Word;
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering::Relaxed;
    use loom::thread;

    /// A reader copies two words that are written twice: what it keeps is of one write. (Readers do not affect each other.)
    #[test]
    fn what_a_reader_keeps_is_of_one_write() {
        fn read(shared: &(Word, [Word; 2])) -> Option<u64> {
            let (sequence, words) = shared;
            let lock = SequenceLock(sequence);
            let before = lock.begin_read()?;
            let copies = [words[0].load(Relaxed), words[1].load(Relaxed)];
            if !lock.is_unchanged(before) {
                return None;
            }
            assert_eq!(copies, [copies[0]; 2], "torn");
            assert_eq!(copies[0], before / 2, "of the write that the counter names");
            Some(copies[0])
        }
        let seen = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
        let collected = std::sync::Arc::clone(&seen);
        loom::model(move || {
            let shared = Arc::new((Word::new(0), [Word::new(0), Word::new(0)]));
            let reader = Arc::clone(&shared);
            let thread = thread::spawn(move || read(&reader));
            let (sequence, words) = &*shared;
            for value in 1..=2 {
                let lock = SequenceLock(sequence);
                lock.begin_write();
                words.iter().for_each(|word| word.store(value, Relaxed));
                lock.end_write();
            }
            collected.lock().expect("one test").insert(thread.join().expect("a reader"));
        });
        let seen: Vec<_> = seen.lock().expect("one test").iter().copied().collect();
        assert_eq!(seen, [None, Some(0), Some(1), Some(2)], "every outcome occurs");
    }
}
