//! The end of a generation, as a program on a simulated elastic group asks for it.

use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership::{Limits, MemberPosition};
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_cluster::sim::{Network, SimulatedFault, SimulatedFaultKind};
use thalweg_core::{Error, Kind, Result};

fn config(min: usize) -> MembershipConfig {
    MembershipConfig {
        elastic: true,
        limits: Limits { min, max: 4, timeout: Duration::from_secs(30), unit: 1 },
        servers: 0..0,
        step_deadline: Duration::from_secs(4),
        prepare_deadline: Duration::from_secs(60),
        epoch: 0.0,
    }
}

fn kill(rank: usize) -> SimulatedFault {
    SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank })
}

/// All-reduces until one fails or `steps` are done.
fn steps(rank: &mut Rank, steps: u64) -> Result<()> {
    for step in 0..steps {
        rank.begin_step(step);
        rank.world().all_reduce("gradients", &mut [1.0f32; 100])?;
        rank.sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[test]
fn a_loss_ends_the_generation_with_an_ordinary_error() {
    let (ended, _) = simulate(Network::ordinary(3, 1), &[kill(1)], &config(1), |rank| {
        assert!(!rank.generation_is_over());
        let error = steps(rank, 1000).unwrap_err();
        assert_eq!((error.kind, error.culprit.unwrap().rank), (Kind::RankFailed, 1));
        assert!(rank.generation_is_over());
        rank.regroup(MemberPosition::default(), false)?;
        assert!(!rank.generation_is_over());
        assert_eq!((rank.size(), rank.generation()), (2, 2));
        steps(rank, 10)?;
        // A rank that leaves has no next generation.
        rank.depart();
        assert!(!rank.generation_is_over());
        Ok(())
    });
    assert_eq!([&ended[0].result, &ended[2].result], [&Ok(()), &Ok(())]);
}

#[test]
fn an_error_of_the_program_itself_does_not_end_the_generation() {
    let (ended, _) = simulate(Network::ordinary(2, 1), &[], &config(1), |rank| {
        let failed: Result<()> = Err(Error::new(Kind::RankFailed, "of the model"));
        assert!(failed.is_err() && !rank.generation_is_over());
        rank.world().barrier("the end").map(|_| ())
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(())));
}

#[test]
fn a_regroup_that_fails_is_the_end() {
    // Two of three are not enough.
    let (ended, _) = simulate(Network::ordinary(3, 1), &[kill(1)], &config(3), |rank| {
        steps(rank, 1000).unwrap_err();
        if rank.generation_is_over() {
            let failed = rank.regroup(MemberPosition::default(), false);
            assert!(failed.is_err() && !rank.generation_is_over());
            failed?;
        }
        Ok(())
    });
    assert!(
        ended[0].result.as_ref().is_err_and(|error| error.kind == Kind::RankFailed),
        "{:?}",
        ended[0].result
    );
}

#[test]
fn a_loss_ends_a_job_that_is_not_elastic() {
    let (ended, _) = simulate(
        Network::ordinary(2, 1),
        &[kill(1)],
        &MembershipConfig::fixed(Duration::from_secs(4)),
        |rank| {
            let ended = steps(rank, 1000);
            assert!(!rank.generation_is_over());
            ended
        },
    );
    assert_eq!(ended[0].result.as_ref().unwrap_err().kind, Kind::RankFailed);
}

/// Computes alone until a boundary is requested, for at most a minute; then regroups with the others, or leaves.
fn round(rank: &mut Rank) -> Result<Duration> {
    let start = rank.now();
    rank.begin_step(0);
    while !rank.boundary_requested() && rank.now() - start < Duration::from_secs(60) {
        rank.slow_down(Duration::from_millis(10))?;
    }
    let took = rank.now() - start;
    let leaves = rank.leave_requested();
    rank.world().all_gather("requests", &[u8::from(leaves)])?;
    if leaves {
        rank.depart();
    } else {
        rank.regroup(MemberPosition::default(), true)?;
    }
    Ok(took)
}

#[test]
fn a_request_to_leave_reaches_all_ranks_until_the_member_has_left() {
    let leave = SimulatedFault::at(Duration::from_secs(5), SimulatedFaultKind::Leave { rank: 1 });
    let (ended, _) = simulate(Network::ordinary(3, 1), &[leave], &config(1), |rank| {
        let took = round(rank)?;
        assert!((5..7).contains(&took.as_secs()), "{took:?}");
        if !rank.leave_requested() {
            assert_eq!((rank.size(), rank.generation()), (2, 2));
            for _ in 0..300 {
                rank.slow_down(Duration::from_millis(10))?;
                assert!(!rank.boundary_requested() && !rank.pause_requested());
            }
            rank.world().barrier("the end")?;
        }
        Ok(())
    });
    assert!((0..3).all(|rank| ended[rank].result == Ok(())), "{:?}", ended[0].result);
}

#[test]
fn a_new_member_that_waits_is_known_to_all_ranks() {
    let join = SimulatedFault::at(Duration::from_secs(5), SimulatedFaultKind::Join { rank: 2 });
    let (ended, _) = simulate(Network::ordinary(2, 1), &[join], &config(1), |rank| {
        if rank.generation() == 1 {
            let took = round(rank)?;
            assert!((5..7).contains(&took.as_secs()), "{took:?}");
        }
        assert_eq!((rank.size(), rank.generation()), (3, 2));
        rank.slow_down(Duration::from_secs(1))?;
        assert!(!rank.boundary_requested());
        rank.world().barrier("the end").map(|_| ())
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(())), "{:?}", ended[0].result);
}
