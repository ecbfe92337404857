//! Cases with groups of some ranks: several groups over the same connections, and a loss in one of them.

use super::{LONG_TIMEOUT, Mesh, run_ranks, tag};
use std::time::Duration;
use thalweg_comm::collective::operation::SEGMENT;
use thalweg_comm::collective::{
    Collective, Executor, Group, Max, NonblockingTransport, OperationId, Schedule, Sum,
};
use thalweg_comm::transport::{Cause, Tag, Transport, TransportError};

const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// Elements of the longest buffers: several segments of every chunk.
const LONG: usize = 3 * SEGMENT / 4;

fn nonblocking<T: Transport + 'static>(transport: T) -> NonblockingTransport {
    let boxed: Box<dyn Transport> = Box::new(transport);
    let mut transport = NonblockingTransport::from(boxed);
    transport.admit_groups();
    transport
}

/// This rank's schedule for a collective of its group.
fn schedule_of(group: &Group, collective: Collective, length: usize) -> Schedule {
    group.schedule(collective, 4 * length)
}

fn tag_of(group: &Group, operation: u64) -> Tag {
    Tag { group: group.id(), ..tag(operation) }
}

/// Two overlapping groups and the group of all ranks, with two concurrent operations each: every rank starts and
/// finishes them in an order of its own.
pub fn groups_overlap<M: Mesh>() {
    let collectives = [Collective::AllReduce, Collective::Broadcast { root: 2 }];
    for length in [5, LONG] {
        run_ranks(M::connect(5), |transport| {
            let (rank, mut transport) = (transport.rank(), nonblocking(transport));
            let groups = [
                Group::new("low", &[0, 1, 2, 3], rank),
                Group::new("high", &[4, 3, 2, 1], rank),
                Some(Group::world(rank, 5)),
            ];
            let mut groups: Vec<Group> = groups.into_iter().flatten().collect();
            let count = groups.len();
            groups.rotate_left(rank % count);
            let mut operations: Vec<(Group, Collective, OperationId<f32>)> = Vec::new();
            for (operation, collective) in collectives.into_iter().enumerate() {
                for group in &groups {
                    let schedule = schedule_of(group, collective, length);
                    let tag = tag_of(group, 1 + operation as u64);
                    let id = transport.start(&schedule, tag, vec![rank as f32; length], Sum);
                    operations.push((group.clone(), collective, id.expect("a start")));
                }
            }
            if rank % 2 == 0 {
                operations.reverse();
            }
            for (group, collective, id) in operations {
                let result =
                    transport.finish(id, LONG_TIMEOUT).expect("completion").expect("a known operation");
                let members = group.ranks();
                let expected = match collective {
                    Collective::AllReduce => members.iter().sum::<usize>(),
                    _ => members[2],
                };
                assert!(
                    result.iter().all(|value| *value == expected as f32),
                    "{collective:?} of {members:?}"
                );
            }
            transport.close();
        });
    }
}

/// Two ranks start operations of two groups and of all ranks; the third runs them one by one, in the opposite order.
pub fn early_frames_are_buffered<M: Mesh>() {
    run_ranks(M::connect(3), |transport| {
        let (rank, mut transport) = (transport.rank(), nonblocking(transport));
        let groups = [
            Group::new("pair", &[1, 2], rank),
            Group::new("all three", &[0, 1, 2], rank),
            Some(Group::world(rank, 3)),
        ];
        let mut groups: Vec<Group> = groups.into_iter().flatten().collect();
        let expect = |group: &Group| group.ranks().iter().max().map(|rank| *rank as u32);
        if rank < 2 {
            let start = |group: &Group| {
                let schedule = schedule_of(group, Collective::AllReduce, 1000);
                let id = transport.start(&schedule, tag_of(group, 1), vec![rank as u32; 1000], Max);
                (expect(group), id.expect("a start"))
            };
            let operations: Vec<_> = groups.iter().map(start).collect();
            for (largest, id) in operations {
                let result =
                    transport.finish(id, LONG_TIMEOUT).expect("completion").expect("a known operation");
                assert!(result.iter().all(|value| Some(*value) == largest));
            }
        } else {
            groups.reverse();
            for group in &groups {
                let (schedule, mut values) =
                    (schedule_of(group, Collective::AllReduce, 1000), vec![rank as u32; 1000]);
                Executor::new()
                    .run(&schedule, &mut transport, tag_of(group, 1), &mut values, &Max, LONG_TIMEOUT)
                    .expect("an all-reduce");
                assert!(values.iter().all(|value| Some(*value) == expect(group)));
            }
        }
        transport.close();
    });
}

