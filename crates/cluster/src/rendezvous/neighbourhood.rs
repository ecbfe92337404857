//! Ranks of one host find out that they are, and go on through shared memory.
//!
//! Every two ranks have a data connection by now, on which both have proven themselves. Over it two ranks of one host
//! agree, the lower one offering a doorway and a token, the higher one coming to it or not; then each says whether it
//! could map the other's memory. Only if both could do they leave the connection for a ring; whatever goes wrong, they
//! stay on it, and say so.

use super::mesh::Group;
use super::message::{receive, send};
use super::timed::Timed;
use super::{mpi, ranks};
use crate::hosts::Hosts;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use thalweg_comm::host::{Bell, Doorway, Neighbour, Neighbours, Token, call};
use thalweg_comm::transport::tcp::Socket;
use thalweg_comm::transport::{Ring, Shm, Tcp, Transport, Way, mem, ring};
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Kind, Result};

/// How long two ranks that have agreed to meet may take to do so.
const MEETING: Duration = Duration::from_secs(5);

/// How long the news that a rank was lost may take.
const NEWS: Duration = Duration::from_millis(300);

/// How a rank reaches the others.
pub struct Connected {
    /// One way or another.
    pub transport: Box<dyn Transport>,
    /// Those it shares memory with.
    pub neighbours: Neighbours,
    /// What carries its bytes: `shm`, `tcp`, `shm+tcp` or `mpi`.
    pub carrier: &'static str,
}

impl Connected {
    /// The only rank of its group.
    pub fn alone() -> Connected {
        let transport = mem::mesh(1).pop().map(|alone| Box::new(alone) as Box<dyn Transport>);
        let transport = transport.unwrap_or_else(|| unreachable!("a mesh of one has one member"));
        Connected { transport, neighbours: Vec::new(), carrier: "none" }
    }
}

/// Takes the way through memory to all ranks of this host that agree, and keeps the connections to the others.
pub fn settle(
    group: &Group<'_>,
    mut peers: Vec<Option<TcpStream>>,
    say: &dyn Fn(String),
) -> Result<Connected> {
    let invitation = group.invitation;
    let broken = |error: io::Error| Error::io("cannot set up a connection", &error);
    let mut near = near(group);
    if invitation.carrier == Carrier::Mpi {
        return mpi::settle(group, peers, near.len());
    }
    if invitation.carrier == Carrier::Tcp || near.is_empty() {
        let transport = Box::new(Tcp::new(group.place, peers).map_err(broken)?);
        return Ok(Connected { transport, neighbours: Vec::new(), carrier: "tcp" });
    }
    let bell = Bell::new().map_err(broken)?;
    let met = meet_all(group, &near, &peers, &bell);
    let mut neighbours: Neighbours = vec![None; peers.len()];
    let mut rings: Vec<Option<Ring>> = (0..peers.len()).map(|_| None).collect();
    let mut refused: Vec<(usize, String)> = Vec::new();
    for (peer, outcome) in met {
        match outcome {
            Ok((neighbour, ring)) => {
                (neighbours[peer], rings[peer], peers[peer]) = (Some(neighbour), Some(ring), None);
            }
            Err(error) => refused.push((peer, error.to_string())),
        }
    }
    if !refused.is_empty() {
        // One that is lost in these moments shares nothing; that it is lost is what counts, and will be told.
        group.beacon.await_ending(group.roster.generation, NEWS).map_or(Ok(()), Err)?;
    }
    if let Some((_, words)) = refused.first() {
        let without: Vec<usize> = refused.iter().map(|(peer, _)| *peer).collect();
        let numbers: Vec<usize> = without.iter().map(|place| group.roster.members[*place].rank).collect();
        let message = format!("rank {} shares no memory with {}: {words}", invitation.rank, ranks(&numbers));
        if invitation.carrier == Carrier::Shm {
            return Err(Error::new(Kind::Rendezvous, message)
                .hint("strategy.exchange.transport = \"auto\" would go on over tcp"));
        }
        say(format!("{message}; they exchange over tcp"));
        near.retain(|peer| !without.contains(peer));
    }
    let ways = rings.into_iter().zip(peers).map(|(ring, stream)| match (ring, stream) {
        (Some(ring), _) => Ok(Some(Way::Ring(ring))),
        (None, Some(stream)) => Socket::new(stream).map(|socket| Some(Way::Socket(socket))),
        (None, None) => Ok(None),
    });
    let ways: Vec<Option<Way>> = ways.collect::<io::Result<_>>().map_err(broken)?;
    let carrier = match near.len() {
        0 => "tcp",
        most if most + 1 == ways.len() => "shm",
        _ => "shm+tcp",
    };
    let transport = Box::new(Shm::new(group.place, ways, bell).map_err(broken)?);
    Ok(Connected { transport, neighbours, carrier })
}

