//! `reshape SIZES`: the same elements in another shape, such as `7x7x16`, an image for the convolutions that follow.

use super::arguments::{LayerArguments, MAX_SIZE};
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use std::fmt;

pub(super) const USAGE: &str = "reshape HEIGHTxWIDTHxCHANNELS, reshape ROWSxCOLUMNS or reshape COUNT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshapeLayer {
    sizes: Vec<usize>,
}

impl ReshapeLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<ReshapeLayer, String> {
        let Some(argument) = arguments.next() else { return Err(arguments.error("the sizes are missing")) };
        let sizes: Option<Vec<usize>> = argument.split('x').map(|size| size.parse().ok()).collect();
        let fits =
            |sizes: &Vec<usize>| sizes.len() <= 3 && sizes.iter().all(|size| (1..=MAX_SIZE).contains(size));
        match sizes.filter(fits) {
            Some(sizes) => arguments.finish().map(|()| ReshapeLayer { sizes }),
            None => Err(arguments.error(format!("`{argument}` is not a shape"))),
        }
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let got = builder.shape(input).clone();
        let wanted = self.sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if wanted != Some(got.per_row()) {
            return Err(format!("expected {} elements per row, got {got}", wanted.unwrap_or(usize::MAX)));
        }
        if builder.is_features(input) {
            Ok(builder.features(&self.sizes))
        } else {
            builder.reshape(input, &self.sizes)
        }
    }
}

impl fmt::Display for ReshapeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        write!(f, "reshape {}", sizes.join("x"))
    }
}
