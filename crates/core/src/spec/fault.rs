//! `[fault]`: how long to wait for whom, and what to keep in case.

use super::inject::Faults;
use super::section::section;
use super::setting::{Auto, Bytes};
use std::time::Duration;

section! {
    /// How long to wait for whom, and what to keep in case.
    "fault" FaultSpec {
        /// How long a rank that the others wait for may be silent, or make no progress, before it is given up. A slow rank makes progress.
        step_deadline: Duration = Duration::from_secs(30);
        /// The longest to wait until all ranks have arrived; auto: 30 s on one machine, 10 m on several.
        join_deadline: Auto<Duration> = Auto::Auto;
        /// The longest the others wait for a rank that reads its data or a file and gets no further with it.
        prepare_deadline: Duration = Duration::from_secs(600);
        /// Whether the others go on when a worker is lost; false: the job ends and names it. Only jobs that exchange by all-reduce can go on, over any transport but mpi; others always end.
        elastic: bool = true;
        /// Workers below which the job waits for others to join, for join_deadline at the longest.
        min_workers: usize = 1;
        /// Workers above which nobody may join; auto: no limit.
        max_workers: Auto<usize> = Auto::Auto;
        /// What a newcomer gets of the job's state before each step while the others train; auto: a quarter of the parameters, at least 1 MiB.
        join_piece: Auto<Bytes> = Auto::Auto;
        /// Whether the launcher starts another worker in the place of a lost one.
        respawn: bool = false;
        /// Steps between checkpoints; 0: only at the end and when interrupted.
        checkpoint_every: u64 = 100;
        /// How many checkpoints are kept.
        checkpoint_keep: usize = 3;
        /// What is to happen to ranks, to see that the job survives it: kill, stop, livelock, slow, cut, cut-one-way, lie, corrupt or disk-full, at the first step from the given one on that the rank begins.
        inject: Faults = Faults::default();
    }
}
