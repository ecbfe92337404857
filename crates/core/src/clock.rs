//! Time as something that is passed in.

use std::time::{Duration, Instant};

/// Where a program gets its time from. A simulated clock jumps instead of sleeping.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;
    /// Lets time pass.
    fn sleep(&self, duration: Duration);
    /// So many floating-point operations were done: a simulated clock moves on by what they take, a real one has.
    fn charge(&self, _operations: u64) {}
    /// Whether time is simulated: then nothing may depend on how long anything really takes.
    fn is_virtual(&self) -> bool {
        false
    }
}

/// The machine's own clock.
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
