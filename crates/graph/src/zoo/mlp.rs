//! `mlp`: one hidden layer of 128, the usual first network for digits and tables.

use super::{Exhibit, list};

pub(super) const EXHIBIT: Exhibit = Exhibit {
    name: "mlp",
    summary: "one hidden layer of 128 with ReLU",
    layers: |_| Ok(list(&["dense 128 relu", "dense auto"])),
    loss: None,
};
