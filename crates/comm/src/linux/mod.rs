//! System calls and files that only Linux has, or spells its own way. The rest of the tree is written for any Unix.

mod descriptor;
mod eventfd;
pub(crate) mod hangup;
mod host;
mod identity;
mod local_socket;
mod machine;
mod pacing;
mod process;
mod segment;
mod token_offer;

pub(crate) use descriptor::{receive_fds, send_fds};
pub use eventfd::EventFd;
pub use host::{host_name, interface_of, outward_addresses};
pub use identity::host_identity;
pub use local_socket::{LocalListener, LocalToken, connect_local};
pub use machine::Machine;
pub(crate) use machine::current_core;
pub use pacing::disable_pacing;
pub use process::{
    PidFd, cpu_time_of_children, exit_now, fd_path, ignore_file_size_signal, ignores_hangup, is_under_nohup,
    kill_group, kill_self, own_executable, parent_name, peak_memory_of_children, signal_name, stop_self,
};
pub(crate) use segment::COUNTER_BYTES;
pub use segment::{Segment, Writers, check_room};
pub use token_offer::{FoundOffers, TokenOffer, find_token_offers};
