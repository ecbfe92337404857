//! The life of a rank: from its place in the environment to its goodbye.

use crate::beacon::Beacon;
use crate::control::{self, Line, PULSE, Patience};
use crate::engine::environment::{Meeting, Place};
use crate::inquest::sign;
use crate::linux;
use crate::panics::{guarded, keep_panics};
use crate::rank::{Emit, Parts, Rank};
use crate::rendezvous::message::Control;
use crate::rendezvous::neighbourhood::{self, Connected};
use crate::rendezvous::{Invitation, coordinator, join, mesh};
use crate::uplink::Uplink;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thalweg_comm::transport::mem;
use thalweg_core::clock::SystemClock;
use thalweg_core::event::{Event, Level, Record};
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Kind, Result};

/// What a rank needs to know of its job.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Digest of the job.
    pub job: [u8; 32],
    /// Seed of the job.
    pub seed: u64,
    /// The shared secret.
    pub token: Vec<u8>,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest to wait until all are there.
    pub join_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
    /// What is to carry the data between ranks.
    pub carrier: Carrier,
    /// The port rank 0 listens on if a launcher passes it on; 0: any.
    pub port: u16,
}

/// Where records go if there is no launcher to take them.
pub type OnRecord = Arc<dyn Fn(&Record) -> Result<()> + Send + Sync>;

/// Why a process must end before its program does.
#[derive(Clone, Debug)]
pub enum Leaving {
    /// A signal, when there is nothing to save yet or for the second time.
    Signal(i32),
    /// The job is over, and the program does not come back from its computation.
    Verdict(Error),
}

/// Does what is to be done when the process ends at once, such as writing the report. The process ends after it.
pub type OnLeave = Arc<dyn Fn(&Leaving) + Send + Sync>;

/// What surrounds a rank's program in its process.
pub struct Surroundings {
    /// The signals that reach it, if they are its business: the first asks for a stop after the step.
    pub signals: Option<Receiver<i32>>,
    /// Where records go if there is no launcher to take them.
    pub on_record: OnRecord,
    /// What is done when it ends at once.
    pub on_leave: OnLeave,
}

/// How long a program may take to notice that the job is over.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Seconds since 1970.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Runs a program as the rank that this process is.
pub fn run<T>(
    place: &Place,
    terms: &Terms,
    surroundings: Surroundings,
    program: impl FnOnce(&mut Rank) -> Result<T>,
) -> Result<T> {
    keep_panics();
    let beacon = Beacon::new();
    let uplink = Uplink::open(Arc::clone(&beacon))?;
    let Surroundings { signals, on_record, on_leave } = surroundings;
    let (line, state) = (Arc::new(OnceLock::new()), Arc::new(State::default()));
    let session = Session { rank: place.rank, beacon, uplink, line, state, on_record, on_leave };
    if let Some(signals) = signals {
        session.heed(signals);
    }
    session.keep_pulse();
    let mut coordinator = None;
    let entered = guarded(|| session.enter(place, terms, &mut coordinator));
    session.state.joined.store(true, Ordering::Relaxed);
    let result = entered.map(|mut rank| {
        let result = guarded(|| program(&mut rank)).map_err(|error| session.sign(error, place.world));
        // The last word goes out before the data connections close: the others must learn the reason first.
        session.last_word(&result);
        if result.is_ok() {
            rank.leave();
        }
        result
    });
    let result = result.unwrap_or_else(|error| {
        let failed = Err(session.sign(error, place.world));
        session.last_word(&failed);
        failed
    });
    session.state.ended.store(true, Ordering::Relaxed);
    if let Some(coordinator) = coordinator {
        wait_for(&coordinator, Duration::from_secs(5));
    }
    if let Some(uplink) = &session.uplink {
        uplink.drain();
    }
    result
}

/// How far a session has come.
#[derive(Default)]
struct State {
    joined: AtomicBool,
    ended: AtomicBool,
}

struct Session {
    rank: usize,
    beacon: Arc<Beacon>,
    uplink: Option<Arc<Uplink>>,
    line: Arc<OnceLock<Arc<Line>>>,
    state: Arc<State>,
    on_record: OnRecord,
    on_leave: OnLeave,
}

impl Session {
    /// Passes signals on to the program. Before the ranks have met there is nothing to save: the process ends.
    fn heed(&self, signals: Receiver<i32>) {
        let (beacon, state, on_leave) =
            (Arc::clone(&self.beacon), Arc::clone(&self.state), Arc::clone(&self.on_leave));
        std::thread::spawn(move || {
            while let Ok(signal) = signals.recv() {
                if beacon.stop_requested() || !state.joined.load(Ordering::Relaxed) {
                    on_leave(&Leaving::Signal(signal));
                    std::process::exit(128 + signal);
                }
                beacon.request_stop();
            }
        });
    }