/// The other ranks of this host.
fn near(group: &Group<'_>) -> Vec<usize> {
    let hosts = Hosts::of(&group.roster.members);
    let here = |place: &usize| hosts.numbers()[*place] == hosts.numbers()[group.place];
    (0..hosts.numbers().len()).filter(|place| *place != group.place).filter(here).collect()
}

type Met = (usize, io::Result<(Neighbour, Ring)>);

/// Meets the lower ranks at their doors, then the higher ones at its own: each waits only for lower ones that do not
/// wait for it.
fn meet_all(group: &Group<'_>, near: &[usize], peers: &[Option<TcpStream>], bell: &Bell) -> Vec<Met> {
    // A rank may still be busy with its other connections.
    let patience = group.patience;
    let (place, group) = (group.place, near.len() + 1);
    // Without room for all of them nobody is let in, and nobody is called on.
    let room = ring::check_room(group).map_err(|error| (error.kind(), error.to_string()));
    let refusal = || room.clone().map_err(|(kind, words)| io::Error::new(kind, words));
    let mut door = refusal().and_then(|()| Doorway::open());
    let (below, above): (Vec<usize>, Vec<usize>) = near.iter().partition(|&&peer| peer < place);
    let timed =
        |peer: usize| peers[peer].as_ref().map(|stream| Timed::new(stream, patience)).ok_or_else(gone);
    let mut invited = Vec::new();
    for &peer in &above {
        let offer: Option<(String, Token)> = door.as_mut().ok().and_then(|door| {
            let token = door.expect(peer).ok()?;
            Some((door.name().to_owned(), token))
        });
        invited.push((peer, timed(peer).and_then(|mut stream| send(&mut stream, &offer))));
    }
    let mut met = Vec::new();
    for peer in below {
        let meet = |mut stream: Timed<'_>| {
            let offer: Option<(String, Token)> = receive(&mut stream)?;
            let offer = refusal().and_then(|()| offer.ok_or_else(no_door));
            let socket = offer.and_then(|(name, token)| call(&name, &token));
            send(&mut stream, &socket.is_ok())?;
            agree(&mut stream, socket.and_then(|socket| share(Neighbour::new(socket), group, bell)))
        };
        met.push((peer, timed(peer).and_then(meet)));
    }
    for (peer, invited) in invited {
        let meet = |mut stream: Timed<'_>| {
            let comes: bool = receive(&mut stream)?;
            let socket = match (&mut door, comes) {
                (Ok(door), true) => door.await_caller(peer, Instant::now() + MEETING),
                (Err(error), _) => Err(io::Error::new(error.kind(), error.to_string())),
                (Ok(_), false) => Err(no_door()),
            };
            agree(&mut stream, socket.and_then(|socket| share(Neighbour::new(socket), group, bell)))
        };
        met.push((peer, invited.and_then(|()| timed(peer)).and_then(meet)));
    }
    met
}

fn share(neighbour: Neighbour, group: usize, bell: &Bell) -> io::Result<(Neighbour, Ring)> {
    let ring = ring::Offer::new(&neighbour, group, bell)?.accept(MEETING)?;
    Ok((neighbour, ring))
}

/// Both say how it went; it went well only if it did for both.
fn agree<T>(stream: &mut Timed<'_>, mine: io::Result<T>) -> io::Result<T> {
    send(stream, &mine.as_ref().err().map(io::Error::to_string))?;
    let theirs: Option<String> = receive(stream)?;
    match theirs {
        Some(words) => mine.and(Err(io::Error::other(words))),
        None => mine,
    }
}

fn no_door() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the way to its doorway is closed")
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}
