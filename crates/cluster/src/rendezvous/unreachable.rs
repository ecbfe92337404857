//! An injected fault: no data connection between this process and the others can be made, as behind a firewall that only lets
//! it reach the coordinator.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A port on which nobody listens.
const NOBODY: u16 = 1;

static UNREACHABLE: AtomicBool = AtomicBool::new(false);

/// From now on this process cannot be reached, nor reach others.
pub fn inject() {
    UNREACHABLE.store(true, Ordering::Relaxed);
}

/// Where a connection to that data port leads.
pub fn route(address: SocketAddr) -> SocketAddr {
    if UNREACHABLE.load(Ordering::Relaxed) { SocketAddr::new(address.ip(), NOBODY) } else { address }
}
