//! What the ranks do, and the check of their results.

use super::scenario::{DEADLINE, Scenario, Work};
use thalweg_comm::collective::{BucketSet, Collective, Executor, Schedule, Sum};
use thalweg_comm::mailbox::Mailbox;
use thalweg_comm::transport::{Transport, TransportError};
use thalweg_testkit::transport::tag;

const ROUNDS: u64 = 4;

/// Runs one rank; the error that ended it, if any. Panics on a wrong result.
pub fn perform<T: Transport>(scenario: &Scenario, mut transport: T) -> Option<TransportError> {
    let transport = &mut transport;
    for round in 0..ROUNDS {
        let done = match scenario.work {
            Work::AllReduce(_) | Work::Other(..) => collective(scenario, transport, round),
            Work::Concurrent(_) => concurrent(scenario, transport, round),
            Work::Messages => messages(scenario, transport, round),
        };
        if let Err(error) = done {
            return Some(error);
        }
    }
    transport.close();
    None
}

/// The schedule for ranks on two hosts, in turn.
fn schedule(scenario: &Scenario, rank: usize) -> Schedule {
    let hosts: Vec<usize> = (0..scenario.world).map(|rank| rank % 2).collect();
    match scenario.work {
        Work::AllReduce(algorithm) | Work::Concurrent(algorithm) => algorithm.all_reduce(rank, &hosts),
        Work::Other(collective, algorithm) => (algorithm.schedule)(collective.rank_view(rank, &hosts)),
        Work::Messages => Schedule::default(),
    }
}

/// The result on every rank of an operation to which each contributes its rank plus one.
fn expected(scenario: &Scenario, index: usize) -> f32 {
    match scenario.work {
        Work::Other(Collective::Broadcast { root }, _) => (root + 1) as f32,
        Work::Other(..) => (index * scenario.world / scenario.length + 1) as f32,
        _ => (scenario.world * (scenario.world + 1) / 2) as f32,
    }
}

fn collective(scenario: &Scenario, transport: &mut dyn Transport, round: u64) -> Result<(), TransportError> {
    let mut buffer = vec![(transport.rank() + 1) as f32; scenario.length];
    let schedule = schedule(scenario, transport.rank());
    Executor::new().run(&schedule, transport, tag(round), &mut buffer, &Sum, DEADLINE)?;
    check(scenario, &buffer);
    Ok(())
}

fn concurrent(scenario: &Scenario, transport: &mut dyn Transport, round: u64) -> Result<(), TransportError> {
    let mut buffer = vec![(transport.rank() + 1) as f32; scenario.length];
    let (schedule, mut buckets) = (schedule(scenario, transport.rank()), BucketSet::new());
    let middle = scenario.length / 3;
    buckets.start::<f32>(&schedule, transport, tag(2 * round), 0..middle)?;
    buckets.start::<f32>(&schedule, transport, tag(2 * round + 1), middle..scenario.length)?;
    buckets.finish(transport, &mut buffer, &Sum, DEADLINE)?;
    check(scenario, &buffer);
    Ok(())
}

fn check(scenario: &Scenario, buffer: &[f32]) {
    let wrong = |(index, value): (usize, &f32)| *value != expected(scenario, index);
    assert!(!buffer.iter().enumerate().any(wrong), "a wrong result of {:?}", scenario.work);
}

/// Every rank sends one message to each other rank and receives theirs.
fn messages(scenario: &Scenario, transport: &mut dyn Transport, round: u64) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    let mut mailbox = Mailbox::new(world, 1, scenario.length);
    for to in (0..world).filter(|&to| to != rank) {
        mailbox.send(to, round as u32, vec![rank as u8; scenario.length]);
        mailbox.progress(transport)?;
    }
    mailbox.drain(transport, DEADLINE)?;
    let received: Vec<_> = std::iter::from_fn(|| mailbox.receive()).collect();
    let right = received.iter().all(|message| message.bytes == vec![message.from as u8; scenario.length]);
    assert!(right && received.len() == world - 1, "wrong or missing messages");
    Ok(())
}
