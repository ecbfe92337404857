//! The same on threads, in real time: a saboteur watches how many bytes were sent and strikes in the midst of them.

use super::judge::Outcome;
use super::scene::{Scene, is_long};
use super::work::perform;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_comm::transport::sim::Kind;
use thalweg_comm::transport::{Links, Transport, mesh};
use thalweg_testkit::transport::{each, tag};

/// Runs a scene twice: undisturbed, to know how many bytes it sends, then with what goes wrong.
pub fn run(scene: &Scene, _seed: u64) -> Outcome {
    let ranks = mesh(scene.world);
    let links = ranks[0].links();
    let ended = each(ranks, |transport| perform(scene, transport));
    assert!(ended.iter().all(Option::is_none), "nothing went wrong, but {ended:?}");
    let total = links.carried();

    let ranks = mesh(scene.world);
    let links = ranks[0].links();
    links.hold_at(moment(scene, 0, total));
    let done: Vec<AtomicBool> = (0..scene.world).map(|_| AtomicBool::new(false)).collect();
    let (struck, ended) = std::thread::scope(|scope| {
        let saboteur = scope.spawn(|| sabotage(scene, &links, total, &done));
        let ended = each(ranks, |transport| {
            let rank = transport.rank();
            let fault = perform(scene, transport);
            done[rank].store(true, Ordering::Release);
            fault
        });
        (saboteur.join().expect("the saboteur"), ended)
    });
    Outcome { struck, ended }
}

/// The bytes that all ranks have sent when something goes wrong.
fn moment(scene: &Scene, index: usize, total: u64) -> u64 {
    scene.mishaps.get(index).map_or(u64::MAX, |mishap| (total as f64 * mishap.at.as_secs_f64()) as u64)
}

/// Strikes when so many bytes were sent, or when nothing is sent any more; lets stopped ranks go on when all others are
/// done. What it struck.
fn sabotage(scene: &Scene, links: &Links, total: u64, done: &[AtomicBool]) -> Vec<Kind> {
    let is_done = |rank: usize| done[rank].load(Ordering::Acquire);
    let all_done = || (0..scene.world).all(is_done);
    let (mut struck, mut stopped) = (Vec::new(), Vec::new());
    for (index, mishap) in scene.mishaps.iter().enumerate() {
        let moment = moment(scene, index, total);
        links.hold_at(moment);
        let (mut carried, mut idle) = (links.carried(), 0);
        // Where a rank stands still, nothing is sent: so many looks without a byte count as that.
        while carried < moment && idle < 1000 && !all_done() {
            std::thread::yield_now();
            let now = links.carried();
            idle = if now == carried { idle + 1 } else { 0 };
            carried = now;
        }
        if all_done() {
            break;
        }
        match mishap.kind {
            Kind::Kill { rank } => links.kill(rank),
            Kind::Stop { rank, duration } if is_long(duration) => {
                links.stop(rank);
                stopped.push(rank);
            }
            Kind::Stop { rank, duration } => {
                links.stop(rank);
                std::thread::sleep(duration.min(Duration::from_millis(5)));
                if !stopped.contains(&rank) {
                    links.resume(rank);
                }
            }
            Kind::Livelock { rank } => {
                links.stop(rank);
                stopped.push(rank);
            }
            Kind::Cut { one, other } | Kind::CutOneWay { from: one, to: other } => links.cut(one, other),
            Kind::Forge { from, to, forgery } => links.inject(from, to, &forgery.frame(tag(0).generation)),
            Kind::Garbage { from, to } => links.inject(from, to, &[0x55; 64]),
            Kind::Slow { .. } | Kind::Join { .. } | Kind::Leave { .. } | Kind::Lie { .. } => {}
        }
        struck.push(mishap.kind.clone());
    }
    links.hold_at(u64::MAX);
    // Those who wait for them give up at their deadline.
    while !(0..scene.world).all(|rank| is_done(rank) || stopped.contains(&rank)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    stopped.iter().for_each(|rank| links.resume(*rank));
    struck
}
