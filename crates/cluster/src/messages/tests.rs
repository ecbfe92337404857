//! What programs see of messages: names of operations, losses, and messages over several generations.

use super::*;
use crate::engine::threads::{self, simulated_links};
use std::time::Instant;
use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};

const NUMBERS: MessageTag = MessageTag { number: 1, name: "numbers" };

/// A rank that only sends messages and runs no collective; with `dies` it fails after step 20.
fn gossip(rank: &mut Rank, dies: bool) -> Result<()> {
    rank.open_messages(400);
    let (start, world) = (Instant::now(), rank.size());
    for step in 0.. {
        rank.begin_step(step);
        let next = (rank.index() + 1) % world;
        let _ = rank.world().send(next, NUMBERS, vec![7; 100])?;
        while rank.world().try_receive_any(NUMBERS)?.is_some() {}
        rank.sleep(Duration::from_millis(1));
        if dies && step == 20 {
            return Err(Error::internal("an end"));
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the loss was not noticed");
    }
    Ok(())
}

#[test]
fn a_death_without_collectives_is_noticed_at_once() {
    let network = Network::ordinary(3, 1);
    let kill = SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank: 1 });
    let ended = simulated_links::run(network, &[kill], Duration::from_secs(5), |rank| gossip(rank, false));
    let named = |result: &Result<()>| {
        let error = result.as_ref().unwrap_err();
        let culprit = error.culprit.as_ref().unwrap();
        assert_eq!((culprit.rank, culprit.operation.as_deref()), (1, Some("receive of numbers")), "{error}");
        culprit.step.unwrap()
    };
    for rank in [0, 2] {
        // A step takes a millisecond: the step of the kill or the next one.
        assert!((39..=42).contains(&named(&ended[rank])), "{:?}", ended[rank]);
    }
    let ended = threads::run(3, 0, |rank| gossip(rank, rank.index() == 1));
    assert!([0, 2].iter().all(|rank| named(&ended[*rank].result) < 10_000));
}
