//! What only Linux has, or spells its own way. The rest of the tree is written for any Unix and asks here.

pub(crate) mod hangup;
mod host;
mod machine;
mod process;

pub use host::{host_name, interface_of, outward_addresses};
pub use machine::Machine;
pub use process::{kill_group, peak_memory_of_children, signal_name};
