//! A rank's part of the rendezvous: reach rank 0, prove oneself, wait for the roster.

use super::handshake::{Purpose, Side, shake};
use super::message::{Answer, Arrival, Call, Join, Member, Roster, receive, send};
use super::timed::{PATIENCE, Timed};
use super::{Invitation, REMINDER, check_token, describe, ranks, route};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::event::Pulse;
use thalweg_core::{Culprit, Error, Kind, Result};

/// What a rank has after the rendezvous.
pub struct Joined {
    /// The group.
    pub roster: Roster,
    /// The connection to the coordinator.
    pub control: TcpStream,
}

/// Joins the group whose coordinator listens at `HOST:PORT`. `data` is where this rank listens for the others; it is opened
/// on the way that leads to the coordinator if it is not there yet. `has_moved`: somebody else has taken the role, elsewhere.
pub fn join(
    invitation: &Invitation,
    (arrival, doing): (Arrival, &Pulse),
    coordinator: &str,
    data: &mut Option<TcpListener>,
    has_moved: &dyn Fn() -> bool,
    say: &dyn Fn(String),
) -> Result<Joined> {
    let start = Instant::now();
    let control = reach(invitation, coordinator, start, has_moved, say)?;
    let here = control.local_addr().map_err(|error| Error::io("no local address", &error))?;
    let listener = match data {
        Some(listener) => listener,
        None => data.insert(listen(invitation, here)?),
    };
    let port = listener.local_addr().map_err(|error| Error::io("no local address", &error))?.port();
    let address = SocketAddr::new(here.ip(), port);
    let member = Member {
        rank: invitation.rank,
        host: invitation.host.clone(),
        process: std::process::id(),
        data: address,
        identity: thalweg_comm::host::host_identity(),
        launcher: crate::uplink::launcher(),
    };
    let request = Join {
        member: member.clone(),
        world: invitation.world,
        job: invitation.job,
        model: invitation.model.clone(),
        arrival,
        doing: doing.clone(),
    };
    send(&mut Timed::new(&control, PATIENCE), &Call::Join(Box::new(request)))
        .map_err(|error| lost(&error, invitation.rank, coordinator))?;
    let mut roster = await_roster(invitation, coordinator, &control, start, say)?;
    check(&roster, Some(&member)).map_err(|wrong| {
        lost(&io::Error::new(io::ErrorKind::InvalidData, wrong), invitation.rank, coordinator)
    })?;
    mend(&mut roster, &control);
    Ok(Joined { roster, control })
}

/// Asks a coordinator what its job is: as a job file, with a number that is free. One that hangs up may have given its role
/// away: the next one is asked.
pub fn ask(invitation: &Invitation, coordinator: &str, say: &dyn Fn(String)) -> Result<(String, usize)> {
    let start = Instant::now();
    loop {
        let control = reach(invitation, coordinator, start, &|| false, say)?;
        let mut timed = Timed::new(&control, PATIENCE);
        let answer = send(&mut timed, &Call::Ask).and_then(|()| receive::<Answer>(&mut timed));
        let error = match answer {
            Ok(Answer::Job { text, number }) => return Ok((text, number)),
            Ok(Answer::Refused(error)) => return Err(error),
            Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "it answers something else"),
            Err(error) if has_hung_up(&error) && start.elapsed() < invitation.deadline => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(error) => error,
        };
        return Err(Error::new(
            Kind::Rendezvous,
            format!("{coordinator} does not say what its job is: {}", plain_words(&error)),
        )
        .hint("is it a job of this version of thalweg?"));
    }
}

fn has_hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// The coordinator may know itself by a name that only it can use (127.0.1.1); the way we came is a way.
fn mend(roster: &mut Roster, control: &TcpStream) {
    let leader = roster.leader;
    let led = roster.members.iter_mut().find(|member| member.rank == leader);
    if let (Ok(way), Some(leader)) = (control.peer_addr(), led) {
        leader.data.set_ip(way.ip());
    }
}

/// Waits until the coordinator says that all are there, and who they are.
fn await_roster(
    invitation: &Invitation,
    coordinator: &str,
    control: &TcpStream,
    start: Instant,
    say: &dyn Fn(String),
) -> Result<Roster> {
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
            Answer::Roster(roster) => return Ok(roster),
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
            Answer::Job { .. } => {}
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

/// Rank 0 was there and is no more. Whoever can see its process knows better why: this only points to it.
fn lost(error: &io::Error, rank: usize, coordinator: &str) -> Error {
    let (how, why) = match error.kind() {
        _ if has_hung_up(error) => ("vanished", "its connection closed without a goodbye".to_string()),
        io::ErrorKind::InvalidData => ("broke the protocol", plain_words(error)),
        _ => ("was lost", plain_words(error)),
    };
    let words =
        format!("{} at {coordinator} {how} while rank {rank} waited for the others: {why}", leader(rank));
    blame(Error::new(Kind::RankFailed, words), rank, format!("{how}: {why}"))
}

/// Rank 0 was reached and then said nothing until the deadline.
fn unanswered(coordinator: &str, rank: usize) -> Error {
    let error = Error::new(Kind::Rendezvous, format!("{} at {coordinator} does not answer", leader(rank)))
        .hint("it was reached, but says nothing: is it stopped?");
    blame(error, rank, "does not answer".into())
}

/// What rank `rank` calls the coordinator: rank 0 looks for another only after the role has moved.
fn leader(rank: usize) -> &'static str {
    if rank == 0 { "the coordinator" } else { "rank 0" }
}

