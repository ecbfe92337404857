//! What the coordinator needs to know, and how it reaches the rest of its process.

use crate::linux::TokenOffer;
use crate::membership_policy::MembershipConfig;
use crate::rank_status::RankStatus;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use thalweg_core::Error;
use thalweg_core::event::Event;

pub struct CoordinatorConfig {
    /// The id of the rank in this process.
    pub own: usize,
    /// Ids of the expected members.
    pub expected: Vec<usize>,
    /// Members of the last generation whose processes have exited.
    pub lost: Vec<usize>,
    /// Members of the last generation that left in good order with the last coordinator.
    pub left: Vec<usize>,
    /// The process that started this one and can give the role to another, if there is one.
    pub launcher: Option<u32>,
    /// The last generation; 0 at the start.
    pub after: u32,
    /// Ranks at the start of the job.
    pub world: usize,
    /// Digest of the job.
    pub job: [u8; 32],
    /// The launcher's name of this attempt at the job; empty if it has none.
    pub run: String,
    /// Digest of the model; empty if not known.
    pub model: Vec<u8>,
    /// Digest of the training rows; empty if not known.
    pub data: String,
    /// The job file, for workers that join later.
    pub text: String,
    pub token: Vec<u8>,
    /// Gives the token to ranks of this host that have none, while the coordinator listens.
    pub offer: Option<TokenOffer>,
    pub membership: MembershipConfig,
    /// Why the job failed before its start: ranks that join are refused with this error.
    pub failed: Option<Error>,
}

pub struct CoordinatorCallbacks {
    /// The status of the rank in this process.
    pub rank_status: Arc<RankStatus>,
    pub warn: Box<dyn Fn(String) + Send>,
    pub emit: Box<dyn Fn(Event) + Send>,
    /// Ids of ranks whose processes have exited, from the launcher.
    pub exited: Receiver<usize>,
    /// Asks the launcher for another coordinator, after these members have left.
    pub resign: Box<dyn Fn(Vec<usize>) + Send>,
}
