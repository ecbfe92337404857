//! The conformance suite on MPI, and its own all-reduce: between processes that its launcher starts.
//!
//! They are this very test binary, started again (`a_rank`) and told what to do over a socket. `THALWEG_MPIRUN` is the
//! launcher with its flags; `cargo xtask test --external` sets it. The suite's ranks are more than most machines have
//! cores, so Open MPI must be allowed to start them: `--oversubscribe`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thalweg_comm::collective::native;
use thalweg_comm::transport::mpi::{Library, Mpi};
use thalweg_comm::transport::{Cause, Tag, Transport};
use thalweg_testkit::transport::remote::{Remote, Servant, Stage, serve};
use thalweg_testkit::transport::{Inject, Mesh, PLENTY, each};
use thalweg_testkit::transport_conformance;

/// The largest group of the suite.
const MOST: usize = 9;

/// Where a process that was started finds the one that tells it what to do.
const STAGE_DOOR: &str = "THALWEG_TEST_STAGE";

transport_conformance!(mpi, Processes);

/// Groups of processes.
struct Processes;

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let door = folder.path().join("door");
    let listener = UnixListener::bind(&door).expect("a door");
    listener.set_nonblocking(true).expect("a door");
    let launcher = start(MOST, "a_rank", &door.display().to_string());
    let mut lines: Vec<Option<UnixStream>> = (0..MOST).map(|_| None).collect();
    let deadline = Instant::now() + PLENTY;
    while lines.iter().any(Option::is_none) {
        assert!(!launcher.is_finished(), "the launcher ended before its ranks came: {:?}", launcher.join());
        let missing: Vec<usize> = (0..MOST).filter(|&rank| lines[rank].is_none()).collect();
        assert!(Instant::now() < deadline, "ranks {missing:?} did not come");
        match listener.accept() {
            Ok((mut line, _)) => {
                line.set_nonblocking(false).expect("a line");
                let mut rank = [0];
                line.read_exact(&mut rank).expect("its rank");
                lines[usize::from(rank[0])] = Some(line);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Stage::new(lines.into_iter().flatten().collect())
});

impl Mesh for Processes {
    type Transport = Remote;

    fn connect(world: usize) -> Vec<Remote> {
        STAGE.connect(world)
    }

    fn forge(world: usize) -> (Vec<Remote>, Inject) {
        (STAGE.connect(world), Box::new(|from, to, bytes| STAGE.forge(from, to, bytes)))
    }
}

/// Starts this binary's test `test` in so many processes, and a thread that waits for their end.
fn start(count: usize, test: &str, argument: &str) -> JoinHandle<io::Result<ExitStatus>> {
    let words = std::env::var("THALWEG_MPIRUN").unwrap_or_else(|_| "mpirun --oversubscribe".into());
    let mut words = words.split_whitespace();
    let mut launcher = Command::new(words.next().expect("a launcher"))
        .args(words)
        .args(["-n", &count.to_string()])
        .arg(std::env::current_exe().expect("this test"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(STAGE_DOOR, argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a launcher of MPI");
    std::thread::spawn(move || launcher.wait())
}

struct Process(Library);

impl Servant for Process {
    type Transport = Mpi;

    fn join(&mut self, world: usize, peers: Option<Vec<Option<TcpStream>>>) -> Option<Mpi> {
        let group = self.0.group(world).expect("a group");
        let (group, peers) = (group?, peers?);
        Some(Mpi::new(group, peers, world - 1, None).expect("a transport"))
    }

    fn forge(transport: &mut Mpi, to: usize, bytes: &[u8]) {
        transport.forge(to, bytes).expect("room for a few bytes");
    }
}

/// The part of a process that the suite has started; without its environment there is nothing to do.
#[test]
fn a_rank() {
    let Ok(door) = std::env::var(STAGE_DOOR) else { return };
    let library = Library::enter().expect("MPI");
    let (rank, _) = library.place();
    let mut line = UnixStream::connect(door).expect("a line");
    line.write_all(&[rank as u8]).expect("a line");
    let mut process = Process(library);
    serve(rank, &line, &mut process).expect("orders");
    process.0.finalize();
}

fn tag(operation: u64) -> Tag {
    Tag { generation: 1, operation, ..Tag::default() }
}

#[test]
fn sums_of_all_lengths() {
    let lengths = [0, 1, 1000, (1 << 20) + 1, 3 << 20];
    for world in [1, 2, 3, 5] {
        each(STAGE.connect(world), |mut transport| {
            let rank = transport.rank();
            assert!(transport.adds_up());
            for (operation, length) in lengths.into_iter().enumerate() {
                let mut buffer: Vec<f32> = (0..length).map(|index| ((index + rank) % 1000) as f32).collect();
                native::all_reduce(&mut transport, tag(operation as u64), &mut buffer, PLENTY)
                    .expect("a sum");
                let sum = |index: usize| (0..world).map(|rank| ((index + rank) % 1000) as f32).sum::<f32>();
                assert!((0..length).all(|index| buffer[index] == sum(index)), "{length} elements");
            }
            let bytes = 4 * lengths.iter().sum::<usize>() * 2 * (world - 1) / world;
            assert!(transport.traffic().payload_sent.abs_diff(bytes as u64) < 8);
            transport.close();
        });
    }
}

#[test]
fn who_does_not_come_to_a_sum_is_among_the_suspects_and_who_dies_is_named() {
    let mut ranks = STAGE.connect(3);
    let late = ranks.pop();
    for fault in each(ranks, |mut rank| {
        let short = Duration::from_millis(200);
        native::all_reduce(&mut rank, tag(1), &mut [1.0; 10], short).expect_err("one is late")
    }) {
        assert!(matches!(fault.cause, Cause::Silent { .. }) && fault.suspects.contains(&2), "{fault:?}");
    }
    drop(late);
    each(STAGE.connect(3), |mut transport| {
        if transport.rank() != 1 {
            let fault =
                native::all_reduce(&mut transport, tag(1), &mut [1.0; 10], PLENTY).expect_err("a death");
            assert_eq!(fault.peer, Some(1), "{fault}");
        }
    });
}
