//! The coordinator's end of a control connection. Each rank's messages wait in a bounded queue: a rank that floods its
//! connection blocks only itself.

use super::Coordinator;
use crate::rendezvous::message::{Control, ControlResponse, Member, receive_within, send};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use thalweg_core::{Culprit, Error, Kind};

/// The most queued messages of one rank.
const QUEUE: usize = 64;

/// The longest message of a rank, in bytes: an error with its texts.
const MAX_MESSAGE: u32 = 64 << 10;

const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// An event of a reader thread, with the serial number of the connection and the id of the member.
pub(super) enum ConnectionEvent {
    Message(u64, usize, Control),
    Closed(u64, usize, Instant),
}

/// A connected rank.
pub(super) struct ConnectedMember {
    pub(super) member: Member,
    pub(super) stream: TcpStream,
    /// Distinguishes this connection from an earlier one of the same rank.
    pub(super) serial: u64,
    /// Whether it has its first roster: from then on it receives [`Control`], before that [`ControlResponse`].
    pub(super) has_roster: bool,
    /// One entry for each of its queued messages.
    queued: Receiver<()>,
}

impl ConnectedMember {
    /// Starts the reader thread.
    pub(super) fn new(
        member: Member,
        stream: TcpStream,
        serial: u64,
        sender: &Sender<ConnectionEvent>,
    ) -> io::Result<ConnectedMember> {
        let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let (room, queued) = sync_channel(QUEUE);
        let (reader, id, sender) = (stream.try_clone()?, member.rank, sender.clone());
        std::thread::Builder::new().spawn(move || read(reader, serial, id, &room, &sender))?;
        Ok(ConnectedMember { member, stream, serial, has_roster: false, queued })
    }

    /// To be called for each message taken from the queue.
    pub(super) fn release_queue_slot(&self) {
        let _ = self.queued.try_recv();
    }
}

impl Drop for ConnectedMember {
    fn drop(&mut self) {
        // The reader thread holds a clone of the socket; sent data still arrives.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Whether a write failed because the peer does not read.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn read(
    mut reader: TcpStream,
    serial: u64,
    id: usize,
    room: &SyncSender<()>,
    sender: &Sender<ConnectionEvent>,
) {
    let _ = reader.set_read_timeout(None);
    while let Ok(message) = receive_within::<Control>(&mut reader, MAX_MESSAGE) {
        // Blocks while the queue is full; ends when the member was disconnected.
        if room.send(()).is_err() || sender.send(ConnectionEvent::Message(serial, id, message)).is_err() {
            return;
        }
    }
    let _ = sender.send(ConnectionEvent::Closed(serial, id, Instant::now()));
}

impl Coordinator {
    /// Refuses a newcomer; the job goes on without it.
    pub(super) fn refuse(&mut self, id: usize, error: &Error) {
        self.candidates.remove(&id);
        let _ = self.policy.membership.remove(id, self.start.elapsed());
        let Some(mut peer) = self.connected.remove(&id) else { return };
        let _ = send(&mut peer.stream, &ControlResponse::Refused(error.clone()));
        (self.callbacks.warn)(format!(
            "rank {id} on {} was not admitted, the job goes on without it: {}",
            peer.member.host, error.message
        ));
    }

    /// The error for a removed member; `None` if it was not removed.
    pub(super) fn removal_error(&self, id: usize) -> Option<Error> {
        let cause = self.policy.removal_reason(id)?;
        let message = format!("the others went on without rank {id}, which {cause}");
        let culprit = Culprit { rank: id, cause: cause.to_string(), ..Culprit::default() };
        Some(Error::new(Kind::RankFailed, message).hint(self.rejoin_hint()).blame(culprit))
    }

    fn rejoin_hint(&self) -> String {
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
    fn a_rank_that_floods_its_connection_blocks_only_itself() {
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
        let member = ConnectedMember::new(member, stream, 1, &sender).unwrap();
        let sent = std::thread::spawn(move || {
            let mut wire = Vec::new();
            (0..10 * QUEUE).for_each(|_| send(&mut wire, &Control::Goodbye).unwrap());
            io::Write::write_all(&mut flooding, &wire).unwrap();
            flooding
        });
        let flooding = sent.join().unwrap();
        let next = || receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        // The reader is blocked: the queue does not grow beyond its limit.
        (0..QUEUE).for_each(|_| assert!(matches!(next(), ConnectionEvent::Message(1, 3, Control::Goodbye))));
        assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err());
        for _ in QUEUE..10 * QUEUE {
            member.release_queue_slot();
            assert!(matches!(next(), ConnectionEvent::Message(..)));
        }
        drop(flooding);
        assert!(matches!(next(), ConnectionEvent::Closed(1, 3, _)));
    }

    #[test]
    fn a_message_beyond_the_limit_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (sender, receiver) = channel();
        let (room, _queued) = sync_channel(QUEUE);
        std::thread::spawn(move || read(stream, 1, 3, &room, &sender));
        io::Write::write_all(&mut caller, &(MAX_MESSAGE + 1).to_le_bytes()).unwrap();
        let event = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(event, ConnectionEvent::Closed(1, 3, _)));
    }
}