    fn emit(&self) -> Emit {
        let (rank, uplink, on_record, beacon) =
            (self.rank, self.uplink.clone(), Arc::clone(&self.on_record), Arc::clone(&self.beacon));
        Arc::new(move |event| {
            let record = Record { time: unix_time(), rank: Some(rank), event };
            match &uplink {
                Some(uplink) => uplink.send(&record),
                None => {
                    if let Err(error) = on_record(&record) {
                        beacon.condemn(error);
                    }
                }
            }
        })
    }

    /// Gives signs of life from now on, and sees to it that a verdict ends the process.
    fn keep_pulse(&self) {
        let (beacon, line, uplink, rank) =
            (Arc::clone(&self.beacon), Arc::clone(&self.line), self.uplink.clone(), self.rank);
        let (state, on_leave) = (Arc::clone(&self.state), Arc::clone(&self.on_leave));
        let mut over = Duration::ZERO;
        std::thread::spawn(move || {
            while !state.ended.load(Ordering::Relaxed) {
                let pulse = beacon.pulse();
                if let Some(line) = line.get() {
                    let line: &Arc<Line> = line;
                    line.say(&Control::Pulse(pulse.clone()));
                }
                if let Some(uplink) = &uplink {
                    uplink.send(&Record { time: unix_time(), rank: Some(rank), event: Event::Pulse(pulse) });
                }
                if let Some(error) = beacon.verdict() {
                    over += PULSE;
                    if over > LAST_WORDS {
                        let code = i32::from(error.exit_code());
                        on_leave(&Leaving::Verdict(error));
                        std::process::exit(code);
                    }
                }
                std::thread::sleep(PULSE);
            }
        });
    }

    /// Finds the others.
    fn enter(&self, place: &Place, terms: &Terms, presiding: &mut Option<JoinHandle<()>>) -> Result<Rank> {
        let emit = self.emit();
        if place.world == 1 {
            let alone = mem::mesh(1).pop().ok_or_else(|| Error::internal("a world of one has no member"))?;
            let connected = Connected { transport: Box::new(alone), neighbours: Vec::new(), carrier: "none" };
            return Ok(self.rank(terms, connected, vec![linux::host_name()], 1, emit));
        }
        let invitation = Invitation {
            rank: place.rank,
            world: place.world,
            job: terms.job,
            token: terms.token.clone(),
            host: linux::host_name(),
            anywhere: !place.local,
            deadline: terms.join_deadline,
            carrier: terms.carrier,
        };
        let speaker = Arc::clone(&emit);
        let say = move |message| speaker(Event::Notice { level: Level::Warning, message });
        let meeting = match place.rank {
            0 => {
                let (address, thread) = self.convene(place, terms, &emit)?;
                *presiding = Some(thread);
                address
            }
            _ => match (&place.meeting, &self.uplink) {
                (Meeting::At { host, port }, _) => format!("{host}:{port}"),
                (Meeting::ByLauncher, Some(uplink)) => uplink.coordinator(terms.join_deadline)?,
                (Meeting::ByLauncher, None) => {
                    return Err(Error::internal("no launcher to ask for rank 0's address"));
                }
            },
        };
        let joined = join::join(&invitation, &meeting, &say)?;
        let broken = |error: std::io::Error| Error::io("cannot set up a connection", &error);
        let control = joined.control.try_clone().map_err(broken)?;
        let line = Line::open(control, terms.step_deadline, Arc::clone(&self.beacon)).map_err(broken)?;
        let (witness, speaker) = (Arc::clone(&line), Arc::clone(&emit));
        self.beacon.call_witness(Box::new(move |error, pulse| {
            speaker(Event::Lost { error: error.clone(), pulse: pulse.clone() });
            witness.say(&Control::Witness(Box::new(error.clone()), pulse.clone()));
        }));
        // Set once: this is the only place.
        let _ = self.line.set(line);
        let peers = mesh::connect(&invitation, &joined, &self.beacon)?;
        let hosts: Vec<String> = joined.members.iter().map(|member| member.host.clone()).collect();
        let connected = neighbourhood::settle(&invitation, &joined, peers, &say)?;
        if place.rank == 0 {
            emit(Event::Joined { hosts: hosts.clone(), generation: joined.generation });
        }
        Ok(self.rank(terms, connected, hosts, joined.generation, emit))
    }

