//! Sets up shared memory between the ranks of one host.
//!
//! Every two ranks already have an authenticated data connection. Over it the lower rank offers a local socket and a
//! token, and the higher one connects to it or declines; then each reports whether it could map the other's memory. If
//! both could, they replace the connection by a ring in shared memory; otherwise they keep it, with a notice.

use super::mesh::MeshConfig;
use super::message::{receive, send};
use super::timed::Timed;
use super::{mpi, ranks};
use crate::hosts::Hosts;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use thalweg_comm::host::{EventFd, LocalListener, LocalPeer, LocalPeers, LocalToken, connect_local};
use thalweg_comm::transport::tcp::Socket;
use thalweg_comm::transport::{Shm, ShmLink, ShmRing, Tcp, Transport, mem, shm_ring};
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, Kind, Result};

/// Timeout of the local connection between two ranks.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the loss of a rank to be reported.
const LOSS_REPORT_TIMEOUT: Duration = Duration::from_millis(300);

/// A transport to all peers.
pub struct ConnectedTransport {
    pub transport: Box<dyn Transport>,
    /// The peers with shared memory.
    pub local_peers: LocalPeers,
    /// Name in reports: `shm`, `tcp`, `shm+tcp` or `mpi`.
    pub carrier: &'static str,
}

impl ConnectedTransport {
    /// For a group of one rank.
    pub fn alone() -> ConnectedTransport {
        let transport = mem::mesh(1).pop().map(|alone| Box::new(alone) as Box<dyn Transport>);
        let transport = transport.unwrap_or_else(|| unreachable!("a mesh of one has one member"));
        ConnectedTransport { transport, local_peers: Vec::new(), carrier: "none" }
    }
}

/// Sets up shared memory with all ranks of this host that can, and keeps the connections to the others.
pub fn set_up_transport(
    mesh: &MeshConfig<'_>,
    mut peers: Vec<Option<TcpStream>>,
    notify: &dyn Fn(String),
) -> Result<ConnectedTransport> {
    let join_config = mesh.join_config;
    let broken = |error: io::Error| Error::io("cannot set up a connection", &error);
    let mut near = same_host_ranks(mesh);
    if join_config.carrier == TransportChoice::Mpi {
        return mpi::set_up(mesh, peers, near.len());
    }
    if join_config.carrier == TransportChoice::Tcp || near.is_empty() {
        let transport = Box::new(Tcp::new(mesh.rank, peers).map_err(broken)?);
        return Ok(ConnectedTransport { transport, local_peers: Vec::new(), carrier: "tcp" });
    }
    let event = EventFd::new().map_err(broken)?;
    let outcomes = connect_all(mesh, &near, &peers, &event);
    let mut local_peers: LocalPeers = vec![None; peers.len()];
    let mut rings: Vec<Option<ShmRing>> = (0..peers.len()).map(|_| None).collect();
    let mut failed: Vec<(usize, String)> = Vec::new();
    for (peer, outcome) in outcomes {
        match outcome {
            Ok((local_peer, ring)) => {
                (local_peers[peer], rings[peer], peers[peer]) = (Some(local_peer), Some(ring), None);
            }
            Err(error) => failed.push((peer, error.to_string())),
        }
    }
    if !failed.is_empty() {
        // The cause may be the loss of that rank, which is the error to report.
        mesh.rank_status.await_end_reason(mesh.roster.generation, LOSS_REPORT_TIMEOUT).map_or(Ok(()), Err)?;
    }
    if let Some((_, why)) = failed.first() {
        let without: Vec<usize> = failed.iter().map(|(peer, _)| *peer).collect();
        let member_ids: Vec<usize> = without.iter().map(|rank| mesh.roster.members[*rank].rank).collect();
        let message =
            format!("rank {} shares no memory with {}: {why}", join_config.rank, ranks(&member_ids));
        if join_config.carrier == TransportChoice::Shm {
            return Err(Error::new(Kind::Rendezvous, message)
                .hint("strategy.exchange.transport = \"auto\" would use tcp instead"));
        }
        notify(format!("{message}; they exchange over tcp"));
        near.retain(|peer| !without.contains(peer));
    }
    let links = rings.into_iter().zip(peers).map(|(ring, stream)| match (ring, stream) {
        (Some(ring), _) => Ok(Some(ShmLink::Ring(ring))),
        (None, Some(stream)) => Socket::new(stream).map(|socket| Some(ShmLink::Socket(socket))),
        (None, None) => Ok(None),
    });
    let links: Vec<Option<ShmLink>> = links.collect::<io::Result<_>>().map_err(broken)?;
    let carrier = match near.len() {
        0 => "tcp",
        peers if peers + 1 == links.len() => "shm",
        _ => "shm+tcp",
    };
    let transport = Box::new(Shm::new(mesh.rank, links, event).map_err(broken)?);
    Ok(ConnectedTransport { transport, local_peers, carrier })
}

