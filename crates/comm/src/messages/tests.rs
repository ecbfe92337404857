//! Messages between ranks of one generation and of several, hostile records, and their order and number.

use super::outgoing::{FRAGMENT, fragment};
use super::record::{Announcement, Grant, Record};
use super::*;
use crate::collective::{Executor, NonblockingTransport, Sum, ring};
use crate::transport::sim::{Network, Simulation};
use crate::transport::{Mem, WaitState, mesh};

const PLENTY: Duration = Duration::from_secs(60);
const WINDOW: usize = 1 << 20;

/// A transport with open messages; member ids are ten times the rank.
fn opened<T: Transport + 'static>(transport: T, window: usize) -> NonblockingTransport {
    let members: Vec<usize> = (0..transport.world()).map(|rank| 10 * rank).collect();
    let boxed: Box<dyn Transport> = Box::new(transport);
    let mut transport = NonblockingTransport::from(boxed);
    transport.open_messages(1, &members, window);
    transport
}

fn send(transport: &mut NonblockingTransport, to: usize, tag: u32, bytes: Vec<u8>) -> bool {
    let now = transport.now();
    transport.messages_mut().unwrap().send(to, 0, tag, bytes, now)
}

fn receive(transport: &mut NonblockingTransport, from: usize, tag: u32) -> Result<Vec<u8>, TransportError> {
    let wait = WaitState::new(transport.now(), PLENTY);
    let take = |messages: &mut Messages| messages.take(Some(10 * from), 0, tag);
    Ok(transport.wait_for_message(wait, &[from], take)?.bytes)
}

fn each<T: Transport + 'static>(ranks: Vec<T>, program: impl Fn(T) + Sync) {
    let program = &program;
    std::thread::scope(|scope| {
        ranks.into_iter().for_each(|rank| drop(scope.spawn(move || program(rank))));
    });
}

/// Three rounds of messages between all ranks, with an all-reduce before they are received.
fn exchange_messages<T: Transport + 'static>(transport: T) {
    let (rank, world) = (transport.rank(), transport.world());
    let mut transport = opened(transport, WINDOW);
    let others = || (0..world).filter(|&peer| peer != rank);
    for round in 0..3u32 {
        for to in others() {
            assert!(send(&mut transport, to, 1, vec![rank as u8; 1000 * to]));
            assert!(send(&mut transport, to, 2, vec![round as u8; 150_000]));
        }
        let (schedule, tag) =
            (ring::all_reduce(rank, world), Tag { generation: 1, operation: round.into(), ..Tag::default() });
        let mut sum = vec![1.0; 500];
        Executor::new().run(&schedule, &mut transport, tag, &mut sum, &Sum, PLENTY).unwrap();
        assert_eq!(sum, vec![world as f32; 500]);
        for from in others() {
            assert_eq!(receive(&mut transport, from, 2).unwrap(), vec![round as u8; 150_000]);
            assert_eq!(receive(&mut transport, from, 1).unwrap(), vec![from as u8; 1000 * rank]);
        }
    }
    let all: Vec<usize> = others().collect();
    transport.flush_messages(&all, PLENTY).unwrap();
    let counts = transport.messages().unwrap().counts().clone();
    // Those to rank 0 are empty, and signals do not count.
    let signals = if rank > 0 { 3 } else { 0 };
    assert_eq!((counts.sent, counts.skipped), (6 * (world as u64 - 1) - signals, 0));
    assert_eq!(transport.messages_mut().unwrap().take_delays().len() as u64, counts.sent);
    transport.close();
}

#[test]
fn messages_pass_collectives_in_any_order_of_tags() {
    for world in [1, 2, 5] {
        each(mesh(world), exchange_messages);
        each(Simulation::new(Network::ordinary(world, 3), &[]).ranks(), exchange_messages);
    }
}

#[test]
fn long_messages_are_fragmented() {
    assert_eq!(fragment(0, 1), (1, 0..1));
    assert_eq!(fragment(0, FRAGMENT + 3), (1, 0..FRAGMENT));
    assert_eq!(fragment(FRAGMENT, FRAGMENT + 3), (2, FRAGMENT..FRAGMENT + 3));
    each(mesh(2), |transport: Mem| {
        let rank = transport.rank();
        let mut transport = opened(transport, 3 * FRAGMENT);
        for length in [0, FRAGMENT, FRAGMENT + 3, 3 * FRAGMENT] {
            if rank == 1 {
                while !send(&mut transport, 0, 7, vec![5; length]) {
                    transport.flush_messages(&[0], PLENTY).unwrap();
                    transport.sleep(Duration::from_millis(1)).unwrap();
                }
            } else {
                assert!(receive(&mut transport, 1, 7).unwrap() == vec![5; length]);
            }
        }
        transport.flush_messages(&[1 - rank], PLENTY).unwrap();
        transport.close();
    });
}

