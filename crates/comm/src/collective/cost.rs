//! What a collective costs: stated by each algorithm beside its schedules, and proven by the [checker](super::checker).

/// What a collective costs one rank for a buffer of a given length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The longest chain of messages that wait for one another, on any rank: each pays the latency once.
    pub steps: u64,
    /// Payload bytes that leave this rank.
    pub bytes_sent: u64,
    /// Payload bytes that arrive at this rank.
    pub bytes_received: u64,
    /// Additions of two elements.
    pub additions: u64,
}

impl Cost {
    /// The cost of so many steps in which these numbers of elements of `width` bytes are sent, received and added.
    pub fn of(steps: usize, sent: usize, received: usize, added: usize, width: usize) -> Cost {
        let bytes = |elements: usize| elements as u64 * width as u64;
        Cost {
            steps: steps as u64,
            bytes_sent: bytes(sent),
            bytes_received: bytes(received),
            additions: added as u64,
        }
    }

    /// The cost of the same way [backwards](super::Schedule::reversed), where what was sent arrives and is added.
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

    /// One after the other.
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
