//! A connection with one deadline for all that is said on it.
//!
//! A time-out per read would let a stranger drip a byte now and then and stay for hours.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What a whole handshake may take, from the first byte to the last.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Reads and writes until the time is up, whatever arrives meanwhile.
///
/// It leaves the connection with time-outs of [`PATIENCE`] for each read and write: nobody waits on it for ever.
pub struct Timed<'a> {
    stream: &'a TcpStream,
    patience: Duration,
    end: Instant,
}

impl<'a> Timed<'a> {
    /// The time runs from now on.
    pub fn new(stream: &'a TcpStream, patience: Duration) -> Timed<'a> {
        Timed { stream, patience, end: Instant::now() + patience }
    }

    /// The connection itself.
    pub fn stream(&self) -> &TcpStream {
        self.stream
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.expired()) } else { Ok(left) }
    }

    fn expired(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", self.patience.as_secs_f64()))
    }

    /// The system calls an expired time-out a resource that is temporarily unavailable.
    fn in_words(&self, error: io::Error) -> io::Error {
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
        stream.read(buffer).map_err(|error| self.in_words(error))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.write(buffer).map_err(|error| self.in_words(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        // Fails only on a connection that is broken, which the next read will tell.
        let _ = self.stream.set_read_timeout(Some(PATIENCE));
        let _ = self.stream.set_write_timeout(Some(PATIENCE));
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
        assert_eq!(stream.read_timeout().unwrap(), Some(PATIENCE));
    }

    #[test]
    fn silence_is_told_in_words() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let error = Timed::new(&stream, Duration::from_millis(20)).read(&mut [0]).unwrap_err();
        assert_eq!(error.to_string(), "no answer within 0.02 s");
    }
}
