//! Shared arenas and windows between processes: they connect over local sockets, sum in place, read each other's regions,
//! and one of them is killed while it writes.
//!
//! The ranks are this test binary, started again; their rank is in the environment.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use thalweg_comm::arena::{OperationContext, SharedArena, Window};
use thalweg_comm::collective::PartialSums;
use thalweg_comm::host::{EventFd, LocalListener, LocalPeer, LocalPeers, LocalToken, connect_local};
use thalweg_comm::transport::shm_ring::RingOffer;
use thalweg_comm::transport::{Cause, Shm, ShmLink, Tag, Transport};

const WORLD: usize = 3;
const LENGTH: usize = 100_000;
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
/// The operations from which on rank 2 is killed.
const LAST: u64 = 20;

fn context(transport: &mut dyn Transport, operation: u64) -> OperationContext<'_> {
    OperationContext {
        transport,
        tag: Tag { generation: 1, operation, ..Tag::default() },
        deadline: LONG_TIMEOUT,
    }
}

/// Parses `name token token ...`: a listener, and the tokens of the ranks above this one.
fn parse(line: &str) -> (String, Vec<LocalToken>) {
    let mut words = line.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    let token = |word: &str| {
        let bytes: Vec<u8> = word.as_bytes().chunks(2).map(byte).collect();
        bytes.try_into().expect("32 bytes")
    };
    (name, words.map(token).collect())
}

/// Opens a listener for all ranks above this one; returns it with its description.
fn open_listener(rank: usize) -> (LocalListener, String) {
    let mut listener = LocalListener::bind().expect("a listener");
    let mut line = listener.name().to_owned();
    for caller in rank + 1..WORLD {
        let token = listener.expect(caller).expect("a token");
        line += " ";
        line.extend(token.iter().map(|byte| format!("{byte:02x}")));
    }
    (listener, line)
}

/// Connects to the listeners of the ranks below, and accepts the ranks above.
fn connect(rank: usize, listeners: &[String], listener: &mut LocalListener) -> (Shm, LocalPeers) {
    let mut peers: LocalPeers = vec![None; WORLD];
    for (below, line) in listeners.iter().enumerate().take(rank) {
        let (name, tokens) = parse(line);
        let socket = connect_local(&name, &tokens[rank - below - 1]).expect("an open listener");
        peers[below] = Some(LocalPeer::new(socket));
    }
    for (above, peer) in peers.iter_mut().enumerate().skip(rank + 1) {
        let socket =
            listener.accept_from(above, Instant::now() + LONG_TIMEOUT, || false).expect("a connection");
        *peer = Some(LocalPeer::new(socket));
    }
    let eventfd = EventFd::new().expect("an eventfd");
    let link = |peer: &Option<LocalPeer>| {
        let peer = peer.as_ref()?;
        let offer = RingOffer::new(peer, WORLD, &eventfd).expect("memory");
        Some(ShmLink::Ring(offer.accept(LONG_TIMEOUT).expect("a ring")))
    };
    let links = peers.iter().map(link).collect();
    (Shm::new(rank, links, eventfd).expect("a mesh"), peers)
}

/// The program of every rank; rank 2 kills itself while it writes.
fn work(transport: &mut Shm, peers: &LocalPeers) {
    let rank = transport.rank();
    let mut arena = SharedArena::open(peers, PartialSums::one(LENGTH), 1, context(transport, 0))
        .expect("no transport error")
        .expect("memory");
    for operation in 1..LAST {
        arena.arena().iter_mut().enumerate().for_each(|(index, value)| *value = (index + rank) as f32);
        arena.all_reduce(LENGTH, context(transport, operation)).expect("a sum");
        let sum = |index: usize| (0..WORLD).map(|rank| (index + rank) as f32).sum::<f32>();
        assert!(arena.column(0).iter().enumerate().all(|(index, value)| *value == sum(index)));
    }
    let mut window =
        Window::open(peers, LENGTH, context(transport, LAST)).expect("no error").expect("memory");
    window.publish(0, &vec![rank as f32; LENGTH], 1);
    arena.barrier(context(transport, LAST + 1)).expect("all published");
    let mut copy = vec![0.0; LENGTH];
    for from in (0..WORLD).filter(|from| *from != rank) {
        let versions = window.read(from, 0, &mut copy, transport, LONG_TIMEOUT).expect("a read");
        assert_eq!(versions.agreed(), Some(1));
        assert!(copy.iter().all(|value| *value == from as f32));
    }
    arena.barrier(context(transport, LAST + 2)).expect("all have read");
    if rank == 2 {
        window.write(0..LENGTH, 2, |_| {
            let me = nix::unistd::Pid::this();
            nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGKILL).expect("an end");
        });
    }
    let start = Instant::now();
    let error = loop {
        match window.read(2, 0, &mut copy, transport, LONG_TIMEOUT) {
            Ok(versions) => assert_eq!(versions.agreed(), Some(1), "before it writes"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.peer, Some(2), "{error}");
    let error = arena.all_reduce(LENGTH, context(transport, LAST + 3)).expect_err("one was killed");
    assert_eq!(error.peer, Some(2), "{error}");
    assert!(matches!(error.cause, Cause::Closed | Cause::Reported { .. }), "{error}");
    assert!(start.elapsed() < LONG_TIMEOUT, "{:?}", start.elapsed());
}

/// The entry point of the processes that the test below starts; does nothing without their environment.
#[test]
fn a_rank() {
    let Ok(rank) = std::env::var("TEST_RANK") else { return };
    let rank: usize = rank.parse().expect("a number");
    let listeners = std::env::var("TEST_LISTENERS").expect("listeners");
    let listeners: Vec<String> = listeners.lines().map(str::to_owned).collect();
    let (mut listener, line) = open_listener(rank);
    println!("\nlistener {line}");
    let (mut transport, peers) = connect(rank, &listeners, &mut listener);
    work(&mut transport, &peers);
}

fn start(rank: usize, listeners: &[String]) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["a_rank", "--exact", "--nocapture", "--test-threads=1"])
        .env("TEST_RANK", rank.to_string())
        .env("TEST_LISTENERS", listeners.join("\n"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    while !line.starts_with("listener ") {
        line.clear();
        assert!(output.read_line(&mut line).expect("a line") > 0, "it prints its listener");
    }
    // Its output stays open, so that later writes do not fail.
    child.stdout = Some(output.into_inner());
    (child, line["listener ".len()..].trim().to_owned())
}

#[test]
fn processes_sum_in_place_and_name_the_killed_rank() {
    let (mut listener, line) = open_listener(0);
    let mut listeners = vec![line];
    let mut children = Vec::new();
    for rank in 1..WORLD {
        let (child, line) = start(rank, &listeners);
        listeners.push(line);
        children.push(child);
    }
    let (mut transport, peers) = connect(0, &[], &mut listener);
    work(&mut transport, &peers);
    let ends: Vec<_> =
        children.into_iter().map(|child| child.wait_with_output().expect("an end").status).collect();
    assert!(ends[0].success(), "rank 1 names rank 2 as well: {}", ends[0]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ends[1]), Some(9));
    let (killed, _) = parse(&listeners[2]);
    let left = std::fs::read_to_string("/proc/net/unix").expect("the sockets of this host");
    assert!(!left.contains(&killed), "the listener of a killed process is gone");
}
