//! Validates join requests, and builds the coordinator's notices and errors about missing and lost ranks.

use super::message::{JoinKind, JoinRequest};
use super::{describe, ranks};
use crate::heartbeat_monitor::StalledGroup;
use crate::membership::Limits;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;
use thalweg_core::event::Heartbeat;
use thalweg_core::spec::difference::difference;
use thalweg_core::{Culprit, Error, Kind};

/// Why a rank does not belong to this job. The number of ranks is checked first, as it is part of the job.
pub fn mismatch(
    join: &JoinRequest,
    (job, text): ([u8; 32], &str),
    (model, data): (&[u8], &str),
    world: usize,
) -> Option<String> {
    let rank = join.member.rank;
    if join.kind == JoinKind::Initial && join.world != world {
        return Some(format!(
            "rank {rank} expects {} ranks, rank 0 expects {world}: their launchers set different numbers (WORLD_SIZE, or what stands for it)",
            join.world
        ));
    }
    if join.job != job {
        let differs = difference(text, rank, &join.text)
            .unwrap_or_else(|| "the job files or flags differ (or another job listens on this port)".into());
        return Some(format!("rank {rank} has another job than rank 0: {differs}"));
    }
    // Initial ranks compare their rows with each other before they train.
    if join.kind == JoinKind::New && !data.is_empty() && join.data != data {
        return Some(format!(
            "rank {rank} has another data set than the job: its rows, columns or class names are not the same"
        ));
    }
    (!join.model.is_empty() && !model.is_empty() && join.model != model).then(|| {
        format!("rank {rank} has another model than rank 0: its data, or the file the model comes from, is not the same")
    })
}

/// Whether the peer has closed the connection.
pub fn is_closed(stream: &TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let closed = match stream.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    let _ = stream.set_nonblocking(false);
    closed
}

/// The culprit for a rank whose launcher reported its exit at that time, in seconds since 1970.
pub fn exited(rank: usize, noticed: f64) -> Culprit {
    let cause = "ended: its process is gone".into();
    Culprit { rank, cause, detect_s: Some(0.0), noticed: Some(noticed), ..Culprit::default() }
}

/// The error with which members leave their operations.
pub fn interruption(lost: Option<&Culprit>, stall: Option<&StalledGroup>) -> Error {
    match (lost, stall) {
        (Some(culprit), _) => {
            Error::new(Kind::RankFailed, format!("rank {} {}", culprit.rank, culprit.cause))
                .blame(culprit.clone())
        }
        (None, Some(StalledGroup { deadlock: Some(error), .. })) => error.clone(),
        (None, Some(StalledGroup { heartbeat: Heartbeat { name, step, .. }, .. })) => {
            Error::new(Kind::RankFailed, format!("no rank makes progress in {name} at step {step}"))
        }
        (None, None) => Error::new(Kind::RankFailed, "the group is formed again"),
    }
}

/// The coordinator's listen address with its interface.
pub fn listen_address(listener: Option<&TcpListener>) -> String {
    listener.and_then(|listener| listener.local_addr().ok()).map_or_else(|| "?".into(), describe)
}

/// Notice about ranks that have not joined.
pub fn missing_notice(missing: &[usize], seconds: u64, here: usize, expected: usize, at: &str) -> String {
    format!(
        "waiting for {} for {seconds} s ({here} of {expected} are here); rank 0 listens on {at}",
        ranks(missing)
    )
}

/// Notice about workers that are needed to replace lost ones.
pub fn replacement_notice(workers: usize, seconds: u64, at: &str, lost: &[Culprit]) -> String {
    let lost: String =
        lost.iter().map(|culprit| format!("rank {} {}; ", culprit.rank, culprit.cause)).collect();
    format!(
        "{lost}waiting for {workers} more to join for {seconds} s (fault.min_workers); `thalweg join` reaches the job on {at}"
    )
}

/// Fewer members than `fault.min_workers` are left, and none joined before the timeout.
pub fn too_few(present: usize, limits: Limits) -> Error {
    let Limits { min, timeout, .. } = limits;
    Error::new(
        Kind::RankFailed,
        format!(
            "{present} workers are left and fault.min_workers is {min}: none joined within {} s",
            timeout.as_secs_f64()
        ),
    )
    .hint("`thalweg join` adds workers, fault.respawn = true starts lost ones again; fault.join_deadline sets how long to wait")
}

/// Puts the first loss before an error that followed from it.
pub fn after_loss(error: Error, lost: &[Culprit]) -> Error {
    match lost.first() {
        Some(culprit) => {
            let message = format!("rank {} {}; {}", culprit.rank, culprit.cause, error.message);
            Error { message, ..error }.blame(culprit.clone())
        }
        None => error,
    }
}

/// The error of a rendezvous that exceeded its deadline.
pub fn rendezvous_timeout(
    listener: Option<&TcpListener>,
    missing: &[usize],
    refused: &BTreeMap<usize, String>,
    unauthenticated: &BTreeMap<IpAddr, String>,
    deadline: Duration,
) -> Error {
    let blame = |error: Error| match missing.first() {
        Some(&rank) => {
            let operation = Some("rendezvous".into());
            error.blame(Culprit { rank, operation, cause: "did not arrive".into(), ..Culprit::default() })
        }
        None => error,
    };
    // A rank that was refused is the reason, not one that never connected.
    if let Some(reason) = missing.iter().find_map(|rank| refused.get(rank)) {
        let seconds = deadline.as_secs_f64();
        let message = format!("{} did not arrive within {seconds} s: turned away, {reason}", ranks(missing));
        let error = Error::new(Kind::Rendezvous, message);
        return blame(error.hint("start them with the same job, flags and world"));
    }
    if let Some((from, why)) = unauthenticated.first_key_value() {
        let seconds = deadline.as_secs_f64();
        let message = format!(
            "{} did not arrive within {seconds} s; a caller from {from} was turned away: it {why}",
            ranks(missing)
        );
        return blame(Error::new(Kind::Rendezvous, message).hint("if that was one of them, start it again"));
    }
    let address = listener.and_then(|listener| listener.local_addr().ok());
    let only_here = address.is_some_and(|address| address.ip().is_loopback());
    let listened =
        listener.map_or_else(String::new, |_| format!("; rank 0 listened on {}", listen_address(listener)));
    let elsewhere = if only_here { "; ranks on other hosts need MASTER_ADDR" } else { "" };
    blame(Error::new(
        Kind::Rendezvous,
        format!("{} did not arrive within {} s{listened}", ranks(missing), deadline.as_secs_f64()),
    )
    .hint(format!(
        "check that they were started and can reach that address and port{elsewhere}; fault.join_deadline sets how long to wait"
    )))
}