/// Byte strings within a group, by group rank.
pub fn groups_gather_and_broadcast<M: Mesh>() {
    run_ranks(M::connect(4), |transport| {
        let (rank, mut transport) = (transport.rank(), nonblocking(transport));
        let members: &[usize] = if rank % 2 == 0 { &[0, 2] } else { &[1, 3] };
        let group = Group::new("half", members, rank).expect("a member");
        let mine = vec![rank as u8; rank];
        let all = group.all_gather(&mut transport, tag_of(&group, 1), &mine, LONG_TIMEOUT);
        assert_eq!(
            all.expect("a gather"),
            members.iter().map(|rank| vec![*rank as u8; *rank]).collect::<Vec<_>>()
        );
        let received = group.broadcast(&mut transport, tag_of(&group, 2), 1, mine, LONG_TIMEOUT);
        assert_eq!(received.expect("a broadcast"), vec![members[1] as u8; members[1]]);
        transport.close();
    });
}

/// Runs an all-reduce within a group.
fn all_reduce_in(
    group: &Group,
    transport: &mut dyn Transport,
    deadline: Duration,
) -> Result<(), TransportError> {
    let schedule = schedule_of(group, Collective::AllReduce, 100);
    Executor::new().run(&schedule, transport, tag_of(group, 1), &mut [1.0f32; 100], &Sum, deadline)
}

/// A member dies: its group names it by its rank, and so does a group that it does not belong to.
pub fn a_death_in_a_group_names_the_rank<M: Mesh>() {
    run_ranks(M::connect(5), |transport| {
        let (rank, mut transport) = (transport.rank(), nonblocking(transport));
        let members: &[usize] = if rank % 2 == 0 { &[0, 2, 4] } else { &[1, 3] };
        let group = Group::new("half", members, rank).expect("a member");
        if rank == 3 {
            return;
        }
        // The even ranks never complete either: rank 4 runs an operation of all ranks instead.
        let schedule = schedule_of(&group, Collective::AllReduce, 100);
        let early =
            (rank == 2).then(|| transport.start(&schedule, tag_of(&group, 1), vec![1.0f32; 100], Sum));
        let error = match (rank, early) {
            (4, _) => all_reduce_in(&Group::world(rank, 5), &mut transport, LONG_TIMEOUT),
            (_, Some(Ok(id))) => transport.finish(id, LONG_TIMEOUT).map(|_| ()),
            (_, Some(Err(error))) => Err(error),
            _ => all_reduce_in(&group, &mut transport, LONG_TIMEOUT),
        };
        let error = error.expect_err("a rank has died");
        assert_eq!(error.peer, Some(3), "rank {rank}: {error}");
        assert!(matches!(error.cause, Cause::Closed | Cause::Reported { .. }), "{error}");
    });
}

/// Only the member that does not enter is named, although operations of another group are incomplete, too.
pub fn the_silent_member_is_named<M: Mesh>() {
    let mut ranks = M::connect(4);
    let idle: Vec<_> = ranks.drain(2..).collect();
    run_ranks(ranks, |transport| {
        let (rank, mut transport) = (transport.rank(), nonblocking(transport));
        let waiting = Group::new("waiting", &[0, 1, 2], rank).expect("a member");
        let schedule = schedule_of(&waiting, Collective::AllReduce, 100);
        transport.start(&schedule, tag_of(&waiting, 1), vec![1.0f32; 100], Sum).expect("a start");
        let group = Group::new("late", &[rank, 3], rank).expect("a member");
        let error = all_reduce_in(&group, &mut transport, SHORT_TIMEOUT).expect_err("rank 3 does not enter");
        assert_eq!((error.peer, &error.suspects[..]), (Some(3), &[3][..]), "{error}");
    });
    drop(idle);
}
