//! Cases without faults.

use super::{LONG_TIMEOUT, Mesh, run_collective, run_ranks, tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg_comm::collective::operation::SEGMENT;
use thalweg_comm::collective::{
    Algorithm, BlockingOperation, BucketSet, Collective, Executor, Group, Max, Min, Operator, Sum, all_gather,
};
use thalweg_comm::transport::{Incoming, Outgoing, Tag, Transport};
use thalweg_comm::wire::HEADER;

/// Several chunks between two ranks, of all sizes including empty, arrive in the order of the list.
pub fn chunks_travel_in_order<M: Mesh>() {
    let sizes = [3usize, 0, 100_000, 1, 0, 70_000];
    let contents = |rank: usize, chunk: usize| vec![(rank * 16 + chunk) as u8; sizes[chunk]];
    run_ranks(M::connect(3), |mut transport| {
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
        transport.transfer(tag(1), &sends, &mut receives, LONG_TIMEOUT).expect("a transfer");
        for (from, chunks) in others.iter().zip(&theirs) {
            for (chunk, bytes) in chunks.iter().enumerate() {
                assert_eq!(*bytes, contents(*from, chunk));
            }
        }
        transport.close();
    });
}

/// Two ranks concurrently send each other more than any socket buffer holds: it completes only if both also receive.
pub fn large_chunks_in_both_directions<M: Mesh>() {
    const LENGTH: usize = 8 << 20;
    run_ranks(M::connect(2), |mut transport| {
        let (rank, peer) = (transport.rank(), 1 - transport.rank());
        let mine: Vec<u8> = (0..LENGTH).map(|index| (index * 7 + rank) as u8).collect();
        let mut theirs = vec![0; LENGTH];
        let sends = [Outgoing { to: peer, chunk: 0, bytes: &mine }];
        let mut receives = [Incoming { from: peer, chunk: 0, bytes: &mut theirs }];
        transport.transfer(tag(1), &sends, &mut receives, LONG_TIMEOUT).expect("a transfer");
        assert!(theirs.iter().enumerate().all(|(index, &byte)| byte == (index * 7 + peer) as u8));
        transport.close();
    });
}

/// An element of a rank's buffer: small integers, so that sums are exact in any order.
fn element(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 7) % 101) as f32 - 50.0
}

/// Three ranks per host.
fn hosts(world: usize) -> Vec<usize> {
    (0..world).map(|rank| rank / 3).collect()
}

/// Every algorithm on 1 to 9 ranks with empty buffers, buffers shorter than the world and lengths that do not divide.
pub fn all_reduce_on_odd_worlds_and_lengths<M: Mesh>() {
    for world in 1..=9 {
        run_ranks(M::connect(world), |mut transport| {
            let rank = transport.rank();
            let mut executor = Executor::new();
            let mut operation = 0;
            for algorithm in Algorithm::ALL {
                let schedule = algorithm.all_reduce(rank, &hosts(world));
                for length in [0, 1, 2, world - 1, world, 3 * world + 1, 5000] {
                    operation += 1;
                    let mut buffer: Vec<f32> = (0..length).map(|index| element(rank, index)).collect();
                    executor
                        .run(&schedule, &mut transport, tag(operation), &mut buffer, &Sum, LONG_TIMEOUT)
                        .expect("an all-reduce");
                    for (index, sum) in buffer.iter().enumerate() {
                        let expected: f32 = (0..world).map(|rank| element(rank, index)).sum();
                        assert_eq!(*sum, expected, "{algorithm:?}, {world} ranks, {length}, index {index}");
                    }
                }
            }
            transport.close();
        });
    }
}

/// Buffers of many segments, so that steps overlap.
pub fn long_buffers_are_pipelined<M: Mesh>() {
    for world in [2, 3, 4] {
        let length = world * SEGMENT / 4 + 7;
        run_ranks(M::connect(world), |mut transport| {
            let rank = transport.rank();
            let mut executor = Executor::new();
            for (operation, algorithm) in Algorithm::ALL.into_iter().enumerate() {
                let schedule = algorithm.all_reduce(rank, &hosts(world));
                let mut buffer: Vec<f32> = (0..length).map(|index| element(rank, index)).collect();
                executor
                    .run(&schedule, &mut transport, tag(operation as u64), &mut buffer, &Sum, LONG_TIMEOUT)
                    .expect("an all-reduce");
                let sum = |index: usize| (0..world).map(|rank| element(rank, index)).sum::<f32>();
                assert!((0..length).all(|index| buffer[index] == sum(index)), "{algorithm:?}, {world} ranks");
            }
            transport.close();
        });
    }
}

