//! A connection with one deadline for all reads and writes.
//!
//! With a timeout per read, a client that sends a byte now and then could hold a connection for hours. A wait for a peer
//! that may be lost also ends when the job or the generation does.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use thalweg_core::Error;

/// Deadline of a whole handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a blocked read or write asks whether the job goes on.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Reads and writes until the deadline.
///
/// Dropping it leaves the connection with timeouts of [`HANDSHAKE_TIMEOUT`] per read and write, so that none blocks
/// forever.
pub struct Timed<'a> {
    stream: &'a TcpStream,
    timeout: Duration,
    end: Instant,
    end_reason: Option<&'a dyn Fn() -> Option<Error>>,
}

impl<'a> Timed<'a> {
    /// The timeout starts now.
    pub fn new(stream: &'a TcpStream, timeout: Duration) -> Timed<'a> {
        Timed { stream, timeout, end: Instant::now() + timeout, end_reason: None }
    }

    /// The same, which also ends as soon as there is a reason to.
    pub fn or_ended(self, end_reason: &'a dyn Fn() -> Option<Error>) -> Timed<'a> {
        Timed { end_reason: Some(end_reason), ..self }
    }

    pub fn stream(&self) -> &TcpStream {
        self.stream
    }

    /// The time until the deadline or until the next look at the reason to end.
    fn left(&self) -> io::Result<Duration> {
        if let Some(error) = self.end_reason.and_then(|reason| reason()) {
            return Err(io::Error::other(error.message));
        }
        let left = self.end.saturating_duration_since(Instant::now());
        match self.end_reason {
            _ if left.is_zero() => Err(self.expired()),
            Some(_) => Ok(left.min(CHECK_INTERVAL)),
            None => Ok(left),
        }
    }

    fn expired(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", self.timeout.as_secs_f64()))
    }

    /// Repeats an operation that a timeout of the connection interrupts. The kernel reports that as EAGAIN.
    fn until_done(&self, mut operation: impl FnMut(Duration) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match operation(self.left()?) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                done => return done,
            }
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        self.until_done(|left| {
            stream.set_read_timeout(Some(left))?;
            stream.read(buffer)
        })
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        self.until_done(|left| {
            stream.set_write_timeout(Some(left))?;
            stream.write(buffer)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        // Fails only on a broken connection, which the next read reports.
        let _ = self.stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT));
        let _ = self.stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn dripping_bytes_do_not_move_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut dripping = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = dripping.write_all(&[0]);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let mut timed = Timed::new(&stream, Duration::from_millis(200));
            let error = timed.read_exact(&mut [0; 1 << 20]).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::TimedOut, "no answer within 0.2 s")
            );
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(stream.read_timeout().unwrap(), Some(HANDSHAKE_TIMEOUT));
    }

    #[test]
    fn a_timeout_is_reported_as_such() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let error = Timed::new(&stream, Duration::from_millis(20)).read(&mut [0]).unwrap_err();
        assert_eq!(error.to_string(), "no answer within 0.02 s");
    }

    #[test]
    fn a_wait_ends_when_the_job_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let asked = std::cell::Cell::new(0);
        let ended = || {
            asked.set(asked.get() + 1);
            (asked.get() > 2).then(|| Error::internal("rank 1 is lost"))
        };
        let mut timed = Timed::new(&stream, Duration::from_secs(600)).or_ended(&ended);
        assert!(timed.read(&mut [0]).unwrap_err().to_string().contains("rank 1 is lost"));
        assert_eq!(asked.get(), 3, "after it was asked a third time");
    }
}
