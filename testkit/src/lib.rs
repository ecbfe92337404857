//! What tests share: conformance suites that every implementation of a boundary must pass.

pub mod cluster;
pub mod transport;
