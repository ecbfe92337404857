//! What rides along with the gradient: a few numbers behind it in the same buffer, summed by the same exchange.

use thalweg_cluster::Rank;

/// The sums over all ranks, once the exchange is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rider {
    /// Sum of the rows' losses.
    pub loss: f64,
    /// The ranks, by place, that want the job to stop after this step.
    pub stopping: Vec<usize>,
    /// Whether SIGTERM asked one of them for it.
    pub terminating: bool,
    /// The ranks, by place, that want to leave after this step, without the others.
    pub leaving: Vec<usize>,
    /// Whether somebody waits to be let in after this step.
    pub pausing: bool,
    /// Whether the job is to be done with the epoch it is in.
    pub finishing: bool,
    /// Whether a checkpoint is wanted after this step.
    pub checkpointing: bool,
    /// Milliseconds of computation of each rank.
    pub compute_ms: Vec<f32>,
    /// A sum over the rows that went into the gradient: see [`Rows`].
    pub rows: Rows,
}

/// What one rank has to say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Word {
    /// Sum of its rows' losses.
    pub loss: f64,
    /// Whether it wants the job to stop.
    pub stop: bool,
    /// Whether SIGTERM asked for that.
    pub terminate: bool,
    /// Whether it wants to leave.
    pub leave: bool,
    /// Whether somebody waits to be let in.
    pub pause: bool,
    /// Whether the job is to be done with the epoch it is in.
    pub finish: bool,
    /// Whether it was asked for a checkpoint.
    pub checkpoint: bool,
    /// Milliseconds of its computation.
    pub compute_ms: f32,
    /// The rows it computed.
    pub rows: Rows,
}

impl Word {
    /// What a rank asks for, whatever it computed.
    pub fn of_wishes(rank: &Rank) -> Word {
        Word {
            stop: rank.stop_requested(),
            terminate: rank.is_terminated(),
            leave: rank.leave_requested(),
            pause: rank.pause_requested(),
            finish: rank.finish_requested(),
            checkpoint: rank.checkpoint_requested(),
            ..Word::default()
        }
    }

    /// All that is asked for as one number.
    fn wishes(&self) -> f32 {
        let wishes = [
            (self.stop, STOP),
            (self.leave, LEAVE),
            (self.pause, PAUSE),
            (self.finish, FINISH),
            (self.checkpoint, CHECKPOINT),
            (self.terminate, TERMINATE),
        ];
        f32::from(wishes.into_iter().filter(|(wanted, _)| *wanted).map(|(_, bit)| bit).sum::<u8>())
    }
}

const STOP: u8 = 1;
const LEAVE: u8 = 2;
const PAUSE: u8 = 4;
const FINISH: u8 = 8;
const CHECKPOINT: u8 = 16;
const TERMINATE: u8 = 32;

/// Numbers that a set of rows is known by, and how many values each has: their sums over thousands of ranks are whole
/// numbers that a float holds exactly.
const LANES: usize = 6;
const VALUES: u64 = 1 << 12;

/// A sum over rows by which a set of them is known, whatever the order and whoever computed them: 72 bits, so that a row
/// that is missing, strange or there twice does not go unnoticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows([u16; LANES]);

impl Rows {
    /// Of these rows.
    pub fn of(rows: &[u64]) -> Rows {
        let mut sums = [0; LANES];
        for &row in rows {
            let (mut one, mut other) = (mix(row), mix(!row));
            for (lane, sum) in sums.iter_mut().enumerate() {
                let source = if lane < LANES / 2 { &mut one } else { &mut other };
                *sum = (*sum + *source % VALUES) % VALUES;
                *source /= VALUES;
            }
        }
        Rows(sums.map(|sum| sum as u16))
    }
}

/// Bits of a number, thrown about (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Space behind the gradient: the loss, the sum over rows, then each rank's time, then each rank's wishes.
pub fn len(world: usize) -> usize {
    1 + LANES + 2 * world
}

