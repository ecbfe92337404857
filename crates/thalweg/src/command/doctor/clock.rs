//! Clock offset between two hosts, measured as NTP does.
//!
//! The client records when it sends and receives, the server when it receives and replies. Of `ROUNDS` exchanges the
//! one with the shortest round trip counts: its error is at most half that round trip. A request is 16 bytes, a reply
//! 32; nothing else is read, and every read has a timeout.

use super::check::Check;
use super::network::accept_within;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// First bytes of a request and of a reply.
const REQUEST: &[u8; 8] = b"thalwg?1";
const REPLY: &[u8; 8] = b"thalwg!1";

/// Exchanges per comparison, and the limit of a server per connection.
const ROUNDS: u64 = 16;

/// Timeout of a connect, a read and a write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Consecutive failures of `accept` that are retried, and the pause after each.
const RETRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// Offset in seconds above which logs of several hosts become hard to compare.
const TOLERANCE: f64 = 0.5;

/// A source of nanoseconds since 1970.
pub(super) type Clock<'a> = &'a dyn Fn() -> i64;

/// This host's clock.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The check without a comparison.
pub(super) fn unmeasured(several_hosts: bool) -> Check {
    const NAME: &str = "clock";
    if !several_hosts {
        return Check::ok(NAME, "one host: nothing to compare with");
    }
    let advice = "run `thalweg doctor --listen HOST:29600` on one host and `thalweg doctor --peer HOST:29600` on this one";
    Check::warn(NAME, "not compared with the other hosts", advice)
}

/// Replies to clients for `time`, one after another. Fails if connections can no longer be accepted.
pub(super) fn serve(
    listener: &TcpListener,
    clock: Clock<'_>,
    time: Duration,
    on_client: &mut dyn FnMut(SocketAddr),
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut accept = |left| accept_within(listener, left);
    serve_each(&mut accept, time, &mut |stream| {
        if let Ok(peer) = stream.peer_addr() {
            on_client(peer);
        }
        // A client that violates the protocol or disconnects gets no further reply.
        let _ = reply(stream, clock);
    })
}

/// Accepts connections until `time` is over. A failure may be transient (aborted connection, too many open files): it
/// is retried after a pause.
fn serve_each(
    accept: &mut dyn FnMut(Duration) -> std::io::Result<TcpStream>,
    time: Duration,
    serve: &mut dyn FnMut(TcpStream),
) -> std::io::Result<()> {
    let start = Instant::now();
    let mut failures = 0;
    while let Some(left) = time.checked_sub(start.elapsed()) {
        match accept(left) {
            Ok(stream) => {
                failures = 0;
                serve(stream);
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if failures == RETRIES => return Err(error),
            Err(_) => {
                failures += 1;
                std::thread::sleep(PAUSE.min(left));
            }
        }
    }
    Ok(())
}

fn reply(mut stream: TcpStream, clock: Clock<'_>) -> std::io::Result<()> {
    set_timeouts(&stream)?;
    for _ in 0..ROUNDS {
        let mut request = [0; 16];
        stream.read_exact(&mut request)?;
        let received = clock();
        let Some(number) = request.strip_prefix(REQUEST) else { return Ok(()) };
        let mut reply = [0; 32];
        reply[..8].copy_from_slice(REPLY);
        reply[8..16].copy_from_slice(number);
        reply[16..24].copy_from_slice(&received.to_le_bytes());
        reply[24..].copy_from_slice(&clock().to_le_bytes());
        stream.write_all(&reply)?;
    }
    Ok(())
}

fn set_timeouts(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))
}

/// A measured clock offset, in seconds.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    /// Offset of the other clock; positive if it is ahead.
    ahead: f64,
    round_trip: f64,
}

/// Compares this host's clock with the one behind an address.
pub(super) fn compare(address: SocketAddr, clock: Clock<'_>) -> Check {
    let name = format!("clock of {address}");
    match measure(address, clock) {
        Ok(Comparison { ahead, round_trip }) => {
            let direction = if ahead < 0.0 { "behind" } else { "ahead of" };
            let found = format!(
                "{:.6} s {direction} this one (give or take {:.6} s), {:.0} microseconds per round trip",
                ahead.abs(),
                round_trip / 2.0,
                round_trip * 1e6
            );
            if ahead.abs() > TOLERANCE {
                return Check::warn(&name, found, "run a time service (chrony, ntpd) on both hosts");
            }
            Check::ok(&name, found)
        }
        Err(error) => Check::fail(
            &name,
            format!("no answer: {error}"),
            "start `thalweg doctor --listen HOST:PORT` there and let a firewall pass that port",
        ),
    }
}

