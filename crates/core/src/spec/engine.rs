//! `[engine]`: where the ranks run.

use super::section::section;
use super::setting::choice;

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
        /// The port rank 0 listens on; 0: any free one (one machine only).
        port: u64 = 0;
    }
}
