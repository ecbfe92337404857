//! The coordinator's end of a rank's control connection. What a rank sends waits in a queue of bounded length: one that
//! floods it waits for itself, and the others are heard in between.

use super::Chair;
use crate::rendezvous::message::{Answer, Control, Member, receive_within, send};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use thalweg_core::event::Event;
use thalweg_core::{Culprit, Error, Kind};

/// The most messages of one rank that wait for the coordinator.
const QUEUE: usize = 64;

/// The longest message of a rank, in bytes: an error in words.
const LONGEST: u32 = 64 << 10;

/// How long a write to a rank may take.
const WRITE: Duration = Duration::from_secs(1);

/// What the readers pass on, by serial number of the connection and rank.
pub(super) enum Heard {
    Said(u64, usize, Control),
    /// When that was seen.
    Closed(u64, usize, Instant),
}

/// A rank that is here.
pub(super) struct Guest {
    pub(super) member: Member,
    pub(super) stream: TcpStream,
    /// Tells this connection from an earlier one of the same rank.
    pub(super) serial: u64,
    /// It has its first roster: from then on it listens to [`Control`].
    pub(super) settled: bool,
    /// One for each of its messages that waits to be heard.
    queued: Receiver<()>,
}

impl Guest {
    /// Listens to a rank in a thread of its own from now on.
    pub(super) fn new(
        member: Member,
        stream: TcpStream,
        serial: u64,
        sender: &Sender<Heard>,
    ) -> io::Result<Guest> {
        let _ = stream.set_write_timeout(Some(WRITE));
        let (room, queued) = sync_channel(QUEUE);
        let (reader, number, sender) = (stream.try_clone()?, member.rank, sender.clone());
        std::thread::Builder::new().spawn(move || read(reader, serial, number, &room, &sender))?;
        Ok(Guest { member, stream, serial, settled: false, queued })
    }

    /// One of its messages has left the queue.
    pub(super) fn has_been_heard(&self) {
        let _ = self.queued.try_recv();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The reader has the connection as well; what was sent still arrives.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Whether a write failed because the other side does not read.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn read(mut reader: TcpStream, serial: u64, number: usize, room: &SyncSender<()>, sender: &Sender<Heard>) {
    let _ = reader.set_read_timeout(None);
    while let Ok(said) = receive_within::<Control>(&mut reader, LONGEST) {
        // Waits while the queue is full; ends when nobody speaks to this rank any more.
        if room.send(()).is_err() || sender.send(Heard::Said(serial, number, said)).is_err() {
            return;
        }
    }
    let _ = sender.send(Heard::Closed(serial, number, Instant::now()));
}

impl Chair {
    /// Nobody speaks to this rank any more. One that was given up is told so: it may only have been out of reach.
    pub(super) fn dismiss(&mut self, number: usize) {
        self.candidates.remove(&number);
        let Some(mut guest) = self.guests.remove(&number) else { return };
        if let (true, Some(error)) = (guest.settled, self.given_up(number)) {
            // The launcher of this host ends it if it is one of its own, and does not take its end for the job's.
            if let Some(cause) = error.culprit.as_ref().map(|culprit| culprit.cause.clone()) {
                (self.voice.report)(Event::GaveUp { culprit: number, cause });
            }
            let _ = send(&mut guest.stream, &Control::Abort(Box::new(error)));
        }
    }

    /// A newcomer cannot be let in; the job goes on without it.
    pub(super) fn refuse(&mut self, number: usize, error: &Error) {
        self.candidates.remove(&number);
        let _ = self.judgement.membership.lose(number, self.start.elapsed());
        let Some(mut guest) = self.guests.remove(&number) else { return };
        let _ = send(&mut guest.stream, &Answer::Refused(error.clone()));
        (self.voice.say)(format!(
            "rank {number} on {} was not let in, the job goes on without it: {}",
            guest.member.host, error.message
        ));
    }

    /// What a rank that the others went on without is told, if this is one.
    pub(super) fn given_up(&self, number: usize) -> Option<Error> {
        let cause = self.judgement.fate(number)?;
        let message = format!("the others went on without rank {number}, which {cause}");
        let culprit = Culprit { rank: number, cause: cause.to_string(), ..Culprit::default() };
        Some(Error::new(Kind::RankFailed, message).hint(self.way_back()).blame(culprit))
    }

    /// How one that was given up comes back.
    pub(super) fn way_back(&self) -> String {
        let address = self.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let port = address.map_or(0, |address| address.port());
        format!(
            "it can come back as a new worker: `thalweg join HOST:{port}` with the job's THALWEG_TOKEN, HOST being where the coordinator runs"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn a_rank_that_floods_its_connection_waits_for_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut flooding = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (sender, receiver) = channel();
        let member = Member {
            rank: 3,
            host: "box".into(),
            process: 7,
            data: ([127, 0, 0, 1], 4000).into(),
            identity: None,
            launcher: None,
        };
        let guest = Guest::new(member, stream, 1, &sender).unwrap();
        let sent = std::thread::spawn(move || {
            let mut wire = Vec::new();
            (0..10 * QUEUE).for_each(|_| send(&mut wire, &Control::Goodbye).unwrap());
            io::Write::write_all(&mut flooding, &wire).unwrap();
            flooding
        });
        let flooding = sent.join().unwrap();
        let next = || receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        // The reader stands still: with nobody to hear it, the queue does not grow beyond its length.
        (0..QUEUE).for_each(|_| assert!(matches!(next(), Heard::Said(1, 3, Control::Goodbye))));
        assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err());
        for _ in QUEUE..10 * QUEUE {
            guest.has_been_heard();
            assert!(matches!(next(), Heard::Said(..)));
        }
        drop(flooding);
        assert!(matches!(next(), Heard::Closed(1, 3, _)));
    }

    #[test]
    fn a_message_longer_than_an_error_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (sender, receiver) = channel();
        let (room, _queued) = sync_channel(QUEUE);
        std::thread::spawn(move || read(stream, 1, 3, &room, &sender));
        io::Write::write_all(&mut caller, &(LONGEST + 1).to_le_bytes()).unwrap();
        let heard = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(heard, Heard::Closed(1, 3, _)));
    }
}
