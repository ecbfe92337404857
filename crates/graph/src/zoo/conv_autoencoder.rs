//! `autoencoder-conv`: convolutions down to a quarter of the image's height and width, and back.

use super::{ZooModel, list};
use crate::input::Input;
use crate::loss::Loss;

pub(super) const MODEL: ZooModel = ZooModel {
    name: "autoencoder-conv",
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
        _ => Err("images with height and width divisible by 4"),
    },
    loss: Some(Loss::Reconstruction),
};
