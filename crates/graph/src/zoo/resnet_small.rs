//! `resnet-small`: three stages of residual blocks, for small images (He et al. 2016, after their CIFAR network).

use super::{ZooModel, list};
use crate::input::Input;

pub(super) const MODEL: ZooModel = ZooModel {
    name: "resnet-small",
    layers: |input| match input {
        Input::Image(_) => Ok(list(&[
            "conv 16 3x3 pad 1",
            "batchnorm",
            "relu",
            "residual conv 16 3x3 pad 1 | batchnorm | relu | conv 16 3x3 pad 1 | batchnorm",
            "relu",
            "residual conv 32 3x3 stride 2 pad 1 | batchnorm | relu | conv 32 3x3 pad 1 | batchnorm",
            "relu",
            "residual conv 64 3x3 stride 2 pad 1 | batchnorm | relu | conv 64 3x3 pad 1 | batchnorm",
            "relu",
            "pool global",
            "dense auto",
        ])),
        _ => Err("images"),
    },
    loss: None,
};
