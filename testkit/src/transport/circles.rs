//! Cases with groups of some ranks: several of them at work over the same connections, and one of them with a loss.

use super::{Mesh, PLENTY, each, tag};
use std::time::Duration;
use thalweg_comm::collective::operation::SEGMENT;
use thalweg_comm::collective::{Circle, Executor, Goal, Max, Schedule, Sum, Ticket, Underway};
use thalweg_comm::transport::{Cause, Fault, Tag, Transport};

/// A deadline short enough for a test.
const SHORT: Duration = Duration::from_millis(200);

/// Elements of the longest buffers: several segments of every chunk.
const LONG: usize = 3 * SEGMENT / 4;

fn underway<T: Transport + 'static>(transport: T) -> Underway {
    let boxed: Box<dyn Transport> = Box::new(transport);
    let mut underway = Underway::from(boxed);
    underway.admit_groups();
    underway
}

/// The part of a member in a collective of its circle.
fn plan(circle: &Circle, goal: Goal, length: usize) -> Schedule {
    circle.schedule(goal, 4 * length)
}

fn tag_of(circle: &Circle, operation: u64) -> Tag {
    Tag { group: circle.number(), ..tag(operation) }
}

/// Two circles that overlap, and all ranks, with two operations each under way at once: every rank starts and finishes
/// them in an order of its own.
pub fn circles_overlap<M: Mesh>() {
    let goals = [Goal::AllReduce, Goal::Broadcast { root: 2 }];
    for length in [5, LONG] {
        each(M::connect(5), |transport| {
            let (rank, mut underway) = (transport.rank(), underway(transport));
            let circles = [
                Circle::new("low", &[0, 1, 2, 3], rank),
                Circle::new("high", &[4, 3, 2, 1], rank),
                Some(Circle::everybody(rank, 5)),
            ];
            let mut circles: Vec<Circle> = circles.into_iter().flatten().collect();
            let count = circles.len();
            circles.rotate_left(rank % count);
            let mut tickets: Vec<(Circle, Goal, Ticket<f32>)> = Vec::new();
            for (operation, goal) in goals.into_iter().enumerate() {
                for circle in &circles {
                    let schedule = plan(circle, goal, length);
                    let tag = tag_of(circle, 1 + operation as u64);
                    let ticket = underway.start(&schedule, tag, vec![rank as f32; length], Sum);
                    tickets.push((circle.clone(), goal, ticket.expect("a start")));
                }
            }
            if rank % 2 == 0 {
                tickets.reverse();
            }
            for (circle, goal, ticket) in tickets {
                let result = underway.finish(ticket, PLENTY).expect("an end").expect("one of its own");
                let members = circle.ranks();
                let expected = match goal {
                    Goal::AllReduce => members.iter().sum::<usize>(),
                    _ => members[2],
                };
                assert!(result.iter().all(|value| *value == expected as f32), "{goal:?} of {members:?}");
            }
            underway.close();
        });
    }
}

/// One rank starts operations of two circles and of all; another waits for them one by one, in the opposite order.
pub fn what_comes_too_early_is_put_aside<M: Mesh>() {
    each(M::connect(3), |transport| {
        let (rank, mut underway) = (transport.rank(), underway(transport));
        let circles = [
            Circle::new("pair", &[1, 2], rank),
            Circle::new("all three", &[0, 1, 2], rank),
            Some(Circle::everybody(rank, 3)),
        ];
        let mut circles: Vec<Circle> = circles.into_iter().flatten().collect();
        let expect = |circle: &Circle| circle.ranks().iter().max().map(|rank| *rank as u32);
        if rank < 2 {
            let start = |circle: &Circle| {
                let schedule = plan(circle, Goal::AllReduce, 1000);
                let ticket = underway.start(&schedule, tag_of(circle, 1), vec![rank as u32; 1000], Max);
                (expect(circle), ticket.expect("a start"))
            };
            let tickets: Vec<_> = circles.iter().map(start).collect();
            for (largest, ticket) in tickets {
                let result = underway.finish(ticket, PLENTY).expect("an end").expect("one of its own");
                assert!(result.iter().all(|value| Some(*value) == largest));
            }
        } else {
            circles.reverse();
            for circle in &circles {
                let (schedule, mut values) = (plan(circle, Goal::AllReduce, 1000), vec![rank as u32; 1000]);
                Executor::new()
                    .run(&schedule, &mut underway, tag_of(circle, 1), &mut values, &Max, PLENTY)
                    .expect("an all-reduce");
                assert!(values.iter().all(|value| Some(*value) == expect(circle)));
            }
        }
        underway.close();
    });
}

