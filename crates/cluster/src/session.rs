//! The life of a rank: from its place in the environment to its goodbye.

use crate::beacon::Beacon;
use crate::engine::environment::{Meeting, Place};
use crate::hosts::Hosts;
use crate::inquest::sign;
use crate::interruption::{Received, Signal};
use crate::leaving::{Heeding, State, leave};
pub use crate::leaving::{Leaving, OnLeave};
use crate::line::PULSE;
use crate::linux;
use crate::membership::Limits;
use crate::panics::{guarded, keep_panics};
use crate::rank::{Emit, Parts, Rank};
use crate::regroup::{Delegate, Generation, LineSlot};
use crate::rendezvous::message::{Arrival, Control, Member};
use crate::rendezvous::neighbourhood::Connected;
use crate::rendezvous::{Invitation, endpoint};
use crate::role::Role;
use crate::uplink::Uplink;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thalweg_core::clock::SystemClock;
use thalweg_core::event::{Event, Level, Record};
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Result};

/// What a rank needs to know of its job.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Digest of the job.
    pub job: [u8; 32],
    /// The job itself, for those who want to join.
    pub text: String,
    /// Digest of what is trained: its layout, and the file it comes from if there is one. Empty if it is not known yet.
    pub model: Vec<u8>,
    /// Digest of the rows it is trained with. Empty if it is not known yet.
    pub data: String,
    /// Seed of the job.
    pub seed: u64,
    /// Whether the others go on when one is lost.
    pub elastic: bool,
    /// How many there must and may be, and how long to wait for them.
    pub limits: Limits,
    /// The shared secret, as the user or the launcher says; empty: ranks of one host get one from rank 0.
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

/// The shared secret of a job, which a rank without one learns from rank 0.
pub(crate) type Token = Arc<OnceLock<Vec<u8>>>;

/// Where records go if there is no launcher to take them.
pub type OnRecord = Arc<dyn Fn(&Record) -> Result<()> + Send + Sync>;

/// What surrounds a rank's program in its process.
pub struct Surroundings {
    /// The signals that reach it, if they are its business.
    pub signals: Option<Receiver<Received>>,
    /// Where records go if there is no launcher to take them.
    pub on_record: OnRecord,
    /// What is done when it ends at once.
    pub on_leave: OnLeave,
}

/// How long a rank that is done keeps the coordinator's role for the others: as long as they need.
const ROLE: Duration = Duration::from_secs(365 * 24 * 3600);

/// What launches a worker that came by itself.
pub const JOIN: &str = "join";

