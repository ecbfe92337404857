//! The configuration of a rank's session, and its hooks into the rest of the process.

use crate::forced_exit::OnForcedExit;
use crate::interruption::Received;
use crate::membership::Limits;
use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use thalweg_core::Result;
use thalweg_core::event::Record;
use thalweg_core::spec::strategy::TransportChoice;

/// What a rank needs to know of its job.
#[derive(Clone, Debug)]
pub struct RankConfig {
    /// Digest of the job.
    pub job: [u8; 32],
    /// The job file, for workers that join later.
    pub text: String,
    /// Digest of the model: its layout, and the file it comes from if there is one. Empty if not known yet.
    pub model: Vec<u8>,
    /// Digest of the training rows. Empty if not known yet.
    pub data: String,
    /// The job's random seed.
    pub seed: u64,
    /// Whether the others go on when a rank is lost.
    pub elastic: bool,
    pub limits: Limits,
    /// Ids of ranks each of which holds state that no other has: the job ends when one is lost.
    pub servers: Range<usize>,
    /// The token of the user or launcher; if empty, ranks of one host get one from rank 0.
    pub token: Vec<u8>,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest to wait until all ranks have joined.
    pub join_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
    pub carrier: TransportChoice,
    /// The port of rank 0 if a launcher passes its address on; 0: any.
    pub port: u16,
}

/// The token of a job, which a rank without one learns from rank 0.
pub(crate) type Token = Arc<OnceLock<Vec<u8>>>;

impl RankConfig {
    /// Set if the token is known already.
    pub(crate) fn shared_token(&self) -> Token {
        let token = Token::default();
        if !self.token.is_empty() {
            let _ = token.set(self.token.clone());
        }
        token
    }
}

/// Sink of records if there is no launcher.
pub type OnRecord = Arc<dyn Fn(&Record) -> Result<()> + Send + Sync>;

/// A session's hooks into the rest of its process.
pub struct RankHooks {
    /// Signals to act on; `None` if the process handles them itself.
    pub signals: Option<Receiver<Received>>,
    pub on_record: OnRecord,
    pub on_forced_exit: OnForcedExit,
}
