//! `autoencoder-conv`: convolutions that squeeze an image to a quarter of its sides and make it again.

use super::{Exhibit, list};
use crate::input::Input;
use crate::loss::Loss;

pub(super) const EXHIBIT: Exhibit = Exhibit {
    name: "autoencoder-conv",
    summary: "convolutions down to a quarter of the sides and back to the image",
    layers: |input| match input {
        Input::Image([height, width, channels]) if height % 4 == 0 && width % 4 == 0 => {
            let mut layers = list(&[
                "conv 16 3x3 stride 2 pad 1 relu",
                "conv 8 3x3 stride 2 pad 1 relu",
                "upsample 2",
                "conv 16 3x3 pad 1 relu",
                "upsample 2",
            ]);
            layers.push(format!("conv {channels} 3x3 pad 1"));
            Ok(layers)
        }
        _ => Err("images with sides that four divides"),
    },
    loss: Some(Loss::Reconstruction),
};
