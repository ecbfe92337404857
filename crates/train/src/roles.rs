//! Which members of a group compute gradients, and which serve: hold what the others share.
//!
//! Servers have the last member ids of the job's first group, so the member that starts as coordinator is a worker. The
//! loss of a server ends the job, so these ids stay theirs; workers that join get higher ones.

use crate::registry;
use std::ops::Range;
use thalweg_core::JobSpec;

/// Who serves in a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Member ids.
    servers: Range<usize>,
}

impl Roles {
    pub fn of(job: &JobSpec) -> Roles {
        let workers = job.engine.workers;
        Roles { servers: workers..workers + registry::servers(job) }
    }

    /// Member ids of the servers.
    pub fn servers(&self) -> Range<usize> {
        self.servers.clone()
    }

    /// Whether the member with this id serves.
    pub fn serves(&self, member: usize) -> bool {
        self.servers.contains(&member)
    }

    /// The ranks of the workers among the members, which are given by rank.
    pub fn worker_ranks(&self, members: &[usize]) -> Vec<usize> {
        (0..members.len()).filter(|rank| !self.serves(members[*rank])).collect()
    }

    /// The ranks of the servers among the members.
    pub fn server_ranks(&self, members: &[usize]) -> Vec<usize> {
        (0..members.len()).filter(|rank| self.serves(members[*rank])).collect()
    }

    /// A server that is no member any more: lost, or done with the job.
    pub fn missing_server(&self, members: &[usize]) -> Option<usize> {
        self.servers().find(|server| !members.contains(server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_keep_their_ids_when_workers_come_and_go() {
        let roles = Roles { servers: 3..4 };
        assert_eq!(
            (roles.worker_ranks(&[0, 1, 2, 3]), roles.server_ranks(&[0, 1, 2, 3])),
            (vec![0, 1, 2], vec![3])
        );
        // Worker 0 is lost, and worker 4 has joined.
        let members = [1, 2, 3, 4];
        assert_eq!((roles.worker_ranks(&members), roles.server_ranks(&members)), (vec![0, 1, 3], vec![2]));
        assert_eq!((roles.missing_server(&members), roles.missing_server(&[1, 4])), (None, Some(3)));
        let none = Roles::default();
        assert_eq!((none.worker_ranks(&[0, 5]), none.missing_server(&[5])), (vec![0, 1], None));
    }
}
