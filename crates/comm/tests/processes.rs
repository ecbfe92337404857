//! Arenas between real processes: they meet at doorways, sum in place, and one of them is killed.
//!
//! The ranks are this very test binary, started again; what to do is in their environment.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use thalweg_comm::arena::{Commons, Terms};
use thalweg_comm::host::{Bell, Doorway, Neighbour, Neighbours, Token, call};
use thalweg_comm::transport::{Cause, Shm, Tag, Transport, Way, ring};

const WORLD: usize = 3;
const LENGTH: usize = 100_000;
const PLENTY: Duration = Duration::from_secs(60);
/// The operation in which rank 2 dies.
const LAST: u64 = 20;

fn terms(transport: &mut dyn Transport, operation: u64) -> Terms<'_> {
    Terms { transport, tag: Tag { generation: 1, operation, ..Tag::default() }, deadline: PLENTY }
}

/// `name token token ...`: a door, and what the ranks above this one show there.
fn parse(line: &str) -> (String, Vec<Token>) {
    let mut words = line.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    let token = |word: &str| {
        let bytes: Vec<u8> = word.as_bytes().chunks(2).map(byte).collect();
        bytes.try_into().expect("32 bytes")
    };
    (name, words.map(token).collect())
}

/// Opens a door for all ranks above this one and describes it.
fn open_door(rank: usize) -> (Doorway, String) {
    let mut door = Doorway::open().expect("a door");
    let mut line = door.name().to_owned();
    for caller in rank + 1..WORLD {
        let token = door.expect(caller).expect("a token");
        line += " ";
        line.extend(token.iter().map(|byte| format!("{byte:02x}")));
    }
    (door, line)
}

/// Meets all others: those below at their doors, those above at its own.
fn meet(rank: usize, doors: &[String], door: &mut Doorway) -> (Shm, Neighbours) {
    let mut neighbours: Neighbours = vec![None; WORLD];
    for (below, line) in doors.iter().enumerate().take(rank) {
        let (name, tokens) = parse(line);
        let socket = call(&name, &tokens[rank - below - 1]).expect("a door that is open");
        neighbours[below] = Some(Neighbour::new(socket));
    }
    for (above, neighbour) in neighbours.iter_mut().enumerate().skip(rank + 1) {
        let socket = door.await_caller(above, Instant::now() + PLENTY).expect("a caller");
        *neighbour = Some(Neighbour::new(socket));
    }
    let bell = Bell::new().expect("a bell");
    let way = |neighbour: &Option<Neighbour>| {
        let neighbour = neighbour.as_ref()?;
        let offer = ring::Offer::new(neighbour, WORLD, &bell).expect("memory");
        Some(Way::Ring(offer.accept(PLENTY).expect("a ring")))
    };
    let ways = neighbours.iter().map(way).collect();
    (Shm::new(rank, ways, bell).expect("a mesh"), neighbours)
}

/// What every rank does; rank 2 kills itself in the middle.
fn work(transport: &mut Shm, neighbours: &Neighbours) {
    let rank = transport.rank();
    let mut commons =
        Commons::open(neighbours, LENGTH, 1, terms(transport, 0)).expect("no fault").expect("memory");
    for operation in 1..LAST {
        commons.arena().iter_mut().enumerate().for_each(|(index, value)| *value = (index + rank) as f32);
        commons.all_reduce(LENGTH, terms(transport, operation)).expect("a sum");
        let sum = |index: usize| (0..WORLD).map(|rank| (index + rank) as f32).sum::<f32>();
        assert!(commons.column(0).iter().enumerate().all(|(index, value)| *value == sum(index)));
    }
    if rank == 2 {
        let me = nix::unistd::Pid::this();
        nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGKILL).expect("an end");
    }
    let start = Instant::now();
    let fault = commons.all_reduce(LENGTH, terms(transport, LAST)).expect_err("one was killed");
    assert_eq!(fault.peer, Some(2), "{fault}");
    assert!(matches!(fault.cause, Cause::Closed | Cause::Reported { .. }), "{fault}");
    assert!(start.elapsed() < PLENTY, "{:?}", start.elapsed());
}

/// The part of a rank that is started by the test below; without its environment there is nothing to do.
#[test]
fn a_rank() {
    let Ok(rank) = std::env::var("TEST_RANK") else { return };
    let rank: usize = rank.parse().expect("a number");
    let doors: Vec<String> = std::env::var("TEST_DOORS").expect("doors").lines().map(str::to_owned).collect();
    let (mut door, line) = open_door(rank);
    println!("\ndoor {line}");
    let (mut transport, neighbours) = meet(rank, &doors, &mut door);
    work(&mut transport, &neighbours);
}

fn start(rank: usize, doors: &[String]) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["a_rank", "--exact", "--nocapture", "--test-threads=1"])
        .env("TEST_RANK", rank.to_string())
        .env("TEST_DOORS", doors.join("\n"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    while !line.starts_with("door ") {
        line.clear();
        assert!(output.read_line(&mut line).expect("a line") > 0, "it says where its door is");
    }
    // Its output stays open: it must be able to write to its end.
    child.stdout = Some(output.into_inner());
    (child, line["door ".len()..].trim().to_owned())
}

#[test]
fn processes_sum_in_place_and_name_the_one_that_is_killed() {
    let (mut door, line) = open_door(0);
    let mut doors = vec![line];
    let mut children = Vec::new();
    for rank in 1..WORLD {
        let (child, line) = start(rank, &doors);
        doors.push(line);
        children.push(child);
    }
    let (mut transport, neighbours) = meet(0, &[], &mut door);
    work(&mut transport, &neighbours);
    let ends: Vec<_> =
        children.into_iter().map(|child| child.wait_with_output().expect("an end").status).collect();
    assert!(ends[0].success(), "rank 1 names rank 2, too: {}", ends[0]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ends[1]), Some(9));
    let (killed, _) = parse(&doors[2]);
    let left = std::fs::read_to_string("/proc/net/unix").expect("Linux tells");
    assert!(!left.contains(&killed), "nothing is left of a door whose process was killed");
}
