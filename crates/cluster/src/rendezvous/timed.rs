//! A connection with one deadline for all reads and writes.
//!
//! With a timeout per read, a client that sends a byte now and then could hold a connection for hours.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Deadline of a whole handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads and writes until the deadline.
///
/// Dropping it leaves the connection with timeouts of [`HANDSHAKE_TIMEOUT`] per read and write, so that none blocks
/// forever.
pub struct Timed<'a> {
    stream: &'a TcpStream,
    timeout: Duration,
    end: Instant,
}

impl<'a> Timed<'a> {
    /// The timeout starts now.
    pub fn new(stream: &'a TcpStream, timeout: Duration) -> Timed<'a> {
        Timed { stream, timeout, end: Instant::now() + timeout }
    }

    pub fn stream(&self) -> &TcpStream {
        self.stream
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.expired()) } else { Ok(left) }
    }

    fn expired(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", self.timeout.as_secs_f64()))
    }

    /// The kernel reports an expired timeout as EAGAIN.
    fn map_timeout(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.expired(),
            _ => error,
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.read(buffer).map_err(|error| self.map_timeout(error))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.write(buffer).map_err(|error| self.map_timeout(error))
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
}
