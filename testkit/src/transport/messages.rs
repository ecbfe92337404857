//! Cases with messages: beside collectives, at the limit of their credit, with deaths, and with bytes of strangers.

use super::{LONG_TIMEOUT, Mesh, run_collective, run_ranks, tag};
use std::time::Duration;
use thalweg_comm::collective::{Collective, NonblockingTransport, Sum, ring};
use thalweg_comm::messages::Messages;
use thalweg_comm::transport::{Cause, Incoming, Outgoing, Tag, Transport, TransportError, WaitState};
use thalweg_comm::wire::{Header, MESSAGES, tensor};

const MIB: usize = 1 << 20;

/// A transport with open messages; member ids are ranks.
fn opened<T: Transport + 'static>(transport: T, window: usize) -> NonblockingTransport {
    let members: Vec<usize> = (0..transport.world()).collect();
    let boxed: Box<dyn Transport> = Box::new(transport);
    let mut transport = NonblockingTransport::from(boxed);
    transport.open_messages(tag(0).generation, &members, window);
    transport
}

fn send(transport: &mut NonblockingTransport, to: usize, tag: u32, bytes: Vec<u8>) -> bool {
    let now = transport.now();
    transport.messages_mut().is_some_and(|messages| messages.send(to, 0, tag, bytes, now))
}

fn receive(transport: &mut NonblockingTransport, from: usize, tag: u32) -> Result<Vec<u8>, TransportError> {
    let wait = WaitState::new(transport.now(), LONG_TIMEOUT);
    let take = |messages: &mut Messages| messages.take(Some(from), 0, tag);
    Ok(transport.wait_for_message(wait, &[from], take)?.bytes)
}

fn contents(from: usize, to: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + from * 31 + to) as u8).collect()
}

/// Messages between all ranks, 1 to 9, empty and of several fragments, with collectives between sending and receiving, and
/// received in another order of tags than sent.
pub fn messages_of_all_lengths_pass_collectives<M: Mesh>() {
    for world in 1..=9 {
        let long = if world <= 3 { 3 * MIB + 1 } else { 300_000 };
        let lengths = [0, 1, 0, 4097, long, 256 << 10];
        run_ranks(M::connect(world), |transport| {
            let rank = transport.rank();
            let others: Vec<usize> = (0..world).filter(|&peer| peer != rank).collect();
            let mut transport = opened(transport, 4 * MIB);
            for (index, length) in lengths.into_iter().enumerate() {
                for to in &others {
                    assert!(send(&mut transport, *to, index as u32 % 2, contents(rank, *to, length)));
                }
                let (mut buffer, operation) = (vec![1i32; 40 * world], tag(1 + index as u64));
                run_collective(&mut transport, operation, Collective::AllReduce, &mut buffer)
                    .expect("an all-reduce");
                assert_eq!(buffer, vec![world as i32; 40 * world]);
            }
            for odd in [1, 0] {
                for (from, length) in others
                    .iter()
                    .flat_map(|from| lengths.iter().skip(odd).step_by(2).map(move |length| (from, length)))
                {
                    let bytes = receive(&mut transport, *from, odd as u32).expect("a message");
                    assert!(bytes == contents(*from, rank, *length), "{length} bytes from {from} to {rank}");
                }
            }
            transport.flush_messages(&others, LONG_TIMEOUT).expect("delivery");
            transport.close();
        });
    }
}

/// Long messages and a nonblocking all-reduce are in progress at once, in both directions of every link.
pub fn messages_and_operations_share_the_links<M: Mesh>() {
    let (world, length) = (3, MIB / 2);
    run_ranks(M::connect(world), |transport| {
        let rank = transport.rank();
        let mut transport = opened(transport, 4 * MIB);
        let others: Vec<usize> = (0..world).filter(|&peer| peer != rank).collect();
        for operation in 1..4 {
            others.iter().for_each(|to| assert!(send(&mut transport, *to, 5, contents(rank, *to, MIB))));
            let schedule = ring::all_reduce(rank, world);
            let id = transport.start(&schedule, tag(operation), vec![1.0f32; length], Sum).expect("a start");
            if rank == 0 {
                assert!(receive(&mut transport, 2, 5).expect("a message") == contents(2, 0, MIB));
            }
            let sums = transport.finish(id, LONG_TIMEOUT).expect("completion").expect("a known operation");
            assert!(sums.iter().all(|sum| *sum == 3.0));
            for from in others.iter().filter(|from| rank != 0 || **from != 2) {
                assert!(receive(&mut transport, *from, 5).expect("a message") == contents(*from, rank, MIB));
            }
        }
        transport.flush_messages(&others, LONG_TIMEOUT).expect("delivery");
        transport.close();
    });
}

