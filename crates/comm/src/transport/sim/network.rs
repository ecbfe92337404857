//! Parameters of a simulated network.

use std::collections::BTreeMap;
use std::time::Duration;

/// Ranks and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Number of ranks at the start.
    pub world: usize,
    /// Between two ranks, unless [`Network::links`] has another.
    pub latency: Duration,
    /// Variation of the latency: with 0.5 it is up to half as long again, drawn from the seed.
    pub jitter: f64,
    /// Bytes per second that a rank can send, and as many that it can receive.
    pub bandwidth: f64,
    /// Whether a rank's connection carries one direction at a time: it does not receive while it sends.
    pub half_duplex: bool,
    /// Links with parameters of their own, by sender and receiver: each is one direction.
    pub links: BTreeMap<(usize, usize), LinkParameters>,
    /// Floating-point operations per second of a rank.
    pub speed: f64,
    /// Whether a send is complete once its bytes are in transit, as with sockets. Otherwise it completes when they
    /// are read, which reveals schedules that rely on buffering.
    pub buffered: bool,
    pub seed: u64,
}

/// Parameters of one direction between two ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkParameters {
    /// Overrides `Network::latency`.
    pub latency: Option<Duration>,
    /// Bytes per second, in addition to the limit of the ranks' own connections.
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
            half_duplex: false,
            links: BTreeMap::new(),
            speed: 1e10,
            buffered: false,
            seed,
        }
    }

    /// Time that a rank's connection needs to send or receive these bytes.
    pub(super) fn transmission(&self, bytes: usize) -> Duration {
        seconds(bytes as f64 / self.bandwidth)
    }

    /// Time that the link between two ranks needs for these bytes; zero without a bandwidth of its own.
    pub(super) fn link_transmission(&self, from: usize, to: usize, bytes: usize) -> Duration {
        let bandwidth = self.links.get(&(from, to)).and_then(|link| link.bandwidth);
        bandwidth.map_or(Duration::ZERO, |bandwidth| seconds(bytes as f64 / bandwidth))
    }

    /// The latency from one rank to another, without jitter.
    pub(super) fn latency(&self, from: usize, to: usize) -> Duration {
        self.links.get(&(from, to)).and_then(|link| link.latency).unwrap_or(self.latency)
    }

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

/// The longest duration of one event (a thousand years), so that virtual time does not overflow.
const MAX_DURATION: Duration = Duration::from_secs(1000 * 365 * 86400);

/// At most [`MAX_DURATION`].
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(MAX_DURATION, |duration| duration.min(MAX_DURATION))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
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
    fn durations_do_not_overflow() {
        let network = Network { speed: 1e-300, bandwidth: 1e-300, ..Network::ordinary(2, 0) };
        assert_eq!(network.computation(u64::MAX), MAX_DURATION);
        assert_eq!(network.transmission(1), MAX_DURATION);
        let network = Network { latency: Duration::MAX, jitter: 100.0, ..network };
        assert_eq!(network.delay(0, 1, 0), MAX_DURATION);
    }

    #[test]
    fn a_link_overrides_one_direction_and_only_what_is_set() {
        let narrow = LinkParameters { bandwidth: Some(1e6), ..LinkParameters::default() };
        let far = LinkParameters { latency: Some(Duration::from_millis(5)), ..LinkParameters::default() };
        let network = Network {
            links: BTreeMap::from([((0, 1), narrow), ((1, 0), far)]),
            jitter: 0.0,
            ..Network::ordinary(3, 1)
        };
        assert_eq!(
            (network.link_transmission(0, 1, 1000), network.link_transmission(1, 0, 1000)),
            (Duration::from_millis(1), Duration::ZERO)
        );
        let delays = [(0, 1), (1, 0), (1, 2)].map(|(from, to)| network.delay(from, to, 7).as_micros());
        assert_eq!(delays, [50, 5000, 50]);
    }
}
