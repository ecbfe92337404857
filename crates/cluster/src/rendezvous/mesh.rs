//! The data connections: every rank with every other, each proven again.

use super::handshake::{Purpose, Side, shake};
use super::join::Joined;
use super::message::send;
use super::reception::Reception;
use super::timed::{PATIENCE, Timed};
use super::{Invitation, check_token, describe, ranks, route};
use crate::beacon::Beacon;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Error, Kind, Result};

/// Who calls, in which generation.
type Caller = (usize, u32);

/// Calls the lower ranks and is called by the higher ones.
///
/// Pulses and verdicts travel already: a rank that is lost meanwhile ends this as well.
pub fn connect(invitation: &Invitation, joined: &Joined, beacon: &Beacon) -> Result<Vec<Option<TcpStream>>> {
    let deadline = Instant::now() + invitation.deadline.max(Duration::from_secs(10));
    let mut peers: Vec<Option<TcpStream>> = (0..invitation.world).map(|_| None).collect();
    for (rank, peer) in peers.iter_mut().enumerate().take(invitation.rank) {
        *peer = Some(call(invitation, joined, rank, deadline, beacon)?);
    }
    answer(invitation, joined, &mut peers, deadline, beacon)?;
    Ok(peers)
}

fn call(
    invitation: &Invitation,
    joined: &Joined,
    rank: usize,
    deadline: Instant,
    beacon: &Beacon,
) -> Result<TcpStream> {
    let address = joined.members[rank].data;
    check_token(address, &invitation.token)?;
    loop {
        beacon.verdict().map_or(Ok(()), Err)?;
        let attempt = TcpStream::connect_timeout(&address, Duration::from_secs(2)).and_then(|stream| {
            let mut timed = Timed::new(&stream, PATIENCE);
            shake(&mut timed, Side::Caller, Purpose::Data, &invitation.token)?;
            send(&mut timed, &(invitation.rank, joined.generation))?;
            drop(timed);
            Ok(stream)
        });
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => {
                return Err(Error::new(
                    Kind::Rendezvous,
                    format!(
                        "rank {} cannot reach rank {rank} on {} at {address}{}: {}",
                        invitation.rank,
                        joined.members[rank].host,
                        route(address),
                        plain_words(&error)
                    ),
                )
                .hint(
                    "every rank must be able to reach every other; check firewalls between these two hosts",
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn answer(
    invitation: &Invitation,
    joined: &Joined,
    peers: &mut [Option<TcpStream>],
    deadline: Instant,
    beacon: &Beacon,
) -> Result<()> {
    let mut reception: Reception<Caller> = Reception::new(Purpose::Data, &invitation.token);
    joined.data.set_nonblocking(true).map_err(|error| Error::io("cannot listen", &error))?;
    loop {
        beacon.verdict().map_or(Ok(()), Err)?;
        reception.admit(&joined.data);
        while let Some(((rank, generation), stream)) = reception.next(Duration::from_millis(1)) {
            if rank > invitation.rank
                && generation == joined.generation
                && peers.get(rank).is_some_and(Option::is_none)
            {
                peers[rank] = Some(stream);
            }
        }
        let missing: Vec<usize> =
            (invitation.rank + 1..peers.len()).filter(|&rank| peers[rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let at = joined.data.local_addr().map_or_else(|_| "?".into(), describe);
            return Err(Error::new(
                Kind::Rendezvous,
                format!("{} did not connect to rank {} at {at}", ranks(&missing), invitation.rank),
            )
            .hint("every rank must be able to reach every other; check firewalls between the hosts"));
        }
    }
}
