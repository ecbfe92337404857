//! A rank's part of the rendezvous: reach rank 0, prove oneself, wait for the roster.

use super::message::{Answer, Arrival, Call, Join, Member, Roster, Status, receive, send};
use super::reach::{Reached, Round, reach};
use super::roster::{await_roster, check, mend};
use super::timed::{PATIENCE, Timed};
use super::{Invitation, unreachable};
use crate::exhaustion;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::event::Pulse;
use thalweg_core::{Culprit, Error, Kind, Result};

/// When a rank that lost its coordinator says that it looks for it.
const SOON: Duration = Duration::from_secs(3);

/// What a rank has after the rendezvous.
pub struct Joined {
    /// The group.
    pub roster: Roster,
    /// The connection to the coordinator.
    pub control: TcpStream,
    /// The shared secret.
    pub token: Vec<u8>,
}

/// Joins the group whose coordinator listens at that [`endpoint`](super::endpoint). `data` is where this rank listens for the others; it is opened
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
    let mut round = Round::default();
    if matches!(arrival, Arrival::Again { .. }) {
        // One that was in the group is missed, and says soon that it finds nobody.
        round.reminder = SOON;
    }
    loop {
        let reached = reach(invitation, coordinator, start, &mut round, has_moved, say)?;
        let address = reached.address;
        let why = match enter(invitation, (arrival, doing), (reached, coordinator), data, start, say)? {
            Entry::Joined(joined) => return Ok(joined),
            Entry::OtherRun => Error::new(Kind::Rendezvous, format!("{address} belongs to another run")),
            Entry::NotYet(error) if start.elapsed() >= invitation.deadline => return Err(error),
            Entry::NotYet(error) => error,
        };
        round.declined.insert(address, why.message);
    }
}

/// What came of a request to join.
enum Entry {
    /// The group.
    Joined(Joined),
    /// Another job, or another attempt at this one, listens there.
    OtherRun,
    /// To be tried again.
    NotYet(Error),
}

/// Asks a coordinator to be let in, and waits until all are there.
fn enter(
    invitation: &Invitation,
    (arrival, doing): (Arrival, &Pulse),
    (reached, coordinator): (Reached, &str),
    data: &mut Option<TcpListener>,
    start: Instant,
    say: &dyn Fn(String),
) -> Result<Entry> {
    let Reached { stream: control, token, .. } = reached;
    let here = control.local_addr().map_err(|error| Error::io("no local address", &error))?;
    let listener = match data {
        Some(listener) => listener,
        None => data.insert(listen(invitation, here)?),
    };
    let port = listener.local_addr().map_err(|error| Error::io("no local address", &error))?.port();
    let address = unreachable::route(SocketAddr::new(here.ip(), port));
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
        text: invitation.text.clone(),
        run: invitation.run.clone(),
        model: invitation.model.clone(),
        data: invitation.data.clone(),
        arrival,
        doing: doing.clone(),
    };
    send(&mut Timed::new(&control, PATIENCE), &Call::Join(Box::new(request)))
        .map_err(|error| lost(&error, invitation.rank, coordinator))?;
    let mut roster = match await_roster(invitation, coordinator, &control, start, say)? {
        Answer::Roster(roster) => roster,
        Answer::NotYet(error) => return Ok(Entry::NotYet(error)),
        _ => return Ok(Entry::OtherRun),
    };
    check(&roster, Some(&member)).map_err(|wrong| {
        lost(&io::Error::new(io::ErrorKind::InvalidData, wrong), invitation.rank, coordinator)
    })?;
    mend(&mut roster, &control);
    Ok(Entry::Joined(Joined { roster, control, token }))
}

/// Asks a coordinator what its job is: as a job file, with a number that is free. One that hangs up may have given its role
/// away: the next one is asked.
pub fn ask(invitation: &Invitation, coordinator: &str, say: &dyn Fn(String)) -> Result<(String, usize)> {
    let start = Instant::now();
    loop {
        let reached = reach(invitation, coordinator, start, &mut Round::default(), &|| false, say)?;
        let control = reached.stream;
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

/// Asks a coordinator how its job goes.
pub fn ask_status(invitation: &Invitation, coordinator: &str) -> Result<Status> {
    let reached = reach(invitation, coordinator, Instant::now(), &mut Round::default(), &|| false, &|_| {})?;
    let mut timed = Timed::new(&reached.stream, PATIENCE);
    let answer = send(&mut timed, &Call::Status).and_then(|()| receive::<Answer>(&mut timed));
    let why = match answer {
        Ok(Answer::Status(status)) => return Ok(*status),
        Ok(Answer::Refused(error)) => return Err(error),
        Ok(_) => "it answers something else".to_string(),
        Err(error) => plain_words(&error),
    };
    let words = format!("{coordinator} does not say how its job goes: {why}");
    Err(Error::new(Kind::Rendezvous, words).hint("is it a job of this version of thalweg?"))
}

fn has_hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Rank 0 was there and is no more. Whoever can see its process knows better why: this only points to it.
pub(super) fn lost(error: &io::Error, rank: usize, coordinator: &str) -> Error {
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
pub(super) fn unanswered(coordinator: &str, rank: usize) -> Error {
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

/// Opens the port for data: where the control connection comes from; on all addresses for rank 0 and for who reaches it over
/// loopback, if others may come from elsewhere.
fn listen(invitation: &Invitation, here: SocketAddr) -> Result<TcpListener> {
    let beside = invitation.rank == 0 || here.ip().is_loopback();
    let everywhere = beside && !invitation.token.is_empty() && invitation.anywhere;
    let address = match (everywhere, here.is_ipv6()) {
        (false, _) => here.ip(),
        (true, false) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        (true, true) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    TcpListener::bind((address, 0))
        .map_err(|error| exhaustion::io(&format!("cannot listen on {address}"), &error))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::inquest::blames_other;
    use crate::rendezvous::handshake::Purpose;
    use crate::rendezvous::reception::Reception;
    use thalweg_core::spec::strategy::Carrier;

    pub(in super::super) fn invitation(rank: usize, deadline: Duration) -> Invitation {
        Invitation {
            rank,
            world: 2,
            job: [7; 32],
            text: String::new(),
            run: String::new(),
            model: Vec::new(),
            data: String::new(),
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
                reception.admit(&listener).unwrap();
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
                    reception.admit(&listener).unwrap();
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
}
