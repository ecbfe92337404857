//! `[strategy.servers]`: the ranks that hold the parameters.

use super::section::section;
use super::{JobSpec, Refuse};

section! {
    /// Parameter servers.
    "strategy.servers" ServersSpec {
        /// Servers, each with a shard of the parameters: ranks of their own, behind those of the workers.
        count: usize = 1;
    }
}

/// More would have no use, and every worker exchanges messages with every server.
const MAX_SERVERS: usize = 256;

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let count = spec.servers.count;
    if !(1..=MAX_SERVERS).contains(&count) {
        refuse("strategy.servers.count", format!("must be between 1 and {MAX_SERVERS}, is {count}"));
    }
}
