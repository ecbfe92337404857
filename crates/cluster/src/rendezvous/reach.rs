//! How a rank gets a proven connection to rank 0: where it looks, how long, and what it says meanwhile.

use super::handshake::{Purpose, Side, shake};
use super::join::lost;
use super::timed::{PATIENCE, Timed};
use super::{Invitation, REMINDER, endpoint, local_token, route};
use crate::exhaustion;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Error, Kind, Result};

/// How long a refusal is not believed: whoever sends it has proven nothing, and may only be in rank 0's place for now.
const DISBELIEF: Duration = Duration::from_secs(10);

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(2);

/// A connection whose two sides have proven themselves.
pub(super) struct Reached {
    pub(super) stream: TcpStream,
    /// Where it leads.
    pub(super) address: SocketAddr,
    /// What they proved it with.
    pub(super) token: Vec<u8>,
}

/// A round of attempts: each address once, then a pause.
pub(super) struct Round {
    /// Where somebody else was found, or rank 0 cannot let this rank in yet, and why.
    pub(super) declined: BTreeMap<SocketAddr, String>,
    pause: Duration,
    /// When it is first said that nobody was found.
    pub(super) reminder: Duration,
}

impl Default for Round {
    fn default() -> Round {
        Round { declined: BTreeMap::new(), pause: Duration::from_millis(10), reminder: REMINDER }
    }
}

/// Connects and shakes hands, again and again until the deadline. Addresses that declined in this round are left out.
pub(super) fn reach(
    invitation: &Invitation,
    coordinator: &str,
    start: Instant,
    round: &mut Round,
    has_moved: &dyn Fn() -> bool,
    say: &dyn Fn(String),
) -> Result<Reached> {
    let mut reminder = round.reminder;
    let mut refused_since = None;
    loop {
        let attempt = endpoint::resolve(coordinator)
            .map_err(Attempt::Again)
            .and_then(|addresses| try_each(invitation, coordinator, &addresses, &round.declined));
        let waited = start.elapsed();
        let story = match attempt {
            Ok(reached) => return Ok(reached),
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Refused(error)) => {
                let since = *refused_since.get_or_insert_with(|| {
                    say(format!("{}; trying on, as it may not be rank 0", error.message));
                    waited
                });
                if waited >= invitation.deadline || waited - since >= DISBELIEF {
                    return Err(error);
                }
                error.message
            }
            Err(Attempt::Again(story)) => {
                refused_since = None;
                let whom = if is_asking(invitation) { "the job" } else { "rank 0" };
                format!("cannot reach {whom} at {story}")
            }
        };
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
        std::thread::sleep(round.pause);
        round.pause = (round.pause * 2).min(Duration::from_millis(500));
        round.declined.clear();
    }
}

/// Whether this is somebody without a number, who only asks what the job is.
fn is_asking(invitation: &Invitation) -> bool {
    invitation.world == 0
}

/// What to do about a rank 0 that cannot be reached.
fn advice(coordinator: &str) -> String {
    let only_here = endpoint::resolve(coordinator)
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
    /// Somebody listens there who does not know the token, or says that this side does not.
    Refused(Error),
    /// This time: which address was tried, from where, and what came of it.
    Again(String),
}

fn try_each(
    invitation: &Invitation,
    coordinator: &str,
    addresses: &[SocketAddr],
    declined: &BTreeMap<SocketAddr, String>,
) -> std::result::Result<Reached, Attempt> {
    if invitation.token.is_empty() && invitation.anywhere && !is_here(addresses) {
        return Err(Attempt::Final(local_token::missing(coordinator)));
    }
    let several_ports = addresses.iter().any(|address| address.port() != addresses[0].port());
    // Ports of one host mostly fail alike: what failed there is told once.
    let mut failures: Vec<(String, String, usize)> = Vec::new();
    let mut refusal = None;
    for &address in addresses {
        if let Some(why) = declined.get(&address) {
            failures.push((why.clone(), String::new(), 1));
            continue;
        }
        let failure = match contact(address, &invitation.token) {
            Ok(reached) => return Ok(reached),
            Err(Failure::Final(error)) => return Err(Attempt::Final(error)),
            Err(Failure::Refused(why)) => {
                refusal.get_or_insert_with(|| Error::new(Kind::Rendezvous, format!("{address} {why}")));
                format!("no handshake: {why}")
            }
            Err(Failure::Other(why)) => why,
        };
        let failure = format!("{}: {failure}", route(address));
        match failures.iter_mut().find(|(_, known, _)| several_ports && *known == failure) {
            Some((.., count)) => *count += 1,
            None => failures.push((address.to_string(), failure, 1)),
        }
    }
    // Of several ports, others may be other jobs'.
    if let Some(error) = refusal.filter(|_| !several_ports) {
        return Err(Attempt::Refused(error));
    }
    let told = failures.into_iter().map(|(address, failure, count)| match count {
        1 => format!("{address}{failure}"),
        _ => format!("{address} and {} more ports{failure}", count - 1),
    });
    let tried = told.collect::<Vec<_>>().join("; ");
    let by_address = matches!(addresses, [address] if address.to_string() == coordinator);
    Err(Attempt::Again(if by_address { tried } else { format!("{coordinator}, that is {tried}") }))
}

