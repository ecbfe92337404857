//! Ranks: how they are started, find each other, stay in touch, and how their end is explained.
//!
//! A launcher (`engine`) starts processes, or another launcher did and left its variables in the environment. Each
//! process finds the others through `rendezvous`, gets a [`Rank`] and runs its program on it. While it runs, pulses
//! say what every rank is doing; when one is lost, the evidence meets in an [`inquest`] that names the culprit.

mod account;
pub mod beacon;
mod blame;
pub mod checkpoint;
mod circle;
mod collectives;
mod commons;
pub mod coordinator;
mod correspondence;
mod departures;
pub mod dispute;
pub mod durable;
pub mod engine;
pub mod errand;
mod exhaustion;
pub mod hosts;
pub mod inquest;
pub mod interruption;
pub mod judgement;
mod leaving;
pub mod line;
pub mod membership;
mod mishap;
mod panics;
pub mod rank;
pub mod regroup;
pub mod regular;
pub mod rendezvous;
mod role;
pub mod session;
pub mod stall;
mod succession;
pub mod tensorfile;
pub mod uplink;
pub mod watch;

pub use beacon::Beacon;
pub use circle::{Circle, Pending, Within};
pub use departures::{Bucket, Departures};
pub use errand::Errand;
pub use rank::Rank;
pub use thalweg_comm::Algorithm;
pub use thalweg_comm::arena::{Commons, share};
pub use thalweg_comm::collective::{self, Brackets, Goal, Method, Slots, Term};
pub use thalweg_comm::linux;
pub use thalweg_comm::transport::sim;
pub use thalweg_comm::wait::declare_threads;
