//! Workers that join a running job with other data, that cannot be connected, or that violate the protocol: the job
//! names them and continues without them.

mod harness;

use harness::{Process, Site, TRAINING_LIMIT};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_cluster::membership::MemberPosition;
use thalweg_cluster::rendezvous::handshake::{Purpose, Side, handshake};
use thalweg_cluster::rendezvous::message::{
    Control, ControlRequest, ControlResponse, JoinKind, JoinRequest, Member, Roster, receive, send,
};
use thalweg_cluster::rendezvous::timed::Timed;
use thalweg_core::event::Heartbeat;
use thalweg_core::spec::JobLayers;
use thalweg_core::{Error, Kind};
use thalweg_train::registry;

/// Two workers, with enough steps for a test to act on them.
const JOB: [&str; 13] = [
    "train",
    "--out",
    "run",
    "--workers",
    "2",
    "--set",
    "train.epochs=40",
    "--set",
    "engine.pace=10ms",
    "--set",
    "fault.step_deadline=4s",
    "--set",
    r#"model.layers=["dense 64 relu", "dense auto"]"#,
];

fn start(site: &Site, more: &[&str]) -> Process {
    let process = site.start(&[&JOB[..], more].concat());
    site.await_step("run", 1);
    process
}

/// Asserts success and that every row was seen once per epoch; returns the failures of the report and stderr.
fn assert_complete(site: &Site, process: Process) -> (Vec<Value>, String) {
    let ended = process.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "completed");
    for epoch in report["audit"].as_array().unwrap() {
        assert_eq!((&epoch["missed"], &epoch["repeated"]), (&Value::from(0), &Value::from(0)), "{epoch}");
    }
    (report["failures"].as_array().unwrap().clone(), ended.stderr)
}

/// A peer that follows the protocol as far as the test wants.
struct ScriptedPeer {
    control: TcpStream,
    number: usize,
    token: Vec<u8>,
    /// Listener of its data address.
    _data: TcpListener,
}

impl ScriptedPeer {
    /// Sends a valid join request to the job.
    fn join(site: &Site) -> ScriptedPeer {
        let join_info: Value =
            serde_json::from_slice(&std::fs::read(site.path("run/join.json")).unwrap()).unwrap();
        let text = |key: &str| join_info[key].as_str().unwrap().to_string();
        let secret = text("token");
        let call = |call: &ControlRequest| {
            let stream = TcpStream::connect(text("address")).unwrap();
            let mut timed = Timed::new(&stream, TRAINING_LIMIT);
            handshake(&mut timed, Side::Caller, Purpose::Control, text("token").as_bytes()).unwrap();
            send(&mut timed, call).unwrap();
            drop(timed);
            stream.set_read_timeout(Some(TRAINING_LIMIT)).unwrap();
            stream
        };
        let ControlResponse::Job { text, number } = receive(&mut call(&ControlRequest::Job)).unwrap() else {
            panic!("no job in the reply")
        };
        let mut layers = JobLayers::default();
        layers.add_file("the job", &text).unwrap();
        let job = registry::resolve(layers).unwrap().spec;
        let data = TcpListener::bind("127.0.0.1:0").unwrap();
        let member = Member {
            rank: number,
            host: "elsewhere".into(),
            process: 7,
            data: data.local_addr().unwrap(),
            identity: None,
            launcher: None,
        };
        let join = JoinRequest {
            member,
            world: registry::ranks(&job),
            job: job.hash(),
            text: String::new(),
            run: String::new(),
            model: Vec::new(),
            data: site.variable(site.worker(0), "THALWEG_RUN_ROWS"),
            kind: JoinKind::New,
            doing: Heartbeat::default(),
        };
        let control = call(&ControlRequest::Join(Box::new(join)));
        ScriptedPeer { control, number, token: secret.into_bytes(), _data: data }
    }

    fn send(&mut self, message: &Control) {
        send(&mut self.control, message).unwrap();
    }

    /// Answers reachability probes, with `error` if given, until it is admitted or refused.
    fn await_admission(&mut self, error: Option<&str>) -> Result<Roster, Error> {
        loop {
            match receive(&mut self.control).unwrap() {
                ControlResponse::Probe { member, .. } => {
                    self.send(&Control::Probed { rank: member.rank, error: error.map(Into::into) });
                }
                ControlResponse::Roster(roster) => return Ok(roster),
                ControlResponse::Refused(error) => return Err(error),
                _ => {}
            }
        }
    }

    /// Connects to all members of a group, as its highest rank does; members that have left the group close the
    /// connection.
    fn connect(&self, roster: &Roster) -> Vec<TcpStream> {
        let others = roster.members.iter().filter(|member| member.rank != self.number);
        let call = |member: &Member| {
            let stream = TcpStream::connect(member.data)?;
            let mut timed = Timed::new(&stream, Duration::from_secs(5));
            handshake(&mut timed, Side::Caller, Purpose::Data, &self.token)?;
            send(&mut timed, &(roster.members.len() - 1, roster.generation))?;
            drop(timed);
            std::io::Result::Ok(stream)
        };
        others.filter_map(|member| call(member).ok()).collect()
    }

