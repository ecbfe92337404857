//! Ranks: launch, rendezvous, collectives, membership, and diagnosis of failures.
//!
//! A launcher starts worker processes (`engine`), or another launcher did and left its variables in the environment.
//! Each process finds the others through `rendezvous`, gets a [`Rank`] and runs its program on it. Meanwhile heartbeats
//! report the state of every rank; when one is lost, `diagnosis` weighs the evidence and names the culprit.

mod account;
pub mod background_task;
mod blame;
mod buckets_in_flight;
pub mod checkpoint;
mod conflict;
mod control_connection;
mod coordinator;
mod coordinator_role;
mod deadlock;
mod diagnosis;
pub mod durable;
pub mod engine;
mod fault_injection;
mod forced_exit;
mod generation_change;
mod group;
mod heartbeat_monitor;
mod hosts;
pub mod interruption;
pub mod launcher_connection;
mod meeting_policy;
pub mod membership;
mod membership_client;
pub mod membership_policy;
mod messages;
mod nonblocking;
mod panics;
mod point_to_point;
mod process_group;
mod progress_thread;
pub mod rank;
mod rank_config;
mod rank_set;
mod rank_status;
pub mod regroup;
pub mod regular_file;
pub mod rendezvous;
mod resource_limits;
pub mod session;
mod shared_arena;
mod stall;
pub mod tensorfile;
mod wait_graph;
mod window;

pub use background_task::BackgroundTask;
pub use buckets_in_flight::{Bucket, BucketsInFlight};
pub use group::Group;
pub use meeting_policy::WorkReport;
pub use messages::{Message, MessageTag, SendOutcome, Undelivered};
pub use nonblocking::PendingOperation;
pub use process_group::ProcessGroup;
pub use rank::Rank;
pub use rank_status::RankStatus;
pub use thalweg_comm::Algorithm;
pub use thalweg_comm::arena::{SharedArena, Versions, Window, WindowRead};
pub use thalweg_comm::collective::{self, AllReduceMethod, Collective, PartialSums, ReductionTree, Term};
pub use thalweg_comm::linux;
pub use thalweg_comm::transport::sim;
pub use thalweg_comm::wait::set_threads_per_rank;
pub use window::visit_earlier_window;
