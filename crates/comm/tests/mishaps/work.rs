//! What the ranks do, and whether it was right.

use super::scene::{DEADLINE, Scene, Work};
use thalweg_comm::collective::{Executor, Flight, Goal, Schedule, Sum};
use thalweg_comm::post::Post;
use thalweg_comm::transport::{Fault, Transport};
use thalweg_testkit::transport::tag;

const ROUNDS: u64 = 4;

/// Does the work of one rank; the fault that ended it. A wrong result is a panic.
pub fn perform<T: Transport>(scene: &Scene, mut transport: T) -> Option<Fault> {
    let transport = &mut transport;
    for round in 0..ROUNDS {
        let done = match scene.work {
            Work::AllReduce(_) | Work::Other(..) => collective(scene, transport, round),
            Work::InFlight(_) => in_flight(scene, transport, round),
            Work::Letters => letters(scene, transport, round),
        };
        if let Err(fault) = done {
            return Some(fault);
        }
    }
    transport.close();
    None
}

/// Ranks on two hosts, where that means something.
fn schedule(scene: &Scene, rank: usize) -> Schedule {
    let hosts: Vec<usize> = (0..scene.world).map(|rank| rank % 2).collect();
    match scene.work {
        Work::AllReduce(algorithm) | Work::InFlight(algorithm) => algorithm.all_reduce(rank, &hosts),
        Work::Other(goal, way) => (way.schedule)(goal.seat(rank, &hosts)),
        Work::Letters => Schedule::default(),
    }
}

/// What everybody holds after an operation to which each gave its rank and one.
fn expected(scene: &Scene, index: usize) -> f32 {
    match scene.work {
        Work::Other(Goal::Broadcast { root }, _) => (root + 1) as f32,
        Work::Other(..) => (index * scene.world / scene.length + 1) as f32,
        _ => (scene.world * (scene.world + 1) / 2) as f32,
    }
}

fn collective(scene: &Scene, transport: &mut dyn Transport, round: u64) -> Result<(), Fault> {
    let mut buffer = vec![(transport.rank() + 1) as f32; scene.length];
    let schedule = schedule(scene, transport.rank());
    Executor::new().run(&schedule, transport, tag(round), &mut buffer, &Sum, DEADLINE)?;
    check(scene, &buffer);
    Ok(())
}

fn in_flight(scene: &Scene, transport: &mut dyn Transport, round: u64) -> Result<(), Fault> {
    let mut buffer = vec![(transport.rank() + 1) as f32; scene.length];
    let (schedule, mut flight) = (schedule(scene, transport.rank()), Flight::new());
    let middle = scene.length / 3;
    flight.start::<f32>(&schedule, transport, tag(2 * round), 0..middle)?;
    flight.start::<f32>(&schedule, transport, tag(2 * round + 1), middle..scene.length)?;
    flight.finish(transport, &mut buffer, &Sum, DEADLINE)?;
    check(scene, &buffer);
    Ok(())
}

fn check(scene: &Scene, buffer: &[f32]) {
    let wrong = |(index, value): (usize, &f32)| *value != expected(scene, index);
    assert!(!buffer.iter().enumerate().any(wrong), "a wrong result of {:?}", scene.work);
}

/// One to each, then all read what they got.
fn letters(scene: &Scene, transport: &mut dyn Transport, round: u64) -> Result<(), Fault> {
    let (rank, world) = (transport.rank(), transport.world());
    let mut post = Post::new(world, 1, scene.length);
    for to in (0..world).filter(|&to| to != rank) {
        post.send(to, round as u32, vec![rank as u8; scene.length]);
        post.progress(transport)?;
    }
    post.drain(transport, DEADLINE)?;
    let letters: Vec<_> = std::iter::from_fn(|| post.take()).collect();
    let right = letters.iter().all(|letter| letter.bytes == vec![letter.from as u8; scene.length]);
    assert!(right && letters.len() == world - 1, "wrong or missing letters");
    Ok(())
}