    /// Joins every generation and sends its members the forged bytes, until it is aborted or disconnected.
    fn forge_until_excluded(mut self, forged: impl Fn(u32) -> Vec<u8>) {
        let mut roster = self.await_admission(None).unwrap();
        let mut kept;
        let mut message = Control::Heartbeat(Heartbeat::default());
        self.control.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        loop {
            kept = self.connect(&roster);
            // Members that have left this generation have closed the connection.
            kept.iter_mut().for_each(|stream| drop(stream.write_all(&forged(roster.generation))));
            roster = loop {
                if send(&mut self.control, &message).is_err() {
                    return;
                }
                message = Control::Heartbeat(Heartbeat::default());
                match receive(&mut self.control) {
                    Ok(Control::Roster(next)) => break *next,
                    Ok(Control::Interrupt(over, _)) => {
                        message = Control::Report(over, MemberPosition::default(), Heartbeat::default());
                    }
                    Ok(Control::Abort(_)) => return,
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                    _ => {}
                }
            };
        }
    }

    /// Sends heartbeats until it is aborted or disconnected.
    fn heartbeat_until_excluded(mut self) -> Option<Error> {
        let end = Instant::now() + TRAINING_LIMIT;
        self.control.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        while Instant::now() < end {
            if send(&mut self.control, &Control::Heartbeat(Heartbeat::default())).is_err() {
                return None;
            }
            match receive(&mut self.control) {
                Ok(Control::Abort(error)) => return Some(*error),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {}
                Err(_) => return None,
            }
        }
        panic!("it is not excluded")
    }
}

fn assert_failure(failures: &[Value], rank: usize, cause: &str) {
    let [failure] = failures else { panic!("{failures:?}") };
    assert_eq!(failure["rank"], rank, "{failure}");
    assert!(failure["cause"].as_str().unwrap().contains(cause), "{failure}");
}

#[test]
fn a_joining_worker_that_cannot_reach_a_member_is_refused_before_admission() {
    let site = Site::new();
    let job = start(&site, &[]);
    let refused = ScriptedPeer::join(&site).await_admission(Some("no answer within 5 s")).unwrap_err();
    assert!(refused.message.contains("rank 2 on elsewhere cannot reach rank "), "{refused}");
    let (failures, stderr) = assert_complete(&site, job);
    assert!(failures.is_empty(), "{failures:?}");
    assert!(stderr.contains("rank 2 on elsewhere was not admitted"), "{stderr}");
    assert!(site.events("run").iter().all(|event| event["event"] != "regrouped"), "nobody stopped for it");
}

#[test]
fn a_joining_worker_without_a_reachability_report_is_refused() {
    let site = Site::new();
    let job = start(&site, &["--set", "train.epochs=80"]);
    let mut peer = ScriptedPeer::join(&site);
    let refused = loop {
        match receive(&mut peer.control).unwrap() {
            ControlResponse::Refused(error) => break error,
            ControlResponse::Roster(_) => panic!("it was let in"),
            _ => {}
        }
    };
    assert!(refused.message.contains("did not report within 10 s"), "{refused}");
    assert!(assert_complete(&site, job).0.is_empty());
}

#[test]
fn a_failure_before_admission_does_not_affect_the_job() {
    let site = Site::new();
    let job = start(&site, &[]);
    let mut peer = ScriptedPeer::join(&site);
    let own = Error::new(Kind::Io, "the disk is full");
    peer.send(&Control::Failed(Box::new(own), Heartbeat::default()));
    assert!(assert_complete(&site, job).0.is_empty());
}

#[test]
fn a_member_with_heartbeats_that_never_connects_is_named_and_excluded() {
    let site = Site::new();
    let job = start(&site, &[]);
    let mut peer = ScriptedPeer::join(&site);
    let number = peer.number;
    assert_eq!(peer.await_admission(None).unwrap().joined, [number]);
    let error = peer.heartbeat_until_excluded().expect("an abort");
    assert!(error.message.contains("went on without rank 2"), "{error}");
    let (failures, _) = assert_complete(&site, job);
    assert_failure(&failures, number, "cannot be connected with all others");
}

#[test]
fn a_member_that_reports_an_impossible_generation_is_named_and_excluded() {
    let site = Site::new();
    let job = start(&site, &[]);
    let mut peer = ScriptedPeer::join(&site);
    let number = peer.number;
    peer.await_admission(None).unwrap();
    peer.send(&Control::Report(u32::MAX, MemberPosition::default(), Heartbeat::default()));
    peer.heartbeat_until_excluded();
    let (failures, _) = assert_complete(&site, job);
    assert_failure(&failures, number, "broke the protocol: it reports generation 4294967295");
}

