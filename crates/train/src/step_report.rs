//! What a rank reports of its step, and the summary of all reports.
//!
//! Reports travel with an exchange of the whole world where there is one: a few numbers behind the values, summed by the
//! same operation ([`StepReport::write`], [`StepSummary::read`]). Numbers that belong to one rank have an element of
//! their own, which is zero on the others.

use serde::{Deserialize, Serialize};
use thalweg_cluster::Rank;

/// What one rank reports of a commit unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Sum of its rows' losses.
    pub loss: f64,
    pub compute_ms: f32,
    /// Steps of the unit that it has computed, with or without rows of its own.
    pub steps: u64,
    pub rows: RowChecksum,
    pub requests: Requests,
}

/// What a rank was asked for from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    pub stop: bool,
    /// Whether SIGTERM requested the stop.
    pub terminate: bool,
    /// This rank alone is to leave.
    pub leave: bool,
    /// A new member waits to be admitted.
    pub pause: bool,
    /// The job is to end with the current epoch.
    pub finish: bool,
    pub checkpoint: bool,
}

/// The reports of all ranks, summed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Sum of the losses of all rows.
    pub loss: f64,
    /// By rank.
    pub compute_ms: Vec<f32>,
    /// Steps of the unit that each rank has computed, by rank.
    pub steps: Vec<u64>,
    pub rows: RowChecksum,
    /// Ranks that request a stop.
    pub stopping: Vec<usize>,
    /// Whether SIGTERM requested it.
    pub terminating: bool,
    /// Ranks that are to leave.
    pub leaving: Vec<usize>,
    pub pausing: bool,
    pub finishing: bool,
    pub checkpointing: bool,
}

const STOP: u8 = 1;
const LEAVE: u8 = 2;
const PAUSE: u8 = 4;
const FINISH: u8 = 8;
const CHECKPOINT: u8 = 16;
const TERMINATE: u8 = 32;

impl Requests {
    /// The requests that this rank has received.
    pub fn of(rank: &Rank) -> Requests {
        Requests {
            stop: rank.stop_requested(),
            terminate: rank.is_terminated(),
            leave: rank.leave_requested(),
            pause: rank.pause_requested(),
            finish: rank.finish_requested(),
            checkpoint: rank.checkpoint_requested(),
        }
    }

    /// Whether any of them is served between two units. One to finish waits for the end of the epoch.
    pub fn await_boundary(self) -> bool {
        self.stop || self.leave || self.pause || self.checkpoint
    }

    /// As one number that an `f32` holds exactly.
    fn bits(self) -> f32 {
        let requests = [
            (self.stop, STOP),
            (self.leave, LEAVE),
            (self.pause, PAUSE),
            (self.finish, FINISH),
            (self.checkpoint, CHECKPOINT),
            (self.terminate, TERMINATE),
        ];
        f32::from(requests.into_iter().filter(|(wanted, _)| *wanted).map(|(_, bit)| bit).sum::<u8>())
    }
}

/// Sums modulo [`VALUES`] per lane: their sums over thousands of ranks are integers that an `f32` holds exactly.
const LANES: usize = 6;
const VALUES: u64 = 1 << 12;

/// A checksum of a set of rows that depends neither on their order nor on the rank that computed them: 72 bits, so that
/// a row that is missing, foreign or repeated is detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowChecksum([u16; LANES]);

impl RowChecksum {
    pub fn of(rows: &[u64]) -> RowChecksum {
        let mut sums = [0; LANES];
        for &row in rows {
            let (mut one, mut other) = (mix(row), mix(!row));
            for (lane, sum) in sums.iter_mut().enumerate() {
                let source = if lane < LANES / 2 { &mut one } else { &mut other };
                *sum = (*sum + *source % VALUES) % VALUES;
                *source /= VALUES;
            }
        }
        RowChecksum(sums.map(|sum| sum as u16))
    }
}

