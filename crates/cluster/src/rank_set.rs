//! A set of member ids as bits: the wait-for graph of a thousand ranks takes 128 KiB.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSet {
    /// Without trailing zeros, so that equal sets have equal words.
    words: Vec<u64>,
}

impl RankSet {
    /// Whether it was absent.
    pub fn insert(&mut self, rank: usize) -> bool {
        let (word, bit) = (rank / 64, 1 << (rank % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        absent
    }

    pub fn contains(&self, rank: usize) -> bool {
        self.words.get(rank / 64).is_some_and(|word| word & (1 << (rank % 64)) != 0)
    }

    /// The same set without this rank.
    pub fn without(&self, rank: usize) -> RankSet {
        self.iter().filter(|other| *other != rank).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub fn intersects(&self, other: &RankSet) -> bool {
        self.words.iter().zip(&other.words).any(|(one, other)| one & other != 0)
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |(index, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| index * 64 + bit)
        };
        self.words.iter().enumerate().flat_map(bits)
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> RankSet {
        let mut set = RankSet::default();
        set.extend(ranks);
        set
    }
}

impl Extend<usize> for RankSet {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, ranks: I) {
        for rank in ranks {
            self.insert(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_beyond_a_word_are_kept_in_order() {
        let set: RankSet = [70, 3, 64, 3].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 64, 70]);
        assert!(set.contains(64) && !set.contains(65) && !set.contains(10_000));
        assert!(set.intersects(&[70].into_iter().collect()) && !set.intersects(&[6].into_iter().collect()));
        assert_eq!(set.without(70), [64, 3].into_iter().collect());
        assert!(RankSet::default().is_empty() && !RankSet::default().intersects(&set));
    }
}
