//! `reshape SIZES`: the same numbers in another shape, such as `7x7x16`, an image for the convolutions behind it.

use super::words::{MOST, Words};
use crate::assembly::Assembly;
use crate::graph::NodeId;
use std::fmt;

/// How it is written.
pub(super) const USAGE: &str = "reshape HEIGHTxWIDTHxCHANNELS, reshape ROWSxCOLUMNS or reshape COUNT";

/// The numbers of a row, in their order, under other sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshape {
    sizes: Vec<usize>,
}

impl Reshape {
    pub(super) fn parse(mut words: Words<'_>) -> Result<Reshape, String> {
        let Some(word) = words.next() else { return Err(words.complaint("the sizes are missing")) };
        let sizes: Option<Vec<usize>> = word.split('x').map(|size| size.parse().ok()).collect();
        let fits =
            |sizes: &Vec<usize>| sizes.len() <= 3 && sizes.iter().all(|size| (1..=MOST).contains(size));
        match sizes.filter(fits) {
            Some(sizes) => words.finish().map(|()| Reshape { sizes }),
            None => Err(words.complaint(format!("`{word}` are no sizes"))),
        }
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let got = assembly.shape(input).clone();
        let wanted = self.sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if wanted != Some(got.per_row()) {
            return Err(format!("expected {} numbers, got {got}", wanted.unwrap_or(usize::MAX)));
        }
        if assembly.is_features(input) {
            Ok(assembly.features(&self.sizes))
        } else {
            assembly.reshape(input, &self.sizes)
        }
    }
}

impl fmt::Display for Reshape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        write!(f, "reshape {}", sizes.join("x"))
    }
}