#[test]
fn a_message_without_credit_is_not_queued() {
    each(Simulation::new(Network::ordinary(2, 1), &[]).ranks(), |transport| {
        let rank = transport.rank();
        let mut transport = opened(transport, 1000);
        if rank == 1 {
            let sent: Vec<bool> = (0..4).map(|_| send(&mut transport, 0, 7, vec![0; 400])).collect();
            assert_eq!(sent, [true, true, false, false]);
            // Received, but not taken.
            transport.flush_messages(&[0], PLENTY).unwrap();
            assert!(!send(&mut transport, 0, 7, vec![0; 400]));
            assert_eq!(transport.messages().unwrap().counts().skipped, 3);
            receive(&mut transport, 0, 1).unwrap();
            assert!(send(&mut transport, 0, 7, vec![0; 400]));
            assert_eq!(receive(&mut transport, 0, 1).unwrap(), [9]);
        } else {
            transport.sleep(Duration::from_secs(1)).unwrap();
            (0..2).for_each(|_| drop(receive(&mut transport, 1, 7).unwrap()));
            send(&mut transport, 1, 1, vec![]);
            receive(&mut transport, 1, 7).unwrap();
            send(&mut transport, 1, 1, vec![9]);
            transport.flush_messages(&[1], PLENTY).unwrap();
        }
        transport.close();
    });
}

#[test]
fn a_rank_that_sends_nothing_is_named() {
    let mut ranks = mesh(3);
    let _idle = ranks.pop();
    each(ranks, |transport: Mem| {
        let mut transport = opened(transport, WINDOW);
        let wait = WaitState::new(transport.now(), Duration::from_millis(100));
        let error = transport.wait_for_message(wait, &[2], |messages| messages.take(None, 0, 1)).unwrap_err();
        assert_eq!(error.peer, Some(2), "{error}");
    });
}

#[test]
fn a_wait_for_any_ends_when_no_rank_is_left_that_could_send() {
    each(mesh(3), |transport: Mem| {
        let rank = transport.rank();
        let mut transport = opened(transport, WINDOW);
        let any = |transport: &mut NonblockingTransport| {
            let wait = WaitState::new(transport.now(), PLENTY).for_any();
            transport.wait_for_message(wait, &[1, 2], |messages| messages.take(None, 0, 1))
        };
        match rank {
            0 => {
                assert_eq!(any(&mut transport).unwrap().member, 20, "one that was done is no error");
                let error = any(&mut transport).unwrap_err();
                assert_eq!(error.cause, Cause::Left, "{error}");
            }
            1 => transport.close(),
            _ => {
                transport.sleep(Duration::from_millis(20)).unwrap();
                send(&mut transport, 0, 1, vec![1]);
                transport.flush_messages(&[0], PLENTY).unwrap();
                transport.close();
            }
        }
    });
}

/// The error of rank 0 when rank 1 sends these records instead of its own.
fn refusal(records: &[Record]) -> TransportError {
    let mut ranks = mesh(2);
    let links = ranks[0].link_control();
    for record in records {
        let payload = record.encode();
        let header = crate::wire::Header::data(tag_of(1), 0, &payload).encode();
        links.inject(1, 0, &[&header[..], &payload].concat());
    }
    let mut transport = opened(ranks.remove(0), 1000);
    let error = receive(&mut transport, 1, 1).unwrap_err();
    assert_eq!(transport.advance().unwrap_err(), error, "the link is not used again");
    error
}

