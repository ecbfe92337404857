//! Cases in which nothing goes wrong.

use super::{Mesh, PLENTY, each, tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg_comm::collective::{Executor, all_gather, barrier, broadcast, broadcast_into, ring};
use thalweg_comm::transport::{Incoming, Outgoing, Transport};
use thalweg_comm::wire::HEADER;

/// Several chunks between the same two ranks, of all sizes, empty ones included, arrive in the order of the list.
pub fn chunks_travel_in_order<M: Mesh>() {
    let sizes = [3usize, 0, 100_000, 1, 0, 70_000];
    let contents = |rank: usize, chunk: usize| vec![(rank * 16 + chunk) as u8; sizes[chunk]];
    each(M::connect(3), |mut transport| {
        let rank = transport.rank();
        let others: Vec<usize> = (0..3).filter(|&peer| peer != rank).collect();
        let mine: Vec<Vec<u8>> = (0..sizes.len()).map(|chunk| contents(rank, chunk)).collect();
        let mut theirs: Vec<Vec<Vec<u8>>> = vec![sizes.iter().map(|&size| vec![0; size]).collect(); 2];
        let send = |to: usize, chunk: usize| Outgoing { to, chunk: chunk as u32, bytes: &mine[chunk] };
        let sends: Vec<Outgoing<'_>> = (0..sizes.len())
            .flat_map(|chunk| others.iter().map(move |&to| (to, chunk)))
            .map(|(to, chunk)| send(to, chunk))
            .collect();
        let mut receives = Vec::new();
        for (&from, chunks) in others.iter().zip(&mut theirs) {
            for (chunk, bytes) in chunks.iter_mut().enumerate() {
                receives.push(Incoming { from, chunk: chunk as u32, bytes });
            }
        }
        transport.transfer(tag(1), &sends, &mut receives, PLENTY).expect("a transfer");
        for (from, chunks) in others.iter().zip(&theirs) {
            for (chunk, bytes) in chunks.iter().enumerate() {
                assert_eq!(*bytes, contents(*from, chunk));
            }
        }
        transport.close();
    });
}

/// Two ranks send each other more than any socket buffer holds, at once: it ends only if both also receive.
pub fn large_chunks_pass_each_other<M: Mesh>() {
    const LENGTH: usize = 8 << 20;
    each(M::connect(2), |mut transport| {
        let (rank, peer) = (transport.rank(), 1 - transport.rank());
        let mine: Vec<u8> = (0..LENGTH).map(|index| (index * 7 + rank) as u8).collect();
        let mut theirs = vec![0; LENGTH];
        let sends = [Outgoing { to: peer, chunk: 0, bytes: &mine }];
        let mut receives = [Incoming { from: peer, chunk: 0, bytes: &mut theirs }];
        transport.transfer(tag(1), &sends, &mut receives, PLENTY).expect("a transfer");
        assert!(theirs.iter().enumerate().all(|(index, &byte)| byte == (index * 7 + peer) as u8));
        transport.close();
    });
}

/// The element of a rank's buffer; small whole numbers, so that sums are exact in any order.
fn element(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 7) % 101) as f32 - 50.0
}

/// The ring on 1 to 9 ranks with empty buffers, buffers shorter than the world and ragged ones.
pub fn all_reduce_on_odd_worlds_and_lengths<M: Mesh>() {
    for world in 1..=9 {
        each(M::connect(world), |mut transport| {
            let rank = transport.rank();
            let schedule = ring::all_reduce(rank, world);
            let mut executor = Executor::new();
            for (operation, length) in
                [0, 1, 2, world - 1, world, 3 * world + 1, 5000].into_iter().enumerate()
            {
                let mut buffer: Vec<f32> = (0..length).map(|index| element(rank, index)).collect();
                executor
                    .run(&schedule, &mut transport, tag(operation as u64), &mut buffer, PLENTY)
                    .expect("an all-reduce");
                for (index, sum) in buffer.iter().enumerate() {
                    let expected: f32 = (0..world).map(|rank| element(rank, index)).sum();
                    assert_eq!(*sum, expected, "world {world}, length {length}, index {index}");
                }
            }
            transport.close();
        });
    }
}

