//! Communication between the ranks of a job.
//!
//! Three layers, each of which uses only the one below. [`wire`] defines the frame: a fixed header and a checksum.
//! [`transport`] moves frames between the ranks of one group and turns every failure into a [`TransportError`] that names a
//! rank. [`collective`] is above it: schedules as data, the executor that runs them on any transport, and the checker that
//! proves them.
//!
//! [`messages`] are sent between single ranks at any time, beside collectives.
//!
//! [`host`] has the connections between ranks of one host. [`arena`] is shared memory in which they reduce tensors without
//! messages; its memory ordering is defined and model-checked in `protocol`.
//!
//! [`wait`] is the policy of a waiting rank before it sleeps: spin, yield, or neither. [`linux`] has what depends on the
//! operating system.
//!
//! This crate does not know models, launchers or rendezvous.

pub mod arena;
pub mod collective;
pub mod host;
pub mod linux;
pub mod messages;
mod protocol;
pub mod transport;
pub mod wait;
pub mod wire;

pub use collective::{Algorithm, Executor, Schedule};
pub use transport::{Abort, Cause, Incoming, Mem, Outgoing, Tag, Tcp, Traffic, Transport, TransportError};
