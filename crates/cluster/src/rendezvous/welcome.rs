//! Who may come in, and in which words the coordinator says so: the decisions at its door.

use super::message::{Arrival, Join};
use super::{check_token, describe, ranks};
use crate::membership::Limits;
use crate::session::unix_time;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use thalweg_core::{Culprit, Error, Kind, Result};

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

/// Why a rank has come to the wrong job.
pub fn object(join: &Join, job: [u8; 32], model: &[u8], world: usize) -> Option<String> {
    let rank = join.member.rank;
    if join.job != job {
        return Some(format!(
            "rank {rank} has another job than rank 0: the job files or flags differ (or another job listens on this port)"
        ));
    }
    if !join.model.is_empty() && !model.is_empty() && join.model != model {
        return Some(format!(
            "rank {rank} has another model than rank 0: its data, or the file the model comes from, is not the same"
        ));
    }
    (join.arrival == Arrival::First && join.world != world)
        .then(|| format!("rank {rank} expects {} ranks, rank 0 expects {world}", join.world))
}

/// Whether the other side of a connection has hung up.
pub fn is_gone(stream: &TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let gone = match stream.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    let _ = stream.set_nonblocking(false);
    gone
}

/// A rank whose process has ended, as its launcher says.
pub fn ended(rank: usize) -> Culprit {
    let cause = "ended: its process is gone".into();
    Culprit { rank, cause, detect_s: Some(0.0), noticed: Some(unix_time()), ..Culprit::default() }
}

/// Why the members leave their operations.
pub fn interruption(lost: Option<&Culprit>) -> Error {
    match lost {
        Some(culprit) => Error::new(Kind::Regroup, format!("rank {} {}", culprit.rank, culprit.cause))
            .blame(culprit.clone()),
        None => Error::new(Kind::Regroup, "the group is formed anew"),
    }
}

/// Where the coordinator listens.
pub fn place(listener: Option<&TcpListener>) -> String {
    listener.and_then(|listener| listener.local_addr().ok()).map_or_else(|| "?".into(), describe)
}

/// Who has not arrived.
pub fn waiting(missing: &[usize], seconds: u64, here: usize, expected: usize, at: &str) -> String {
    format!(
        "waiting for {} for {seconds} s ({here} of {expected} are here); rank 0 listens on {at}",
        ranks(missing)
    )
}

/// How many are wanted, and in whose place.
pub fn wanting(workers: usize, seconds: u64, at: &str, lost: &[Culprit]) -> String {
    let lost: String =
        lost.iter().map(|culprit| format!("rank {} {}; ", culprit.rank, culprit.cause)).collect();
    format!(
        "{lost}waiting for {workers} more to join for {seconds} s (fault.min_workers); `thalweg join` reaches the job on {at}"
    )
}

/// Nobody came to make up for those who were lost.
pub fn too_few(present: usize, limits: Limits, lost: &[Culprit]) -> Error {
    let Limits { least, patience, .. } = limits;
    let error = Error::new(
        Kind::RankFailed,
        format!(
            "{present} workers are left and fault.min_workers is {least}: nobody joined within {} s",
            patience.as_secs_f64()
        ),
    )
    .hint("`thalweg join` adds workers, fault.respawn = true starts lost ones again; fault.join_deadline sets how long to wait");
    match lost.first() {
        Some(culprit) => {
            let message = format!("rank {} {}; {}", culprit.rank, culprit.cause, error.message);
            Error { message, ..error }.blame(culprit.clone())
        }
        None => error,
    }
}

/// The ranks did not find each other.
pub fn gave_up(
    listener: Option<&TcpListener>,
    missing: &[usize],
    turned_away: &BTreeMap<usize, String>,
    deadline: Duration,
) -> Error {
    let blame = |error: Error| match missing.first() {
        Some(&rank) => {
            let operation = Some("rendezvous".into());
            error.blame(Culprit { rank, operation, cause: "did not arrive".into(), ..Culprit::default() })
        }
        None => error,
    };
    // Who came and could not stay is the reason, not who could not be reached.
    if let Some(reason) = missing.iter().find_map(|rank| turned_away.get(rank)) {
        let seconds = deadline.as_secs_f64();
        let message = format!("{} did not arrive within {seconds} s: turned away, {reason}", ranks(missing));
        let error = Error::new(Kind::Rendezvous, message);
        return blame(error.hint("start them with the same job, flags and world"));
    }
    let address = listener.and_then(|listener| listener.local_addr().ok());
    let only_here = address.is_some_and(|address| address.ip().is_loopback());
    let elsewhere = if only_here { "; ranks on other hosts need MASTER_ADDR" } else { "" };
    blame(Error::new(
        Kind::Rendezvous,
        format!("{} did not arrive within {} s; rank 0 listened on {}", ranks(missing), deadline.as_secs_f64(), place(listener)),
    )
    .hint(format!(
        "check that they were started and can reach that address and port{elsewhere}; fault.join_deadline sets how long to wait"
    )))
}
