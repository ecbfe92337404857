//! Tensors in shared memory: the ranks of one host reduce them in place, without copies.
//!
//! Every rank owns an arena, which the other ranks map read-only. Beside the arenas are columns that all ranks write, each
//! its own shard; arenas and columns together are the [`SharedArena`]. Column 0 holds sums, the others hold what the group
//! shares, such as parameters that all ranks read. A [`SharedArena`] belongs to one generation: the next one allocates new
//! memory, so that a rank that was declared lost and resumes writes to nothing that is still used.
//!
//! An operation has two barriers (`protocol.rs` has their memory ordering):
//!
//! ```text
//!   idle           every rank writes its arena and reads the columns
//!   -- barrier --
//!   reducing       every rank reads its shard of all arenas and writes its shard of the columns
//!   -- barrier --
//!   idle
//! ```
//!
//! No memory is written and read at the same time: arenas are written only while idle and read by other ranks only while
//! reducing, columns the other way round, and shards do not overlap. Borrowing keeps a rank in its phase: arena and
//! columns are slices that borrow the [`SharedArena`], and every operation borrows it mutably.
//!
//! A [`Window`] is the other shape of shared memory: one writer, readers at any time, no barriers.
//!
//! A rank that waits at a barrier is in [`Transport::wait`](crate::Transport::wait): lost ranks, deadlines and aborts end
//! a barrier as they end a transfer, with the same error.

mod allocation;
mod barrier;
mod shared_arena;
mod sum;
mod window;

pub use shared_arena::{OperationContext, SharedArena};
pub use window::{Versions, Window, WindowRead, WindowTraffic};