#[test]
fn hostile_records_name_their_sender() {
    let message = |sequence, length| Record::Message(Announcement { group: 0, tag: 9, sequence, length });
    let grant = |received| Record::Grant(Grant { received, limit: u64::MAX });
    for (records, what) in [
        (vec![message(1, 0)], "message 1 came where number 0 was expected"),
        (vec![message(0, 0), message(0, 0)], "message 0 came where number 1 was expected"),
        (vec![message(0, 1001)], "longer than the window of 1000"),
        (vec![message(0, u64::MAX)], "longer than the window of 1000"),
        (vec![message(0, 0), message(1, 1000)], "64 more than its credit"),
        (vec![grant(1)], "it acknowledged 1 messages, of 0 sent"),
    ] {
        let error = refusal(&records);
        assert_eq!(error.peer, Some(1), "{error}");
        assert!(matches!(&error.cause, Cause::Protocol(text) if text.contains(what)), "{error}");
    }
    let floods: Vec<Record> = (0..40).map(|sequence| message(sequence, 0)).collect();
    assert!(refusal(&floods).to_string().contains("more than its credit"), "empty messages use memory, too");
}

/// Rank 0 of two has sent messages when the generation ends at some moment; in the next one the ranks have other numbers,
/// and in the last one the receiver is gone.
#[test]
fn messages_outlive_their_generation() {
    for seconds in [0, 1, 2, 3, 4, 6, 9, 20] {
        // A megabyte takes a second.
        let network = || Network { bandwidth: 1e6, ..Network::ordinary(2, 1) };
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        let mut kept: [Option<Messages>; 2] = [None, None];
        for generation in [1, 2] {
            let outcomes = std::thread::scope(|scope| {
                let ranks = Simulation::new(network(), &[]).ranks().into_iter().enumerate();
                let run = |(index, transport): (usize, _)| {
                    // In the second generation the ranks are exchanged.
                    let member = if generation == 1 { index } else { 1 - index };
                    let messages = kept[member].take();
                    scope.spawn(move || {
                        (member, one_generation(transport, generation, member, messages, seconds))
                    })
                };
                let threads: Vec<_> = ranks.map(run).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            for (member, (messages, mut numbers)) in outcomes {
                kept[member] = Some(messages);
                if member == 0 { sent.append(&mut numbers) } else { got.append(&mut numbers) }
            }
        }
        assert_eq!(sent, got, "interrupted after {seconds} s");
        assert!(sent.len() > 7, "{sent:?}");
    }
}

/// The numbers of the messages sent by member 0 or received by member 1.
fn one_generation(
    transport: crate::transport::sim::Sim,
    generation: u32,
    member: usize,
    messages: Option<Messages>,
    seconds: u64,
) -> (Messages, Vec<u8>) {
    let boxed: Box<dyn Transport> = Box::new(transport);
    let mut transport = NonblockingTransport::from(boxed);
    let members = if generation == 1 { [0, 1] } else { [1, 0] };
    match messages {
        Some(messages) => transport.set_messages(messages.resume(generation, &members)),
        None => transport.open_messages(generation, &members, 4 << 20),
    }
    let (mut numbers, peer, first) = (Vec::new(), 1 - transport.rank(), 100 * generation as u8);
    let rest = Duration::from_secs(if generation == 1 { seconds } else { 60 });
    let end = transport.now() + rest;
    while transport.now() < end {
        let next = first + numbers.len() as u8;
        if member == 0 && next < first + 8 && send(&mut transport, peer, 1, vec![next; 900_000]) {
            numbers.push(next);
        }
        transport.sleep(Duration::from_millis(250)).unwrap();
        while let Some(message) = transport.messages_mut().unwrap().take(Some(0), 0, 1) {
            assert!(
                message.bytes.len() == 900_000 && message.bytes.iter().all(|byte| *byte == message.bytes[0])
            );
            numbers.push(message.bytes[0]);
        }
    }
    (transport.take_messages().unwrap(), numbers)
}

#[test]
fn messages_to_the_lost_are_returned_and_those_from_them_kept() {
    let mut messages = Messages::new(1, &[4, 5, 6], 1000);
    let message = |member, byte| Message { member, group: 0, tag: 1, bytes: vec![byte] };
    assert!(
        messages.send(1, 0, 1, vec![8], Duration::ZERO) && messages.send(2, 0, 1, vec![9], Duration::ZERO)
    );
    messages.received.push_back(message(5, 7));
    let mut messages = messages.resume(2, &[6, 4]);
    assert_eq!(messages.take_undelivered(), [message(5, 8)]);
    assert_eq!((messages.take(Some(5), 0, 1), messages.take(None, 0, 1)), (Some(message(5, 7)), None));
    assert_eq!([0, 1].map(|rank| messages.pending(rank).read), [true, false]);
    assert!(messages.take_undelivered().is_empty());
}
