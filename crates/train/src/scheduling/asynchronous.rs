//! Total asynchrony: no worker waits for another (Langer et al., section 3.3.3).

use super::{Admission, Clocks, Decision, Policy};

pub struct Asynchronous;

impl Policy for Asynchronous {
    fn may_begin(&self, _: &Clocks, _: usize) -> Decision {
        Decision::Go
    }

    fn admit(&self, _: &Clocks, _: usize) -> Admission {
        Admission::Apply
    }
}
