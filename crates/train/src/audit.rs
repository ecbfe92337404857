//! The rows that were trained on: counted where they are consumed, not where they are planned.

use thalweg_core::report::Audit;
use thalweg_core::{Error, Result};

/// The rows consumed in an epoch, by one rank or by all, and those that a policy has dropped by design.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedRows {
    seen: Vec<u64>,
    again: u64,
    /// Empty if there are none.
    dropped: Vec<u64>,
}

impl ConsumedRows {
    /// Of a source with `rows` rows.
    pub fn new(rows: u64) -> ConsumedRows {
        ConsumedRows { seen: vec![0; rows.div_ceil(64) as usize], again: 0, dropped: Vec::new() }
    }

    /// Of the source of the others, without a row.
    pub fn like(others: &ConsumedRows) -> ConsumedRows {
        ConsumedRows { seen: vec![0; others.seen.len()], again: 0, dropped: Vec::new() }
    }

    /// These rows were consumed.
    pub fn enter(&mut self, rows: &[u64]) {
        for &row in rows {
            let (word, bit) = ((row / 64) as usize, 1 << (row % 64));
            if self.seen[word] & bit != 0 {
                self.again += 1;
            }
            self.seen[word] |= bit;
        }
    }

    /// These rows are not to be computed in this epoch.
    pub fn drop_rows(&mut self, rows: &[u64]) {
        self.dropped.resize(self.seen.len(), 0);
        rows.iter().for_each(|row| self.dropped[(row / 64) as usize] |= 1 << (row % 64));
    }

    /// Whether a row is consumed or dropped.
    pub fn contains(&self, row: u64) -> bool {
        let has =
            |words: &[u64]| words.get((row / 64) as usize).is_some_and(|word| word & (1 << (row % 64)) != 0);
        has(&self.seen) || has(&self.dropped)
    }

    /// The number of different rows, consumed or dropped.
    pub fn count(&self) -> u64 {
        let dropped = self.dropped.iter().copied().chain(std::iter::repeat(0));
        self.seen.iter().zip(dropped).map(|(seen, dropped)| u64::from((seen | dropped).count_ones())).sum()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.seen.fill(0);
        self.again = 0;
        self.dropped.clear();
    }

    /// As bytes, for other ranks and checkpoints.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.again
            .to_le_bytes()
            .into_iter()
            .chain(self.seen.iter().chain(&self.dropped).flat_map(|word| word.to_le_bytes()))
            .collect()
    }

    /// Whether these bytes are of a source with `rows` rows.
    pub fn fits(bytes: &[u8], rows: u64) -> bool {
        let words = rows.div_ceil(64);
        [words + 1, 2 * words + 1].contains(&(bytes.len() as u64 / 8)) && bytes.len().is_multiple_of(8)
    }

    /// Takes over what another rank, or an earlier run, has consumed.
    pub fn absorb(&mut self, bytes: &[u8]) -> Result<()> {
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
        let length = self.seen.len();
        if words.len() != length + 1 && words.len() != 2 * length + 1 {
            return Err(Error::internal("the ranks' audits have different lengths"));
        }
        self.again = self.again.saturating_add(words[0]);
        let (seen, dropped) = words[1..].split_at(length);
        for (mine, theirs) in self.seen.iter_mut().zip(seen) {
            self.again = self.again.saturating_add((*mine & theirs).count_ones().into());
            *mine |= theirs;
        }
        if !dropped.is_empty() {
            self.dropped.resize(length, 0);
        }
        self.dropped.iter_mut().zip(dropped).for_each(|(mine, theirs)| *mine |= theirs);
        Ok(())
    }

    /// Adds what others know of the same rows: what several know of counts once.
    pub fn unite(&mut self, bytes: &[u8]) -> Result<()> {
        let mut others = ConsumedRows::like(self);
        others.absorb(bytes)?;
        self.again = self.again.max(others.again);
        self.seen.iter_mut().zip(others.seen).for_each(|(mine, theirs)| *mine |= theirs);
        if !others.dropped.is_empty() {
            self.dropped.resize(self.seen.len(), 0);
        }
        self.dropped.iter_mut().zip(others.dropped).for_each(|(mine, theirs)| *mine |= theirs);
        Ok(())
    }

    /// Compared with the rows that should have been consumed.
    pub fn close(&self, epoch: u64, expected: &ConsumedRows) -> Audit {
        let count = |words: &mut dyn Iterator<Item = u64>| {
            words.map(|word| u64::from(word.count_ones())).sum::<u64>()
        };
        let pairs = || expected.seen.iter().zip(&self.seen);
        let once = count(&mut pairs().map(|(expected, seen)| expected & seen));
        let stray = count(&mut pairs().map(|(expected, seen)| !expected & seen));
        let dropped =
            pairs().zip(&self.dropped).map(|((expected, seen), dropped)| expected & !seen & dropped);
        let dropped = count(&mut dropped.into_iter());
        let expected = count(&mut expected.seen.iter().copied());
        Audit {
            epoch,
            expected,
            once,
            missed: expected - once - dropped,
            repeated: self.again.saturating_add(stray),
            dropped,
            at_risk: None,
            mixed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumed(rows: &[u64]) -> ConsumedRows {
        let mut consumed = ConsumedRows::new(100);
        consumed.enter(rows);
        consumed
    }

    #[test]
    fn every_row_once() {
        let mut all = consumed(&[1, 99]);
        all.absorb(&consumed(&[64, 0]).to_bytes()).unwrap();
        let audit = all.close(3, &consumed(&[0, 1, 64, 99]));
        assert_eq!(audit, Audit { epoch: 3, expected: 4, once: 4, ..Audit::default() });
    }

    #[test]
    fn what_a_policy_drops_is_not_missed() {
        let mut all = consumed(&[1, 99]);
        all.drop_rows(&[2, 70, 99]);
        let mut read = ConsumedRows::new(100);
        read.absorb(&all.to_bytes()).unwrap();
        assert!(ConsumedRows::fits(&all.to_bytes(), 100) && read == all && read.contains(70));
        assert_eq!(all.count(), 4, "one that was consumed and dropped is one");
        let audit = read.close(1, &consumed(&[1, 2, 3, 70, 99]));
        assert_eq!((audit.once, audit.dropped, audit.missed, audit.repeated), (2, 2, 1, 0));
    }

    #[test]
    fn what_is_missed_repeated_or_strange_is_counted() {
        let mut all = consumed(&[1, 1, 7]);
        all.absorb(&consumed(&[1, 2]).to_bytes()).unwrap();
        let audit = all.close(0, &consumed(&[1, 2, 3]));
        assert_eq!((audit.expected, audit.once, audit.missed, audit.repeated), (3, 2, 1, 3));
        assert!(all.absorb(&[0; 8]).is_err());
        assert!(ConsumedRows::fits(&all.to_bytes(), 100) && !ConsumedRows::fits(&all.to_bytes(), 129));
        assert!(!ConsumedRows::fits(&all.to_bytes()[1..], 100));
    }
}
