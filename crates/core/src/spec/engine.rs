//! `[engine]`: where the ranks run.

use super::section::section;
use super::setting::choice;

/// Most threads of a worker.
pub const MOST_THREADS: usize = 64;

choice! {
    /// Who starts the ranks.
    EngineKind {
        /// Processes of this binary on this machine; with torchrun, mpirun or srun variables set, their ranks.
        Local = "local",
    }
}

section! {
    /// Where the ranks run.
    "engine" EngineSpec {
        /// Who starts the ranks.
        kind: EngineKind = EngineKind::Local;
        /// How many workers there are, over all machines.
        workers: usize = 2;
        /// How many threads each worker computes with.
        threads: usize = 1;
        /// The port rank 0 listens on; 0: any free one (one machine only).
        port: u64 = 0;
    }
}
