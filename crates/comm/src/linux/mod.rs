//! What only Linux has, or spells its own way. The rest of the tree is written for any Unix and asks here.

mod bell;
mod descriptor;
mod doorway;
pub(crate) mod hangup;
mod host;
mod identity;
mod machine;
mod pacing;
mod process;
mod segment;
mod token_offer;

pub use bell::Bell;
pub(crate) use descriptor::{hand, take};
pub use doorway::{Doorway, Token, call};
pub use host::{host_name, interface_of, outward_addresses};
pub use identity::host_identity;
pub use machine::Machine;
pub(crate) use machine::current_core;
pub(crate) use pacing::send_at_once;
pub use process::{
    Grip, cpu_time_of_children, exit_now, ignores_hangup, kill_group, kill_self, outlive_file_limits,
    own_program, parent_name, path_of, peak_memory_of_children, signal_name, stop_self,
};
pub(crate) use segment::WORDS;
pub use segment::{Segment, Writers, check_room};
pub use token_offer::{Offers, TokenOffer, token_offers};