impl Rider {
    /// Writes one rank's part; each rank has a place of its own for its time and its wishes.
    pub fn write(word: Word, place: usize, tail: &mut [f32]) {
        let world = (tail.len() - 1 - LANES) / 2;
        tail.fill(0.0);
        tail[0] = word.loss as f32;
        tail[1..=LANES].iter_mut().zip(word.rows.0).for_each(|(lane, sum)| *lane = f32::from(sum));
        let ranks = &mut tail[1 + LANES..];
        ranks[place] = word.compute_ms;
        ranks[world + place] = word.wishes();
    }

    /// Writes the wishes of a rank that has no rows beside what others have written.
    pub fn write_wishes(word: Word, place: usize, tail: &mut [f32]) {
        let world = (tail.len() - 1 - LANES) / 2;
        tail[1 + LANES + world + place] = word.wishes();
    }

    /// Reads the sums.
    pub fn read(&mut self, tail: &[f32]) {
        self.loss = f64::from(tail[0]);
        let lanes = [0, 1, 2, 3, 4, 5].map(|lane: usize| (tail[1 + lane] as u64 % VALUES) as u16);
        self.rows = Rows(lanes);
        let ranks = &tail[1 + LANES..];
        let (times, wishes) = ranks.split_at(ranks.len() / 2);
        self.compute_ms.clear();
        self.compute_ms.extend_from_slice(times);
        let want = |place: &usize, bit: u8| wishes[*place] as u8 & bit != 0;
        self.stopping.clear();
        self.stopping.extend((0..wishes.len()).filter(|place| want(place, STOP)));
        self.terminating = self.stopping.iter().any(|place| want(place, TERMINATE));
        self.leaving.clear();
        self.leaving.extend((0..wishes.len()).filter(|place| want(place, LEAVE)));
        self.pausing = (0..wishes.len()).any(|place| want(&place, PAUSE));
        self.finishing = (0..wishes.len()).any(|place| want(&place, FINISH));
        self.checkpointing = (0..wishes.len()).any(|place| want(&place, CHECKPOINT));
    }

    /// The rank whose computation took longest, and how long.
    pub fn slowest(&self) -> (usize, f32) {
        let slower =
            |best: (usize, f32), (rank, &ms): (usize, &f32)| if ms > best.1 { (rank, ms) } else { best };
        self.compute_ms.iter().enumerate().fold((0, f32::MIN), slower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(words: &[Word]) -> Rider {
        let mut sum = vec![0.0; len(words.len())];
        for (place, word) in words.iter().enumerate() {
            let mut tail = vec![9.0; sum.len()];
            Rider::write(*word, place, &mut tail);
            sum.iter_mut().zip(tail).for_each(|(sum, part)| *sum += part);
        }
        let mut rider = Rider::default();
        rider.read(&sum);
        rider
    }

    #[test]
    fn sums_of_parts_are_read_back() {
        let one = Word { loss: 1.5, compute_ms: 7.0, pause: true, ..Word::default() };
        let other =
            Word { loss: 2.0, compute_ms: 9.0, stop: true, terminate: true, leave: true, ..Word::default() };
        let rider = sum(&[one, other]);
        assert_eq!((rider.loss, &rider.compute_ms[..]), (3.5, &[7.0, 9.0][..]));
        assert_eq!((&rider.stopping[..], &rider.leaving[..], rider.pausing), (&[1][..], &[1][..], true));
        assert!(rider.terminating && !sum(&[one, Word { stop: true, ..one }]).terminating);
        assert_eq!(rider.slowest(), (1, 9.0));
    }

    #[test]
    fn rows_are_known_whoever_computed_them() {
        let rows: Vec<u64> = (0..1000).map(|row| row * 7919).collect();
        let word = |rows: &[u64]| Word { rows: Rows::of(rows), ..Word::default() };
        let (front, back) = rows.split_at(311);
        assert_eq!(sum(&[word(back), word(front), word(&[])]).rows, Rows::of(&rows));
        assert_ne!(sum(&[word(&back[1..]), word(front)]).rows, Rows::of(&rows), "one is missing");
        assert_ne!(sum(&[word(&rows), word(&rows[..1])]).rows, Rows::of(&rows), "one is there twice");
        let many: Vec<Word> = (0..4096).map(|_| word(&rows[..1])).collect();
        assert_eq!(sum(&many).rows, Rows::of(&[rows[0]; 4096]));
    }
}
