//! `gpt-mini`: four transformer blocks over characters, which predict the next one at every position.

use super::ZooModel;
use crate::input::Input;

pub(super) const MODEL: ZooModel = ZooModel {
    name: "gpt-mini",
    layers: |input| match input {
        Input::Symbols { .. } => {
            let block = [
                "residual layernorm | attention 4 causal",
                "residual layernorm | dense 512 gelu | dense 128",
            ];
            let blocks = std::iter::repeat_n(block, 4).flatten();
            let all =
                ["embedding 128 positions"].into_iter().chain(blocks).chain(["layernorm", "dense auto"]);
            Ok(all.map(String::from).collect())
        }
        _ => Err("text"),
    },
    loss: None,
};
