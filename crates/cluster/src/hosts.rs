//! The hosts of the ranks of a group.
//!
//! Two ranks are on one host if they can share memory: same kernel and same network namespace
//! ([`host_identity`](thalweg_comm::host::host_identity)). Host names are for display only: two machines can have the same.

use crate::rendezvous::message::Member;

/// Whether two processes, each given by host identity and host name, are on one host. Names decide if neither identity is
/// known.
pub(crate) fn same_host(one: (&Option<String>, &String), other: (&Option<String>, &String)) -> bool {
    match (one.0, other.0) {
        (None, None) => one.1 == other.1,
        (one, other) => one == other,
    }
}

/// The hosts of all ranks, by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<String>,
    /// For each rank the first rank on the same host.
    numbers: Vec<usize>,
}

impl Hosts {
    /// `world` ranks on one host.
    pub fn one(name: &str, world: usize) -> Hosts {
        Hosts { names: vec![name.into(); world], numbers: vec![0; world] }
    }

    /// The hosts of these members. A member without an identity is on its own host: it cannot share memory.
    pub(crate) fn of(members: &[Member]) -> Hosts {
        let first = |(rank, member): (usize, &Member)| {
            let shares = |other: &Member| other.identity.is_some() && other.identity == member.identity;
            members.iter().position(shares).unwrap_or(rank)
        };
        Hosts {
            names: members.iter().map(|member| member.host.clone()).collect(),
            numbers: members.iter().enumerate().map(first).collect(),
        }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn name(&self, rank: usize) -> Option<&String> {
        self.names.get(rank)
    }

    /// For each rank the first rank on the same host: an id for every host.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// How many ranks are on the host of this one, including itself.
    pub fn population(&self, rank: usize) -> usize {
        let host = self.numbers.get(rank);
        self.numbers.iter().filter(|other| Some(*other) == host).count().max(1)
    }

    /// Whether this is the first rank of its host.
    pub fn is_first(&self, rank: usize) -> bool {
        self.numbers.get(rank) == Some(&rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(host: &str, identity: Option<&str>) -> Member {
        let data = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        Member {
            rank: 0,
            host: host.into(),
            process: 1,
            data,
            identity: identity.map(String::from),
            launcher: None,
        }
    }

    #[test]
    fn ranks_with_one_identity_share_a_host_whatever_its_name() {
        let twins = [member("node", Some("a")), member("node", Some("b")), member("alias", Some("a"))];
        let hosts = Hosts::of(&twins);
        assert_eq!(hosts.numbers(), [0, 1, 0]);
        assert_eq!([0, 1, 2].map(|rank| hosts.population(rank)), [2, 1, 2]);
        assert_eq!([0, 1, 2].map(|rank| hosts.is_first(rank)), [true, true, false]);
        assert_eq!(hosts.names(), ["node", "node", "alias"]);
    }

    #[test]
    fn names_decide_only_without_identities() {
        let (known, other, name) = (Some("a".to_string()), Some("b".to_string()), "node".to_string());
        assert!(same_host((&known, &name), (&known, &"alias".to_string())));
        assert!(!same_host((&known, &name), (&other, &name)));
        assert!(!same_host((&known, &name), (&None, &name)));
        assert!(same_host((&None, &name), (&None, &name)));
    }

    #[test]
    fn a_member_without_an_identity_is_on_its_own_host() {
        let hosts = Hosts::of(&[member("node", None), member("node", None)]);
        assert_eq!((hosts.numbers(), hosts.population(0)), (&[0, 1][..], 1));
        assert_eq!((Hosts::one("memory", 3).population(2), Hosts::default().population(0)), (3, 1));
    }
}