/// 100 MB each way, with an all-reduce in between.
pub fn messages_of_100_megabytes_pass_a_collective<M: Mesh>() {
    let length = 100_000_000;
    run_ranks(M::connect(2), |transport| {
        let (rank, peer) = (transport.rank(), 1 - transport.rank());
        let mut transport = opened(transport, length);
        assert!(send(&mut transport, peer, 3, contents(rank, peer, length)));
        let mut buffer = vec![1i32; MIB];
        run_collective(&mut transport, tag(1), Collective::AllReduce, &mut buffer).expect("an all-reduce");
        assert!(buffer.iter().all(|sum| *sum == 2));
        assert!(receive(&mut transport, peer, 3).expect("a message") == contents(peer, rank, length));
        transport.flush_messages(&[peer], LONG_TIMEOUT).expect("delivery");
        transport.close();
    });
}

/// A rank that waits for a message before it takes part in a collective gets it, though its sender is in the collective and
/// sends the rank more than it can buffer, in many frames or in one.
pub fn messages_are_not_stuck_behind_collectives<M: Mesh>() {
    for in_one_frame in [false, true] {
        run_ranks(M::connect(2), |transport| {
            let rank = transport.rank();
            let mut transport = opened(transport, 4 * MIB);
            let mut buffer = vec![rank as u8; 40 * MIB];
            let message = if rank == 1 {
                assert!(send(&mut transport, 0, 5, contents(1, 0, 3 * MIB)));
                transport.advance().expect("a beginning");
                None
            } else {
                Some(receive(&mut transport, 1, 5).expect("a message"))
            };
            if !in_one_frame {
                run_collective(&mut transport, tag(1), Collective::Broadcast { root: 1 }, &mut buffer)
                    .expect("a broadcast");
            } else if rank == 1 {
                let frame = Outgoing { to: 0, chunk: 0, bytes: &buffer };
                transport.transfer(tag(1), &[frame], &mut [], LONG_TIMEOUT).expect("a transfer");
            } else {
                let frame = Incoming { from: 1, chunk: 0, bytes: &mut buffer };
                transport.transfer(tag(1), &[], &mut [frame], LONG_TIMEOUT).expect("a transfer");
            }
            assert!(buffer.iter().all(|byte| *byte == 1));
            assert!(message.is_none_or(|message| message == contents(1, 0, 3 * MIB)));
            transport.flush_messages(&[1 - rank], LONG_TIMEOUT).expect("delivery");
            transport.close();
        });
    }
}

/// A sender has as much credit as the receiver has not taken, and gets it back.
pub fn a_full_window_refuses_until_messages_are_taken<M: Mesh>() {
    run_ranks(M::connect(2), |transport| {
        let rank = transport.rank();
        let mut transport = opened(transport, 1000);
        for round in 0..3 {
            if rank == 1 {
                let sent: Vec<bool> = (0..3).map(|_| send(&mut transport, 0, 1, vec![round; 400])).collect();
                assert_eq!(sent, [true, true, false], "round {round}");
                transport.flush_messages(&[0], LONG_TIMEOUT).expect("delivery");
                assert!(!send(&mut transport, 0, 1, vec![round; 400]), "it was received, but not taken");
                assert!(send(&mut transport, 0, 2, Vec::new()));
                receive(&mut transport, 0, 3).expect("an answer after the credit");
            } else {
                receive(&mut transport, 1, 2).expect("a message");
                (0..2).for_each(|_| assert_eq!(receive(&mut transport, 1, 1), Ok(vec![round; 400])));
                assert!(send(&mut transport, 1, 3, Vec::new()));
                transport.flush_messages(&[1], LONG_TIMEOUT).expect("delivery");
            }
        }
        assert_eq!(transport.messages().map(|messages| messages.counts().skipped), Some(6 * rank as u64));
        transport.flush_messages(&[1 - rank], LONG_TIMEOUT).expect("delivery");
        transport.close();
    });
}

