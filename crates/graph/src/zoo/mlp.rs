//! `mlp`: one hidden layer of 128, a baseline for digits and tables.

use super::{ZooModel, list};

pub(super) const MODEL: ZooModel =
    ZooModel { name: "mlp", layers: |_| Ok(list(&["dense 128 relu", "dense auto"])), loss: None };
