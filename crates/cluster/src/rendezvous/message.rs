//! Messages of the rendezvous and of control connections: postcard with a length prefix and a size limit.
//!
//! The encoding is positional: variants and fields keep their order.

use crate::meeting_policy::WorkReport;
use crate::membership::MemberPosition;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use thalweg_core::event::{Heartbeat, Phase};
use thalweg_core::{Culprit, Error};

/// Largest message, in bytes.
const MAX_MESSAGE: u32 = 1 << 20;

/// A member of the group, as it describes itself when it joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its member id.
    pub rank: usize,
    pub host: String,
    /// Its pid.
    pub process: u32,
    /// Its listener for data connections.
    pub data: SocketAddr,
    /// Equal for ranks that can share memory; None if this one cannot.
    pub identity: Option<String>,
    /// Pid of its launcher, if it is connected to one.
    pub launcher: Option<u32>,
}

/// The first message of a process to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Asks for the job file and a free rank.
    Job,
    Join(Box<JoinRequest>),
    /// Asks for the status of the job.
    Status,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub member: Member,
    /// Number of ranks it expects.
    pub world: usize,
    /// Digest of its job.
    pub job: [u8; 32],
    /// The job as a job file, so that the error can name the difference.
    pub text: String,
    /// The launcher's id of this attempt; empty if it has none.
    pub run: String,
    /// Digest of the model; empty if not known yet.
    pub model: Vec<u8>,
    /// Digest of the training rows; empty if not known yet.
    pub data: String,
    pub kind: JoinKind,
    /// What it was doing before.
    pub doing: Heartbeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinKind {
    /// One of the expected ranks of a new job.
    Initial,
    /// A member of a group whose coordinator was lost.
    Rejoin {
        /// The last generation it knows of.
        after: u32,
        position: MemberPosition,
    },
    /// Joins a running job.
    New,
}

/// The members of a generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roster {
    pub generation: u32,
    /// Id of the member whose process has the coordinator's role.
    pub leader: usize,
    /// By rank: in the order of their ids.
    pub members: Vec<Member>,
    /// The position of each member.
    pub positions: Vec<MemberPosition>,
    /// Members lost since the last generation.
    pub lost: Vec<Culprit>,
    /// Members that joined since the last generation.
    pub joined: Vec<usize>,
    /// Members that left in good order since the last generation.
    pub left: Vec<usize>,
}

/// A response of the coordinator during the rendezvous.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlResponse {
    Job {
        /// The job as a job file.
        text: String,
        /// A free member id.
        number: usize,
    },
    /// Ranks are still missing.
    Waiting {
        missing: Vec<usize>,
        /// For how long.
        seconds: u64,
    },
    /// All have joined.
    Roster(Roster),
    /// The listener belongs to another run on the same ports.
    OtherRun,
    /// The rank cannot join now, and retries until its deadline.
    NotYet(Error),
    /// The rank cannot join, or the job has ended.
    Refused(Error),
    /// Requests a test connection to this member's data port.
    Probe {
        member: Box<Member>,
        /// Whether it is the rank whose process has the coordinator's role.
        leads: bool,
    },
    Status(Box<Status>),
}

/// The status of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// 0 before the first group is formed.
    pub generation: u32,
    pub joined: usize,
    /// Number of ranks expected now.
    pub expected: usize,
    /// The highest step of any rank.
    pub step: u64,
    /// Phase and operation of the coordinator's rank.
    pub phase: Phase,
    pub doing: String,
    /// Seconds since any rank made progress.
    pub progress_s: f64,
    /// Largest allowed `progress_s`.
    pub deadline_s: f64,
}

/// A message on the control connection of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    Heartbeat(Heartbeat),
    /// An operation failed with this error, seen by the sender or reported to it by that rank; it waits for a decision.
    Witness(Box<Error>, Heartbeat, Option<usize>),
    /// The sender has left its operations after that generation: its position, and what it was doing.
    Report(u32, MemberPosition, Heartbeat),
    /// The sender failed by its own error.
    Failed(Box<Error>, Heartbeat),
    /// The sender leaves the group, which continues.
    Leave,
    /// The sender has finished the job.
    Goodbye,
    /// From the coordinator: this generation has ended, and why.
    Interrupt(u32, Box<Error>),
    /// From the coordinator: the new group.
    Roster(Box<Roster>),
    /// From the coordinator: the job is aborted, and why.
    Abort(Box<Error>),
    /// From the coordinator: another process takes the role and forms the next group.
    Moved,
    /// From the coordinator to one member: have all stop at the next step boundary.
    Pause,
    /// From the coordinator: requests a test connection to this newcomer's data port.
    Probe(Box<Member>),
    /// The result of a test connection.
    Probed {
        /// The member probed.
        rank: usize,
        /// None if it can be reached.
        error: Option<String>,
    },
    /// From a member: whether a request waits there for a step boundary. From the coordinator: whether one does at any
    /// member. Sent with each heartbeat while it is true, and once when it is false again.
    BoundaryRequested(bool),
    /// From a worker at its own speed.
    Work(WorkReport),
    /// From the coordinator: the last meeting called, and the rows of all workers.
    Meeting {
        called: u64,
        rows: u64,
    },
}

pub fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|&length| length <= MAX_MESSAGE);
    let length = length.ok_or_else(|| io::Error::other("message too large"))?;
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

/// Receives a message; the stream's read timeout is the deadline.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    receive_within(stream, MAX_MESSAGE)
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
    // `take` grows the buffer with the bytes that arrive, not with the announced length.
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
        assert!(receive::<JoinRequest>(&mut [255u8; 64].as_slice()).is_err());
    }
    #[test]
    fn a_message_beyond_the_limit_is_refused_by_its_length() {
        let mut wire = Vec::new();
        send(&mut wire, &vec![1u8; 300]).unwrap();
        assert_eq!(receive::<Vec<u8>>(&mut wire.as_slice()).unwrap().len(), 300);
        // Refused by the length prefix alone.
        let error = receive_within::<Vec<u8>>(&mut &wire[..4], 256).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
