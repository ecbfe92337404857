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

#[test]
fn misuse_is_an_error_of_the_program() {
    let ended = threads::run(2, 0, |rank| {
        let refusal = |result: Result<SendOutcome>| result.unwrap_err().to_string();
        let index = rank.index();
        assert!(refusal(rank.world().send(1 - index, NUMBERS, vec![])).contains("messages are not open"));
        assert!(rank.world().receive(1 - index, NUMBERS).is_err());
        rank.open_messages(100);
        for (to, length, what) in
            [(index, 0, "no other rank"), (2, 0, "no other rank"), (1 - index, 101, "more than the window")]
        {
            let refused = refusal(rank.world().send(to, NUMBERS, vec![0; length]));
            assert!(refused.contains(what) && refused.contains("of numbers"), "{refused}");
        }
        Ok(())
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(())), "{:?}", ended[0].result);
}

/// A rank computes for a second, paced, between operators or between parts of an evaluation, while a message of a megabyte
/// that takes half of it arrives. The gaps between operators count.
#[test]
fn messages_move_while_a_rank_computes() {
    type Poll = fn(&mut Rank) -> Result<()>;
    let polls: [(Option<Poll>, bool); 3] =
        [(None, false), (Some(Rank::poll_messages), true), (Some(Rank::poll_messages_in_pause), false)];
    for (poll, counts) in polls {
        let network = Network { bandwidth: 2e6, ..Network::ordinary(2, 1) };
        let ended = simulated_links::run(network, &[], Duration::from_secs(30), |rank| {
            rank.open_messages(1 << 20);
            if rank.index() == 1 {
                assert_eq!(rank.world().send(0, NUMBERS, vec![7; 1 << 20])?, SendOutcome::Queued);
            }
            match poll {
                None => rank.slow_down(Duration::from_secs(1))?,
                Some(poll) => (0..100).try_for_each(|_| {
                    rank.sleep(Duration::from_millis(10));
                    poll(rank)
                })?,
            }
            let start = rank.now();
            if rank.index() == 0 {
                let message = rank.world().try_receive(1, NUMBERS)?.map(|message| message.bytes.len());
                assert_eq!(message, Some(1 << 20), "gaps count: {counts}");
            }
            rank.world().flush_messages()?;
            assert!(rank.now() - start < Duration::from_millis(10));
            rank.world().barrier("the end")?;
            Ok(rank.account().messages)
        });
        let report = ended[1].as_ref().unwrap().unwrap();
        assert_eq!((report.sent, report.skipped), (1, 0));
        assert!((0.5..1.0).contains(&report.median_delay_s), "{report:?}");
        assert_eq!(report.longest_gap_s > 0.009, counts, "{report:?}");
    }
}

/// Two ranks of three are a group: its messages are apart from those of the world with the same tag.
#[test]
fn messages_are_matched_by_group_sender_and_tag() {
    let ended = threads::run(3, 0, |rank| {
        rank.open_messages(1000);
        let other = MessageTag { number: 2, ..NUMBERS };
        if rank.index() == 1 {
            rank.world().barrier("the start")?;
            return rank.world().barrier("the end").map(drop);
        }
        let mut pair = rank.new_group("pair", &[0, 2])?;
        if rank.index() == 2 {
            let sent = [
                rank.group(&mut pair).send(0, other, vec![1])?,
                rank.group(&mut pair).send(0, NUMBERS, vec![2])?,
                rank.world().send(0, NUMBERS, vec![3])?,
                rank.world().send(0, NUMBERS, vec![4])?,
            ];
            assert_eq!(sent, [SendOutcome::Queued; 4]);
            rank.world().flush_messages()?;
        }
        rank.world().barrier("the start")?;
        if rank.index() == 0 {
            assert_eq!(rank.world().try_receive(1, NUMBERS)?, None);
            assert_eq!(rank.world().try_receive_any(other)?, None);
            let message = |from, byte| Message { from: Some(from), member: 2, bytes: vec![byte] };
            assert_eq!(rank.world().receive(2, NUMBERS)?, message(2, 3));
            assert_eq!(rank.group(&mut pair).receive_any(NUMBERS)?, message(1, 2));
            assert_eq!(rank.world().receive_any(NUMBERS)?, message(2, 4));
            assert_eq!(rank.group(&mut pair).try_receive(1, other)?, Some(message(1, 1)));
        }
        rank.world().barrier("the end").map(drop)
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(())), "{:?}", ended[0].result);
}

#[test]
fn a_sender_waits_for_credit() {
    const COUNT: u8 = 50;
    let exchange = |rank: &mut Rank| {
        rank.open_messages(1000);
        rank.begin_step(0);
        match rank.index() {
            0 => {
                (0..COUNT).try_for_each(|number| rank.world().send_waiting(1, NUMBERS, vec![number; 400]))?
            }
            _ => {
                for number in 0..COUNT {
                    assert_eq!(rank.world().receive(0, NUMBERS)?.bytes, [number; 400]);
                }
            }
        }
        assert_eq!(rank.account().messages.map(|messages| messages.skipped), Some(0));
        rank.world().flush_messages()?;
        rank.world().barrier("the end").map(drop)
    };
    assert!(threads::run(2, 0, exchange).iter().all(|ended| ended.result == Ok(())));
    let ended = simulated_links::run(Network::ordinary(2, 1), &[], Duration::from_secs(5), exchange);
    assert!(ended.iter().all(Result::is_ok));
}

#[test]
fn a_receiver_that_takes_nothing_is_named_by_a_sender_that_waits() {
    let network = Network::ordinary(2, 1);
    let ended = simulated_links::run(network, &[], Duration::from_secs(5), |rank| {
        rank.open_messages(1000);
        rank.begin_step(0);
        match rank.index() {
            0 => (0..9).try_for_each(|_| rank.world().send_waiting(1, NUMBERS, vec![0; 400])),
            _ => rank.slow_down(Duration::from_secs(60)),
        }
    });
    let error = ended[0].as_ref().unwrap_err();
    let culprit = error.culprit.as_ref().unwrap();
    assert_eq!((culprit.rank, culprit.operation.as_deref()), (1, Some("sending of numbers")), "{error}");
}
