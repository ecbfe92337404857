//! Refusal of updates that are too old (Langer et al., section 3.3.4): instead of holding up the others, a worker that is far
//! behind computes in vain.

/// The most updates that may have overtaken a gradient; None: any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeLimit(pub Option<u64>);

impl AgeLimit {
    pub fn admits(self, age: u64) -> bool {
        self.0.is_none_or(|limit| age <= limit)
    }
}
