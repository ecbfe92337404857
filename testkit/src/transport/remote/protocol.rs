//! Requests to the process of a rank and its responses.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use thalweg_comm::transport::{Cause, IoProgress, TransportError};

/// Identifies a frame in progress: peer, group, operation, tensor, chunk and length.
pub(super) type FrameKey = (usize, u32, u64, u32, u32, usize);

#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    /// Prepare for a group of this many ranks, as a member or not.
    Prepare(usize),
    /// Connect to the other ranks, which listen at these ports.
    Connect(Vec<u16>),
    Send(u32, FrameKey, Option<Vec<u8>>),
    Receive(u32, FrameKey, bool),
    Wait {
        fresh: bool,
        remaining: Duration,
        wanted: Vec<(bool, bool)>,
        moved: bool,
        aborted: bool,
    },
    NativeAllReduce(u32, u64, Option<Vec<f32>>),
    TimeoutError(Vec<usize>),
    AdmitGroups,
    IsHeld(usize),
    Background(Vec<(bool, bool)>, Vec<bool>),
    Poll(Duration),
    Inject(usize, Vec<u8>),
    Traffic,
    Close,
    Drop,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Response {
    Done,
    Port(u16),
    Ready { has_native_all_reduce: bool },
    Progress(#[serde(with = "IoProgressDef")] IoProgress, Vec<u8>),
    Sum(Vec<f32>),
    Traffic([u64; 4]),
    Failed(#[serde(with = "TransportErrorDef")] TransportError),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "IoProgress")]
enum IoProgressDef {
    Blocked,
    Partial,
    Complete,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TransportError")]
struct TransportErrorDef {
    peer: Option<usize>,
    #[serde(with = "CauseDef")]
    cause: Cause,
    suspects: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Cause")]
enum CauseDef {
    Closed,
    Left,
    Io(String),
    Silent { waited: Duration },
    Slow { waited: Duration, quiet: Duration },
    Protocol(String),
    OtherOperation(String),
    Corrupt,
    Reported { by: usize },
    Aborted,
}

pub(super) fn send<M: Serialize>(mut socket: &UnixStream, message: &M) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    socket.write_all(&(bytes.len() as u32).to_le_bytes())?;
    socket.write_all(&bytes)
}

pub(super) fn receive<M: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<M> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}
