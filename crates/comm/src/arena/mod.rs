//! Tensors that live in shared memory: ranks of one host reduce them in place, without a copy.
//!
//! Every rank owns an arena, which the others have mapped for reading only. Beside them lies memory that all write,
//! each its own share: the columns of the [`Commons`]. The first holds sums; the others what the group keeps
//! together, such as parameters that all read. The commons belong to one generation of the group: the next makes new
//! ones, so that a rank that was given up and wakes again writes to nothing that matters.
//!
//! An operation has two meetings (see [`crate::protocol`] for the order of their stores and loads):
//!
//! ```text
//!   quiet          every rank writes its arena and reads the columns
//!   -- meet --
//!   at work        every rank reads its share of all arenas and writes its share of the columns
//!   -- meet --
//!   quiet
//! ```
//!
//! Nobody writes what another reads: arenas are written only in quiet and read by others only at work, columns the
//! other way round, and shares do not overlap. The borrow of the commons is what holds a rank in its phase: arena and
//! columns are slices that borrow it, and every operation needs it whole.
//!
//! While a rank waits in a meeting it is in [`Transport::attend`](crate::Transport::attend): the deaths, deadlines and
//! orders to stop that end any transfer end a meeting too, and name the same rank.

mod commons;
mod meeting;
mod opening;
mod share;
mod sum;

pub use commons::{Commons, Terms};
pub use share::share;
