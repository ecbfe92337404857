//! The data connections between all ranks, each with a handshake of its own.

use super::handshake::{Purpose, Side, handshake};
use super::handshake_acceptor::HandshakeAcceptor;
use super::join_validation::is_closed;
use super::message::{Control, Member, Roster, send};
use super::timed::{HANDSHAKE_TIMEOUT, Timed};
use super::{JoinConfig, REMINDER, describe, ranks, route, unreachable};
use crate::rank_status::RankStatus;
use crate::resource_limits;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::error::os_message;
use thalweg_core::{Culprit, Error, Kind, Result};

/// The rank of a caller, and its generation.
pub type Caller = (usize, u32);

/// Hint for ranks that cannot be connected.
pub const ADVICE: &str = "every rank must be able to reach every other; check firewalls between these hosts";

/// Timeout of a test connection before a newcomer is admitted.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of one attempt to connect, and the minimum for the last one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const MIN_LAST_ATTEMPT: Duration = Duration::from_millis(500);

/// Time until the first notice about missing ranks.
const FIRST_NOTICE: Duration = Duration::from_secs(3);

/// Connections for generations further ahead than this are dropped.
const MAX_AHEAD: u32 = 16;

/// Accepted connections of later generations, at most one per rank.
#[derive(Default)]
pub struct EarlyConnections(Vec<(Caller, TcpStream)>);

impl EarlyConnections {
    /// Keeps a connection that arrived in `generation`: the newest of each rank below `max_ranks`, up to [`MAX_AHEAD`].
    fn keep(&mut self, caller: Caller, stream: TcpStream, generation: u32, max_ranks: usize) {
        let (rank, ahead) = (caller.0, caller.1.saturating_sub(generation));
        if ahead == 0 || ahead > MAX_AHEAD || rank >= max_ranks {
            return;
        }
        self.0.retain(|(known, _)| known.0 != rank);
        self.0.push((caller, stream));
    }

    fn take(&mut self) -> Vec<(Caller, TcpStream)> {
        let mut connections = std::mem::take(&mut self.0);
        connections.retain(|(_, stream)| !is_closed(stream));
        connections
    }
}

/// Opens a test connection to a member's data port in a thread of its own, and passes the result to `respond`.
pub fn probe(member: Member, respond: impl FnOnce(&Control) + Send + 'static) {
    // Without a thread the newcomer is admitted late or not at all; this rank is not affected.
    let _ = std::thread::Builder::new().spawn(move || {
        let address = unreachable::route(member.data);
        let tried = TcpStream::connect_timeout(&address, PROBE_TIMEOUT);
        let error = tried.err().map(|error| format!("{}{}", os_message(&error), route(address)));
        respond(&Control::Probed { rank: member.rank, error });
    });
}

/// What a rank needs to connect to the members of a roster.
pub struct MeshConfig<'a> {
    pub join_config: &'a JoinConfig,
    pub roster: &'a Roster,
    /// This rank's index in the roster.
    pub rank: usize,
    /// This rank's listener for data connections.
    pub data: &'a TcpListener,
    /// Shows aborts and the end of this generation.
    pub rank_status: &'a RankStatus,
    pub timeout: Duration,
    /// Receives notices about missing ranks.
    pub notify: &'a dyn Fn(String),
}

/// Connects to the lower ranks and accepts connections of the higher ones. `early` keeps connections of later
/// generations.
///
/// Heartbeats are exchanged already, so the loss of a rank ends this as well.
pub fn connect(mesh: &MeshConfig<'_>, early: &mut EarlyConnections) -> Result<Vec<Option<TcpStream>>> {
    let deadline = Instant::now() + mesh.timeout;
    let mut peers: Vec<Option<TcpStream>> = (0..mesh.roster.members.len()).map(|_| None).collect();
    for (rank, peer) in peers.iter_mut().enumerate().take(mesh.rank) {
        *peer = Some(mesh.connect_to(rank, deadline)?);
    }
    mesh.accept(&mut peers, early, deadline)?;
    Ok(peers)
}

