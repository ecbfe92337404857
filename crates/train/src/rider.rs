//! What rides along with the gradient: a few numbers behind it in the same buffer, summed by the same exchange.

/// Numbers that come before the ranks' times.
const FIXED: usize = 2;

/// The sums over all ranks, once the exchange is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rider {
    /// Sum of the rows' losses.
    pub loss: f64,
    /// Whether any rank wants to stop after this step.
    pub stop: bool,
    /// Milliseconds of computation of each rank.
    pub compute_ms: Vec<f32>,
}

/// Space behind the gradient.
pub fn len(world: usize) -> usize {
    FIXED + world
}

impl Rider {
    /// Writes one rank's part; each rank has a place of its own for its time.
    pub fn write(loss: f64, stop: bool, rank: usize, compute_ms: f32, tail: &mut [f32]) {
        tail.fill(0.0);
        tail[0] = loss as f32;
        tail[1] = if stop { 1.0 } else { 0.0 };
        tail[FIXED + rank] = compute_ms;
    }

    /// Reads the sums.
    pub fn read(&mut self, tail: &[f32]) {
        self.loss = f64::from(tail[0]);
        self.stop = tail[1] > 0.0;
        self.compute_ms.clear();
        self.compute_ms.extend_from_slice(&tail[FIXED..]);
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
        assert_eq!(rider, Rider { loss: 3.5, stop: true, compute_ms: vec![7.0, 9.0] });
        assert_eq!(rider.slowest(), (1, 9.0));
    }
}
