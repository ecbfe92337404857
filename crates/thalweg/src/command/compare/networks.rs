//! The networks of `--networks`: simulated ones, on which every strategy runs in virtual time.

use thalweg_core::spec::{JobLayers, Origin};

/// A simulated network.
#[derive(Debug)]
pub(super) struct SimulatedNetwork {
    pub(super) name: &'static str,
    /// A part of the run folders' paths.
    pub(super) folder: &'static str,
    latency: &'static str,
    /// Bytes per second of a rank, in each direction.
    bandwidth: &'static str,
    /// What the figures say.
    pub(super) about: &'static str,
}

/// None: the network that there is.
pub(super) type Network = Option<&'static SimulatedNetwork>;

pub(super) const NETWORKS: [SimulatedNetwork; 4] = [
    SimulatedNetwork {
        name: "fast",
        folder: "fast",
        latency: "2us",
        bandwidth: "12500000000B",
        about: "100 Gbit/s, 2 us",
    },
    SimulatedNetwork {
        name: "1 Gbit/s",
        folder: "1-gbit",
        latency: "50us",
        bandwidth: "125000000B",
        about: "1 Gbit/s, 50 us",
    },
    SimulatedNetwork {
        name: "100 Mbit/s",
        folder: "100-mbit",
        latency: "200us",
        bandwidth: "12500000B",
        about: "100 Mbit/s, 200 us",
    },
    SimulatedNetwork {
        name: "wide area",
        folder: "wide-area",
        latency: "30ms",
        bandwidth: "12500000B",
        about: "100 Mbit/s, 30 ms",
    },
];

impl SimulatedNetwork {
    /// Simulates the job on this network.
    pub(super) fn apply(&self, layers: &mut JobLayers) {
        for (key, value) in [
            ("engine.kind", "sim"),
            ("engine.network.latency", self.latency),
            ("engine.network.bandwidth", self.bandwidth),
        ] {
            layers.set(key, value.into(), Origin::Flag(format!("--networks ({})", self.name)));
        }
    }
}