/// Nobody blames itself for another one's silence.
fn blame(error: Error, rank: usize, cause: String) -> Error {
    match rank {
        0 => error,
        _ => error.blame(Culprit {
            rank: 0,
            operation: Some("rendezvous".into()),
            cause,
            ..Culprit::default()
        }),
    }
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
    has_moved: &dyn Fn() -> bool,
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
            Err(Attempt::Again(story)) if is_asking(invitation) => format!("cannot reach the job at {story}"),
            Err(Attempt::Again(story)) => format!("cannot reach rank 0 at {story}"),
        };
        let waited = start.elapsed();
        if has_moved() {
            let gone = io::Error::new(io::ErrorKind::ConnectionAborted, "another rank has its role");
            return Err(lost(&gone, invitation.rank, coordinator));
        }
        if waited >= invitation.deadline {
            let story = format!("{story} (tried for {} s)", waited.as_secs());
            return Err(match is_asking(invitation) {
                true => Error::new(Kind::Rendezvous, story).hint(
                    "check that the job still runs: its run folder's join.json says where it listens, for as long as it does",
                ),
                false => Error::new(Kind::Rendezvous, format!("rank {} {story}", invitation.rank))
                    .hint(advice(coordinator)),
            });
        }
        if waited >= reminder {
            reminder += REMINDER;
            say(format!("{story} (for {} s)", waited.as_secs()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Whether this is somebody without a number, who only asks what the job is.
fn is_asking(invitation: &Invitation) -> bool {
    invitation.world == 0
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
            model: Vec::new(),
            token: b"secret".to_vec(),
            host: "box".into(),
            anywhere: false,
            carrier: Carrier::Tcp,
            deadline,
        }
    }

    fn first(invitation: &Invitation, coordinator: &str) -> Error {
        join(invitation, (Arrival::First, &Pulse::default()), coordinator, &mut None, &|| false, &|_| {})
            .err()
            .unwrap()
    }

    #[test]
    fn a_coordinator_that_dies_while_ranks_arrive_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let dying = std::thread::spawn(move || {
            let mut reception: Reception<Call> = Reception::new(Purpose::Control, b"secret");
            loop {
                reception.admit(&listener);
                if let Some((Call::Join(join), _)) = reception.next(Duration::from_millis(1)) {
                    return join.member.rank;
                }
            }
        });
        let error = first(&invitation(1, Duration::from_secs(60)), &address);
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
                let mut reception: Reception<Call> = Reception::new(Purpose::Control, b"secret");
                loop {
                    reception.admit(&listener);
                    if let Some((call, mut stream)) = reception.next(Duration::from_millis(1)) {
                        let Call::Join(join) = call else { panic!("it has nothing to ask") };
                        let members = roster(join.member);
                        let standings = vec![Default::default(); members.len()];
                        let answer = Answer::Roster(Roster { members, standings, ..Roster::default() });
                        return send(&mut stream, &answer).unwrap();
                    }
                }
            });
            first(&invitation(1, Duration::from_secs(60)), &address)
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
        assert!(message(|_| Vec::new()).ends_with("its list of ranks holds 0 of 1"));
        assert!(message(|own| vec![own; 2]).ends_with("holds rank 1 behind rank 1"));
        let turned = message(|own| vec![own.clone(), Member { rank: 0, ..own }]);
        assert!(turned.ends_with("holds rank 0 behind rank 1"));
        let foreign = message(|own| {
            vec![Member { rank: 0, ..own.clone() }, Member { process: own.process + 1, ..own }]
        });
        assert!(foreign.ends_with("does not hold rank 1 as it joined"), "{foreign}");
    }

    #[test]
    fn where_a_rank_looked_is_told_for_addresses_and_names() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let search = |host: &str| first(&invitation(1, Duration::ZERO), &format!("{host}:{port}"));
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
        let error = first(&invitation(1, Duration::ZERO), &address);
        assert!(error.message.contains("no handshake: no answer within 5 s"), "{}", error.message);
        assert_eq!(error.kind, Kind::Rendezvous);
    }
}
