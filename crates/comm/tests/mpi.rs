//! The conformance suite on MPI, and MPI's own all-reduce: between processes that MPI's launcher starts.
//!
//! They are this test binary, started again (`a_rank`) and driven over a socket. `THALWEG_MPIRUN` is the launcher
//! with its flags; `cargo xtask test --external` sets it. The suite has more ranks than most machines have cores, so
//! Open MPI must be allowed to start them: `--oversubscribe`.

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
use thalweg_testkit::transport::remote::{ProcessPool, RemoteTransport, TransportFactory, serve};
use thalweg_testkit::transport::{Inject, LONG_TIMEOUT, Mesh, run_ranks};
use thalweg_testkit::transport_conformance;

/// The largest group of the suite.
const MAX_WORLD: usize = 9;

/// Path of the socket by which a started process is driven.
const SOCKET_VARIABLE: &str = "THALWEG_TEST_STAGE";

transport_conformance!(mpi, Processes);

/// Groups of processes.
struct Processes;

static POOL: LazyLock<ProcessPool> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    listener.set_nonblocking(true).expect("a socket");
    let launcher = start(MAX_WORLD, "a_rank", &path.display().to_string());
    let mut sockets: Vec<Option<UnixStream>> = (0..MAX_WORLD).map(|_| None).collect();
    let deadline = Instant::now() + LONG_TIMEOUT;
    while sockets.iter().any(Option::is_none) {
        assert!(
            !launcher.is_finished(),
            "the launcher ended before its ranks connected: {:?}",
            launcher.join()
        );
        let missing: Vec<usize> = (0..MAX_WORLD).filter(|&rank| sockets[rank].is_none()).collect();
        assert!(Instant::now() < deadline, "ranks {missing:?} did not connect");
        match listener.accept() {
            Ok((mut socket, _)) => {
                socket.set_nonblocking(false).expect("a connection");
                let mut rank = [0];
                socket.read_exact(&mut rank).expect("its rank");
                sockets[usize::from(rank[0])] = Some(socket);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    ProcessPool::new(sockets.into_iter().flatten().collect())
});

impl Mesh for Processes {
    type Transport = RemoteTransport;

    fn connect(world: usize) -> Vec<RemoteTransport> {
        POOL.connect(world)
    }

    fn connect_with_injector(world: usize) -> (Vec<RemoteTransport>, Inject) {
        (POOL.connect(world), Box::new(|from, to, bytes| POOL.inject(from, to, bytes)))
    }
}

/// Starts this binary's test `test` in `count` processes, and a thread that waits for their exit.
fn start(count: usize, test: &str, argument: &str) -> JoinHandle<io::Result<ExitStatus>> {
    let words = std::env::var("THALWEG_MPIRUN").unwrap_or_else(|_| "mpirun --oversubscribe".into());
    let mut words = words.split_whitespace();
    let mut launcher = Command::new(words.next().expect("a launcher"))
        .args(words)
        .args(["-n", &count.to_string()])
        .arg(std::env::current_exe().expect("this test"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(SOCKET_VARIABLE, argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a launcher of MPI");
    std::thread::spawn(move || launcher.wait())
}

struct MpiFactory(Library);

impl TransportFactory for MpiFactory {
    type Transport = Mpi;

    fn connect(&mut self, world: usize, peers: Option<Vec<Option<TcpStream>>>) -> Option<Mpi> {
        let group = self.0.split_group(world).expect("a group");
        let (group, peers) = (group?, peers?);
        Some(Mpi::new(group, peers, world - 1, None).expect("a transport"))
    }

    fn inject(transport: &mut Mpi, to: usize, bytes: &[u8]) {
        transport.inject_bytes(to, bytes).expect("room for a few bytes");
    }
}

/// Runs in the processes that the suite starts; does nothing without their environment.
#[test]
fn a_rank() {
    let Ok(path) = std::env::var(SOCKET_VARIABLE) else { return };
    let library = Library::init().expect("MPI");
    let (rank, _) = library.rank_and_size();
    let mut socket = UnixStream::connect(path).expect("a connection");
    socket.write_all(&[rank as u8]).expect("a connection");
    let mut factory = MpiFactory(library);
    serve(rank, &socket, &mut factory).expect("requests");
    factory.0.finalize();
}

fn tag(operation: u64) -> Tag {
    Tag { generation: 1, operation, ..Tag::default() }
}

#[test]
fn all_reduce_of_all_lengths() {
    let lengths = [0, 1, 1000, (1 << 20) + 1, 3 << 20];
    for world in [1, 2, 3, 5] {
        run_ranks(POOL.connect(world), |mut transport| {
            let rank = transport.rank();
            assert!(transport.has_native_all_reduce());
            for (operation, length) in lengths.into_iter().enumerate() {
                let mut buffer: Vec<f32> = (0..length).map(|index| ((index + rank) % 1000) as f32).collect();
                native::all_reduce(&mut transport, tag(operation as u64), &mut buffer, LONG_TIMEOUT)
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
fn a_late_rank_is_a_suspect_and_a_dead_rank_is_named() {
    let mut ranks = POOL.connect(3);
    let late = ranks.pop();
    for error in run_ranks(ranks, |mut rank| {
        let short = Duration::from_millis(200);
        native::all_reduce(&mut rank, tag(1), &mut [1.0; 10], short).expect_err("one is late")
    }) {
        assert!(matches!(error.cause, Cause::Silent { .. }) && error.suspects.contains(&2), "{error:?}");
    }
    drop(late);
    run_ranks(POOL.connect(3), |mut transport| {
        if transport.rank() != 1 {
            let error = native::all_reduce(&mut transport, tag(1), &mut [1.0; 10], LONG_TIMEOUT)
                .expect_err("a death");
            assert_eq!(error.peer, Some(1), "{error}");
        }
    });
}
