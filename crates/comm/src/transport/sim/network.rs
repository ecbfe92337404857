//! What is simulated, as numbers.

use std::collections::BTreeMap;
use std::time::Duration;

/// Ranks and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Number of ranks.
    pub world: usize,
    /// What a byte needs from one rank to another, however few they are, where [`Network::links`] does not say otherwise.
    pub latency: Duration,
    /// By how much a message's latency varies: 0.5 makes it up to half as long again, drawn from the seed.
    pub jitter: f64,
    /// Bytes per second that a rank can send, and that it can receive.
    pub bandwidth: f64,
    /// Links that are not like the others, by sender and receiver: each is one direction.
    pub links: BTreeMap<(usize, usize), Link>,
    /// Floating-point operations per second of a rank.
    pub speed: f64,
    /// Whether bytes on their way are off a rank's hands, as with sockets. Else it holds on to them until they are read,
    /// which shows what relies on a buffer.
    pub buffered: bool,
    /// Where all randomness comes from.
    pub seed: u64,
}

/// One direction between two ranks that is not like the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Its latency, if it is another one.
    pub latency: Option<Duration>,
    /// Bytes per second that pass it, if it is narrower than the ranks' own connections.
    pub bandwidth: Option<f64>,
}

impl Network {
    /// A local network of ordinary machines: 50 microseconds, 10 Gbit/s, 10 GFLOP/s.
    pub fn ordinary(world: usize, seed: u64) -> Network {
        Network {
            world,
            latency: Duration::from_micros(50),
            jitter: 0.2,
            bandwidth: 1.25e9,
            links: BTreeMap::new(),
            speed: 1e10,
            buffered: false,
            seed,
        }
    }

    /// What so many bytes need to pass a rank's connection.
    pub(super) fn transmission(&self, bytes: usize) -> Duration {
        seconds(bytes as f64 / self.bandwidth)
    }

    /// What so many bytes need to pass the link between two ranks; nothing where only the ranks' own connections count.
    pub(super) fn passage(&self, from: usize, to: usize, bytes: usize) -> Duration {
        let bandwidth = self.links.get(&(from, to)).and_then(|link| link.bandwidth);
        bandwidth.map_or(Duration::ZERO, |bandwidth| seconds(bytes as f64 / bandwidth))
    }

    /// The latency from one rank to another, without jitter.
    pub(super) fn latency(&self, from: usize, to: usize) -> Duration {
        self.links.get(&(from, to)).and_then(|link| link.latency).unwrap_or(self.latency)
    }

    /// What so many floating-point operations take.
    pub(super) fn computation(&self, operations: u64) -> Duration {
        seconds(operations as f64 / self.speed)
    }

    /// The latency of the `count`-th message between two ranks.
    pub(super) fn delay(&self, from: usize, to: usize, count: u64) -> Duration {
        let mixed =
            [from as u64, to as u64, count].iter().fold(self.seed, |state, &number| mix(state ^ number));
        let share = (mixed >> 11) as f64 / (1u64 << 53) as f64;
        seconds(self.latency(from, to).as_secs_f64() * (1.0 + self.jitter * share))
    }
}

/// The longest that anything takes, so that virtual time does not run out of numbers.
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 86400);

/// That many seconds, a thousand years at most.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(LONGEST, |duration| duration.min(LONGEST))
}

/// A good mix of 64 bits: the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
pub(super) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_come_from_the_seed_and_stay_in_bounds() {
        let (one, other) = (Network::ordinary(4, 1), Network::ordinary(4, 2));
        let delays = |network: &Network| (0..100).map(|count| network.delay(0, 1, count)).collect::<Vec<_>>();
        assert_eq!(delays(&one), delays(&one.clone()));
        assert_ne!(delays(&one), delays(&other));
        assert!(delays(&one).iter().all(|delay| (50..=60).contains(&delay.as_micros())));
        assert_eq!(one.transmission(1_250_000), Duration::from_millis(1));
        assert_eq!(one.computation(10_000_000), Duration::from_millis(1));
    }

    #[test]
    fn no_time_is_too_long_to_be_told() {
        let network = Network { speed: 1e-300, bandwidth: 1e-300, ..Network::ordinary(2, 0) };
        assert_eq!(network.computation(u64::MAX), LONGEST);
        assert_eq!(network.transmission(1), LONGEST);
        let network = Network { latency: Duration::MAX, jitter: 100.0, ..network };
        assert_eq!(network.delay(0, 1, 0), LONGEST);
    }

    #[test]
    fn a_link_differs_in_its_direction_and_in_what_it_says() {
        let narrow = Link { bandwidth: Some(1e6), ..Link::default() };
        let far = Link { latency: Some(Duration::from_millis(5)), ..Link::default() };
        let network = Network {
            links: BTreeMap::from([((0, 1), narrow), ((1, 0), far)]),
            jitter: 0.0,
            ..Network::ordinary(3, 1)
        };
        assert_eq!(
            (network.passage(0, 1, 1000), network.passage(1, 0, 1000)),
            (Duration::from_millis(1), Duration::ZERO)
        );
        let delays = [(0, 1), (1, 0), (1, 2)].map(|(from, to)| network.delay(from, to, 7).as_micros());
        assert_eq!(delays, [50, 5000, 50]);
    }
}