/// How long a rank 0 that cannot begin stays to say so.
const REFUSING: Duration = Duration::from_secs(6);

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
    beacon.count_this_thread();
    let uplink = Uplink::open(Arc::clone(&beacon))?;
    let Surroundings { signals, on_record, on_leave } = surroundings;
    let (line, state, members) = (LineSlot::default(), Arc::new(State::default()), Arc::default());
    let token = known_token(terms);
    let session =
        Session { rank: place.rank, token, beacon, uplink, line, state, members, on_record, on_leave };
    if let Some(signals) = signals {
        // Without a launcher, rank 0 writes the results: if it is asked to end, so is the job.
        let drains = terms.elastic && (session.uplink.is_some() || place.rank != 0);
        session.heed(signals, drains, place.launcher == JOIN);
    }
    session.keep_pulse();
    let role = session.role(place, terms);
    if let Some(wishes) = session.uplink.as_ref().and_then(|uplink| uplink.wishes()) {
        role.heed(wishes);
    }
    let entered = guarded(|| session.enter(place, terms, &role));
    session.state.joined.store(true, Ordering::Relaxed);
    let result = entered.map(|mut rank| {
        let result = guarded(|| program(&mut rank)).map_err(|error| session.sign(error, place.world));
        session.state.done.store(result.is_ok(), Ordering::Relaxed);
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
    // Those who are left may have to form a group once more, and do the end of the job again; or this rank left them long
    // before the end. Whoever has the coordinator's role stays for them, with signs of life.
    role.see_out(if result.is_ok() { ROLE } else { Duration::from_secs(5) });
    session.state.ended.store(true, Ordering::Relaxed);
    if let Some(uplink) = &session.uplink {
        uplink.drain();
    }
    result
}

/// Tells the other ranks why rank 0 cannot begin, as far as they come soon. Nothing is done about a failure of that: they
/// wait until their own deadline.
pub fn refuse(place: &Place, terms: &Terms, error: &Error) {
    if place.rank != 0 || place.world == 1 || place.joins {
        return;
    }
    let role = Role {
        place: place.clone(),
        terms: Terms { join_deadline: Duration::ZERO, ..terms.clone() },
        token: known_token(terms),
        beacon: Beacon::new(),
        emit: Arc::new(|_| {}),
        uplink: None,
        members: Arc::default(),
        held: Mutex::default(),
    };
    let told = Error { message: format!("rank 0 cannot begin: {}", error.message), ..error.clone() };
    if role.take_after(Some(told)).is_ok() {
        role.see_out(REFUSING);
    }
}

/// The secret of a job, if it is known already.
fn known_token(terms: &Terms) -> Token {
    let token = Token::default();
    if !terms.token.is_empty() {
        let _ = token.set(terms.token.clone());
    }
    token
}

struct Session {
    rank: usize,
    token: Token,
    beacon: Arc<Beacon>,
    uplink: Option<Arc<Uplink>>,
    line: LineSlot,
    state: Arc<State>,
    /// The members of the last generation.
    members: Arc<Mutex<Vec<Member>>>,
    on_record: OnRecord,
    on_leave: OnLeave,
}

impl Session {
    /// Passes signals on to the program.
    fn heed(&self, signals: Receiver<Received>, drains: bool, is_guest: bool) {
        let heeding = Heeding {
            rank: self.rank,
            beacon: Arc::clone(&self.beacon),
            state: Arc::clone(&self.state),
            emit: self.emit(),
            on_leave: Arc::clone(&self.on_leave),
            drains,
            is_guest,
        };
        std::thread::spawn(move || heeding.run(&signals));
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
                let open = line.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(line) = open {
                    line.say(&Control::Pulse(pulse.clone()));
                }
                if let Some(uplink) = &uplink {
                    if uplink.is_gone() && !state.joined.load(Ordering::Relaxed) {
                        // Nothing to save yet, and nobody left to wait for the others.
                        leave(&on_leave, Leaving::Signal(Signal::Terminate), || {});
                    }
                    uplink.send(&Record { time: unix_time(), rank: Some(rank), event: Event::Pulse(pulse) });
                }
                if let Some(error) = beacon.verdict() {
                    over += PULSE;
                    if over > LAST_WORDS {
                        leave(&on_leave, Leaving::Verdict(error), || {});
                    }
                }
                std::thread::sleep(PULSE);
            }
        });
    }

    fn role(&self, place: &Place, terms: &Terms) -> Arc<Role> {
        Arc::new(Role {
            place: place.clone(),
            terms: terms.clone(),
            token: Arc::clone(&self.token),
            beacon: Arc::clone(&self.beacon),
            emit: self.emit(),
            uplink: self.uplink.clone(),
            members: Arc::clone(&self.members),
            held: Mutex::default(),
        })
    }

    /// Finds the others.
    fn enter(&self, place: &Place, terms: &Terms, role: &Role) -> Result<Rank> {
        let emit = self.emit();
        if place.world == 1 && !place.joins && !terms.elastic {
            let Connected { transport, neighbours, carrier } = Connected::alone();
            let alone = Generation {
                number: 1,
                transport,
                neighbours,
                carrier,
                numbers: vec![place.rank],
                hosts: Hosts::one(&linux::host_name(), 1),
                change: Default::default(),
            };
            return Ok(self.rank(terms, alone, emit, None));
        }
        let convenes = place.rank == 0 && !place.joins;
        let (fixed, (told, meeting)) = match (&place.meeting, &self.uplink) {
            (Meeting::At { .. }, _) if convenes => (true, (0, role.take()?)),
            (meeting @ (Meeting::At { .. } | Meeting::InFile(_)), _) => {
                (true, (0, endpoint::of(meeting).unwrap_or_default()))
            }
            // The launcher repeats what this process told it: the next to be told of is another one.
            (Meeting::ByLauncher, _) if convenes => (false, (1, role.take()?)),
            (Meeting::ByLauncher, Some(uplink)) => (false, uplink.coordinator(0, terms.join_deadline)?),
            (Meeting::ByLauncher, None) => {
                return Err(Error::internal("no launcher to ask for rank 0's address"));
            }
        };
        let (speaker, teller) = (Arc::clone(&emit), Arc::clone(&emit));
        let mut delegate = Delegate {
            invitation: Invitation {
                rank: place.rank,
                world: place.world,
                job: terms.job,
                text: terms.text.clone(),
                run: place.run.clone(),
                model: terms.model.clone(),
                data: terms.data.clone(),
                token: self.token.get().cloned().unwrap_or_default(),
                host: linux::host_name(),
                anywhere: !place.local,
                deadline: terms.join_deadline,
                carrier: terms.carrier,
            },
            token: Arc::clone(&self.token),
            arrival: if place.joins { Arrival::New } else { Arrival::First },
            step_deadline: terms.step_deadline,
            patience: terms.prepare_deadline.max(terms.join_deadline) + terms.step_deadline,
            beacon: Arc::clone(&self.beacon),
            line: Arc::clone(&self.line),
            uplink: self.uplink.clone(),
            meeting,
            told,
            fixed,
            returns: place.joins && self.uplink.is_none(),
            say: Arc::new(move |message| speaker(Event::Notice { level: Level::Warning, message })),
            tell: Arc::new(move |error, pulse| {
                teller(Event::Lost { error: error.clone(), pulse: pulse.clone() });
            }),
            elastic: terms.elastic,
            data: None,
            early: Default::default(),
            members: Arc::clone(&self.members),
            mail: channel(),
        };
        let first = delegate.first()?;
        if first.numbers.first() == Some(&place.rank) && !place.joins {
            emit(Event::Joined { hosts: first.hosts.names().to_vec(), generation: first.number });
        }
        Ok(self.rank(terms, first, emit, terms.elastic.then_some(delegate)))
    }

    fn rank(&self, terms: &Terms, generation: Generation, emit: Emit, delegate: Option<Delegate>) -> Rank {
        let Generation { number, transport, neighbours, carrier, numbers, hosts, change } = generation;
        Rank::new(Parts {
            transport: transport.into(),
            hosts,
            numbers,
            neighbours,
            carrier,
            generation: number,
            change,
            delegate: delegate.map(|delegate| Box::new(delegate) as _),
            clock: Arc::new(SystemClock::default()),
            emit,
            beacon: Arc::clone(&self.beacon),
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
        let open = self.line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(line) = open {
            line.leave(&match result {
                Ok(_) => Control::Goodbye,
                Err(error) => Control::Failed(Box::new(error.clone()), pulse),
            });
        }
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
            meeting: Meeting::at("127.0.0.1", 0),
            local: true,
            launcher: "test",
            joins: false,
            run: String::new(),
        };
        let terms = Terms {
            job: [0; 32],
            text: String::new(),
            model: Vec::new(),
            data: String::new(),
            seed: 0,
            elastic: false,
            limits: Limits { least: 1, most: 2, patience: Duration::from_secs(60) },
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
