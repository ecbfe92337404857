//! `lenet`: two convolutions and a hidden layer, for small images (LeCun et al. 1998, with larger layers and ReLU).

use super::{ZooModel, list};
use crate::input::Input;

pub(super) const MODEL: ZooModel = ZooModel {
    name: "lenet",
    layers: |input| match input {
        Input::Image(_) => Ok(list(&[
            "conv 32 5x5 relu",
            "pool max 2",
            "conv 64 5x5 relu",
            "pool max 2",
            "flatten",
            "dense 512 relu",
            "dense auto",
        ])),
        _ => Err("images"),
    },
    loss: None,
};
