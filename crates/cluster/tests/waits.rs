//! Whom ranks wait for, from their transports to the coordinator's verdict: programs without a common count of operations, in
//! virtual time.

use std::time::Duration;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_cluster::rank::Rank;
use thalweg_cluster::{MessageTag, SendOutcome};
use thalweg_comm::transport::sim::Network;
use thalweg_core::{Error, Result};

const DEADLINE: Duration = Duration::from_secs(5);

const WEIGHTS: MessageTag = MessageTag { number: 1, name: "weights" };

/// The errors of the ranks of a job that is not elastic.
fn errors(world: usize, program: impl Fn(&mut Rank) -> Result<()> + Sync) -> Vec<Option<Error>> {
    let config = MembershipConfig::fixed(DEADLINE);
    let (outcomes, _) = simulate(Network::ordinary(world, 1), &[], &config, |rank| {
        rank.open_messages(1000);
        program(rank)
    });
    outcomes.into_iter().map(|outcome| outcome.result.err()).collect()
}

/// Waits for a message of that rank, which it never sends.
fn receive_from(rank: &mut Rank, peer: usize) -> Result<()> {
    rank.world().receive(peer, WEIGHTS).map(drop)
}

/// Computes for that long; without progress if it is `stuck`.
fn compute(rank: &mut Rank, duration: Duration, stuck: bool) -> Result<()> {
    rank.compute_with_collectives("back-propagation", 0, |rank| {
        if stuck {
            rank.sleep(duration);
        } else {
            rank.slow_down(duration)?;
        }
        Ok(())
    })
}

#[test]
fn ranks_that_wait_for_each_other_are_named_while_another_computes() {
    let next = [2, 1, 3, 0];
    let errors = errors(4, |rank| {
        rank.begin_step(3);
        match rank.index() {
            1 => compute(rank, 10 * DEADLINE, false),
            index => receive_from(rank, next[index]),
        }
    });
    for rank in [0, 2, 3] {
        let error = errors[rank].as_ref().unwrap();
        assert_eq!(
            error.message,
            "ranks 0, 2 and 3 wait for each other: rank 0 for rank 2 in receive of weights at step 3, rank 2 for rank 3 in \
             receive of weights at step 3, rank 3 for rank 0 in receive of weights at step 3"
        );
        assert!(error.hint.is_some());
    }
}

/// Rank 1 has run many more operations than rank 0, which waits for it; no rank waits for rank 2, which has run none.
#[test]
fn the_awaited_rank_is_blamed_whatever_the_ranks_have_counted() {
    let errors = errors(3, |rank| {
        rank.begin_step(3);
        match rank.index() {
            0 => receive_from(rank, 1),
            1 => {
                for _ in 0..50 {
                    rank.world().exchange("nothing", "weights", &[], &mut [])?;
                }
                compute(rank, 10 * DEADLINE, true)
            }
            _ => compute(rank, 10 * DEADLINE, true),
        }
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.message.contains("rank 1"), "{error}");
    assert!(error.message.contains("has been busy with back-propagation"), "{error}");
    assert_eq!(error.culprit.as_ref().map(|culprit| culprit.rank), Some(1), "{error}");
}

#[test]
fn a_chain_of_waits_is_followed_to_its_end() {
    let errors = errors(4, |rank| {
        rank.begin_step(3);
        match rank.index() {
            3 => compute(rank, 10 * DEADLINE, true),
            index => receive_from(rank, index + 1),
        }
    });
    let named: Vec<Option<usize>> =
        errors.iter().take(3).map(|error| Some(error.as_ref()?.culprit.as_ref()?.rank)).collect();
    assert_eq!(named, [Some(3); 3]);
}

/// Rank 0 waits for a message of any rank. Rank 1 is stuck, and rank 2 sends one after a long computation, or is stuck too.
#[test]
fn a_wait_for_any_rank_blames_none_while_one_of_them_goes_on() {
    for goes_on in [true, false] {
        let errors = errors(3, |rank| {
            rank.begin_step(3);
            match rank.index() {
                0 => {
                    let message = rank.world().receive_any(WEIGHTS)?;
                    assert_eq!((message.from, message.member, message.bytes), (Some(2), 2, vec![7]));
                    Ok(())
                }
                1 => compute(rank, 5 * DEADLINE, true),
                _ => {
                    compute(rank, 4 * DEADLINE, !goes_on)?;
                    assert_eq!(rank.world().send(0, WEIGHTS, vec![7])?, SendOutcome::Queued);
                    rank.world().flush_messages()
                }
            }
        });
        match goes_on {
            true => assert_eq!(errors, [None, None, None]),
            false => {
                let error = errors[0].as_ref().unwrap();
                assert!(error.message.contains("has been busy with back-propagation"), "{error}");
                assert_ne!(error.culprit.as_ref().map(|culprit| culprit.rank), Some(0), "{error}");
            }
        }
    }
}