/// Whether a coordinator can only be on this host.
fn is_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

enum Failure {
    Final(Error),
    Refused(String),
    Other(String),
}

/// One attempt at one address; without a token, with the one that rank 0 offers to processes of its user.
fn contact(address: SocketAddr, token: &[u8]) -> std::result::Result<Reached, Failure> {
    let offered = if token.is_empty() { local_token::find(address) } else { Ok(token.to_vec()) };
    let connected = TcpStream::connect_timeout(&address, CONNECT);
    let stream = connected.map_err(|error| {
        let explained = exhaustion::explain(&format!("cannot connect to rank 0 at {address}"), &error);
        explained.map_or_else(|| Failure::Other(plain_words(&error)), Failure::Final)
    })?;
    let token = offered.map_err(Failure::Other)?;
    let shaken = shake(&mut Timed::new(&stream, PATIENCE), Side::Caller, Purpose::Control, &token);
    match shaken {
        Ok(()) => Ok(Reached { stream, address, token }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Failure::Refused(error.to_string()))
        }
        Err(error) => Err(Failure::Other(format!("no handshake: {}", plain_words(&error)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::Mutex;
    use thalweg_core::spec::strategy::Carrier;

    fn invitation(token: &[u8], deadline: Duration) -> Invitation {
        Invitation {
            rank: 1,
            world: 2,
            job: [7; 32],
            text: String::new(),
            run: String::new(),
            model: Vec::new(),
            data: String::new(),
            token: token.to_vec(),
            host: "box".into(),
            anywhere: false,
            carrier: Carrier::Tcp,
            deadline,
        }
    }

    fn search(token: &[u8], coordinator: &str) -> Error {
        let invitation = invitation(token, Duration::ZERO);
        reach(&invitation, coordinator, Instant::now(), &mut Round::default(), &|| false, &|_| {})
            .err()
            .unwrap()
    }

    #[test]
    fn where_a_rank_looked_is_told_for_addresses_and_names() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for token in [&b"secret"[..], b""] {
            let error = search(token, &format!("127.0.0.1:{port}"));
            assert_eq!(
                error.message,
                format!(
                    "rank 1 cannot reach rank 0 at 127.0.0.1:{port} from 127.0.0.1 (interface lo): connection refused (tried for 0 s)"
                )
            );
            assert!(error.hint.unwrap().contains("on another, set MASTER_ADDR"));
        }
        let error = search(b"secret", &format!("localhost:{port}"));
        let place = format!("rank 0 at localhost:{port}, that is ");
        assert!(error.message.contains(&place), "{}", error.message);
        assert!(error.message.contains(&format!("127.0.0.1:{port} from 127.0.0.1")), "{}", error.message);
    }

    #[test]
    fn a_stopped_coordinator_is_told_in_plain_words() {
        // The kernel completes the connection; nobody ever answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = search(b"secret", &address);
        assert!(error.message.contains("no handshake: no answer within 5 s"), "{}", error.message);
        assert_eq!(error.kind, Kind::Rendezvous);
    }

    #[test]
    fn without_a_token_nothing_is_said_to_whoever_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = search(b"", &address.to_string());
        assert!(error.message.contains("no process of this user offers its token"), "{}", error.message);
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = Vec::new();
        let _ = io::Read::read_to_end(&mut stream, &mut said);
        assert_eq!(said, b"", "not even a greeting");
    }

    #[test]
    fn an_impostor_that_refuses_does_not_end_the_search() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let said = Mutex::new(Vec::new());
        let reached = std::thread::scope(|scope| {
            scope.spawn(|| {
                // One after the other on the same port: somebody else, then the true rank 0.
                for token in [&b"of somebody else"[..], b"of somebody else", b"secret"] {
                    let (stream, _) = listener.accept().unwrap();
                    let _ =
                        shake(&mut Timed::new(&stream, PATIENCE), Side::Listener, Purpose::Control, token);
                }
            });
            let invitation = invitation(b"secret", Duration::from_secs(60));
            let say = |message| said.lock().unwrap().push(message);
            reach(&invitation, &address.to_string(), Instant::now(), &mut Round::default(), &|| false, &say)
        });
        assert!(reached.is_ok());
        let said = said.into_inner().unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("refused the token") && said[0].contains("may not be rank 0"), "{said:?}");
    }
}
