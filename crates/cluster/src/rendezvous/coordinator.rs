//! The coordinator's part of the rendezvous: a role of rank 0, not a machine apart.

use super::handshake::Purpose;
use super::message::{Answer, Join, Member, send};
use super::reception::Reception;
use super::{REMINDER, check_token, describe, ranks};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::{Error, Kind, Result};

/// A rank that has arrived.
pub struct Arrived {
    /// Who it is.
    pub member: Member,
    /// Its connection, proven.
    pub stream: TcpStream,
}

/// What is expected of those who arrive.
pub struct Expected {
    /// How many ranks there are to be.
    pub world: usize,
    /// Digest of the job.
    pub job: [u8; 32],
    /// The shared secret.
    pub token: Vec<u8>,
    /// How long to wait for all.
    pub deadline: Duration,
}

/// Opens the port; an occupied one is explained.
pub fn listen(address: SocketAddr, token: &[u8]) -> Result<TcpListener> {
    check_token(address, token)?;
    TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::new(
            Kind::Rendezvous,
            format!("port {} of {} is in use: another job listens there", address.port(), address.ip()),
        )
        .hint("wait for that job, or give this one another port with MASTER_PORT or --set engine.port=N"),
        _ => Error::new(Kind::Rendezvous, format!("cannot listen on {address}: {error}"))
            .hint("MASTER_ADDR must be an address of the host that runs rank 0"),
    })
}

/// Waits until all ranks are here, saying every now and then who is missing, and sends each the roster.
pub fn gather(listener: &TcpListener, expected: &Expected, say: &dyn Fn(String)) -> Result<Vec<Arrived>> {
    let start = Instant::now();
    let mut arrived: Vec<Option<Arrived>> = (0..expected.world).map(|_| None).collect();
    let mut reception: Reception<Join> = Reception::new(Purpose::Control, &expected.token);
    listener.set_nonblocking(true).map_err(|error| Error::io("cannot listen", &error))?;
    let mut reminder = REMINDER;
    let mut turned_away = BTreeMap::new();
    loop {
        reception.admit(listener);
        if let Some((join, stream)) = reception.next(Duration::from_millis(5)) {
            let (rank, host) = (join.member.rank, join.member.host.clone());
            if let Some(reason) = welcome(join, stream, expected, &mut arrived) {
                say(format!("turned away a caller from {host}: {reason}"));
                turned_away.insert(rank, reason);
            }
        }
        let missing: Vec<usize> = (0..expected.world).filter(|&rank| arrived[rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(send_roster(arrived));
        }
        let waited = start.elapsed();
        if waited >= expected.deadline {
            let error = gave_up(listener, &missing, &turned_away, expected);
            for here in arrived.iter_mut().flatten() {
                let _ = send(&mut here.stream, &Answer::Refused(error.clone()));
            }
            return Err(error);
        }
        if waited >= reminder {
            reminder += REMINDER;
            remind(listener, &missing, waited.as_secs(), &mut arrived, say);
        }
    }
}

/// Gives a proven rank its place, or refuses it with the reason.
fn welcome(
    join: Join,
    mut stream: TcpStream,
    expected: &Expected,
    arrived: &mut [Option<Arrived>],
) -> Option<String> {
    let rank = join.member.rank;
    // A rank that lost its connection while waiting may come again.
    if let Some(slot) = arrived.get_mut(rank)
        && slot.as_ref().is_some_and(|here| is_gone(&here.stream))
    {
        *slot = None;
    }
    let objection = object(&join, expected, arrived);
    match &objection {
        Some(reason) => {
            let _ = send(&mut stream, &Answer::Refused(Error::new(Kind::Rendezvous, reason.as_str())));
        }
        None => arrived[rank] = Some(Arrived { member: join.member, stream }),
    }
    objection
}

/// Why a rank cannot join.
fn object(join: &Join, expected: &Expected, arrived: &[Option<Arrived>]) -> Option<String> {
    let rank = join.member.rank;
    if join.job != expected.job {
        return Some(format!(
            "rank {rank} has another job than rank 0: the job files or flags differ (or another job listens on this port)"
        ));
    }
    if join.world != expected.world {
        return Some(format!("rank {rank} expects {} ranks, rank 0 expects {}", join.world, expected.world));
    }
    match arrived.get(rank) {
        None => Some(format!("there is no rank {rank} among {} ranks", expected.world)),
        Some(Some(here)) => Some(format!(
            "rank {rank} is here already, from {} (pid {})",
            here.member.host, here.member.process
        )),
        Some(None) => None,
    }
}

fn is_gone(stream: &TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let gone = match stream.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    let _ = stream.set_nonblocking(false);
    gone
}

fn send_roster(arrived: Vec<Option<Arrived>>) -> Vec<Arrived> {
    let mut arrived: Vec<Arrived> = arrived.into_iter().flatten().collect();
    let members: Vec<Member> = arrived.iter().map(|here| here.member.clone()).collect();
    let roster = Answer::Roster { members, generation: 1 };
    for here in &mut arrived {
        // One that has left meanwhile is noticed by whoever connects to it next.
        let _ = send(&mut here.stream, &roster);
    }
    arrived
}

fn remind(
    listener: &TcpListener,
    missing: &[usize],
    seconds: u64,
    arrived: &mut [Option<Arrived>],
    say: &dyn Fn(String),
) {
    let here = arrived.iter().flatten().count();
    let at = listener.local_addr().map_or_else(|_| "?".into(), describe);
    say(format!(
        "waiting for {} for {seconds} s ({here} of {} are here); rank 0 listens on {at}",
        ranks(missing),
        arrived.len()
    ));
    for here in arrived.iter_mut().flatten() {
        let _ = send(&mut here.stream, &Answer::Waiting { missing: missing.to_vec(), seconds });
    }
}

fn gave_up(
    listener: &TcpListener,
    missing: &[usize],
    turned_away: &BTreeMap<usize, String>,
    expected: &Expected,
) -> Error {
    // Who came and could not stay is the reason, not who could not be reached.
    if let Some(reason) = missing.iter().find_map(|rank| turned_away.get(rank)) {
        let seconds = expected.deadline.as_secs_f64();
        let message = format!("{} did not arrive within {seconds} s: turned away, {reason}", ranks(missing));
        return Error::new(Kind::Rendezvous, message).hint("start them with the same job, flags and world");
    }
    let address = listener.local_addr().ok();
    let at = address.map_or_else(|| "?".into(), describe);
    let only_here = address.is_some_and(|address| address.ip().is_loopback());
    let elsewhere = if only_here { "; ranks on other hosts need MASTER_ADDR" } else { "" };
    Error::new(
        Kind::Rendezvous,
        format!("{} did not arrive within {} s; rank 0 listened on {at}", ranks(missing), expected.deadline.as_secs_f64()),
    )
    .hint(format!(
        "check that they were started and can reach that address and port{elsewhere}; fault.join_deadline sets how long to wait"
    ))
}
