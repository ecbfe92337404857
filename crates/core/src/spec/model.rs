//! `[model]`: what is trained.

use super::section::section;

section! {
    /// What is trained.
    "model" ModelSpec {
        /// Layers in order, such as "dense 128 relu" or "conv 32 5x5 relu"; UNITS of a last dense layer may be auto: what the data asks for.
        layers: Vec<String> = vec!["dense 128 relu".into(), "dense auto".into()];
    }
}