/// The other ranks of this host.
fn same_host_ranks(mesh: &MeshConfig<'_>) -> Vec<usize> {
    let hosts = Hosts::of(&mesh.roster.members);
    let here = |rank: &usize| hosts.numbers()[*rank] == hosts.numbers()[mesh.rank];
    (0..hosts.numbers().len()).filter(|rank| *rank != mesh.rank).filter(here).collect()
}

type LocalOutcome = (usize, io::Result<(LocalPeer, ShmRing)>);

/// Connects to the local sockets of the lower ranks, then accepts the higher ones at its own: a rank waits only for
/// lower ones, which do not wait for it, so there is no deadlock.
fn connect_all(
    mesh: &MeshConfig<'_>,
    near: &[usize],
    peers: &[Option<TcpStream>],
    event: &EventFd,
) -> Vec<LocalOutcome> {
    // A peer may still be busy with its other connections.
    let timeout = mesh.timeout;
    let (rank, local_world) = (mesh.rank, near.len() + 1);
    // Without memory for all of them this rank declines all.
    let room = shm_ring::check_room(local_world).map_err(|error| (error.kind(), error.to_string()));
    let refusal = || room.clone().map_err(|(kind, why)| io::Error::new(kind, why));
    let mut listener = refusal().and_then(|()| LocalListener::bind());
    let (below, above): (Vec<usize>, Vec<usize>) = near.iter().partition(|&&peer| peer < rank);
    // A peer that is lost may not answer, and the end of the job is no reason to wait on.
    let end_reason = || mesh.rank_status.end_reason(mesh.roster.generation);
    let timed = |peer: usize| {
        let stream = peers[peer].as_ref().ok_or_else(gone)?;
        Ok(Timed::new(stream, timeout).or_ended(&end_reason))
    };
    let mut offered = Vec::new();
    for &peer in &above {
        let offer: Option<(String, LocalToken)> = listener.as_mut().ok().and_then(|listener| {
            let token = listener.expect(peer).ok()?;
            Some((listener.name().to_owned(), token))
        });
        offered.push((peer, timed(peer).and_then(|mut stream| send(&mut stream, &offer))));
    }
    let mut outcomes = Vec::new();
    for peer in below {
        let connect = |mut stream: Timed<'_>| {
            let offer: Option<(String, LocalToken)> = receive(&mut stream)?;
            let offer = refusal().and_then(|()| offer.ok_or_else(declined));
            let socket = offer.and_then(|(name, token)| connect_local(&name, &token));
            send(&mut stream, &socket.is_ok())?;
            agree(&mut stream, socket.and_then(|socket| map_ring(LocalPeer::new(socket), local_world, event)))
        };
        outcomes.push((peer, timed(peer).and_then(connect)));
    }
    for (peer, offer) in offered {
        let connect = |mut stream: Timed<'_>| {
            let connects: bool = receive(&mut stream)?;
            let socket = match (&mut listener, connects) {
                (Ok(listener), true) => {
                    listener.accept_from(peer, Instant::now() + LOCAL_TIMEOUT, || end_reason().is_some())
                }
                (Err(error), _) => Err(io::Error::new(error.kind(), error.to_string())),
                (Ok(_), false) => Err(declined()),
            };
            agree(&mut stream, socket.and_then(|socket| map_ring(LocalPeer::new(socket), local_world, event)))
        };
        outcomes.push((peer, offer.and_then(|()| timed(peer)).and_then(connect)));
    }
    outcomes
}

fn map_ring(local_peer: LocalPeer, local_world: usize, event: &EventFd) -> io::Result<(LocalPeer, ShmRing)> {
    let ring = shm_ring::RingOffer::new(&local_peer, local_world, event)?.accept(LOCAL_TIMEOUT)?;
    Ok((local_peer, ring))
}

/// Exchanges the results of both sides; succeeds only if both did.
fn agree<T>(stream: &mut Timed<'_>, mine: io::Result<T>) -> io::Result<T> {
    send(stream, &mine.as_ref().err().map(io::Error::to_string))?;
    let theirs: Option<String> = receive(stream)?;
    match theirs {
        Some(why) => mine.and(Err(io::Error::other(why))),
        None => mine,
    }
}

fn declined() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "its local socket cannot be reached")
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}
