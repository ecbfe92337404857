//! The rows that were trained on: counted where they are consumed, not where they are planned.

use thalweg_core::report::Audit;
use thalweg_core::{Error, Result};

/// The rows consumed in an epoch, by one rank or by all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedRows {
    seen: Vec<u64>,
    again: u64,
}

impl ConsumedRows {
    /// Of a source with `rows` rows.
    pub fn new(rows: u64) -> ConsumedRows {
        ConsumedRows { seen: vec![0; rows.div_ceil(64) as usize], again: 0 }
    }

    /// Of the source of the others, without a row.
    pub fn like(others: &ConsumedRows) -> ConsumedRows {
        ConsumedRows { seen: vec![0; others.seen.len()], again: 0 }
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

    pub fn contains(&self, row: u64) -> bool {
        self.seen[(row / 64) as usize] & (1 << (row % 64)) != 0
    }

    /// The number of different rows.
    pub fn count(&self) -> u64 {
        self.seen.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.seen.fill(0);
        self.again = 0;
    }

    /// As bytes, for other ranks and checkpoints.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.again
            .to_le_bytes()
            .into_iter()
            .chain(self.seen.iter().flat_map(|word| word.to_le_bytes()))
            .collect()
    }

    /// Whether these bytes are of a source with `rows` rows.
    pub fn fits(bytes: &[u8], rows: u64) -> bool {
        bytes.len() as u64 == (rows.div_ceil(64) + 1) * 8
    }

    /// Takes over what another rank, or an earlier run, has consumed.
    pub fn absorb(&mut self, bytes: &[u8]) -> Result<()> {
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
        if words.len() != self.seen.len() + 1 {
            return Err(Error::internal("the ranks' audits have different lengths"));
        }
        self.again = self.again.saturating_add(words[0]);
        for (mine, theirs) in self.seen.iter_mut().zip(&words[1..]) {
            self.again = self.again.saturating_add((*mine & theirs).count_ones().into());
            *mine |= theirs;
        }
        Ok(())
    }

    /// Adds what others know of the same rows: what several know of counts once.
    pub fn unite(&mut self, bytes: &[u8]) -> Result<()> {
        let mut others = ConsumedRows::like(self);
        others.absorb(bytes)?;
        self.again = self.again.max(others.again);
        self.seen.iter_mut().zip(others.seen).for_each(|(mine, theirs)| *mine |= theirs);
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
        let expected = count(&mut expected.seen.iter().copied());
        Audit {
            epoch,
            expected,
            once,
            missed: expected - once,
            repeated: self.again.saturating_add(stray),
            dropped: 0,
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
