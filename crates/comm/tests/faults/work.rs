//! What the ranks do, and the check of their results.

use super::scenario::{DEADLINE, Scenario, Work};
use thalweg_comm::collective::{BucketSet, Collective, Executor, NonblockingTransport, Schedule, Sum};
use thalweg_comm::transport::{Transport, TransportError, WaitState};
use thalweg_testkit::transport::tag;

const ROUNDS: u64 = 4;

/// Runs one rank; the error that ended it, if any. Panics on a wrong result.
pub fn perform<T: Transport + 'static>(scenario: &Scenario, transport: T) -> Option<TransportError> {
    let boxed: Box<dyn Transport> = Box::new(transport);
    let transport = &mut NonblockingTransport::from(boxed);
    if matches!(scenario.work, Work::Messages) {
        let members: Vec<usize> = (0..scenario.world).collect();
        transport.open_messages(tag(0).generation, &members, 4 * scenario.length);
    }
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
fn messages(
    scenario: &Scenario,
    transport: &mut NonblockingTransport,
    round: u64,
) -> Result<(), TransportError> {
    let (rank, world, tag, now) = (transport.rank(), transport.world(), round as u32, transport.now());
    let others: Vec<usize> = (0..world).filter(|&peer| peer != rank).collect();
    if let Some(messages) = transport.messages_mut() {
        others
            .iter()
            .for_each(|to| assert!(messages.send(*to, 0, tag, vec![rank as u8; scenario.length], now)));
    }
    for from in &others {
        let wait = WaitState::new(transport.now(), DEADLINE);
        let message =
            transport.wait_for_message(wait, &[*from], |messages| messages.take(Some(*from), 0, tag))?;
        assert!(message.bytes == vec![*from as u8; scenario.length], "a wrong message of {from}");
    }
    transport.flush_messages(&others, DEADLINE)
}