/// Byte strings among the members, who are known by their places.
pub fn circles_gather_and_tell<M: Mesh>() {
    each(M::connect(4), |transport| {
        let (rank, mut underway) = (transport.rank(), underway(transport));
        let members: &[usize] = if rank % 2 == 0 { &[0, 2] } else { &[1, 3] };
        let circle = Circle::new("half", members, rank).expect("a member");
        let mine = vec![rank as u8; rank];
        let all = circle.all_gather(&mut underway, tag_of(&circle, 1), &mine, PLENTY);
        assert_eq!(
            all.expect("a gather"),
            members.iter().map(|rank| vec![*rank as u8; *rank]).collect::<Vec<_>>()
        );
        let told = circle.broadcast(&mut underway, tag_of(&circle, 2), 1, mine, PLENTY);
        assert_eq!(told.expect("a broadcast"), vec![members[1] as u8; members[1]]);
        underway.close();
    });
}

/// Runs an all-reduce among members.
fn sum_among(circle: &Circle, transport: &mut dyn Transport, deadline: Duration) -> Result<(), Fault> {
    let schedule = plan(circle, Goal::AllReduce, 100);
    Executor::new().run(&schedule, transport, tag_of(circle, 1), &mut [1.0f32; 100], &Sum, deadline)
}

/// A member dies: its circle names it by its rank, and so does one that it does not belong to.
pub fn a_death_in_a_circle_names_the_rank<M: Mesh>() {
    each(M::connect(5), |transport| {
        let (rank, mut underway) = (transport.rank(), underway(transport));
        let members: &[usize] = if rank % 2 == 0 { &[0, 2, 4] } else { &[1, 3] };
        let circle = Circle::new("half", members, rank).expect("a member");
        if rank == 3 {
            return;
        }
        // The even ones are never through: one more member than there are.
        let schedule = plan(&circle, Goal::AllReduce, 100);
        let early =
            (rank == 2).then(|| underway.start(&schedule, tag_of(&circle, 1), vec![1.0f32; 100], Sum));
        let fault = match (rank, early) {
            (4, _) => sum_among(&Circle::everybody(rank, 5), &mut underway, PLENTY),
            (_, Some(Ok(ticket))) => underway.finish(ticket, PLENTY).map(|_| ()),
            (_, Some(Err(fault))) => Err(fault),
            _ => sum_among(&circle, &mut underway, PLENTY),
        };
        let fault = fault.expect_err("one has died");
        assert_eq!(fault.peer, Some(3), "rank {rank}: {fault}");
        assert!(matches!(fault.cause, Cause::Closed | Cause::Reported { .. }), "{fault}");
    });
}

/// A member that does not come is named, and nobody else, though operations of another circle are open, too.
pub fn the_silent_member_is_named<M: Mesh>() {
    let mut ranks = M::connect(4);
    let idle: Vec<_> = ranks.drain(2..).collect();
    each(ranks, |transport| {
        let (rank, mut underway) = (transport.rank(), underway(transport));
        let waiting = Circle::new("waiting", &[0, 1, 2], rank).expect("a member");
        let schedule = plan(&waiting, Goal::AllReduce, 100);
        underway.start(&schedule, tag_of(&waiting, 1), vec![1.0f32; 100], Sum).expect("a start");
        let circle = Circle::new("late", &[rank, 3], rank).expect("a member");
        let fault = sum_among(&circle, &mut underway, SHORT).expect_err("nobody comes");
        assert_eq!((fault.peer, &fault.suspects[..]), (Some(3), &[3][..]), "{fault}");
    });
    drop(idle);
}
