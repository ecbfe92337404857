//! Slow ranks on a simulated network: a rank that makes progress is waited for, however long an exchange takes.

use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_cluster::sim::Network;
use thalweg_core::Result;

const DEADLINE: Duration = Duration::from_secs(2);

fn config() -> MembershipConfig {
    MembershipConfig {
        elastic: true,
        limits: Limits { min: 1, max: 9, timeout: Duration::from_secs(30), unit: 1 },
        servers: 0..0,
        step_deadline: DEADLINE,
        prepare_deadline: Duration::from_secs(600),
        epoch: 0.0,
    }
}

/// The exchange takes ten times the deadline, with bytes moving all the time.
#[test]
fn an_exchange_over_a_slow_link_is_not_interrupted() {
    let network = Network { bandwidth: 200e3, ..Network::ordinary(3, 1) };
    let program = |rank: &mut Rank| -> Result<(u32, Duration)> {
        rank.begin_step(1);
        let start = rank.now();
        let mut gradients = vec![1.0f32; 1 << 20];
        rank.world().all_reduce("gradients", &mut gradients)?;
        assert!(gradients.iter().all(|sum| *sum == 3.0));
        Ok((rank.generation(), rank.now() - start))
    };
    let (ended, _) = simulate(network, &[], &config(), program);
    for rank in ended {
        let (generation, took) = rank.result.unwrap();
        assert!(generation == 1 && took > 10 * DEADLINE, "generation {generation}, {took:?}");
    }
}
