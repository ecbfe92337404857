//! How far the clocks of two hosts are apart, in the manner of NTP.
//!
//! The asking side notes when it sends and when the answer is there, the other when it heard and when it answered. Of
//! some exchanges the quickest is believed: its clocks differ by at most half its round trip from what is told.
//! A question is 16 bytes, an answer 32; nothing else is read, and every read has a deadline.

use super::check::Check;
use super::network::accept_within;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// First bytes of a question and of an answer.
const QUESTION: &[u8; 8] = b"thalwg?1";
const ANSWER: &[u8; 8] = b"thalwg!1";

/// Exchanges per comparison; a server answers no more on one connection.
const ROUNDS: u64 = 16;

/// The longest a read or a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often in a row, and after which pause, it is tried again to let somebody in.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// Clocks further apart than this make logs of several hosts hard to read.
const TOLERANCE: f64 = 0.5;

/// A source of nanoseconds since 1970.
pub(super) type Clock<'a> = &'a dyn Fn() -> i64;

/// This host's clock.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// What is said as long as nobody compares.
pub(super) fn unmeasured(several_hosts: bool) -> Check {
    const NAME: &str = "clock";
    if !several_hosts {
        return Check::ok(NAME, "one host: nothing to compare with");
    }
    let advice = "run `thalweg doctor --listen HOST:29600` on one host and `thalweg doctor --peer HOST:29600` on this one";
    Check::warn(NAME, "not compared with the other hosts", advice)
}

/// Answers questions for some time, one host after the other. An error if nobody can be let in any more.
pub(super) fn serve(
    listener: &TcpListener,
    clock: Clock<'_>,
    time: Duration,
    told: &mut dyn FnMut(SocketAddr),
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut accept = |left| accept_within(listener, left);
    serve_each(&mut accept, time, &mut |stream| {
        if let Ok(peer) = stream.peer_addr() {
            told(peer);
        }
        // Whoever breaks the rules, or goes away, is simply not answered further.
        let _ = answer(stream, clock);
    })
}

/// Lets in one after the other until the time is over. A failure may pass (a guest who left, too many open files): it
/// is waited for, a few times in a row.
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
            Err(error) if failures == ATTEMPTS => return Err(error),
            Err(_) => {
                failures += 1;
                std::thread::sleep(PAUSE.min(left));
            }
        }
    }
    Ok(())
}

fn answer(mut stream: TcpStream, clock: Clock<'_>) -> std::io::Result<()> {
    prepare(&stream)?;
    for _ in 0..ROUNDS {
        let mut question = [0; 16];
        stream.read_exact(&mut question)?;
        let heard = clock();
        let Some(number) = question.strip_prefix(QUESTION) else { return Ok(()) };
        let mut answer = [0; 32];
        answer[..8].copy_from_slice(ANSWER);
        answer[8..16].copy_from_slice(number);
        answer[16..24].copy_from_slice(&heard.to_le_bytes());
        answer[24..].copy_from_slice(&clock().to_le_bytes());
        stream.write_all(&answer)?;
    }
    Ok(())
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// The result of a comparison, in seconds.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    /// How far the other clock is ahead.
    ahead: f64,
    round_trip: f64,
}

/// Compares this host's clock with the one behind an address.
pub(super) fn compare(address: SocketAddr, clock: Clock<'_>) -> Check {
    let name = format!("clock of {address}");
    match ask(address, clock) {
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

/// The quickest of some exchanges.
fn ask(address: SocketAddr, clock: Clock<'_>) -> std::io::Result<Comparison> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    prepare(&stream)?;
    let mut best: Option<Comparison> = None;
    for number in 0..ROUNDS {
        let mut question = [0; 16];
        question[..8].copy_from_slice(QUESTION);
        question[8..].copy_from_slice(&number.to_le_bytes());
        let sent = clock();
        stream.write_all(&question)?;
        let mut answer = [0; 32];
        stream.read_exact(&mut answer)?;
        let comparison = read_answer(&answer, number, sent, clock())
            .ok_or_else(|| std::io::Error::other("what listens there is not `thalweg doctor --listen`"))?;
        if best.is_none_or(|best| comparison.round_trip < best.round_trip) {
            best = Some(comparison);
        }
    }
    best.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

fn read_answer(answer: &[u8; 32], number: u64, sent: i64, received: i64) -> Option<Comparison> {
    let field = |at: usize| Some(i64::from_le_bytes(answer.get(at..at + 8)?.try_into().ok()?));
    if !answer.starts_with(ANSWER) || field(8)? as u64 != number {
        return None;
    }
    let (heard, answered) = (field(16)?, field(24)?);
    // In 128 bits: the other side may say anything.
    let seconds = |later: i64, earlier: i64| (i128::from(later) - i128::from(earlier)) as f64 * 1e-9;
    Some(Comparison {
        ahead: (seconds(heard, sent) + seconds(answered, received)) / 2.0,
        round_trip: (seconds(received, sent) - seconds(answered, heard)).max(0.0),
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
                let _ = answer(stream, &|| now() + ahead * 1_000_000_000);
            }
        });
        let result = (ask(address, &now).unwrap(), compare(address, &now));
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
    fn a_stranger_is_not_answered_and_a_strange_answer_is_not_believed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stranger = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer
        });
        let (stream, _) = listener.accept().unwrap();
        answer(stream, &now).unwrap();
        assert!(stranger.join().unwrap().is_empty());

        let mut strange = [0xff; 32];
        assert!(read_answer(&strange, 0, 0, 0).is_none());
        strange[..8].copy_from_slice(ANSWER);
        strange[8..16].fill(0);
        strange[16..24].copy_from_slice(&i64::MAX.to_le_bytes());
        strange[24..].copy_from_slice(&i64::MIN.to_le_bytes());
        assert!(read_answer(&strange, 0, 0, 0).unwrap().round_trip.is_finite());
    }

    #[test]
    fn a_server_that_can_let_nobody_in_pauses_and_then_says_so() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let guest = || TcpStream::connect(listener.local_addr().unwrap());
        let mut answers = vec![Err(ErrorKind::ConnectionAborted.into()), guest()];
        let (mut asked, mut served, start) = (0, 0, Instant::now());
        let mut accept = |_| {
            asked += 1;
            if answers.is_empty() {
                Err(std::io::Error::other("too many open files"))
            } else {
                answers.remove(0)
            }
        };
        let end = serve_each(&mut accept, Duration::from_secs(600), &mut |_| served += 1);
        assert_eq!(end.unwrap_err().to_string(), "too many open files");
        assert_eq!((asked, served), (ATTEMPTS + 3, 1), "a failure that passed does not count");
        assert!(start.elapsed() >= PAUSE * (ATTEMPTS as u32 + 1));
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
