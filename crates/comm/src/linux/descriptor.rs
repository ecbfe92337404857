//! Open files that pass from one process to another over a socket.

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// The most that pass at once.
const MOST: usize = 4;

/// Hands over some descriptors.
pub(crate) fn hand(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let note = [descriptors.len() as u8];
    sendmsg::<UnixAddr>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(&note)],
        &[ControlMessage::ScmRights(&raw)],
        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        None,
    )?;
    Ok(())
}

/// Takes exactly `count` descriptors that were handed over together; the socket's read time-out is the deadline.
pub(crate) fn take(socket: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut note = [0];
    let mut parts = [IoSliceMut::new(&mut note)];
    let mut space = cmsg_space!([RawFd; MOST]);
    let message = recvmsg::<UnixAddr>(
        socket.as_fd().as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut taken = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = part {
            // SAFETY: the kernel has just made them for this process, and nobody else knows them.
            taken.extend(descriptors.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    match (message.bytes, taken.len()) {
        (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, taken_count) if taken_count == count => Ok(taken),
        (_, other) => {
            let what = format!("{other} open files arrived instead of {count}");
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
    }
}
