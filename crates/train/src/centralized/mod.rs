//! Centralized optimization: one optimizer state per parameter, the same for all workers.

pub mod allreduce;
pub mod bounded;
pub mod parameter_server;
