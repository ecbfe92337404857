//! The data connections: every rank with every other, each proven again.

use super::handshake::{Purpose, Side, shake};
use super::join::Joined;
use super::message::{receive, send};
use super::{Invitation, check_token, describe, ranks};
use crate::beacon::Beacon;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
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
        let attempt = TcpStream::connect_timeout(&address, Duration::from_secs(2)).and_then(|mut stream| {
            shake(&mut stream, Side::Caller, Purpose::Data, &invitation.token)?;
            send(&mut stream, &(invitation.rank, joined.generation))?;
            Ok(stream)
        });
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => {
                return Err(Error::new(
                    Kind::Rendezvous,
                    format!(
                        "rank {} cannot reach rank {rank} on {} at {address}: {error}",
                        invitation.rank, joined.members[rank].host
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
    let (sender, receiver) = channel();
    joined.data.set_nonblocking(true).map_err(|error| Error::io("cannot listen", &error))?;
    loop {
        beacon.verdict().map_or(Ok(()), Err)?;
        accept(&joined.data, invitation, &sender);
        while let Ok(((rank, generation), stream)) = receiver.try_recv() {
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
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn accept(
    listener: &TcpListener,
    invitation: &Invitation,
    sender: &std::sync::mpsc::Sender<(Caller, TcpStream)>,
) {
    while let Ok((mut stream, address)) = listener.accept() {
        if check_token(address, &invitation.token).is_err() {
            continue;
        }
        let (sender, token) = (sender.clone(), invitation.token.clone());
        std::thread::spawn(move || {
            let caller = stream
                .set_nonblocking(false)
                .and_then(|()| shake(&mut stream, Side::Listener, Purpose::Data, &token))
                .and_then(|()| receive::<Caller>(&mut stream));
            if let Ok(caller) = caller {
                // The receiver is gone only when all are connected.
                let _ = sender.send((caller, stream));
            }
        });
    }
}
