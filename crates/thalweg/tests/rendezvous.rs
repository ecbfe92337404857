//! The rendezvous: ranks that never arrive, foreign connections, other jobs and tokens.

mod harness;

use harness::{LIMIT, Process, Site, TRAINING_LIMIT, await_some, free_port};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_cluster::rendezvous::handshake::{Purpose, Side, handshake};
use thalweg_cluster::rendezvous::timed::{HANDSHAKE_TIMEOUT as HANDSHAKE, Timed};

/// The job's token, and another one.
const RIGHT: &str = "0123456789abcdef";
const GUESS: &str = "fedcba9876543210";

const SHORT: [&str; 5] = ["train", "--out", "run", "--set", "train.max_steps=20"];

/// Starts one rank with a token.
fn start(site: &Site, rank: usize, world: usize, port: u16, token: &str, arguments: &[&str]) -> Process {
    let mut command = site.rank(rank, world, port, arguments);
    command.env("THALWEG_TOKEN", token);
    Process::start(command)
}

/// Starts rank 0 of two, which waits for rank 1.
fn start_waiting(site: &Site, port: u16, token: &str) -> Process {
    let process = start(site, 0, 2, port, token, &SHORT);
    site.await_event("run", "listening");
    process
}

/// Asserts that the job completes when the right rank 1 joins.
fn complete(site: &Site, first: Process, port: u16, token: &str) {
    let second = start(site, 1, 2, port, token, &SHORT);
    for process in [first, second] {
        let ended = process.end(TRAINING_LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert_eq!(site.report("run")["outcome"], "completed");
}

#[test]
fn a_rank_that_never_arrives_is_named_with_the_address() {
    let site = Site::new();
    let port = free_port();
    let arguments = [&SHORT[..], &["--set", "fault.join_deadline=2s"]].concat();
    let ended = Process::start(site.rank(0, 2, port, &arguments)).end(LIMIT);
    ended.assert_error(4, &["rank 1 did not arrive", &format!("127.0.0.1:{port} (interface lo)")]);
    ended.assert_advice("fault.join_deadline");
    let report = site.report("run");
    assert_eq!(report["outcome"], "failed");
    site.assert_empty();
}

#[test]
fn a_rank_without_a_coordinator_names_the_address() {
    let site = Site::new();
    let port = free_port();
    let arguments = [&SHORT[..], &["--set", "fault.join_deadline=2s"]].concat();
    let ended = Process::start(site.rank(1, 2, port, &arguments)).end(LIMIT);
    let place = format!("rank 1 cannot reach rank 0 at 127.0.0.1:{port} from 127.0.0.1 (interface lo)");
    ended.assert_error(4, &[&place]);
    ended.assert_advice("MASTER_ADDR");
    assert!(!site.path("run").exists(), "only rank 0 has a run folder");
}

#[test]
fn missing_ranks_are_listed_every_ten_seconds() {
    let site = Site::new();
    let (port, lonely) = (free_port(), free_port());
    let arguments = [&SHORT[..], &["--set", "fault.join_deadline=11s"]].concat();
    let waiting = [0, 1].map(|rank| Process::start(site.rank(rank, 3, port, &arguments)));
    let searching = Process::start(site.rank(2, 3, lonely, &arguments));
    let limit = Duration::from_secs(60);
    let [first, second] = waiting.map(|process| process.end(limit));
    first.assert_error(4, &["rank 2 did not arrive within 11 s"]);
    second.assert_error(4, &["rank 2 did not arrive within 11 s"]);
    let listens = format!(
        "waiting for rank 2 for 10 s (2 of 3 are here); rank 0 listens on 127.0.0.1:{port} (interface lo)"
    );
    assert!(first.stderr.contains(&listens), "{}", first.stderr);
    let joined = format!("waiting for rank 2 for 10 s; joined rank 0 at 127.0.0.1:{port} from 127.0.0.1");
    assert!(second.stderr.contains(&joined) && second.stderr.contains("(interface lo)"), "{}", second.stderr);
    let third = searching.end(limit);
    let tried = format!("cannot reach rank 0 at 127.0.0.1:{lonely} from 127.0.0.1 (interface lo)");
    assert!(
        third.stderr.matches(&tried).count() >= 2,
        "once as a reminder, once at the end: {}",
        third.stderr
    );
}

#[test]
fn foreign_connections_do_not_disturb_the_rendezvous() {
    let site = Site::new();
    let port = free_port();
    let job = start_waiting(&site, port, RIGHT);
    let call = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut kept = Vec::new();
    for words in [
        &b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"[..],
        // A truncated handshake: the length of a message, and its first bytes.
        b"\x2c\0\0\0THLW\x01\x01",
        // A message longer than memory.
        b"\xff\xff\xff\xffTHLW",
        &[0; 4096],
    ] {
        let mut stream = call();
        // The peer may close the connection during the write.
        let _ = stream.write_all(words);
        kept.push(stream);
    }
    // Connections that send nothing and stay open.
    kept.extend((0..20).map(|_| call()));
    let guess = start(&site, 1, 2, port, GUESS, &SHORT).end(LIMIT);
    guess.assert_error(4, &["refused the token", "THALWEG_TOKEN"]);
    assert!(guess.stderr.contains("trying on, as it may not be rank 0"), "{}", guess.stderr);
    complete(&site, job, port, RIGHT);
    drop(kept);
}

/// Sends the length of a message without the message.
fn announce(port: u16, length: u32) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(&length.to_le_bytes())?;
    Ok(stream)
}

/// Sends one byte of a handshake now and then on every connection, and reconnects where it is refused.
fn send_slowly(port: u16, length: u32, connections: &mut [TcpStream], over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for connection in connections.iter_mut() {
            if connection.write_all(b"T").is_err()
                && let Ok(again) = announce(port, length)
            {
                *connection = again;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn slow_foreign_connections_beyond_the_limit_do_not_block_a_rank() {
    // A permitted length that would take forever to arrive at this rate.
    for length in [200, 0x000f_ffff] {
        let site = Site::new();
        let port = free_port();
        let job = start_waiting(&site, port, RIGHT);
        let mut connections: Vec<TcpStream> = (0..96).map(|_| announce(port, length).unwrap()).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| send_slowly(port, length, &mut connections, &over));
            let _stop = Stop(&over);
            complete(&site, job, port, RIGHT);
        });
    }
}

/// Connects repeatedly and sends garbage or nothing; some connections stay open. Returns the number of connections.
fn connect_repeatedly(port: u16, over: &AtomicBool) -> usize {
    let mut kept = Vec::new();
    let mut calls = 0;
    while !over.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            calls += 1;
            let words: [&[u8]; 3] = [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xffTHLW", b""];
            // The peer may close the connection during the write.
            let _ = stream.write_all(words[calls % 3]);
            if kept.len() < 50 {
                kept.push(stream);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    calls
}

/// The port stays open during training for workers that join: foreign connections disturb neither them nor the job.
#[test]
fn foreign_connections_do_not_disturb_a_running_job() {
    let site = Site::new();
    let port = free_port();
    let sets = [format!("engine.port={port}"), "train.epochs=40".into(), "engine.pace=2ms".into()];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let job = site.start(&[&["train", "--out", "run", "--workers", "2"][..], &sets].concat());
    site.await_step("run", 1);
    let over = AtomicBool::new(false);
    let calls = std::thread::scope(|scope| {
        let disturbance = scope.spawn(|| connect_repeatedly(port, &over));
        let _stop = Stop(&over);
        let joining = site.start(&["join", "run"]);
        joining.await_stderr("joined as rank 2; 3 workers now");
        for process in [job, joining] {
            let ended = process.end(TRAINING_LIMIT);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        over.store(true, Ordering::Relaxed);
        disturbance.join().unwrap()
    });
    assert!(calls > 20, "{calls} connections");
    let report = site.report("run");
    assert_eq!(report["outcome"], "completed");
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{}", report["failures"]);
    assert_eq!(report["world"].as_array().unwrap().len(), 2, "{}", report["world"]);
    for epoch in report["audit"].as_array().unwrap() {
        assert_eq!((&epoch["missed"], &epoch["repeated"]), (&0.into(), &0.into()), "{epoch}");
    }
    site.assert_empty();
}

/// Stops the threads also if the test panics: the scope waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_second_job_on_the_port_is_refused_and_the_first_continues() {
    let site = Site::new();
    let port = free_port();
    let first = start_waiting(&site, port, RIGHT);
    let ended = start(&site, 0, 2, port, RIGHT, &["train", "--out", "other"]).end(LIMIT);
    ended.assert_error(4, &[&format!("port {port} of 127.0.0.1 is in use")]);
    ended.assert_advice("MASTER_PORT");
    let launched = site.run(&["train", "--out", "launched", "--set", &format!("engine.port={port}")]);
    launched.assert_error(4, &[&format!("port {port} of 127.0.0.1 is in use")]);
    launched.assert_advice("engine.port");
    assert!(!site.path("other").exists() && !site.path("launched").exists(), "nothing is left of them");
    complete(&site, first, port, RIGHT);
}

#[test]
fn rank_0_reports_refused_ranks_with_the_reason() {
    let site = Site::new();
    let port = free_port();
    let first = start_waiting(&site, port, RIGHT);
    let other = [&SHORT[..], &["--set", "train.seed=9"]].concat();
    let reason = "rank 1 has another job than rank 0: train.seed is 9 on rank 1 and 7 on rank 0";
    start(&site, 1, 2, port, RIGHT, &other).end(LIMIT).assert_error(4, &[reason]);
    let ended = first.end(LIMIT);
    ended.assert_error(4, &[reason]);
    assert!(ended.stderr.contains("refused a connection from"), "{}", ended.stderr);
}

/// Another process holds MASTER_PORT for a while and closes every connection.
#[test]
fn another_process_on_the_port_does_not_end_a_rank() {
    let site = Site::new();
    let port = free_port();
    let impostor = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let searching = start(&site, 1, 2, port, RIGHT, &SHORT);
    let (stream, _) = impostor.accept().unwrap();
    let _ =
        handshake(&mut Timed::new(&stream, HANDSHAKE), Side::Listener, Purpose::Control, GUESS.as_bytes());
    searching.await_stderr("refused the token");
    drop((stream, impostor));
    let first = start(&site, 0, 2, port, RIGHT, &SHORT);
    for process in [first, searching] {
        let ended = process.end(TRAINING_LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

/// Without THALWEG_TOKEN the ranks of one host use a generated token: connections of other local users are refused.
#[test]
fn local_ranks_without_a_user_token_refuse_peers_without_one() {
    let site = Site::new();
    let port = free_port();
    let first = Process::start(site.rank(0, 2, port, &SHORT));
    site.await_event("run", "listening");
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let shaken = handshake(&mut Timed::new(&stream, HANDSHAKE), Side::Caller, Purpose::Control, b"");
    let refused = shaken.unwrap_err().to_string();
    assert!(refused.contains("refused the token"), "{refused}");
    // Its rank 1 reads the generated token.
    let second = Process::start(site.rank(1, 2, port, &SHORT));
    for process in [first, second] {
        let ended = process.end(TRAINING_LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

/// Another user listens on the port of rank 0: a rank without a token sends nothing to it.
#[test]
fn another_user_cannot_impersonate_rank_0() {
    if !nix::unistd::Uid::effective().is_root() {
        return harness::skip("only the administrator can start a process of another user");
    }
    let site = Site::new();
    let port = free_port();
    std::fs::set_permissions(site.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = site.rank(0, 2, port, &["train", "--out", "other", "--set", "fault.join_deadline=60s"]);
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    let Ok(mut impostor) = command.stderr(std::process::Stdio::null()).spawn() else {
        return harness::skip("another user may not run this program");
    };
    await_some(TRAINING_LIMIT, "the other user's rank 0 does not listen", || {
        let over = impostor.try_wait().unwrap().is_some();
        (over || !site.events("other").is_empty() && !harness::is_free(([127, 0, 0, 1], port).into()))
            .then_some(())
    });
    if impostor.try_wait().unwrap().is_some() {
        return harness::skip("another user cannot run this program here");
    }
    let arguments = [&SHORT[..], &["--set", "fault.join_deadline=2s"]].concat();
    let ended = Process::start(site.rank(1, 2, port, &arguments)).end(LIMIT);
    ended.assert_error(4, &["rank 1 cannot reach rank 0", "another user or container offers tokens"]);
    impostor.kill().unwrap();
    impostor.wait().unwrap();
}

#[test]
fn a_short_token_is_refused() {
    let site = Site::new();
    for arguments in [&["train"][..], &["join", "127.0.0.1:1"]] {
        let mut command = site.thalweg(arguments);
        command.env("THALWEG_TOKEN", "secret");
        let ended = Process::start(command).end(LIMIT);
        ended.assert_error(2, &["THALWEG_TOKEN has 6 characters"]);
        ended.assert_advice("openssl rand");
    }
}

#[test]
fn hosts_without_a_token_are_refused_before_anything_starts() {
    let site = Site::new();
    let nodes = ["--nnodes", "2", "--node-rank", "0", "--master", "192.0.2.1"];
    let ended = site.run(&[&SHORT[..], &nodes].concat());
    ended.assert_error(4, &["192.0.2.1:29500, and there is no token"]);
    ended.assert_advice("mpirun -x THALWEG_TOKEN");
    assert!(!site.path("run").exists(), "nothing is left of it");
}

#[test]
fn without_a_token_only_loopback_is_allowed() {
    for rank in [0, 1] {
        let site = Site::new();
        let mut command = site.rank(rank, 2, free_port(), &SHORT);
        // An address of the block reserved for documentation.
        command.env("MASTER_ADDR", "192.0.2.1");
        let ended = Process::start(command).end(LIMIT);
        ended.assert_error(4, &["ranks on other hosts are to connect to 192.0.2.1", "there is no token"]);
        ended.assert_advice("THALWEG_TOKEN");
    }
}

#[test]
fn launched_workers_use_the_configured_port() {
    let site = Site::new();
    let port = free_port();
    let job = site.start(&[&SHORT[..], &["--set", &format!("engine.port={port}")]].concat());
    let listening = site.await_event("run", "listening");
    assert_eq!(listening["address"], format!("127.0.0.1:{port}"));
    assert_eq!(job.end(TRAINING_LIMIT).code, Some(0));
    await_some(LIMIT, "the port stays in use", || {
        harness::is_free(([127, 0, 0, 1], port).into()).then_some(())
    });
}
