//! What tests share: conformance suites that every implementation of a boundary must pass.

pub mod transport;