#[test]
fn a_member_that_reports_its_own_failure_does_not_end_the_job() {
    let site = Site::new();
    let job = start(&site, &[]);
    let mut peer = ScriptedPeer::join(&site);
    let number = peer.number;
    peer.await_admission(None).unwrap();
    let own = Error::new(Kind::Io, "the disk is full");
    peer.send(&Control::Failed(Box::new(own), Heartbeat::default()));
    let (failures, _) = assert_complete(&site, job);
    assert_failure(&failures, number, "failed: the disk is full");
}

/// Rows that differ by one digit, by one row, and by the name of a class.
#[test]
fn a_joining_worker_with_other_data_is_refused_at_admission() {
    let site = Site::new();
    let rows: String = (0..400).map(|row| format!("{},{},c{}\n", row % 89, row % 7, row % 2)).collect();
    site.write("rows.csv", "a,b,label\n".to_string() + &rows);
    let job = start(&site, &["--set", "data.source=rows.csv", "--set", "train.epochs=120"]);
    for (name, other) in [
        ("digit.csv", rows.replacen("\n5,5,c1\n", "\n5,6,c1\n", 1)),
        ("row.csv", rows.replacen("5,5,c1\n", "", 1)),
        ("class.csv", rows.replace("c1", "d1")),
    ] {
        site.write(name, "a,b,label\n".to_string() + &other);
        let refused = site.run(&["join", "run", "--set", &format!("data.source={name}")]);
        refused.assert_error(4, &["has another data set than the job: its rows, columns or class names"]);
    }
    let (failures, stderr) = assert_complete(&site, job);
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(stderr.matches("has another data set than the job").count(), 3, "{stderr}");
}

/// Builds the bytes sent to the members of a generation.
type Forged = Box<dyn Fn(u32) -> Vec<u8>>;

/// A frame as `wire.rs` describes it.
fn frame(magic: &[u8; 4], generation: u32, operation: u64, group: u32, chunk: u32, length: u32) -> Vec<u8> {
    let mut bytes = [&magic[..], &generation.to_le_bytes(), &operation.to_le_bytes()].concat();
    for word in [group, 0, chunk, length] {
        bytes.extend(word.to_le_bytes());
    }
    let mut checksum = flate2::Crc::new();
    checksum.update(&bytes);
    // Of the header alone, and of the header and an empty payload.
    bytes.extend(checksum.sum().to_le_bytes());
    bytes.extend(checksum.sum().to_le_bytes());
    bytes
}

#[test]
fn members_that_forge_data_frames_are_excluded() {
    let site = Site::new();
    let three = JOB.map(|word| if word == "2" { "3" } else { word });
    let job = site.start(&[&three[..], &["--set", "train.epochs=1000000"]].concat());
    site.await_step("run", 1);
    let workers = || [0, 1, 2].map(|rank| site.find_worker(rank));
    let began = workers();
    let data =
        |operation, group, length| move |generation| frame(b"TLD5", generation, operation, group, 0, length);
    let farewell = |chunk: u32| move |generation| frame(b"TLF5", generation, 0, 0, chunk, 0);
    // Operations are numbered from where a generation begins.
    let later = move |generation: u32| data((u64::from(generation - 1) << 32) + 1000, 0, 0)(generation);
    let forged: [(&str, Forged); 12] = [
        ("generation", Box::new(move |_| data(1, 0, 0)(u32::MAX))),
        ("operation", Box::new(data(1000, 0, 0))),
        ("later operation", Box::new(later)),
        ("group", Box::new(data(1, 7, 0))),
        ("length", Box::new(data(1, 0, u32::MAX))),
        ("nothing at all", Box::new(|_| Vec::new())),
        ("done", Box::new(farewell(0))),
        ("gave up", Box::new(farewell(1))),
        ("told to stop", Box::new(farewell(2))),
        ("lost rank 0", Box::new(farewell(3))),
        ("lost rank 1", Box::new(farewell(4))),
        ("lost a rank that is not there", Box::new(farewell(u32::MAX))),
    ];
    let kinds = forged.len();
    for (what, forged) in forged {
        let peer = ScriptedPeer::join(&site);
        assert_eq!(peer.number, 3, "{what}: the one before it is gone");
        peer.forge_until_excluded(forged);
        let done = site.events("run").iter().filter_map(|event| event["step"].as_u64()).max().unwrap_or(0);
        site.await_step("run", done + 10);
        let mut events = site.events("run");
        events.retain(|event| event["event"] != "step");
        assert_eq!(workers(), began, "{what}: the others go on: {events:?}");
    }
    job.signal(Signal::SIGINT);
    let ended = job.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let report = site.report("run");
    let failures = report["failures"].as_array().unwrap();
    assert!(failures.iter().filter(|failure| failure["rank"] == 3).count() >= kinds, "{failures:?}");
    assert_eq!(report["world"].as_array().unwrap().last().unwrap()["workers"], 3);
    site.assert_empty();
}
