//! ONNX import and export: [`OnnxModel`] reads a model that another tool exported, [`export()`] writes a network for
//! other runtimes.
//!
//! [`proto`] holds the messages of the public `onnx.proto` that tensor models need. Images are NHWC in this crate and
//! NCHW in ONNX: weights are permuted at import and export, activations only where an operator needs another layout.

mod export;
mod gates;
mod import;
pub mod proto;
mod scaling;

pub use export::{Metadata, export, export_ensemble};
pub use import::{OnnxModel, operators};
pub use scaling::EmbeddedScaling;
