//! Bytes read through a window.

use crate::transport::Traffic;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that a rank read from the regions of others, and they from its own.
#[derive(Debug, Default)]
pub struct WindowTraffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl WindowTraffic {
    /// What others read counts from the owner's next publication on.
    pub fn total(&self) -> Traffic {
        let (payload_sent, payload_received) = (self.sent.load(Relaxed), self.received.load(Relaxed));
        Traffic { payload_sent, payload_received, ..Traffic::default() }
    }

    pub(super) fn set_sent(&self, bytes: u64) {
        self.sent.store(bytes, Relaxed);
    }

    pub(super) fn add_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }
}