impl MeshConfig<'_> {
    fn check(&self) -> Result<()> {
        self.rank_status.end_reason(self.roster.generation).map_or(Ok(()), Err)
    }

    fn connect_to(&self, rank: usize, deadline: Instant) -> Result<TcpStream> {
        let (join_config, peer) = (self.join_config, &self.roster.members[rank]);
        let address = unreachable::route(peer.data);
        let mut reminder = Instant::now() + FIRST_NOTICE;
        let end_reason = || self.rank_status.end_reason(self.roster.generation);
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now()).max(MIN_LAST_ATTEMPT);
            let attempt =
                TcpStream::connect_timeout(&address, left.min(CONNECT_TIMEOUT)).and_then(|stream| {
                    let timed = Timed::new(&stream, left.min(HANDSHAKE_TIMEOUT));
                    let mut timed = timed.or_ended(&end_reason);
                    handshake(&mut timed, Side::Caller, Purpose::Data, &join_config.token)?;
                    send(&mut timed, &(self.rank, self.roster.generation))?;
                    drop(timed);
                    Ok(stream)
                });
            match attempt {
                Ok(stream) => return Ok(stream),
                Err(error) if resource_limits::explain("", &error).is_some() => {
                    let what = format!("cannot connect to rank {} at {address}", peer.rank);
                    return Err(resource_limits::io(&what, &error));
                }
                Err(error) if Instant::now() >= deadline => {
                    return Err(Error::new(
                        Kind::Rendezvous,
                        format!(
                            "rank {} cannot reach rank {} on {} at {address}{}: {}",
                            join_config.rank,
                            peer.rank,
                            peer.host,
                            route(address),
                            os_message(&error)
                        ),
                    )
                    .hint(ADVICE)
                    .blame(unreachable(peer.rank, &error)));
                }
                Err(error) => {
                    if Instant::now() >= reminder {
                        reminder += REMINDER;
                        let (own, why) = (join_config.rank, os_message(&error));
                        (self.notify)(format!(
                            "rank {own} cannot reach rank {} at {address}: {why}",
                            peer.rank
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn accept(
        &self,
        peers: &mut [Option<TcpStream>],
        early: &mut EarlyConnections,
        deadline: Instant,
    ) -> Result<()> {
        let mut acceptor: HandshakeAcceptor<Caller> =
            HandshakeAcceptor::new(Purpose::Data, &self.join_config.token);
        self.data.set_nonblocking(true).map_err(|error| Error::io("cannot listen", &error))?;
        let mut waiting = early.take().into_iter();
        let mut reminder = Instant::now() + FIRST_NOTICE;
        loop {
            self.check()?;
            acceptor.accept(self.data)?;
            while let Some(((rank, generation), stream)) =
                waiting.next().or_else(|| acceptor.next(Duration::from_millis(1)))
            {
                if generation > self.roster.generation {
                    let max_ranks = 2 * self.roster.members.len() + usize::from(u8::MAX);
                    early.keep((rank, generation), stream, self.roster.generation, max_ranks);
                } else if rank > self.rank
                    && generation == self.roster.generation
                    && peers.get(rank).is_some_and(Option::is_none)
                {
                    peers[rank] = Some(stream);
                }
            }
            let member_id = |rank: usize| self.roster.members[rank].rank;
            let missing: Vec<usize> =
                (self.rank + 1..peers.len()).filter(|&rank| peers[rank].is_none()).map(member_id).collect();
            let Some(first) = missing.first() else { return Ok(()) };
            if Instant::now() >= reminder {
                reminder += REMINDER;
                (self.notify)(format!(
                    "rank {} waits for {} to connect",
                    self.join_config.rank,
                    ranks(&missing)
                ));
            }
            if Instant::now() >= deadline {
                let at = self.data.local_addr().map_or_else(|_| "?".into(), describe);
                return Err(Error::new(
                    Kind::Rendezvous,
                    format!("{} did not connect to rank {} at {at}", ranks(&missing), self.join_config.rank),
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
    Culprit { rank, cause: format!("cannot be reached: {}", os_message(error)), ..Culprit::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(callers: &[Caller]) -> Vec<Caller> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut early, mut ends) = (EarlyConnections::default(), Vec::new());
        for caller in callers {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            ends.push(listener.accept().unwrap());
            early.keep(*caller, stream, 5, 9);
        }
        early.take().into_iter().map(|(caller, _)| caller).collect()
    }

    #[test]
    fn connections_for_generations_that_never_come_are_bounded() {
        assert_eq!(kept(&[(3, 6), (4, 5 + MAX_AHEAD)]), [(3, 6), (4, 5 + MAX_AHEAD)]);
        assert_eq!(kept(&[(3, 6), (3, 7), (3, 8)]), [(3, 8)], "the newest of each rank");
        assert!(kept(&[(3, 4), (3, 5)]).is_empty(), "no later generation");
        assert!(kept(&[(3, 6 + MAX_AHEAD), (4, u32::MAX)]).is_empty(), "too far ahead");
        assert!(kept(&[(9, 6), (usize::MAX, 6)]).is_empty(), "no such rank");
    }
}
