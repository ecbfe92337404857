//! A rank's part of the rendezvous: reach rank 0, prove oneself, wait for the roster.

use super::handshake::{Purpose, Side, shake};
use super::message::{Answer, Join, Member, receive, send};
use super::timed::{PATIENCE, Timed};
use super::{Invitation, REMINDER, check_token, describe, ranks, route};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Culprit, Error, Kind, Result};

/// What a rank has after the rendezvous.
pub struct Joined {
    /// All ranks, in order.
    pub members: Vec<Member>,
    /// Generation of the group.
    pub generation: u32,
    /// The connection to rank 0.
    pub control: TcpStream,
    /// Where this rank listens for data.
    pub data: TcpListener,
}

/// Joins the group whose rank 0 listens at `HOST:PORT`.
pub fn join(invitation: &Invitation, coordinator: &str, say: &dyn Fn(String)) -> Result<Joined> {
    let start = Instant::now();
    let control = reach(invitation, coordinator, start, say)?;
    let here = control.local_addr().map_err(|error| Error::io("no local address", &error))?;
    let data = listen(invitation, here)?;
    let port = data.local_addr().map_err(|error| Error::io("no local address", &error))?.port();
    let address = SocketAddr::new(here.ip(), port);
    let member = Member {
        rank: invitation.rank,
        host: invitation.host.clone(),
        process: std::process::id(),
        data: address,
        identity: thalweg_comm::host::host_identity(),
    };
    let request = Join { member: member.clone(), world: invitation.world, job: invitation.job };
    send(&mut Timed::new(&control, PATIENCE), &request)
        .map_err(|error| lost(&error, invitation.rank, coordinator))?;
    let (mut members, generation) = await_roster(invitation, coordinator, &control, start, say)?;
    if let Some(wrong) = objection(&members, &member, invitation.world) {
        let error = io::Error::new(io::ErrorKind::InvalidData, format!("its list of ranks {wrong}"));
        return Err(lost(&error, invitation.rank, coordinator));
    }
    // Rank 0 may know itself by a name that only it can use (127.0.1.1); the way we came is a way.
    if let (Ok(way), Some(first)) = (control.peer_addr(), members.first_mut()) {
        first.data.set_ip(way.ip());
    }
    Ok(Joined { members, generation, control, data })
}

/// Waits until rank 0 says that all are there, and who they are.
fn await_roster(
    invitation: &Invitation,
    coordinator: &str,
    control: &TcpStream,
    start: Instant,
    say: &dyn Fn(String),
) -> Result<(Vec<Member>, u32)> {
    let lost = |error: io::Error| lost(&error, invitation.rank, coordinator);
    let mut reminder = start.elapsed() + REMINDER;
    loop {
        if !readable(control).map_err(lost)? {
            if start.elapsed() >= invitation.deadline + Duration::from_secs(5) {
                return Err(unanswered(coordinator));
            }
            if start.elapsed() >= reminder + Duration::from_secs(2) {
                reminder += REMINDER;
                say(format!("rank 0 at {coordinator} was reached, but does not answer"));
            }
            continue;
        }
        match receive::<Answer>(&mut Timed::new(control, PATIENCE)).map_err(lost)? {
            Answer::Roster { members, generation } => return Ok((members, generation)),
            Answer::Refused(error) => return Err(error),
            Answer::Waiting { missing, seconds } => {
                reminder = start.elapsed() + REMINDER;
                if invitation.rank != 0 {
                    let from = control.local_addr().map_or_else(|_| "?".into(), describe);
                    say(format!(
                        "waiting for {} for {seconds} s; joined rank 0 at {coordinator} from {from}",
                        ranks(&missing)
                    ));
                }
            }
        }
    }
}

/// What is wrong with a list of ranks: each must stand at its number, and this one as it said.
fn objection(members: &[Member], own: &Member, world: usize) -> Option<String> {
    if members.len() != world {
        return Some(format!("holds {} of {world}", members.len()));
    }
    if let Some(place) = members.iter().enumerate().position(|(place, member)| member.rank != place) {
        return Some(format!("holds rank {} in the place of rank {place}", members[place].rank));
    }
    (members.get(own.rank) != Some(own)).then(|| format!("does not hold rank {} as it joined", own.rank))
}

