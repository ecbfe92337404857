//! Injected fault: data connections to and from this process fail, as behind a firewall that only lets it reach the
//! coordinator.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A port without a listener.
const CLOSED_PORT: u16 = 1;

static UNREACHABLE: AtomicBool = AtomicBool::new(false);

pub fn inject() {
    UNREACHABLE.store(true, Ordering::Relaxed);
}

/// The address to use for a data port: a closed port once the fault is injected.
pub fn route(address: SocketAddr) -> SocketAddr {
    if UNREACHABLE.load(Ordering::Relaxed) { SocketAddr::new(address.ip(), CLOSED_PORT) } else { address }
}
