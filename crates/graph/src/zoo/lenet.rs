//! `lenet`: two convolutions and a hidden layer, for small images (LeCun et al. 1998, with today's sizes and ReLU).

use super::{Exhibit, list};
use crate::input::Input;

pub(super) const EXHIBIT: Exhibit = Exhibit {
    name: "lenet",
    summary: "two 5x5 convolutions (32, 64), a hidden layer of 512",
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