    /// Rank 0 opens the port and takes the coordinator's role in a thread of its own.
    fn convene(&self, place: &Place, terms: &Terms, emit: &Emit) -> Result<(String, JoinHandle<()>)> {
        let (address, meeting) = match &place.meeting {
            Meeting::ByLauncher => (SocketAddr::new(Ipv4Addr::LOCALHOST.into(), terms.port), None),
            Meeting::At { host, port } => {
                (listening_address(host, *port, place.local, &terms.token)?, Some(format!("{host}:{port}")))
            }
        };
        let listener = coordinator::listen(address, &terms.token)?;
        let bound = listener.local_addr().map_err(|error| Error::io("no local address", &error))?;
        emit(Event::Listening { address: bound.to_string() });
        let expected = coordinator::Expected {
            world: place.world,
            job: terms.job,
            token: terms.token.clone(),
            deadline: terms.join_deadline,
        };
        let (beacon, emit) = (Arc::clone(&self.beacon), Arc::clone(emit));
        let patience = Patience { step: terms.step_deadline, prepare: terms.prepare_deadline };
        let thread = std::thread::spawn(move || {
            let say = |message| emit(Event::Notice { level: Level::Warning, message });
            // On failure every rank that arrived, rank 0 among them, has been told why.
            if let Ok(arrived) = coordinator::gather(&listener, &expected, &say) {
                drop(listener);
                control::preside(arrived, patience, &beacon, &say);
            }
        });
        Ok((meeting.unwrap_or_else(|| bound.to_string()), thread))
    }

    fn rank(
        &self,
        terms: &Terms,
        connected: Connected,
        hosts: Vec<String>,
        generation: u32,
        emit: Emit,
    ) -> Rank {
        let Connected { transport, neighbours, carrier } = connected;
        Rank::new(Parts {
            transport,
            clock: Arc::new(SystemClock::default()),
            emit,
            beacon: Arc::clone(&self.beacon),
            hosts,
            neighbours,
            carrier,
            generation,
            step_deadline: terms.step_deadline,
            prepare_deadline: terms.prepare_deadline,
            seed: terms.seed,
        })
    }

    fn sign(&self, error: Error, world: usize) -> Error {
        sign(error, self.rank, world, &linux::host_name(), &self.beacon.pulse())
    }

    fn last_word<T>(&self, result: &Result<T>) {
        let pulse = self.beacon.pulse();
        if let Err(error) = result {
            (self.emit())(Event::Failed { error: error.clone(), pulse: pulse.clone() });
        }
        if let Some(line) = self.line.get() {
            line.leave(&match result {
                Ok(_) => Control::Goodbye,
                Err(error) => Control::Failed(Box::new(error.clone()), pulse),
            });
        }
    }
}

/// Where rank 0 listens: where it is told, or on all addresses if others come from elsewhere with a token (a host's
/// own name often leads to an address that only it can use).
fn listening_address(host: &str, port: u16, local: bool, token: &[u8]) -> Result<SocketAddr> {
    let resolved = (host, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    let address = resolved.ok_or_else(|| {
        Error::new(Kind::Rendezvous, format!("the name {host} does not resolve"))
            .hint("MASTER_ADDR must be a name or an address of the host that runs rank 0")
    })?;
    let explicit_loopback =
        host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if local || explicit_loopback || token.is_empty() {
        return Ok(address);
    }
    Ok(SocketAddr::new(
        if address.is_ipv6() { std::net::Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() },
        port,
    ))
}

fn wait_for(thread: &JoinHandle<()>, patience: Duration) {
    let end = Instant::now() + patience;
    while !thread.is_finished() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_the_ranks_meet_is_an_error_with_words_and_place() {
        let place = Place {
            rank: 0,
            world: 2,
            meeting: Meeting::At { host: "127.0.0.1".into(), port: 0 },
            local: true,
            launcher: "test",
        };
        let terms = Terms {
            job: [0; 32],
            seed: 0,
            token: Vec::new(),
            step_deadline: Duration::from_secs(60),
            join_deadline: Duration::from_secs(60),
            prepare_deadline: Duration::from_secs(60),
            carrier: Carrier::Tcp,
            port: 0,
        };
        let on_record = |record: &Record| match record.event {
            Event::Listening { .. } => panic!("no room for this record"),
            _ => Ok(()),
        };
        let surroundings =
            Surroundings { signals: None, on_record: Arc::new(on_record), on_leave: Arc::new(|_| {}) };
        let error = run(&place, &terms, surroundings, |_| Ok(())).unwrap_err();
        let words = "the program panicked: no room for this record (crates/cluster/src/session.rs:";
        assert!(error.message.starts_with(&format!("rank 0: {words}")), "{}", error.message);
    }
}
