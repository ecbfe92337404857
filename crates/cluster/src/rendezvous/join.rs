//! A rank's part of the rendezvous: connect to rank 0, send the join request, wait for the roster.

use super::connect_to_rank0::{AuthenticatedStream, RetryRound, connect_to_rank0};
use super::coordinator_errors::{JoinError, coordinator_lost};
use super::message::{ControlRequest, ControlResponse, JoinKind, JoinRequest, Member, Roster, send};
use super::roster::{await_roster, check, fix_addresses};
use super::timed::{HANDSHAKE_TIMEOUT, Timed};
use super::{JoinConfig, unreachable};
use crate::resource_limits;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use thalweg_core::event::Heartbeat;
use thalweg_core::{Error, Kind, Result};

/// Time until the first notice of a rank that lost its coordinator.
const FIRST_NOTICE: Duration = Duration::from_secs(3);

/// The result of the rendezvous.
pub struct Joined {
    pub roster: Roster,
    /// The connection to the coordinator.
    pub control: TcpStream,
    pub token: Vec<u8>,
}

/// Joins the group whose coordinator listens at that [`endpoint`](super::endpoint). `data` is this rank's listener for
/// data connections; if None, it is opened on the interface of the control connection. `has_moved`: whether another
/// process has taken the coordinator's role.
pub fn join(
    join_config: &JoinConfig,
    (kind, doing): (JoinKind, &Heartbeat),
    coordinator: &str,
    data: &mut Option<TcpListener>,
    has_moved: &dyn Fn() -> bool,
    notify: &dyn Fn(String),
) -> Result<Joined, JoinError> {
    let start = Instant::now();
    let mut round = RetryRound::default();
    if matches!(kind, JoinKind::Rejoin { .. }) {
        // The group waits for a former member, so its notice comes early.
        round.reminder = FIRST_NOTICE;
    }
    loop {
        let connection = connect_to_rank0(join_config, coordinator, start, &mut round, has_moved, notify)?;
        let address = connection.address;
        let why =
            match request_join(join_config, (kind, doing), (connection, coordinator), data, start, notify)? {
                JoinOutcome::Joined(joined) => return Ok(joined),
                JoinOutcome::OtherRun => {
                    Error::new(Kind::Rendezvous, format!("{address} belongs to another run"))
                }
                JoinOutcome::NotYet(error) if start.elapsed() >= join_config.deadline => {
                    return Err(error.into());
                }
                JoinOutcome::NotYet(error) => error,
            };
        round.declined.insert(address, why.message);
    }
}

/// The response to a join request.
enum JoinOutcome {
    Joined(Joined),
    /// The listener belongs to another job, or to another attempt at this one.
    OtherRun,
    /// To be retried.
    NotYet(Error),
}

/// Sends the join request and waits for the roster.
fn request_join(
    join_config: &JoinConfig,
    (kind, doing): (JoinKind, &Heartbeat),
    (connection, coordinator): (AuthenticatedStream, &str),
    data: &mut Option<TcpListener>,
    start: Instant,
    notify: &dyn Fn(String),
) -> Result<JoinOutcome, JoinError> {
    let AuthenticatedStream { stream: control, token, .. } = connection;
    let here = control.local_addr().map_err(|error| Error::io("no local address", &error))?;
    let listener = match data {
        Some(listener) => listener,
        None => data.insert(listen(join_config, here)?),
    };
    let port = listener.local_addr().map_err(|error| Error::io("no local address", &error))?.port();
    let address = unreachable::route(SocketAddr::new(here.ip(), port));
    let member = Member {
        rank: join_config.rank,
        host: join_config.host.clone(),
        process: std::process::id(),
        data: address,
        identity: thalweg_comm::host::host_identity(),
        launcher: crate::launcher_connection::launcher_pid(),
    };
    let request = JoinRequest {
        member: member.clone(),
        world: join_config.world,
        job: join_config.job,
        text: join_config.text.clone(),
        run: join_config.run.clone(),
        model: join_config.model.clone(),
        data: join_config.data.clone(),
        kind,
        doing: doing.clone(),
    };
    send(&mut Timed::new(&control, HANDSHAKE_TIMEOUT), &ControlRequest::Join(Box::new(request)))
        .map_err(|error| coordinator_lost(&error, join_config.rank, coordinator))?;
    let mut roster = match await_roster(join_config, coordinator, &control, start, notify)? {
        ControlResponse::Roster(roster) => roster,
        ControlResponse::NotYet(error) => return Ok(JoinOutcome::NotYet(error)),
        _ => return Ok(JoinOutcome::OtherRun),
    };
    check(&roster, Some(&member)).map_err(|wrong| {
        coordinator_lost(&io::Error::new(io::ErrorKind::InvalidData, wrong), join_config.rank, coordinator)
    })?;
    fix_addresses(&mut roster, &control);
    Ok(JoinOutcome::Joined(Joined { roster, control, token }))
}

