//! The cost of a collective: stated by each algorithm beside its schedule, and proven by the [checker](super::checker).

/// The cost for one rank and a buffer of a given length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The longest chain of dependent messages, over all ranks: each pays the latency once.
    pub steps: u64,
    /// Payload without headers.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Additions of two elements.
    pub additions: u64,
}

impl Cost {
    /// `sent`, `received` and `added` are numbers of elements of `width` bytes.
    pub fn of(steps: usize, sent: usize, received: usize, added: usize, width: usize) -> Cost {
        let bytes = |elements: usize| elements as u64 * width as u64;
        Cost {
            steps: steps as u64,
            bytes_sent: bytes(sent),
            bytes_received: bytes(received),
            additions: added as u64,
        }
    }

    /// The cost of the [dual schedule](super::Schedule::reversed): what was sent is received and added.
    pub fn reversed(self, width: usize) -> Cost {
        Cost {
            steps: self.steps,
            bytes_sent: self.bytes_received,
            bytes_received: self.bytes_sent,
            additions: self.bytes_sent / width.max(1) as u64,
        }
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;

    /// Two collectives in sequence.
    fn add(self, other: Cost) -> Cost {
        Cost {
            steps: self.steps + other.steps,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            additions: self.additions + other.additions,
        }
    }
}

/// The smallest k with 2^k >= n: the depth of a binary tree over n ranks.
pub fn ceil_log2(n: usize) -> usize {
    n.max(1).next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_round_up() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(ceil_log2), [0, 1, 2, 2, 3, 3, 4]);
    }
}
