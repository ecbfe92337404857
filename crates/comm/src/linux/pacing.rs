//! Packet pacing of TCP connections.

use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use std::net::TcpStream;

/// Selects a congestion control without pacing, for connections within one host, where nothing is congested.
///
/// Some systems pace by default (BBR), by the rates measured so far. Bursts and pauses in turn, as of collectives,
/// made an all-reduce of 1 MiB take half as long again. Reno exists in every kernel and needs no privilege.
pub fn disable_pacing(stream: &TcpStream) {
    // A failure only costs speed.
    let _ = setsockopt(stream, TcpCongestion, &"reno".into());
}
