//! `[fault]`: deadlines, elasticity, checkpoints and fault injection.

use super::inject::InjectedFaults;
use super::section::section;
use super::setting::{Auto, Bytes};
use std::time::Duration;

section! {
    /// Deadlines, elasticity, checkpoints and fault injection.
    "fault" FaultSpec {
        /// How long a rank that others wait for may send no heartbeat, or make no progress, before it is given up. A slow rank makes progress.
        step_deadline: Duration = Duration::from_secs(30);
        /// Timeout of rendezvous; auto: 30 s on one host, 10 m on several.
        join_deadline: Auto<Duration> = Auto::Auto;
        /// How long other ranks wait for a rank that reads its data or a file and makes no progress.
        prepare_deadline: Duration = Duration::from_secs(600);
        /// Whether training continues when a worker is lost; false: the job ends and names the worker. `thalweg strategies` says which strategies can continue, over any transport but mpi.
        elastic: bool = true;
        /// With fewer workers the job waits for others to join, up to join_deadline.
        min_workers: usize = 1;
        /// Joins beyond this number of workers are refused; auto: no limit.
        max_workers: Auto<usize> = Auto::Auto;
        /// Size of the state sent to a joining worker before each step while the others train; auto: a quarter of the parameters, at least 1 MiB.
        join_piece: Auto<Bytes> = Auto::Auto;
        /// Whether the launcher replaces a lost worker.
        respawn: bool = false;
        /// Steps between checkpoints; 0: only at the end and when interrupted.
        checkpoint_every: u64 = 100;
        /// Number of checkpoints kept.
        checkpoint_keep: usize = 3;
        /// Faults to inject into ranks, to test recovery: kill, stop, livelock, slow, cut, cut-one-way, lie, corrupt or disk-full, at the first step from the given one on that the rank begins.
        inject: InjectedFaults = InjectedFaults::default();
    }
}