/// A rank dies while one waits for a message of another.
pub fn a_death_ends_the_wait_for_a_message<M: Mesh>() {
    run_ranks(M::connect(3), |transport| {
        let rank = transport.rank();
        let mut transport = opened(transport, 1000);
        if rank == 1 {
            send(&mut transport, 0, 1, Vec::new());
            let _ = transport.flush_messages(&[0], LONG_TIMEOUT);
            return;
        }
        if rank == 0 {
            receive(&mut transport, 1, 1).expect("sent before the death");
        }
        let error = receive(&mut transport, 2 - rank, 2).expect_err("a rank has died");
        assert_eq!(error.peer, Some(1), "{error}");
        assert!(matches!(error.cause, Cause::Closed | Cause::Reported { .. }), "{error}");
    });
}

/// Messages received in full stay after their sender has died, and in the next generation.
pub fn what_arrived_before_a_death_is_handed_over<M: Mesh>() {
    run_ranks(M::connect(2), |transport| {
        let rank = transport.rank();
        let mut transport = opened(transport, 1000);
        if rank == 1 {
            assert!(send(&mut transport, 0, 1, vec![7; 900]));
            let _ = transport.flush_messages(&[0], LONG_TIMEOUT);
            return;
        }
        let error = receive(&mut transport, 1, 2).expect_err("it has died");
        assert_eq!(error.peer, Some(1), "{error}");
        let messages = transport.take_messages().expect("open messages");
        let mut messages = messages.resume(2, &[0]);
        assert_eq!(messages.take(Some(1), 0, 1).map(|message| message.bytes), Some(vec![7; 900]));
    });
}

/// A frame between messages: its payload, padded to a record, as if rank 1 had sent it.
fn stranger(kind: u32, first: u64, second: u64) -> Vec<u8> {
    let mut record = [0; 32];
    record[..4].copy_from_slice(&kind.to_le_bytes());
    record[16..24].copy_from_slice(&first.to_le_bytes());
    record[24..].copy_from_slice(&second.to_le_bytes());
    frame(0, &record)
}

fn frame(chunk: u32, payload: &[u8]) -> Vec<u8> {
    let tag = Tag { group: MESSAGES, tensor: tensor("messages"), ..tag(0) };
    [&Header::data(tag, chunk, payload).encode()[..], payload].concat()
}

/// Announcements beyond credit and out of sequence, acknowledgements of what was not sent, and frames that are no record:
/// the error names their sender, and they make no rank allocate memory.
pub fn strangers_between_messages_are_named<M: Mesh>() {
    let (message, grant) = (1, 2);
    for (bytes, what) in [
        (stranger(message, 5, 0), "message 5 came where number 0 was expected"),
        (stranger(message, 0, 1001), "longer than the window"),
        (stranger(message, 0, u64::MAX), "longer than the window"),
        ([stranger(message, 0, 0), stranger(message, 1, 1000)].concat(), "more than its credit"),
        (stranger(grant, 1, 0), "acknowledged 1 messages, of 0 sent"),
        (stranger(7, 0, 0), "unknown kind"),
        (frame(0, b"short"), "got generation 1"),
        (frame(3, &[0; 32]), "got generation 1"),
    ] {
        let (mut ranks, inject) = M::connect_with_injector(2);
        inject(1, 0, &bytes);
        let mut transport = opened(ranks.remove(0), 1000);
        let error = receive(&mut transport, 1, 1).expect_err("a stranger");
        assert_eq!(error.peer, Some(1), "{error}");
        assert!(matches!(&error.cause, Cause::Protocol(text) if text.contains(what)), "{error}");
    }
    let (mut ranks, _) = M::connect_with_injector(2);
    let mut transport = opened(ranks.remove(0), 1000);
    let wait = WaitState::new(transport.now(), Duration::from_millis(200));
    let error = transport.wait_for_message(wait, &[1], |messages| messages.take(None, 0, 1));
    assert_eq!(error.expect_err("a silent rank").peer, Some(1));
}
