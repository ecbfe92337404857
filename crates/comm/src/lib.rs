//! Bytes between the ranks of a job.
//!
//! Three layers, each knowing only the one below. [`wire`] is the frame: a fixed header and its checksum.
//! [`transport`] moves frames between the ranks of one group, all sends and receives of a step at once, and turns
//! whatever goes wrong into a [`Fault`] that names a rank. [`collective`] is the arithmetic above it: schedules as
//! data, the executor that runs them on any transport, and the checker that proves them.
//!
//! [`post`] carries letters: messages that nobody waits for.
//!
//! [`host`] is what ranks of one host share besides: doorways, neighbours. [`arena`] is memory in which they add up without
//! messages; how they take turns in what several of them reach is written down, and model-checked, in [`protocol`].
//!
//! [`wait`] is what a rank does before it sleeps: spin, yield, or neither. [`linux`] holds what depends on the system.
//!
//! Nothing here knows what a model is, who started the ranks, or how they found each other.

pub mod arena;
pub mod collective;
pub mod host;
pub mod linux;
pub mod post;
pub mod protocol;
pub mod transport;
pub mod wait;
pub mod wire;

pub use collective::{Algorithm, Executor, Schedule};
pub use transport::{Abort, Cause, Fault, Incoming, Mem, Outgoing, Tag, Tcp, Traffic, Transport};
