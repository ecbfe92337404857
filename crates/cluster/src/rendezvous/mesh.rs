//! The data connections: every rank with every other, each proven again.

use super::handshake::{Purpose, Side, shake};
use super::message::{Roster, send};
use super::reception::Reception;
use super::timed::{PATIENCE, Timed};
use super::{Invitation, check_token, describe, ranks, route};
use crate::beacon::Beacon;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Culprit, Error, Kind, Result};

/// Who calls, by its place, in which generation.
pub type Caller = (usize, u32);

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
}

/// Calls the ranks in lower places and is called by those in higher ones. `early` keeps the calls of generations to come.
///
/// Pulses and verdicts travel already: a rank that is lost meanwhile ends this as well.
pub fn connect(group: &Group<'_>, early: &mut Vec<(Caller, TcpStream)>) -> Result<Vec<Option<TcpStream>>> {
    let deadline = Instant::now() + group.invitation.deadline.max(Duration::from_secs(10));
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
        let address = peer.data;
        check_token(address, &invitation.token)?;
        loop {
            self.check()?;
            let attempt = TcpStream::connect_timeout(&address, Duration::from_secs(2)).and_then(|stream| {
                let mut timed = Timed::new(&stream, PATIENCE);
                shake(&mut timed, Side::Caller, Purpose::Data, &invitation.token)?;
                send(&mut timed, &(self.place, self.roster.generation))?;
                drop(timed);
                Ok(stream)
            });
            match attempt {
                Ok(stream) => return Ok(stream),
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
                    .hint(
                        "every rank must be able to reach every other; check firewalls between these two hosts",
                    )
                    .blame(unreachable(peer.rank, &error)));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn answer(
        &self,
        peers: &mut [Option<TcpStream>],
        early: &mut Vec<(Caller, TcpStream)>,
        deadline: Instant,
    ) -> Result<()> {
        let mut reception: Reception<Caller> = Reception::new(Purpose::Data, &self.invitation.token);
        self.data.set_nonblocking(true).map_err(|error| Error::io("cannot listen", &error))?;
        let mut waiting = std::mem::take(early).into_iter();
        loop {
            self.check()?;
            reception.admit(self.data);
            while let Some(((place, generation), stream)) =
                waiting.next().or_else(|| reception.next(Duration::from_millis(1)))
            {
                if generation > self.roster.generation {
                    early.push(((place, generation), stream));
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
            if Instant::now() >= deadline {
                let at = self.data.local_addr().map_or_else(|_| "?".into(), describe);
                return Err(Error::new(
                    Kind::Rendezvous,
                    format!("{} did not connect to rank {} at {at}", ranks(&missing), self.invitation.rank),
                )
                .hint("every rank must be able to reach every other; check firewalls between the hosts")
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
