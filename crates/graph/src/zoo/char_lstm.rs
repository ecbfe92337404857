//! `char-lstm`: one LSTM over characters, which predicts the next one at every position.

use super::{ZooModel, list};
use crate::input::Input;

pub(super) const MODEL: ZooModel = ZooModel {
    name: "char-lstm",
    layers: |input| match input {
        Input::Symbols { .. } => Ok(list(&["embedding 128", "lstm 256", "dense auto"])),
        _ => Err("text"),
    },
    loss: None,
};