/// The finalizer of SplitMix64.
fn mix(row: u64) -> u64 {
    let mut bits = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Numbers of each rank: time, requests, steps.
const PER_RANK: usize = 3;

/// Elements behind the values: the loss, the checksum of rows, then the numbers of each rank.
pub fn len(world: usize) -> usize {
    1 + LANES + PER_RANK * world
}

impl StepReport {
    /// Writes the report of the rank with this index; the elements of other ranks are zero.
    pub fn write(&self, index: usize, tail: &mut [f32]) {
        tail.fill(0.0);
        tail[0] = self.loss as f32;
        tail[1..=LANES].iter_mut().zip(self.rows.0).for_each(|(lane, sum)| *lane = f32::from(sum));
        let world = (tail.len() - 1 - LANES) / PER_RANK;
        let ranks = &mut tail[1 + LANES..];
        ranks[index] = self.compute_ms;
        ranks[world + index] = self.requests.bits();
        ranks[2 * world + index] = self.steps as f32;
    }
}

impl StepSummary {
    /// Reads the sums of all reports.
    pub fn read(tail: &[f32]) -> StepSummary {
        let lanes = [0, 1, 2, 3, 4, 5].map(|lane: usize| (tail[1 + lane] as u64 % VALUES) as u16);
        let ranks = &tail[1 + LANES..];
        let (times, ranks) = ranks.split_at(ranks.len() / PER_RANK);
        let (requests, steps) = ranks.split_at(ranks.len() / 2);
        let having = |bit: u8| {
            (0..requests.len()).filter(|rank| requests[*rank] as u8 & bit != 0).collect::<Vec<usize>>()
        };
        let any = |bit: u8| requests.iter().any(|requests| *requests as u8 & bit != 0);
        let stopping = having(STOP);
        StepSummary {
            loss: f64::from(tail[0]),
            compute_ms: times.to_vec(),
            steps: steps.iter().map(|steps| *steps as u64).collect(),
            rows: RowChecksum(lanes),
            terminating: stopping.iter().any(|rank| requests[*rank] as u8 & TERMINATE != 0),
            stopping,
            leaving: having(LEAVE),
            pausing: any(PAUSE),
            finishing: any(FINISH),
            checkpointing: any(CHECKPOINT),
        }
    }

    /// Of reports that were gathered, by rank.
    pub fn of(reports: &[StepReport]) -> StepSummary {
        let (mut sum, mut tail) = (vec![0.0; len(reports.len())], vec![0.0; len(reports.len())]);
        for (rank, report) in reports.iter().enumerate() {
            report.write(rank, &mut tail);
            sum.iter_mut().zip(&tail).for_each(|(sum, part)| *sum += part);
        }
        StepSummary::read(&sum)
    }

    /// Of a step of all of which this rank knows its own report only: the loss of all is estimated from one of `workers`
    /// equal shares, and requests wait until the ranks meet.
    pub fn estimate(report: &StepReport, workers: usize, rank: usize, world: usize) -> StepSummary {
        let mut tail = vec![0.0; len(world)];
        StepReport { requests: Requests::default(), ..*report }.write(rank, &mut tail);
        let mut summary = StepSummary::read(&tail);
        summary.loss = report.loss * workers as f64;
        summary.steps.fill(report.steps);
        summary
    }

    /// Of a unit that no other rank knows of: requests wait until the workers meet.
    pub fn alone(report: &StepReport) -> StepSummary {
        StepSummary::of(&[StepReport { requests: Requests::default(), ..*report }])
    }

    /// The rank whose computation took longest, and its milliseconds.
    pub fn slowest(&self) -> (usize, f32) {
        let slower =
            |best: (usize, f32), (rank, &ms): (usize, &f32)| if ms > best.1 { (rank, ms) } else { best };
        self.compute_ms.iter().enumerate().fold((0, f32::MIN), slower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_reports_are_read_back() {
        let paused = Requests { pause: true, ..Requests::default() };
        let one = StepReport { loss: 1.5, compute_ms: 7.0, steps: 3, requests: paused, ..Default::default() };
        let ended = Requests { stop: true, terminate: true, leave: true, ..Requests::default() };
        let other =
            StepReport { loss: 2.0, compute_ms: 9.0, steps: 5, requests: ended, ..Default::default() };
        let summary = StepSummary::of(&[one, other]);
        assert_eq!((summary.loss, &summary.compute_ms[..]), (3.5, &[7.0, 9.0][..]));
        assert_eq!(
            (&summary.stopping[..], &summary.leaving[..], summary.pausing),
            (&[1][..], &[1][..], true)
        );
        assert_eq!((summary.slowest(), &summary.steps[..]), ((1, 9.0), &[3, 5][..]));
        let stopped = Requests { stop: true, ..paused };
        assert!(
            summary.terminating
                && !StepSummary::of(&[one, StepReport { requests: stopped, ..one }]).terminating
        );
    }

    #[test]
    fn rows_are_known_whatever_rank_computed_them() {
        let rows: Vec<u64> = (0..1000).map(|row| row * 7919).collect();
        let report = |rows: &[u64]| StepReport { rows: RowChecksum::of(rows), ..StepReport::default() };
        let (front, back) = rows.split_at(311);
        assert_eq!(StepSummary::of(&[report(back), report(front), report(&[])]).rows, RowChecksum::of(&rows));
        assert_ne!(
            StepSummary::of(&[report(&back[1..]), report(front)]).rows,
            RowChecksum::of(&rows),
            "one is missing"
        );
        assert_ne!(
            StepSummary::of(&[report(&rows), report(&rows[..1])]).rows,
            RowChecksum::of(&rows),
            "one is repeated"
        );
        let many: Vec<StepReport> = (0..4096).map(|_| report(&rows[..1])).collect();
        assert_eq!(StepSummary::of(&many).rows, RowChecksum::of(&[rows[0]; 4096]));
    }
}
