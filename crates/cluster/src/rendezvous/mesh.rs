//! The data connections: every rank with every other, each proven again.

use super::handshake::{Purpose, Side, shake};
use super::message::{Control, Member, Roster, send};
use super::reception::Reception;
use super::timed::{PATIENCE, Timed};
use super::welcome::is_gone;
use super::{Invitation, REMINDER, describe, ranks, route, unreachable};
use crate::beacon::Beacon;
use crate::exhaustion;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Culprit, Error, Kind, Result};

/// Who calls, by its place, in which generation.
pub type Caller = (usize, u32);

/// What to do about ranks that cannot be connected.
pub const ADVICE: &str = "every rank must be able to reach every other; check firewalls between these hosts";

/// How long to try to open a connection, before a newcomer is let in.
const PROBE: Duration = Duration::from_secs(5);

/// How long one attempt to connect may take, and how long the last one has at least.
const CONNECT: Duration = Duration::from_secs(2);
const LAST_TRY: Duration = Duration::from_millis(500);

/// How long a rank waits for the others before it says for whom.
const SOON: Duration = Duration::from_secs(3);

/// How many generations ahead of its own a rank keeps calls for.
const AHEAD: u32 = 16;

/// Calls of generations to come that are kept; more than a group has members are not.
#[derive(Default)]
pub struct Early(Vec<(Caller, TcpStream)>);

impl Early {
    /// Keeps a call that came in this generation: the newest of each place, and none of generations that are far away.
    fn keep(&mut self, caller: Caller, stream: TcpStream, generation: u32, most: usize) {
        let (place, ahead) = (caller.0, caller.1.saturating_sub(generation));
        if ahead == 0 || ahead > AHEAD || place >= most {
            return;
        }
        self.0.retain(|(known, _)| known.0 != place);
        self.0.push((caller, stream));
    }

    fn take(&mut self) -> Vec<(Caller, TcpStream)> {
        let mut calls = std::mem::take(&mut self.0);
        calls.retain(|(_, stream)| !is_gone(stream));
        calls
    }
}

/// Tries to open a connection to a member's data port, in a thread of its own, and says what came of it.
pub fn probe(member: Member, tell: impl FnOnce(&Control) + Send + 'static) {
    // Where no thread can be started, the newcomer is let in late or not at all; this rank goes on.
    let _ = std::thread::Builder::new().spawn(move || {
        let address = unreachable::route(member.data);
        let tried = TcpStream::connect_timeout(&address, PROBE);
        let error = tried.err().map(|error| format!("{}{}", plain_words(&error), route(address)));
        tell(&Control::Probed { rank: member.rank, error });
    });
}

/// What it takes to connect a group.
pub struct Group<'a> {
    /// What this rank was invited with.
    pub invitation: &'a Invitation,
    /// Who they are.
    pub roster: &'a Roster,
    /// This rank's place among them.
    pub place: usize,
    /// Where this rank listens.
    pub data: &'a TcpListener,
    /// Where a verdict or an interruption appears.
    pub beacon: &'a Beacon,
    /// How long it may take.
    pub patience: Duration,
    /// Hears whom this rank waits for.
    pub say: &'a dyn Fn(String),
}

/// Calls the ranks in lower places and is called by those in higher ones. `early` keeps the calls of generations to come.
///
/// Pulses and verdicts travel already: a rank that is lost meanwhile ends this as well.
pub fn connect(group: &Group<'_>, early: &mut Early) -> Result<Vec<Option<TcpStream>>> {
    let deadline = Instant::now() + group.patience;
    let mut peers: Vec<Option<TcpStream>> = (0..group.roster.members.len()).map(|_| None).collect();
    for (place, peer) in peers.iter_mut().enumerate().take(group.place) {
        *peer = Some(group.call(place, deadline)?);
    }
    group.answer(&mut peers, early, deadline)?;
    Ok(peers)
}

