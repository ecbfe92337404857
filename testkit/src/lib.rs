//! Conformance suites that every implementation of a trait must pass.

pub mod transport;