/// Rank 0 was there and is no more. Whoever can see its process knows better why: this only points to it.
fn lost(error: &io::Error, rank: usize, coordinator: &str) -> Error {
    let (how, why) = match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => ("vanished", "its connection closed without a goodbye".to_string()),
        io::ErrorKind::InvalidData => ("broke the protocol", plain_words(error)),
        _ => ("was lost", plain_words(error)),
    };
    if rank == 0 {
        return Error::internal(format!("rank 0 lost its own coordinator at {coordinator}: {why}"));
    }
    Error::new(
        Kind::RankFailed,
        format!("rank 0 at {coordinator} {how} while rank {rank} waited for the others: {why}"),
    )
    .blame(blamed(format!("{how}: {why}")))
}

/// Rank 0 was reached and then said nothing until the deadline.
fn unanswered(coordinator: &str) -> Error {
    Error::new(Kind::Rendezvous, format!("rank 0 at {coordinator} does not answer"))
        .hint("it was reached, but says nothing: is it stopped?")
        .blame(blamed("does not answer".into()))
}

fn blamed(cause: String) -> Culprit {
    Culprit { rank: 0, operation: Some("rendezvous".into()), cause, ..Culprit::default() }
}

/// Opens the port for data: where the control connection comes from, and for rank 0, if others may come from
/// elsewhere, on all its addresses.
fn listen(invitation: &Invitation, here: SocketAddr) -> Result<TcpListener> {
    let everywhere = invitation.rank == 0 && !invitation.token.is_empty() && invitation.anywhere;
    let address = match (everywhere, here.is_ipv6()) {
        (false, _) => here.ip(),
        (true, false) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        (true, true) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    TcpListener::bind((address, 0)).map_err(|error| Error::io(format!("cannot listen on {address}"), &error))
}

/// Connects and shakes hands, again and again until the deadline.
fn reach(
    invitation: &Invitation,
    coordinator: &str,
    start: Instant,
    say: &dyn Fn(String),
) -> Result<TcpStream> {
    let mut reminder = REMINDER;
    let mut pause = Duration::from_millis(10);
    loop {
        let attempt =
            resolve(coordinator).and_then(|addresses| try_each(invitation, coordinator, &addresses));
        let story = match attempt {
            Ok(stream) => return Ok(stream),
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Again(story)) => format!("cannot reach rank 0 at {story}"),
        };
        let waited = start.elapsed();
        if waited >= invitation.deadline {
            return Err(Error::new(
                Kind::Rendezvous,
                format!("rank {} {story} (tried for {} s)", invitation.rank, waited.as_secs()),
            )
            .hint(advice(coordinator)));
        }
        if waited >= reminder {
            reminder += REMINDER;
            say(format!("{story} (for {} s)", waited.as_secs()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// What to do about a rank 0 that cannot be reached.
fn advice(coordinator: &str) -> String {
    let only_here = resolve(coordinator)
        .is_ok_and(|addresses| addresses.iter().all(|address| address.ip().is_loopback()));
    if only_here {
        return "check that rank 0 runs on this host and with the same port (MASTER_PORT); \
                if it runs on another, set MASTER_ADDR to that one everywhere"
            .into();
    }
    "check that rank 0 runs there (MASTER_ADDR, MASTER_PORT) and that no firewall is in between".into()
}

/// Why it did not work.
enum Attempt {
    /// And never will.
    Final(Error),
    /// This time: which address was tried, from where, and what came of it.
    Again(String),
}

fn resolve(coordinator: &str) -> std::result::Result<Vec<SocketAddr>, Attempt> {
    let unknown = |why: String| Attempt::Again(format!("{coordinator}: the name does not resolve{why}"));
    match coordinator.to_socket_addrs() {
        Ok(addresses) => {
            let addresses: Vec<SocketAddr> = addresses.collect();
            if addresses.is_empty() { Err(unknown(String::new())) } else { Ok(addresses) }
        }
        Err(error) => Err(unknown(format!(": {}", plain_words(&error)))),
    }
}

fn try_each(
    invitation: &Invitation,
    coordinator: &str,
    addresses: &[SocketAddr],
) -> std::result::Result<TcpStream, Attempt> {
    let mut failures = Vec::new();
    for &address in addresses {
        check_token(address, &invitation.token).map_err(Attempt::Final)?;
        let failure = match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Ok(stream) => match greet(&stream, &invitation.token) {
                Ok(()) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Attempt::Final(Error::new(Kind::Rendezvous, format!("{address} {error}"))));
                }
                Err(error) => format!("no handshake: {}", plain_words(&error)),
            },
            Err(error) => plain_words(&error),
        };
        failures.push(format!("{address}{}: {failure}", route(address)));
    }
    let tried = failures.join("; ");
    let by_address = matches!(addresses, [address] if address.to_string() == coordinator);
    Err(Attempt::Again(if by_address { tried } else { format!("{coordinator}, that is {tried}") }))
}

fn greet(stream: &TcpStream, token: &[u8]) -> io::Result<()> {
    shake(&mut Timed::new(stream, PATIENCE), Side::Caller, Purpose::Control, token)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inquest::blames_other;
    use crate::rendezvous::reception::Reception;
    use thalweg_core::spec::strategy::Carrier;

    fn invitation(rank: usize, deadline: Duration) -> Invitation {
        Invitation {
            rank,
            world: 2,
            job: [7; 32],
            token: b"secret".to_vec(),
            host: "box".into(),
            anywhere: false,
            carrier: Carrier::Tcp,
            deadline,
        }
    }

    #[test]
    fn a_coordinator_that_dies_while_ranks_arrive_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let dying = std::thread::spawn(move || {
            let mut reception: Reception<Join> = Reception::new(Purpose::Control, b"secret");
            loop {
                reception.admit(&listener);
                if let Some((join, _)) = reception.next(Duration::from_millis(1)) {
                    return join.member.rank;
                }
            }
        });
        let error = join(&invitation(1, Duration::from_secs(60)), &address, &|_| {}).err().unwrap();
        assert_eq!(dying.join().unwrap(), 1);
        assert_eq!(
            error.message,
            format!(
                "rank 0 at {address} vanished while rank 1 waited for the others: its connection closed without a goodbye"
            )
        );
        assert_eq!(error.kind, Kind::RankFailed);
        assert!(blames_other(1, &error), "hearsay: the kernel's word weighs more");
        let culprit = error.culprit.unwrap();
        assert_eq!(
            (culprit.rank, culprit.cause.as_str()),
            (0, "vanished: its connection closed without a goodbye")
        );
    }

    /// Joins a coordinator that answers with this list of ranks.
    fn join_fake(roster: impl FnOnce(Member) -> Vec<Member> + Send) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut reception: Reception<Join> = Reception::new(Purpose::Control, b"secret");
                loop {
                    reception.admit(&listener);
                    if let Some((join, mut stream)) = reception.next(Duration::from_millis(1)) {
                        let answer = Answer::Roster { members: roster(join.member), generation: 1 };
                        return send(&mut stream, &answer).unwrap();
                    }
                }
            });
            join(&invitation(1, Duration::from_secs(60)), &address, &|_| {}).err().unwrap()
        })
    }

    #[test]
    fn a_list_of_ranks_that_makes_no_sense_is_refused() {
        let message = |roster: fn(Member) -> Vec<Member>| {
            let error = join_fake(roster);
            assert_eq!(error.kind, Kind::RankFailed);
            assert!(error.message.contains("broke the protocol"), "{}", error.message);
            error.message
        };
        assert!(message(|_| Vec::new()).ends_with("its list of ranks holds 0 of 2"));
        assert!(message(|own| vec![own]).ends_with("holds 1 of 2"));
        assert!(message(|own| vec![own; 9]).ends_with("holds 9 of 2"));
        assert!(message(|own| vec![own; 2]).ends_with("holds rank 1 in the place of rank 0"));
        let foreign = message(|own| {
            vec![Member { rank: 0, ..own.clone() }, Member { process: own.process + 1, ..own }]
        });
        assert!(foreign.ends_with("does not hold rank 1 as it joined"), "{foreign}");
    }

    #[test]
    fn where_a_rank_looked_is_told_for_addresses_and_names() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let search = |host: &str| {
            join(&invitation(1, Duration::ZERO), &format!("{host}:{port}"), &|_| {}).err().unwrap()
        };
        let error = search("127.0.0.1");
        assert_eq!(
            error.message,
            format!(
                "rank 1 cannot reach rank 0 at 127.0.0.1:{port} from 127.0.0.1 (interface lo): connection refused (tried for 0 s)"
            )
        );
        assert!(error.hint.unwrap().contains("on another, set MASTER_ADDR"));
        let error = search("localhost");
        assert!(
            error.message.contains(&format!("rank 0 at localhost:{port}, that is ")),
            "{}",
            error.message
        );
        assert!(error.message.contains(&format!("127.0.0.1:{port} from 127.0.0.1")), "{}", error.message);
    }

    #[test]
    fn a_stopped_coordinator_is_told_in_plain_words() {
        // The kernel completes the connection; nobody ever answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = join(&invitation(1, Duration::ZERO), &address, &|_| {}).err().unwrap();
        assert!(error.message.contains("no handshake: no answer within 5 s"), "{}", error.message);
        assert_eq!(error.kind, Kind::Rendezvous);
    }
}
