//! Messages between ranks before and beside the data: postcard behind a length, bounded.

use crate::membership::Standing;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::{Culprit, Error};

/// The largest message anybody may send.
const LIMIT: u32 = 1 << 20;

/// What a rank says of itself when it joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: usize,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub process: u32,
    /// Where it listens for data.
    pub data: SocketAddr,
    /// The same for ranks that can share memory, if it can.
    pub identity: Option<String>,
    /// The process that started it and speaks with it, if there is one.
    pub launcher: Option<u32>,
}

/// What somebody comes to the coordinator for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// To learn what the job is.
    Ask,
    /// To take part.
    Join(Box<Join>),
    /// To learn how the job goes.
    Status,
}

/// What a rank says to join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// Who it is.
    pub member: Member,
    /// How many ranks it expects.
    pub world: usize,
    /// Digest of its job.
    pub job: [u8; 32],
    /// The job itself, as a job file: so that what differs can be named.
    pub text: String,
    /// Which attempt at which job this is, where its launcher has a name for it.
    pub run: String,
    /// Digest of what it trains; empty if it does not know yet.
    pub model: Vec<u8>,
    /// Digest of the rows it trains with; empty if it does not know yet.
    pub data: String,
    /// Why it comes.
    pub arrival: Arrival,
    /// What it was in before.
    pub doing: Pulse,
}

/// Why a rank comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arrival {
    /// The job begins, and it is one of those who are expected.
    First,
    /// It was in the group of that generation, whose coordinator is gone.
    Again {
        /// The last generation it heard of.
        after: u32,
        /// Where it stands.
        standing: Standing,
    },
    /// It wants to be let in while the others work.
    New,
}

/// A group: who its members are and where they stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roster {
    /// Its generation.
    pub generation: u32,
    /// The number of the member whose process has the coordinator's role.
    pub leader: usize,
    /// The members by place: in the order of their numbers.
    pub members: Vec<Member>,
    /// What each said of itself.
    pub standings: Vec<Standing>,
    /// Who was lost since the last one, and how.
    pub lost: Vec<Culprit>,
    /// Who came since the last one.
    pub joined: Vec<usize>,
    /// Who left in good order since the last one.
    pub left: Vec<usize>,
}

/// What the coordinator answers while ranks arrive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// This is the job, for those who asked.
    Job {
        /// As a job file.
        text: String,
        /// A number that nobody has.
        number: usize,
    },
    /// These are still missing.
    Waiting {
        /// Their numbers.
        missing: Vec<usize>,
        /// Since when, in seconds.
        seconds: u64,
    },
    /// All are here.
    Roster(Roster),
    /// This is another run than yours, which listens on one of the same ports.
    OtherRun,
    /// You cannot join now; come again, unless you have tried for too long.
    NotYet(Error),
    /// You cannot join, or it is over.
    Refused(Error),
    /// Can you open a connection to this member's data port?
    Probe {
        /// Where it listens.
        member: Box<Member>,
        /// Whether it is the rank whose process has the coordinator's role.
        leads: bool,
    },
    /// This is how the job goes, for those who asked.
    Status(Box<Status>),
}

/// How a job goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Generation of the group; 0 before the ranks have met.
    pub generation: u32,
    /// Ranks that are here.
    pub joined: usize,
    /// Ranks there are to be now.
    pub expected: usize,
    /// The furthest step.
    pub step: u64,
    /// What the coordinator's rank is doing.
    pub phase: Phase,
    /// The name of it.
    pub doing: String,
    /// Seconds since any rank moved.
    pub progress_s: f64,
    /// How long that may take, in seconds.
    pub deadline_s: f64,
}

/// What travels on the control connection once training runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// I live, and do this.
    Pulse(Pulse),
    /// This happened to me in an operation with others, or so that rank told me; I wait for the verdict.
    Witness(Box<Error>, Pulse, Option<usize>),
    /// I have left my operations after that generation and stand here; this is what I was in.
    Report(u32, Standing, Pulse),
    /// I give up.
    Failed(Box<Error>, Pulse),
    /// I was asked to leave and go; the job does not end with me.
    Leave,
    /// I am done and leave in order.
    Goodbye,
    /// From the coordinator: this generation is over, and why.
    Interrupt(u32, Box<Error>),
    /// From the coordinator: this is the group now.
    Roster(Box<Roster>),
    /// From the coordinator: it is over, and why.
    Abort(Box<Error>),
    /// From the coordinator: another one takes the role, and forms the group.
    Moved,
    /// From the coordinator, to one of the members: ask all for a stop at the next boundary.
    Pause,
    /// From the coordinator: can you open a connection to this newcomer's data port?
    Probe(Box<Member>),
    /// What came of it.
    Probed {
        /// Whose port it is.
        rank: usize,
        /// Why not, if it cannot be reached.
        error: Option<String>,
    },
}

/// Sends a message.
pub fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|&length| length <= LIMIT);
    let length = length.ok_or_else(|| io::Error::other("message too large"))?;
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

/// Receives a message. The stream's read timeout is the deadline.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    receive_within(stream, LIMIT)
}

/// Receives a message of at most `limit` bytes.
pub fn receive_within<T: DeserializeOwned>(stream: &mut impl Read, limit: u32) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => closed(),
        _ => error,
    })?;
    let length = u32::from_le_bytes(length);
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes is not one of ours"),
        ));
    }
    // Reading through `take` grows the buffer with what really arrives, not with what is promised.
    let mut body = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut body)?;
    if body.len() < length as usize {
        return Err(closed());
    }
    postcard::from_bytes(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_sent_and_garbage_is_an_error() {
        let mut wire = Vec::new();
        send(&mut wire, &Control::Goodbye).unwrap();
        assert_eq!(receive::<Control>(&mut wire.as_slice()).unwrap(), Control::Goodbye);
        let cut = receive::<Control>(&mut &wire[..3]).unwrap_err();
        assert_eq!(
            (cut.kind(), cut.to_string().as_str()),
            (io::ErrorKind::UnexpectedEof, "the connection was closed")
        );
        assert!(receive::<Control>(&mut b"GET / HTTP/1.1\r\n\r\n".as_slice()).is_err());
        assert!(receive::<Join>(&mut [255u8; 64].as_slice()).is_err());
    }
    #[test]
    fn a_message_beyond_the_limit_is_refused_by_its_length() {
        let mut wire = Vec::new();
        send(&mut wire, &vec![1u8; 300]).unwrap();
        assert_eq!(receive::<Vec<u8>>(&mut wire.as_slice()).unwrap().len(), 300);
        // The length alone is enough to refuse it.
        let error = receive_within::<Vec<u8>>(&mut &wire[..4], 256).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
