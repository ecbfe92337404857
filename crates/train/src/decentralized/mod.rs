//! Decentralized optimization: every worker has parameters and an optimizer state of its own.

pub mod gosgd;
