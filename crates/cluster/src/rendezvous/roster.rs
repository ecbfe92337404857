//! The list of ranks that a coordinator sends: waiting for it, and whether it makes sense.

use super::join::{lost, unanswered};
use super::message::{Answer, Member, Roster, receive, send};
use super::timed::{PATIENCE, Timed};
use super::{Invitation, REMINDER, describe, mesh, ranks};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use thalweg_core::Result;

/// Waits until the coordinator says that all are there, and who they are; or why this rank has to look elsewhere.
pub(super) fn await_roster(
    invitation: &Invitation,
    coordinator: &str,
    control: &TcpStream,
    start: Instant,
    say: &dyn Fn(String),
) -> Result<Answer> {
    let lost = |error: io::Error| lost(&error, invitation.rank, coordinator);
    let mut reminder = start.elapsed() + REMINDER;
    loop {
        if !readable(control).map_err(lost)? {
            if start.elapsed() >= invitation.deadline + Duration::from_secs(5) {
                return Err(unanswered(coordinator, invitation.rank));
            }
            if start.elapsed() >= reminder + Duration::from_secs(2) {
                reminder += REMINDER;
                say(format!("rank 0 at {coordinator} was reached, but does not answer"));
            }
            continue;
        }
        match receive::<Answer>(&mut Timed::new(control, PATIENCE)).map_err(lost)? {
            answer @ (Answer::Roster(_) | Answer::OtherRun | Answer::NotYet(_)) => return Ok(answer),
            Answer::Refused(error) => return Err(error),
            Answer::Waiting { missing, seconds } => {
                reminder = start.elapsed() + REMINDER;
                if invitation.rank != 0 {
                    let from = control.local_addr().map_or_else(|_| "?".into(), describe);
                    let whom = match &missing[..] {
                        [] => "more to join (fault.min_workers)".into(),
                        missing => ranks(missing),
                    };
                    say(format!(
                        "waiting for {whom} for {seconds} s; joined rank 0 at {coordinator} from {from}"
                    ));
                }
            }
            Answer::Probe { mut member, leads } => {
                if let (true, Ok(way)) = (leads, control.peer_addr()) {
                    member.data.set_ip(way.ip());
                }
                let mut answer = control.try_clone().map_err(lost)?;
                // A coordinator that cannot hear it has gone.
                mesh::probe(*member, move |probed| drop(send(&mut answer, probed)));
            }
            Answer::Job { .. } | Answer::Status(_) => {}
        }
    }
}

/// What is wrong with a group: each member has one place, in the order of numbers, and this one stands in it as it said.
pub fn check(roster: &Roster, own: Option<&Member>) -> std::result::Result<(), String> {
    let members = &roster.members;
    if members.is_empty() || members.len() != roster.standings.len() {
        return Err(format!(
            "its list of ranks holds {} of {}",
            members.len(),
            roster.standings.len().max(1)
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

/// The coordinator may know itself by a name that only it can use (127.0.1.1); the way we came is a way. Who came to it over
/// loopback is on its host.
pub(super) fn mend(roster: &mut Roster, control: &TcpStream) {
    let Ok(way) = control.peer_addr() else { return };
    for member in &mut roster.members {
        if member.rank == roster.leader || member.data.ip().is_loopback() {
            member.data.set_ip(way.ip());
        }
    }
}

/// Whether something can be read; waits a moment for it.
fn readable(stream: &TcpStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let readable = match stream.peek(&mut [0]) {
        Ok(_) => Ok(true),
        // A signal ends the look, too: what it means is decided elsewhere.
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
    stream.set_read_timeout(Some(PATIENCE))?;
    readable
}
