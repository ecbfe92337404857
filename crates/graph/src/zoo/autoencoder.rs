//! `autoencoder`: dense layers down to a code of 32 and back to the row.

use super::ZooModel;
use crate::input::Input;
use crate::loss::Loss;

pub(super) const MODEL: ZooModel = ZooModel {
    name: "autoencoder",
    layers: |input| match input {
        Input::Symbols { .. } => Err("rows of numbers or images"),
        input => {
            let hidden = ["dense 128 relu", "dense 32 relu", "dense 128 relu"].map(String::from);
            Ok(hidden.into_iter().chain([format!("dense {}", input.width())]).collect())
        }
    },
    loss: Some(Loss::Reconstruction),
};