/// The same input gives the same bits on every rank and in every run, also where the order of additions matters.
pub fn repeats_are_bit_identical<M: Mesh>() {
    for algorithm in Algorithm::ALL {
        let sum = || {
            run_ranks(M::connect(5), |mut transport| {
                let rank = transport.rank();
                let mut buffer: Vec<f32> =
                    (0..1003).map(|index| (index as f32 + 0.1).powi(rank as i32 - 2)).collect();
                let schedule = algorithm.all_reduce(rank, &hosts(5));
                Executor::new()
                    .run(&schedule, &mut transport, tag(1), &mut buffer, &Sum, LONG_TIMEOUT)
                    .expect("an all-reduce");
                transport.close();
                buffer.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            })
        };
        let first = sum();
        assert!(first.iter().all(|bits| *bits == first[0]), "{algorithm:?}: ranks differ");
        assert_eq!(first, sum(), "{algorithm:?}: repeats differ");
    }
}

/// The payload is the cost that the algorithm states; the rest is one header per frame.
pub fn traffic_equals_the_stated_cost<M: Mesh>() {
    for (world, length) in [(1, 100), (2, 1000), (3, 1000), (4, 4096), (7, 5)] {
        for algorithm in Algorithm::ALL {
            run_ranks(M::connect(world), |mut transport| {
                let rank = transport.rank();
                let schedule = algorithm.all_reduce(rank, &hosts(world));
                let mut buffer = vec![1.0f32; length];
                Executor::new()
                    .run(&schedule, &mut transport, tag(1), &mut buffer, &Sum, LONG_TIMEOUT)
                    .expect("an all-reduce");
                let traffic = transport.traffic();
                let cost = algorithm.all_reduce_cost(rank, &hosts(world), length, 4);
                let headers = |count: usize| (count * HEADER) as u64;
                let sends = schedule.steps.iter().map(|step| step.sends.len()).sum();
                let receives = schedule.steps.iter().map(|step| step.receives.len()).sum();
                assert_eq!(traffic.payload_sent, cost.bytes_sent);
                assert_eq!(traffic.payload_received, cost.bytes_received);
                assert_eq!(traffic.total_sent, cost.bytes_sent + headers(sends));
                assert_eq!(traffic.total_received, cost.bytes_received + headers(receives));
                transport.close();
            });
        }
    }
}

/// Several concurrent all-reduces over ranges of one buffer: ranks start and progress them at different times, with
/// every algorithm, some over many segments, and run a blocking operation in between.
pub fn concurrent_operations<M: Mesh>() {
    let world = 3;
    let bounds = [0, 10, 10, 5000, 5001 + SEGMENT / 4, 6000 + SEGMENT / 4];
    run_ranks(M::connect(world), |mut transport| {
        let rank = transport.rank();
        let mut buckets = BucketSet::new();
        for (round, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let schedule = algorithm.all_reduce(rank, &hosts(world));
            let mut buffer: Vec<f32> = (0..bounds[5]).map(|index| element(rank, index)).collect();
            for (bucket, pair) in bounds.windows(2).enumerate() {
                let operation = (round * 10 + bucket) as u64;
                buckets
                    .start::<f32>(&schedule, &transport, tag(operation), pair[0]..pair[1])
                    .expect("a start");
                for _ in 0..rank * 3 {
                    buckets.progress(&mut transport, &mut buffer, &Sum).expect("progress");
                }
                if bucket == 2 {
                    let mut values = [rank as f32; 7];
                    let blocking = BlockingOperation {
                        schedule: &schedule,
                        tag: tag((round * 10 + 9) as u64),
                        values: &mut values,
                    };
                    buckets
                        .run_blocking(&mut transport, &mut buffer, blocking, &Sum, LONG_TIMEOUT)
                        .expect("a blocking operation");
                    assert_eq!(values, [3.0; 7], "{algorithm:?}");
                }
            }
            buckets.finish(&mut transport, &mut buffer, &Sum, LONG_TIMEOUT).expect("completion");
            for (index, sum) in buffer.iter().enumerate() {
                let expected: f32 = (0..world).map(|rank| element(rank, index)).sum();
                assert_eq!(*sum, expected, "{algorithm:?}, index {index}");
            }
        }
        transport.close();
    });
}

