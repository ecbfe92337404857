//! Waits for the coordinator's roster and validates it.

use super::coordinator_errors::{JoinError, coordinator_lost, coordinator_silent};
use super::message::{ControlResponse, Member, Roster, receive, send};
use super::timed::{HANDSHAKE_TIMEOUT, Timed};
use super::{JoinConfig, REMINDER, describe, mesh, ranks};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use thalweg_core::Result;

/// Waits for the roster, or for a response that makes this rank try another address.
pub(super) fn await_roster(
    join_config: &JoinConfig,
    coordinator: &str,
    control: &TcpStream,
    start: Instant,
    notify: &dyn Fn(String),
) -> Result<ControlResponse, JoinError> {
    let lost = |error: io::Error| coordinator_lost(&error, join_config.rank, coordinator);
    let mut reminder = start.elapsed() + REMINDER;
    loop {
        if !readable(control).map_err(lost)? {
            if start.elapsed() >= join_config.deadline + Duration::from_secs(5) {
                return Err(coordinator_silent(coordinator, join_config.rank).into());
            }
            if start.elapsed() >= reminder + Duration::from_secs(2) {
                reminder += REMINDER;
                notify(format!("rank 0 at {coordinator} was reached, but does not answer"));
            }
            continue;
        }
        match receive::<ControlResponse>(&mut Timed::new(control, HANDSHAKE_TIMEOUT)).map_err(lost)? {
            answer
            @ (ControlResponse::Roster(_) | ControlResponse::OtherRun | ControlResponse::NotYet(_)) => {
                return Ok(answer);
            }
            ControlResponse::Refused(error) => return Err(error.into()),
            ControlResponse::Waiting { missing, seconds } => {
                reminder = start.elapsed() + REMINDER;
                if join_config.rank != 0 {
                    let from = control.local_addr().map_or_else(|_| "?".into(), describe);
                    let awaited = match &missing[..] {
                        [] => "more to join (fault.min_workers)".into(),
                        missing => ranks(missing),
                    };
                    notify(format!(
                        "waiting for {awaited} for {seconds} s; joined rank 0 at {coordinator} from {from}"
                    ));
                }
            }
            ControlResponse::Probe { mut member, leads } => {
                if let (true, Ok(peer)) = (leads, control.peer_addr()) {
                    member.data.set_ip(peer.ip());
                }
                let mut answer = control.try_clone().map_err(lost)?;
                // Fails only if the coordinator has exited.
                mesh::probe(*member, move |probed| drop(send(&mut answer, probed)));
            }
            ControlResponse::Job { .. } | ControlResponse::Status(_) => {}
        }
    }
}

/// Validates a roster: members in ascending order of ids, each once, with a position each, and this one as it joined.
pub fn check(roster: &Roster, own: Option<&Member>) -> std::result::Result<(), String> {
    let members = &roster.members;
    if members.is_empty() || members.len() != roster.positions.len() {
        return Err(format!(
            "its list of ranks holds {} of {}",
            members.len(),
            roster.positions.len().max(1)
        ));
    }
    if let Some(pair) = members.windows(2).find(|pair| pair[0].rank >= pair[1].rank) {
        return Err(format!("its list of ranks holds rank {} behind rank {}", pair[1].rank, pair[0].rank));
    }
    match own {
        Some(own) if !members.contains(own) => {
            Err(format!("its list of ranks does not hold rank {} as it joined", own.rank))
        }
        _ => Ok(()),
    }
}

/// Replaces addresses that only work on the coordinator's host (such as 127.0.1.1) by the one this rank reached it at:
/// that of the coordinator itself, and of members that connected to it over loopback.
pub(super) fn fix_addresses(roster: &mut Roster, control: &TcpStream) {
    let Ok(coordinator) = control.peer_addr() else { return };
    for member in &mut roster.members {
        if member.rank == roster.leader || member.data.ip().is_loopback() {
            member.data.set_ip(coordinator.ip());
        }
    }
}

/// Whether data can be read, waiting up to 200 ms.
fn readable(stream: &TcpStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let readable = match stream.peek(&mut [0]) {
        Ok(_) => Ok(true),
        // Interrupted by a signal, which is handled elsewhere.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    };
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    readable
}
