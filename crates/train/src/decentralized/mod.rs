//! Decentralized optimization: every worker has parameters and an optimizer state of its own.

pub mod block_momentum;
pub mod diloco;
pub mod gosgd;
pub mod local_round;
pub mod sparknet;
