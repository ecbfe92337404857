//! `autoencoder`: dense layers that squeeze a row into 32 numbers and make it again.

use super::Exhibit;
use crate::input::Input;
use crate::loss::Loss;

pub(super) const EXHIBIT: Exhibit = Exhibit {
    name: "autoencoder",
    summary: "dense layers down to 32 numbers and back to the row",
    layers: |input| match input {
        Input::Symbols { .. } => Err("rows of numbers or images"),
        input => {
            let hidden = ["dense 128 relu", "dense 32 relu", "dense 128 relu"].map(String::from);
            Ok(hidden.into_iter().chain([format!("dense {}", input.width())]).collect())
        }
    },
    loss: Some(Loss::Reconstruction),
};
