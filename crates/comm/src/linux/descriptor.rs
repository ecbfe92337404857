//! Passes file descriptors between processes over a Unix socket (`SCM_RIGHTS`).

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// The most descriptors in one message.
const MAX_FDS: usize = 4;

pub(crate) fn send_fds(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let count = [descriptors.len() as u8];
    sendmsg::<UnixAddr>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(&count)],
        &[ControlMessage::ScmRights(&raw)],
        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        None,
    )?;
    Ok(())
}

/// Receives exactly `count` descriptors that were sent in one message; the socket's read timeout is the deadline.
pub(crate) fn receive_fds(socket: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = cmsg_space!([RawFd; MAX_FDS]);
    let message = recvmsg::<UnixAddr>(
        socket.as_fd().as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = part {
            // SAFETY: the kernel has just created them for this process, and nothing else owns them.
            received.extend(descriptors.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    match (message.bytes, received.len()) {
        (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, actual) if actual == count => Ok(received),
        (_, other) => {
            let what = format!("{other} file descriptors arrived instead of {count}");
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
    }
}
