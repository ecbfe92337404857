//! ONNX, both ways: [`Source`] reads a model that another tool exported, [`export()`] writes a network as a model that
//! other runtimes run.
//!
//! Messages are those of the public `onnx.proto`, as far as models of tensors need them ([`proto`]). Images stand as
//! `height x width x channels` here and as `channels x height x width` there; weights and axes are turned on the way,
//! values as seldom as possible.

mod export;
mod gates;
mod import;
pub mod proto;
mod scaling;

pub use export::{Metadata, export};
pub use import::{Source, operators};
pub use scaling::Embedded;