/// The exchange with the shortest round trip.
fn measure(address: SocketAddr, clock: Clock<'_>) -> std::io::Result<Comparison> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    set_timeouts(&stream)?;
    let mut best: Option<Comparison> = None;
    for number in 0..ROUNDS {
        let mut request = [0; 16];
        request[..8].copy_from_slice(REQUEST);
        request[8..].copy_from_slice(&number.to_le_bytes());
        let sent = clock();
        stream.write_all(&request)?;
        let mut reply = [0; 32];
        stream.read_exact(&mut reply)?;
        let comparison = parse_reply(&reply, number, sent, clock())
            .ok_or_else(|| std::io::Error::other("the service there is not `thalweg doctor --listen`"))?;
        if best.is_none_or(|best| comparison.round_trip < best.round_trip) {
            best = Some(comparison);
        }
    }
    best.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

fn parse_reply(reply: &[u8; 32], number: u64, sent: i64, received: i64) -> Option<Comparison> {
    let field = |at: usize| Some(i64::from_le_bytes(reply.get(at..at + 8)?.try_into().ok()?));
    if !reply.starts_with(REPLY) || field(8)? as u64 != number {
        return None;
    }
    let (arrived, replied) = (field(16)?, field(24)?);
    // In 128 bits: the peer may send any values.
    let seconds = |later: i64, earlier: i64| (i128::from(later) - i128::from(earlier)) as f64 * 1e-9;
    Some(Comparison {
        ahead: (seconds(arrived, sent) + seconds(replied, received)) / 2.0,
        round_trip: (seconds(received, sent) - seconds(replied, arrived)).max(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;
    use std::net::Ipv4Addr;

    /// Compares with a server whose clock is ahead by some seconds.
    fn compare_with(ahead: i64) -> (Comparison, Check) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (stream, _) = listener.accept().unwrap();
                let _ = reply(stream, &|| now() + ahead * 1_000_000_000);
            }
        });
        let result = (measure(address, &now).unwrap(), compare(address, &now));
        server.join().unwrap();
        result
    }

    #[test]
    fn the_difference_is_found_within_half_a_round_trip() {
        for ahead in [0, 3, -3600] {
            let (found, check) = compare_with(ahead);
            let error = (found.ahead - ahead as f64).abs();
            assert!(error <= found.round_trip / 2.0 + 1e-6, "{found:?}");
            let expected = if ahead == 0 { Verdict::Ok } else { Verdict::Warn };
            assert_eq!(check.verdict, expected, "{}", check.found);
        }
    }

    #[test]
    fn other_protocols_get_no_reply_and_invalid_replies_are_refused() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer
        });
        let (stream, _) = listener.accept().unwrap();
        reply(stream, &now).unwrap();
        assert!(client.join().unwrap().is_empty());

        let mut invalid = [0xff; 32];
        assert!(parse_reply(&invalid, 0, 0, 0).is_none());
        invalid[..8].copy_from_slice(REPLY);
        invalid[8..16].fill(0);
        invalid[16..24].copy_from_slice(&i64::MAX.to_le_bytes());
        invalid[24..].copy_from_slice(&i64::MIN.to_le_bytes());
        assert!(parse_reply(&invalid, 0, 0, 0).unwrap().round_trip.is_finite());
    }

    #[test]
    fn a_server_that_cannot_accept_retries_and_then_fails() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = || TcpStream::connect(listener.local_addr().unwrap());
        let mut results = vec![Err(ErrorKind::ConnectionAborted.into()), client()];
        let (mut asked, mut served, start) = (0, 0, Instant::now());
        let mut accept = |_| {
            asked += 1;
            if results.is_empty() {
                Err(std::io::Error::other("too many open files"))
            } else {
                results.remove(0)
            }
        };
        let end = serve_each(&mut accept, Duration::from_secs(600), &mut |_| served += 1);
        assert_eq!(end.unwrap_err().to_string(), "too many open files");
        assert_eq!((asked, served), (RETRIES + 3, 1), "a success resets the count of failures");
        assert!(start.elapsed() >= PAUSE * (RETRIES as u32 + 1));
    }

    #[test]
    fn a_server_ends_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let start = Instant::now();
        serve(&listener, &now, Duration::from_millis(30), &mut |_| {}).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
        let address = listener.local_addr().unwrap();
        drop(listener);
        let check = compare(address, &now);
        assert_eq!(check.verdict, Verdict::Fail);
        assert!(check.advice.unwrap().contains("--listen"));
    }
}