/// The same input gives the same bits on every rank and on every repeat, also where the order of additions matters.
pub fn repeats_are_bit_identical<M: Mesh>() {
    let sum = || {
        each(M::connect(5), |mut transport| {
            let rank = transport.rank();
            let mut buffer: Vec<f32> =
                (0..1003).map(|index| (index as f32 + 0.1).powi(rank as i32 - 2)).collect();
            let schedule = ring::all_reduce(rank, 5);
            Executor::new()
                .run(&schedule, &mut transport, tag(1), &mut buffer, PLENTY)
                .expect("an all-reduce");
            transport.close();
            buffer.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        })
    };
    let first = sum();
    assert!(first.iter().all(|bits| *bits == first[0]), "ranks differ");
    assert_eq!(first, sum(), "repeats differ");
}

/// Payload is what the algorithm states, the rest is one header per message.
pub fn counters_equal_theory<M: Mesh>() {
    for (world, length) in [(1, 100), (2, 1000), (3, 1000), (4, 4096), (7, 5)] {
        each(M::connect(world), |mut transport| {
            let rank = transport.rank();
            let schedule = ring::all_reduce(rank, world);
            let mut buffer = vec![1.0; length];
            Executor::new()
                .run(&schedule, &mut transport, tag(1), &mut buffer, PLENTY)
                .expect("an all-reduce");
            let (traffic, cost) = (transport.traffic(), ring::cost(rank, world, length, 4));
            let headers = cost.steps * HEADER as u64;
            assert_eq!(traffic.payload_sent, cost.bytes_sent);
            assert_eq!(traffic.payload_received, cost.bytes_received);
            assert_eq!(traffic.total_sent, cost.bytes_sent + headers);
            assert_eq!(traffic.total_received, cost.bytes_received + headers);
            transport.close();
        });
    }
}

/// Byte strings of every length, the empty one included, reach every rank in the order of the ranks.
pub fn ragged_gather<M: Mesh>() {
    for world in 1..=9 {
        let text = |rank: usize| vec![rank as u8; rank * rank * 50];
        each(M::connect(world), |mut transport| {
            let mine = text(transport.rank());
            let all = all_gather(&mut transport, tag(1), &mine, PLENTY).expect("a gather");
            assert_eq!(all, (0..world).map(text).collect::<Vec<_>>());
            transport.close();
        });
    }
}

/// Every rank can be the root; both kinds of broadcast.
pub fn broadcast_from_every_root<M: Mesh>() {
    for world in 1..=5 {
        each(M::connect(world), |mut transport| {
            let rank = transport.rank();
            for root in 0..world {
                let operation = 2 * root as u64;
                let got = broadcast(&mut transport, tag(operation), root, vec![rank as u8; rank], PLENTY);
                assert_eq!(got.expect("a broadcast"), vec![root as u8; root]);
                let mut buffer = vec![rank as u8; 1000 * root];
                broadcast_into(&mut transport, tag(operation + 1), root, &mut buffer, PLENTY)
                    .expect("a broadcast");
                assert!(buffer.iter().all(|&byte| byte == root as u8));
            }
            transport.close();
        });
    }
}

/// No rank is through a barrier before all have come to it.
pub fn barrier_waits_for_all<M: Mesh>() {
    for world in 1..=9 {
        let arrived = AtomicUsize::new(0);
        each(M::connect(world), |mut transport| {
            for round in 1..=10 {
                arrived.fetch_add(1, Ordering::SeqCst);
                barrier(&mut transport, tag(round as u64), PLENTY).expect("a barrier");
                assert!(arrived.load(Ordering::SeqCst) >= round * world);
            }
            transport.close();
        });
    }
}
