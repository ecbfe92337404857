//! `char-lstm`: one LSTM over characters, which guesses the next one at every position.

use super::{Exhibit, list};
use crate::input::Input;

pub(super) const EXHIBIT: Exhibit = Exhibit {
    name: "char-lstm",
    summary: "characters as vectors of 128, an LSTM of 256",
    layers: |input| match input {
        Input::Symbols { .. } => Ok(list(&["embedding 128", "lstm 256", "dense auto"])),
        _ => Err("text"),
    },
    loss: None,
};