/// An operator and its scalar function.
type Reduction<'a> = (&'a dyn Operator<f64>, fn(f64, f64) -> f64);

/// Other element types and operators.
pub fn other_elements_and_operators<M: Mesh>() {
    let world = 5;
    run_ranks(M::connect(world), |mut transport| {
        let rank = transport.rank();
        let mut executor = Executor::new();
        let mut operation = 0;
        for algorithm in Algorithm::ALL {
            let schedule = algorithm.all_reduce(rank, &hosts(world));
            let number = |rank: usize, index: usize| f64::from(element(rank, index));
            let operators: [Reduction<'_>; 3] = [(&Sum, |a, b| a + b), (&Min, f64::min), (&Max, f64::max)];
            for (operator, combined) in operators {
                operation += 1;
                let mut buffer: Vec<f64> = (0..77).map(|index| number(rank, index)).collect();
                executor
                    .run(&schedule, &mut transport, tag(operation), &mut buffer, operator, LONG_TIMEOUT)
                    .expect("an all-reduce");
                let expected = |index: usize| (0..world).map(|rank| number(rank, index)).reduce(combined);
                assert!((0..77).all(|index| Some(buffer[index]) == expected(index)), "{algorithm:?}");
            }
            operation += 1;
            let either = |mine: &mut [u8], arrived: &[u8]| {
                mine.iter_mut().zip(arrived).for_each(|(mine, arrived)| *mine |= arrived);
            };
            let mut flags = [1u8 << rank, 0, 128];
            executor
                .run(&schedule, &mut transport, tag(operation), &mut flags, &either, LONG_TIMEOUT)
                .expect("an all-reduce");
            assert_eq!(flags, [31, 0, 128]);
        }
        transport.close();
    });
}

/// Every algorithm of every other collective, on 1 to 9 ranks: one per host, two per host, or alternating on two
/// hosts.
pub fn other_collectives<M: Mesh>() {
    let placements: [fn(usize) -> usize; 3] = [|rank| rank, |rank| rank / 2, |rank| rank % 2];
    for world in 1..=9 {
        run_ranks(M::connect(world), |mut transport| {
            let (rank, mut executor, mut operation) = (transport.rank(), Executor::new(), 0);
            for kind in collectives(world) {
                for (algorithm, placement) in
                    kind.algorithms().iter().flat_map(|algorithm| placements.map(|host| (algorithm, host)))
                {
                    let hosts: Vec<usize> = (0..world).map(placement).collect();
                    let schedule = (algorithm.schedule)(kind.rank_view(rank, &hosts));
                    let mut buffer: Vec<i32> = (0..world).map(|chunk| number(rank, chunk)).collect();
                    operation += 1;
                    executor
                        .run(&schedule, &mut transport, tag(operation), &mut buffer, &Sum, LONG_TIMEOUT)
                        .expect("a run");
                    check_numbers(kind, rank, world, &buffer, algorithm.name);
                }
            }
            transport.close();
        });
    }
}

/// All collectives with every root, except the all-reduce, which has cases of its own.
fn collectives(world: usize) -> impl Iterator<Item = Collective> {
    let rooted = (0..world).flat_map(|root| [Collective::Broadcast { root }, Collective::Reduce { root }]);
    rooted.chain([
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Barrier,
    ])
}

/// The input of a rank in a chunk of one element.
pub fn number(rank: usize, chunk: usize) -> i32 {
    1000 * rank as i32 + chunk as i32 + 1
}

/// Asserts the result of a rank for inputs of [`number`].
pub fn check_numbers(kind: Collective, rank: usize, world: usize, buffer: &[i32], about: &str) {
    let sum = |chunk: usize| (0..world).map(|of| number(of, chunk)).sum::<i32>();
    for (chunk, value) in buffer.iter().enumerate() {
        let expected = match kind {
            Collective::AllReduce => sum(chunk),
            Collective::Reduce { root } if rank == root % world => sum(chunk),
            Collective::Broadcast { root } => number(root % world, chunk),
            Collective::ReduceScatter if chunk == rank => sum(chunk),
            Collective::AllGather => number(chunk, chunk),
            Collective::AllToAll => number(chunk, rank),
            _ => continue,
        };
        assert_eq!(*value, expected, "{kind:?} by {about}, rank {rank} of {world}, chunk {chunk}");
    }
}

/// Byte strings of different lengths, including empty, reach every rank in the order of the ranks.
pub fn all_gather_of_different_lengths<M: Mesh>() {
    for world in 1..=9 {
        let text = |rank: usize| vec![rank as u8; rank * rank * 50];
        run_ranks(M::connect(world), |mut transport| {
            let mine = text(transport.rank());
            let all = all_gather(&mut transport, tag(1), &mine, LONG_TIMEOUT).expect("a gather");
            assert_eq!(all, (0..world).map(text).collect::<Vec<_>>());
            transport.close();
        });
    }
}

/// Byte strings of different lengths, including empty, reach the rank they are for, among all ranks and in a group.
pub fn all_to_all_of_different_lengths<M: Mesh>() {
    let piece = |from: usize, to: usize| vec![(10 * from + to) as u8; (from * 7 + to * 300) % 1000 * to];
    for world in 1..=6 {
        run_ranks(M::connect(world), |mut transport| {
            let rank = transport.rank();
            let exchange = |transport: &mut M::Transport, group: &Group, operation| {
                let mine: Vec<Vec<u8>> = group.ranks().iter().map(|to| piece(rank, *to)).collect();
                let mine: Vec<&[u8]> = mine.iter().map(|piece| &piece[..]).collect();
                let tag = Tag { group: group.id(), ..tag(operation) };
                let all = group.all_to_all(transport, tag, &mine, LONG_TIMEOUT).expect("an exchange");
                let expected = group.ranks().iter().map(|from| piece(*from, rank));
                assert_eq!(all, expected.collect::<Vec<_>>());
            };
            exchange(&mut transport, &Group::world(rank, world), 1);
            let odd: Vec<usize> = (0..world).filter(|other| other % 2 == 1).collect();
            if let Some(group) = Group::new("odd", &odd, rank) {
                exchange(&mut transport, &group, 2);
            }
            transport.close();
        });
    }
}

/// Every rank can be the root, for byte strings and for buffers.
pub fn broadcast_from_every_root<M: Mesh>() {
    for world in 1..=5 {
        run_ranks(M::connect(world), |mut transport| {
            let rank = transport.rank();
            for root in 0..world {
                let operation = 2 * root as u64;
                let (world_group, mine) = (Group::world(rank, world), vec![rank as u8; rank]);
                let got = world_group.broadcast(&mut transport, tag(operation), root, mine, LONG_TIMEOUT);
                assert_eq!(got.expect("a broadcast"), vec![root as u8; root]);
                let mut buffer = vec![rank as u8; 1000 * root];
                run_collective(
                    &mut transport,
                    tag(operation + 1),
                    Collective::Broadcast { root },
                    &mut buffer,
                )
                .expect("a broadcast");
                assert!(buffer.iter().all(|&byte| byte == root as u8));
            }
            transport.close();
        });
    }
}

/// No rank leaves a barrier before all have entered it.
pub fn barrier_waits_for_all<M: Mesh>() {
    for world in 1..=9 {
        let arrived = AtomicUsize::new(0);
        run_ranks(M::connect(world), |mut transport| {
            for round in 1..=10 {
                arrived.fetch_add(1, Ordering::SeqCst);
                run_collective(&mut transport, tag(round as u64), Collective::Barrier, &mut [0u8])
                    .expect("a barrier");
                assert!(arrived.load(Ordering::SeqCst) >= round * world);
            }
            transport.close();
        });
    }
}
