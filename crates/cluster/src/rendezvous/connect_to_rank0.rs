//! Connects to rank 0 and authenticates, retrying all addresses until the deadline.

use super::coordinator_errors::{JoinError, coordinator_lost};
use super::handshake::{Purpose, Side, handshake};
use super::timed::{HANDSHAKE_TIMEOUT, Timed};
use super::{JoinConfig, REMINDER, endpoint, local_token, route};
use crate::resource_limits;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::error::os_message;
use thalweg_core::{Error, Kind, Result};

/// Refusals are retried for this time: the listener is not authenticated, and may be another process on rank 0's port.
const REFUSAL_RETRY: Duration = Duration::from_secs(10);

/// Timeout of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A mutually authenticated connection.
pub(super) struct AuthenticatedStream {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) token: Vec<u8>,
}

/// State of the retries: each round tries every address once, then pauses.
pub(super) struct RetryRound {
    /// Addresses of other jobs, or of a rank 0 that does not admit this rank yet, with the reason.
    pub(super) declined: BTreeMap<SocketAddr, String>,
    pause: Duration,
    /// Time until the first notice.
    pub(super) reminder: Duration,
}

impl Default for RetryRound {
    fn default() -> RetryRound {
        RetryRound { declined: BTreeMap::new(), pause: Duration::from_millis(10), reminder: REMINDER }
    }
}

/// Connects and authenticates, retrying until the deadline. Addresses declined in this round are skipped.
pub(super) fn connect_to_rank0(
    join_config: &JoinConfig,
    coordinator: &str,
    start: Instant,
    round: &mut RetryRound,
    has_moved: &dyn Fn() -> bool,
    notify: &dyn Fn(String),
) -> Result<AuthenticatedStream, JoinError> {
    let mut reminder = round.reminder;
    let mut refused_since = None;
    loop {
        let attempt = endpoint::resolve(coordinator)
            .map_err(Attempt::Again)
            .and_then(|addresses| try_each(join_config, coordinator, &addresses, &round.declined));
        let waited = start.elapsed();
        let failure = match attempt {
            Ok(connection) => return Ok(connection),
            Err(Attempt::Final(error)) => return Err(error.into()),
            Err(Attempt::Refused(error)) => {
                let since = *refused_since.get_or_insert_with(|| {
                    notify(format!("{}; trying on, as it may not be rank 0", error.message));
                    waited
                });
                if waited >= join_config.deadline || waited - since >= REFUSAL_RETRY {
                    return Err(error.into());
                }
                error.message
            }
            Err(Attempt::Again(failure)) => {
                refused_since = None;
                let target = if is_query(join_config) { "the job" } else { "rank 0" };
                format!("cannot reach {target} at {failure}")
            }
        };
        if has_moved() {
            let moved = io::Error::new(io::ErrorKind::ConnectionAborted, "another rank has its role");
            return Err(coordinator_lost(&moved, join_config.rank, coordinator));
        }
        if waited >= join_config.deadline {
            let failure = format!("{failure} (tried for {} s)", waited.as_secs());
            return Err(JoinError::Final(match is_query(join_config) {
                true => Error::new(Kind::Rendezvous, failure).hint(
                    "check that the job still runs: join.json in its run folder has its address while it runs",
                ),
                false => Error::new(Kind::Rendezvous, format!("rank {} {failure}", join_config.rank))
                    .hint(advice(coordinator)),
            }));
        }
        if waited >= reminder {
            reminder += REMINDER;
            notify(format!("{failure} (for {} s)", waited.as_secs()));
        }
        std::thread::sleep(round.pause);
        round.pause = (round.pause * 2).min(Duration::from_millis(500));
        round.declined.clear();
    }
}

/// Whether the caller has no rank and only asks for the job or its status.
fn is_query(join_config: &JoinConfig) -> bool {
    join_config.world == 0
}

/// Hint for a rank 0 that cannot be reached.
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

/// Why a round failed.
enum Attempt {
    /// Retrying is useless.
    Final(Error),
    /// One side does not know the token of the other.
    Refused(Error),
    /// To be retried: the addresses tried, from where, and the errors.
    Again(String),
}

