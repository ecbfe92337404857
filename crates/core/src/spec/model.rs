//! `[model]`: what is trained.

use super::section::section;

section! {
    /// What is trained.
    "model" ModelSpec {
        /// Layers in order: "dense UNITS [relu|tanh|sigmoid]"; UNITS of the last may be auto: what the data asks for.
        layers: Vec<String> = vec!["dense 128 relu".into(), "dense auto".into()];
    }
}
