//! What rides along with the gradient: a few numbers behind it in the same buffer, summed by the same exchange.

/// The sums over all ranks, once the exchange is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rider {
    /// Sum of the rows' losses.
    pub loss: f64,
    /// The ranks that want to stop after this step.
    pub stopping: Vec<usize>,
    /// Milliseconds of computation of each rank.
    pub compute_ms: Vec<f32>,
}

/// Space behind the gradient: the loss, then each rank's time, then each rank's wish to stop.
pub fn len(world: usize) -> usize {
    1 + 2 * world
}

impl Rider {
    /// Writes one rank's part; each rank has a place of its own for its time and its wish.
    pub fn write(loss: f64, stop: bool, rank: usize, compute_ms: f32, tail: &mut [f32]) {
        let world = tail.len() / 2;
        tail.fill(0.0);
        tail[0] = loss as f32;
        tail[1 + rank] = compute_ms;
        tail[1 + world + rank] = if stop { 1.0 } else { 0.0 };
    }

    /// Reads the sums.
    pub fn read(&mut self, tail: &[f32]) {
        self.loss = f64::from(tail[0]);
        let (times, wishes) = tail[1..].split_at(tail.len() / 2);
        self.compute_ms.clear();
        self.compute_ms.extend_from_slice(times);
        self.stopping.clear();
        self.stopping.extend((0..wishes.len()).filter(|&rank| wishes[rank] > 0.0));
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

    #[test]
    fn sums_of_parts_are_read_back() {
        let (mut a, mut b) = (vec![9.0; len(2)], vec![9.0; len(2)]);
        Rider::write(1.5, false, 0, 7.0, &mut a);
        Rider::write(2.0, true, 1, 9.0, &mut b);
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let mut rider = Rider::default();
        rider.read(&sum);
        assert_eq!(rider, Rider { loss: 3.5, stopping: vec![1], compute_ms: vec![7.0, 9.0] });
        assert_eq!(rider.slowest(), (1, 9.0));
    }
}
