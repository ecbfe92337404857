//! What each member of the group has contributed, as all the others see it: when one is lost, this is left of its account.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_core::report::RankReport;

/// Rows and seconds of computation of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Contribution {
    rows: u64,
    compute_s: f64,
}

/// The contributions of all members so far, by rank number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Contributions {
    /// Of earlier generations.
    earlier: BTreeMap<usize, Contribution>,
    /// Of this generation: rank number and contribution of each place.
    current: Vec<(usize, Contribution)>,
}

impl Contributions {
    /// A generation of these rank numbers begins.
    pub(crate) fn begin(&mut self, numbers: &[usize]) {
        for (number, Contribution { rows, compute_s }) in std::mem::take(&mut self.current) {
            let sum = self.earlier.entry(number).or_default();
            sum.rows += rows;
            sum.compute_s += compute_s;
        }
        self.current = numbers.iter().map(|number| (*number, Contribution::default())).collect();
    }

    /// Adds a commit unit in which this rank computed `rows` rows.
    pub(crate) fn add(&mut self, rank: usize, rows: u64, compute_ms: f32) {
        if let Some((_, sum)) = self.current.get_mut(rank) {
            sum.rows += rows;
            sum.compute_s += f64::from(compute_ms) / 1e3;
        }
    }

    /// The account of a member that is gone since that step.
    pub(crate) fn account(&self, number: usize, host: Option<&str>, step: u64) -> RankReport {
        let Contribution { rows, compute_s } = self.earlier.get(&number).copied().unwrap_or_default();
        let host = host.unwrap_or_default().into();
        RankReport { rank: number, host, rows, compute_s, gone_at: Some(step), ..RankReport::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_follow_a_member_through_generations() {
        let mut contributions = Contributions::default();
        contributions.begin(&[0, 1, 2]);
        contributions.add(1, 20, 4.0);
        contributions.add(2, 10, 6.0);
        contributions.begin(&[0, 2]);
        contributions.add(1, 30, 4.0);
        contributions.begin(&[0]);
        let account = contributions.account(2, Some("node1"), 7);
        assert_eq!((account.rank, account.rows, account.gone_at), (2, 40, Some(7)));
        assert!((account.compute_s - 0.010).abs() < 1e-9 && account.host == "node1");
        assert_eq!(contributions.account(1, None, 7).rows, 20);
        assert_eq!(contributions.account(9, None, 7).rows, 0);
    }
}