impl Group<'_> {
    fn check(&self) -> Result<()> {
        self.beacon.ending(self.roster.generation).map_or(Ok(()), Err)
    }

    fn call(&self, place: usize, deadline: Instant) -> Result<TcpStream> {
        let (invitation, peer) = (self.invitation, &self.roster.members[place]);
        let address = unreachable::route(peer.data);
        let mut reminder = Instant::now() + SOON;
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now()).max(LAST_TRY);
            let attempt = TcpStream::connect_timeout(&address, left.min(CONNECT)).and_then(|stream| {
                let mut timed = Timed::new(&stream, left.min(PATIENCE));
                shake(&mut timed, Side::Caller, Purpose::Data, &invitation.token)?;
                send(&mut timed, &(self.place, self.roster.generation))?;
                drop(timed);
                Ok(stream)
            });
            match attempt {
                Ok(stream) => return Ok(stream),
                Err(error) if exhaustion::explain("", &error).is_some() => {
                    let what = format!("cannot connect to rank {} at {address}", peer.rank);
                    return Err(exhaustion::io(&what, &error));
                }
                Err(error) if Instant::now() >= deadline => {
                    return Err(Error::new(
                        Kind::Rendezvous,
                        format!(
                            "rank {} cannot reach rank {} on {} at {address}{}: {}",
                            invitation.rank,
                            peer.rank,
                            peer.host,
                            route(address),
                            plain_words(&error)
                        ),
                    )
                    .hint(ADVICE)
                    .blame(unreachable(peer.rank, &error)));
                }
                Err(error) => {
                    if Instant::now() >= reminder {
                        reminder += REMINDER;
                        let (own, words) = (invitation.rank, plain_words(&error));
                        (self.say)(format!(
                            "rank {own} cannot reach rank {} at {address}: {words}",
                            peer.rank
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn answer(&self, peers: &mut [Option<TcpStream>], early: &mut Early, deadline: Instant) -> Result<()> {
        let mut reception: Reception<Caller> = Reception::new(Purpose::Data, &self.invitation.token);
        self.data.set_nonblocking(true).map_err(|error| Error::io("cannot listen", &error))?;
        let mut waiting = early.take().into_iter();
        let mut reminder = Instant::now() + SOON;
        loop {
            self.check()?;
            reception.admit(self.data)?;
            while let Some(((place, generation), stream)) =
                waiting.next().or_else(|| reception.next(Duration::from_millis(1)))
            {
                if generation > self.roster.generation {
                    let most = 2 * self.roster.members.len() + usize::from(u8::MAX);
                    early.keep((place, generation), stream, self.roster.generation, most);
                } else if place > self.place
                    && generation == self.roster.generation
                    && peers.get(place).is_some_and(Option::is_none)
                {
                    peers[place] = Some(stream);
                }
            }
            let number = |place: usize| self.roster.members[place].rank;
            let missing: Vec<usize> =
                (self.place + 1..peers.len()).filter(|&place| peers[place].is_none()).map(number).collect();
            let Some(first) = missing.first() else { return Ok(()) };
            if Instant::now() >= reminder {
                reminder += REMINDER;
                (self.say)(format!("rank {} waits for {} to connect", self.invitation.rank, ranks(&missing)));
            }
            if Instant::now() >= deadline {
                let at = self.data.local_addr().map_or_else(|_| "?".into(), describe);
                return Err(Error::new(
                    Kind::Rendezvous,
                    format!("{} did not connect to rank {} at {at}", ranks(&missing), self.invitation.rank),
                )
                .hint(ADVICE)
                .blame(Culprit {
                    rank: *first,
                    cause: "did not connect".into(),
                    ..Culprit::default()
                }));
            }
        }
    }
}

fn unreachable(rank: usize, error: &std::io::Error) -> Culprit {
    Culprit { rank, cause: format!("cannot be reached: {}", plain_words(error)), ..Culprit::default() }
}