fn try_each(
    join_config: &JoinConfig,
    coordinator: &str,
    addresses: &[SocketAddr],
    declined: &BTreeMap<SocketAddr, String>,
) -> std::result::Result<AuthenticatedStream, Attempt> {
    if join_config.token.is_empty() && join_config.anywhere && !is_here(addresses) {
        return Err(Attempt::Final(local_token::missing(coordinator)));
    }
    let several_ports = addresses.iter().any(|address| address.port() != addresses[0].port());
    // Ports of one host mostly fail alike: equal failures are merged.
    let mut failures: Vec<(String, String, usize)> = Vec::new();
    let mut refusal = None;
    for &address in addresses {
        if let Some(why) = declined.get(&address) {
            failures.push((why.clone(), String::new(), 1));
            continue;
        }
        let failure = match try_address(address, &join_config.token) {
            Ok(connection) => return Ok(connection),
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
    // Of several ports, some may belong to other jobs.
    if let Some(error) = refusal.filter(|_| !several_ports) {
        return Err(Attempt::Refused(error));
    }
    let failures = failures.into_iter().map(|(address, failure, count)| match count {
        1 => format!("{address}{failure}"),
        _ => format!("{address} and {} more ports{failure}", count - 1),
    });
    let tried = failures.collect::<Vec<_>>().join("; ");
    let by_address = matches!(addresses, [address] if address.to_string() == coordinator);
    Err(Attempt::Again(if by_address { tried } else { format!("{coordinator}, that is {tried}") }))
}

/// Whether all addresses are on this host.
fn is_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

enum Failure {
    Final(Error),
    Refused(String),
    Other(String),
}

/// One attempt at one address; without a token it uses the one rank 0 offers to processes of its user.
fn try_address(address: SocketAddr, token: &[u8]) -> std::result::Result<AuthenticatedStream, Failure> {
    let offered = if token.is_empty() { local_token::find(address) } else { Ok(token.to_vec()) };
    let connected = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
    let stream = connected.map_err(|error| {
        let explained = resource_limits::explain(&format!("cannot connect to rank 0 at {address}"), &error);
        explained.map_or_else(|| Failure::Other(os_message(&error)), Failure::Final)
    })?;
    let token = offered.map_err(Failure::Other)?;
    let authenticated =
        handshake(&mut Timed::new(&stream, HANDSHAKE_TIMEOUT), Side::Caller, Purpose::Control, &token);
    match authenticated {
        Ok(()) => Ok(AuthenticatedStream { stream, address, token }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Failure::Refused(error.to_string()))
        }
        Err(error) => Err(Failure::Other(format!("no handshake: {}", os_message(&error)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::Mutex;
    use thalweg_core::spec::strategy::TransportChoice;

    fn join_config(token: &[u8], deadline: Duration) -> JoinConfig {
        JoinConfig {
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
            carrier: TransportChoice::Tcp,
            deadline,
        }
    }

    fn search(token: &[u8], coordinator: &str) -> Error {
        let join_config = join_config(token, Duration::ZERO);
        connect_to_rank0(
            &join_config,
            coordinator,
            Instant::now(),
            &mut RetryRound::default(),
            &|| false,
            &|_| {},
        )
        .err()
        .unwrap()
        .into()
    }

    #[test]
    fn the_error_names_the_addresses_tried() {
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
        let expected = format!("rank 0 at localhost:{port}, that is ");
        assert!(error.message.contains(&expected), "{}", error.message);
        assert!(error.message.contains(&format!("127.0.0.1:{port} from 127.0.0.1")), "{}", error.message);
    }

    #[test]
    fn a_stopped_coordinator_times_out_in_the_handshake() {
        // The kernel completes the connection, but it is never accepted.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = search(b"secret", &address);
        assert!(error.message.contains("no handshake: no answer within 5 s"), "{}", error.message);
        assert_eq!(error.kind, Kind::Rendezvous);
    }

    #[test]
    fn without_a_token_nothing_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = search(b"", &address.to_string());
        assert!(error.message.contains("no process of this user offers its token"), "{}", error.message);
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        let _ = io::Read::read_to_end(&mut stream, &mut received);
        assert_eq!(received, b"", "not even a hello");
    }

    #[test]
    fn a_refusal_by_another_job_is_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let notices = Mutex::new(Vec::new());
        let connected = std::thread::scope(|scope| {
            scope.spawn(|| {
                // One after the other on the same port: another job, then rank 0.
                for token in [&b"of another job"[..], b"of another job", b"secret"] {
                    let (stream, _) = listener.accept().unwrap();
                    let _ = handshake(
                        &mut Timed::new(&stream, HANDSHAKE_TIMEOUT),
                        Side::Listener,
                        Purpose::Control,
                        token,
                    );
                }
            });
            let join_config = join_config(b"secret", Duration::from_secs(60));
            let notify = |message| notices.lock().unwrap().push(message);
            connect_to_rank0(
                &join_config,
                &address.to_string(),
                Instant::now(),
                &mut RetryRound::default(),
                &|| false,
                &notify,
            )
        });
        assert!(connected.is_ok());
        let notices = notices.into_inner().unwrap();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(
            notices[0].contains("refused the token") && notices[0].contains("may not be rank 0"),
            "{notices:?}"
        );
    }
}
