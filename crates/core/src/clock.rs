//! Time as a parameter, so that code under simulation never reads the system clock.

use std::time::{Duration, Instant};

/// A source of time. A simulated clock advances instead of sleeping.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary fixed point; monotonic.
    fn now(&self) -> Duration;
    fn sleep(&self, duration: Duration);
    /// Accounts for floating-point operations: a simulated clock advances by their cost, a real one has advanced.
    fn charge(&self, _operations: u64) {}
    /// Whether time is simulated; results must then not depend on measured durations.
    fn is_virtual(&self) -> bool {
        false
    }
}

pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