/// Opens the listener for data connections on the address of the control connection. Rank 0, and ranks that reach it
/// over loopback, listen on all addresses if there may be ranks on other hosts.
fn listen(join_config: &JoinConfig, here: SocketAddr) -> Result<TcpListener> {
    let on_rank0_host = join_config.rank == 0 || here.ip().is_loopback();
    let everywhere = on_rank0_host && !join_config.token.is_empty() && join_config.anywhere;
    let address = match (everywhere, here.is_ipv6()) {
        (false, _) => here.ip(),
        (true, false) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        (true, true) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    TcpListener::bind((address, 0))
        .map_err(|error| resource_limits::io(&format!("cannot listen on {address}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::blames_other;
    use crate::rendezvous::handshake::Purpose;
    use crate::rendezvous::handshake_acceptor::HandshakeAcceptor;
    use thalweg_core::spec::strategy::TransportChoice;

    fn join_config(rank: usize, deadline: Duration) -> JoinConfig {
        JoinConfig {
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
            carrier: TransportChoice::Tcp,
            deadline,
        }
    }

    fn first(join_config: &JoinConfig, coordinator: &str) -> Error {
        join(
            join_config,
            (JoinKind::Initial, &Heartbeat::default()),
            coordinator,
            &mut None,
            &|| false,
            &|_| {},
        )
        .err()
        .unwrap()
        .into()
    }

    #[test]
    fn a_coordinator_that_dies_during_the_rendezvous_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let dying = std::thread::spawn(move || {
            let mut acceptor: HandshakeAcceptor<ControlRequest> =
                HandshakeAcceptor::new(Purpose::Control, b"secret");
            loop {
                acceptor.accept(&listener).unwrap();
                if let Some((ControlRequest::Join(join), _)) = acceptor.next(Duration::from_millis(1)) {
                    return join.member.rank;
                }
            }
        });
        let error = first(&join_config(1, Duration::from_secs(60)), &address);
        assert_eq!(dying.join().unwrap(), 1);
        assert_eq!(
            error.message,
            format!(
                "rank 0 at {address} vanished while rank 1 waited for the others: its connection closed without a goodbye"
            )
        );
        assert_eq!(error.kind, Kind::RankFailed);
        assert!(blames_other(1, &error), "only witness evidence: an exit status outranks it");
        let culprit = error.culprit.unwrap();
        assert_eq!(
            (culprit.rank, culprit.cause.as_str()),
            (0, "vanished: its connection closed without a goodbye")
        );
    }

    /// Joins a coordinator that responds with this list of ranks.
    fn join_fake(roster: impl FnOnce(Member) -> Vec<Member> + Send) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut acceptor: HandshakeAcceptor<ControlRequest> =
                    HandshakeAcceptor::new(Purpose::Control, b"secret");
                loop {
                    acceptor.accept(&listener).unwrap();
                    if let Some((call, mut stream)) = acceptor.next(Duration::from_millis(1)) {
                        let ControlRequest::Join(join) = call else { panic!("not a join request") };
                        let members = roster(join.member);
                        let positions = vec![Default::default(); members.len()];
                        let answer =
                            ControlResponse::Roster(Roster { members, positions, ..Roster::default() });
                        return send(&mut stream, &answer).unwrap();
                    }
                }
            });
            first(&join_config(1, Duration::from_secs(60)), &address)
        })
    }

    #[test]
    fn an_invalid_roster_is_refused() {
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
