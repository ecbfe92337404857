//! How fast the system lets bytes leave.

use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use std::net::TcpStream;

/// Lets bytes leave as soon as they are written: for connections within one host, where nothing is congested.
///
/// Some systems pace what is sent by default (BBR), after the rates they have seen; with bursts and silences in turn, as here, that
/// made an all-reduce of 1 MiB take half as long again. Reno is there in every kernel and for every user.
pub(crate) fn send_at_once(stream: &TcpStream) {
    // Without it, it is only slower.
    let _ = setsockopt(stream, TcpCongestion, &"reno".into());
}
