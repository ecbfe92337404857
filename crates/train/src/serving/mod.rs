//! Ranks that serve and the workers that talk to them: what parameter servers and elastic averaging have in common.
//!
//! ```text
//! owner      what a server keeps, and what an update of a worker does to it
//! server     runs the owner: with clocks (all work on the same step), with leases (each at its own speed), or bounded
//!            (each at a clock of its own, which a policy keeps near those of the others)
//! worker     its program is the strategy's; it pushes and pulls through `clocked` or `leased`
//! ```

mod agreement;
pub mod bounded;
mod clock_sum;
pub mod clocked;
pub mod gradient_push;
pub mod leased;
pub(crate) mod mitigation;
pub mod owner;
pub mod part;
#[cfg(test)]
mod replay;
pub mod shards;
pub mod windows;
mod workers;
