//! A rank's part of the rendezvous: reach rank 0, prove oneself, wait for the roster.

use super::handshake::{Purpose, Side, shake};
use super::message::{Answer, Join, Member, receive, send};
use super::{Invitation, REMINDER, check_token, describe, ranks};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Error, Kind, Result};

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
    let mut control = reach(invitation, coordinator, start, say)?;
    let here = control.local_addr().map_err(|error| Error::io("no local address", &error))?;
    let data = listen(invitation, here)?;
    let port = data.local_addr().map_err(|error| Error::io("no local address", &error))?.port();
    let address = SocketAddr::new(here.ip(), port);
    let member = Member {
        rank: invitation.rank,
        host: invitation.host.clone(),
        process: std::process::id(),
        data: address,
    };
    let lost = |error: io::Error| {
        Error::new(
            Kind::Rendezvous,
            format!("rank {} lost rank 0 at {coordinator} while waiting: {error}", invitation.rank),
        )
    };
    send(&mut control, &Join { member, world: invitation.world, job: invitation.job }).map_err(lost)?;
    let mut reminder = start.elapsed() + REMINDER;
    loop {
        if !readable(&control).map_err(lost)? {
            if start.elapsed() >= invitation.deadline + Duration::from_secs(5) {
                return Err(Error::new(Kind::Rendezvous, format!("rank 0 at {coordinator} does not answer"))
                    .hint("it was reached, but says nothing: is it stopped?"));
            }
            if start.elapsed() >= reminder + Duration::from_secs(2) {
                reminder += REMINDER;
                say(format!("rank 0 at {coordinator} was reached, but does not answer"));
            }
            continue;
        }
        match receive::<Answer>(&mut control).map_err(lost)? {
            Answer::Roster { mut members, generation } => {
                // Rank 0 may know itself by a name that only it can use (127.0.1.1); the way we came is a way.
                if let (Ok(way), Some(first)) = (control.peer_addr(), members.first_mut()) {
                    first.data.set_ip(way.ip());
                }
                return Ok(Joined { members, generation, control, data });
            }
            Answer::Refused(error) => return Err(error),
            Answer::Waiting { missing, seconds } => {
                reminder = start.elapsed() + REMINDER;
                if invitation.rank != 0 {
                    say(format!(
                        "waiting for {} for {seconds} s; joined rank 0 at {coordinator} from {}",
                        ranks(&missing),
                        describe(here)
                    ));
                }
            }
        }
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
    say: &dyn Fn(String),
) -> Result<TcpStream> {
    let mut reminder = REMINDER;
    let mut pause = Duration::from_millis(10);
    loop {
        let attempt = resolve(coordinator).and_then(|addresses| try_each(invitation, &addresses));
        let failure = match attempt {
            Ok(stream) => return Ok(stream),
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Again(failure)) => failure,
        };
        let waited = start.elapsed();
        let story = || format!("cannot reach rank 0 at {coordinator}{}: {failure}", route(coordinator));
        if waited >= invitation.deadline {
            return Err(Error::new(
                Kind::Rendezvous,
                format!("rank {} {} (tried for {} s)", invitation.rank, story(), waited.as_secs()),
            )
            .hint(
                "check that rank 0 runs there (MASTER_ADDR, MASTER_PORT) and that no firewall is in between",
            ));
        }
        if waited >= reminder {
            reminder += REMINDER;
            say(format!("{} (for {} s)", story(), waited.as_secs()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

enum Attempt {
    Final(Error),
    Again(String),
}

fn resolve(coordinator: &str) -> std::result::Result<Vec<SocketAddr>, Attempt> {
    match coordinator.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(Attempt::Again(format!("the name does not resolve: {error}"))),
    }
}

fn try_each(invitation: &Invitation, addresses: &[SocketAddr]) -> std::result::Result<TcpStream, Attempt> {
    let mut failure = "no address".to_string();
    for &address in addresses {
        check_token(address, &invitation.token).map_err(Attempt::Final)?;
        match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Ok(mut stream) => match shake(&mut stream, Side::Caller, Purpose::Control, &invitation.token) {
                Ok(()) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Attempt::Final(Error::new(Kind::Rendezvous, format!("{address} {error}"))));
                }
                Err(error) => failure = format!("no handshake: {error}"),
            },
            Err(error) => failure = plain_words(&error),
        }
    }
    Err(Attempt::Again(failure))
}

/// The address and interface from which the system would go there.
fn route(coordinator: &str) -> String {
    let local = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect(coordinator)?;
        socket.local_addr()
    });
    local.map_or_else(
        |_| String::new(),
        |address| format!(" from {}", describe(SocketAddr::new(address.ip(), 0)).replacen(":0", "", 1)),
    )
}

/// Whether something can be read; waits a moment for it.
fn readable(stream: &TcpStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let readable = match stream.peek(&mut [0]) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Ok(false)
        }
        Err(error) => Err(error),
    };
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    readable
}
