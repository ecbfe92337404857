//! On which hosts the ranks of a group are.
//!
//! Names are for people. Whether two ranks are on one host is told by what they would need to share memory: one kernel and
//! one network namespace ([`host_identity`](thalweg_comm::host::host_identity)), because two machines can have one name.

use crate::rendezvous::message::Member;

/// Whether two processes, each by what it needs to share memory and by its name, are on one host. Those who cannot tell are
/// taken by their word.
pub(crate) fn are_one(one: (&Option<String>, &String), other: (&Option<String>, &String)) -> bool {
    match (one.0, other.0) {
        (None, None) => one.1 == other.1,
        (one, other) => one == other,
    }
}

/// The hosts of all ranks, by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<String>,
    /// For each rank the first one that is on the same host.
    numbers: Vec<usize>,
}

impl Hosts {
    /// So many ranks on one host.
    pub fn one(name: &str, world: usize) -> Hosts {
        Hosts { names: vec![name.into(); world], numbers: vec![0; world] }
    }

    /// Those that the members say. One that cannot tell is on a host of its own: it shares nothing.
    pub(crate) fn of(members: &[Member]) -> Hosts {
        let first = |(place, member): (usize, &Member)| {
            let shares = |other: &Member| other.identity.is_some() && other.identity == member.identity;
            members.iter().position(shares).unwrap_or(place)
        };
        Hosts {
            names: members.iter().map(|member| member.host.clone()).collect(),
            numbers: members.iter().enumerate().map(first).collect(),
        }
    }

    /// Their names, by rank.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name of the host of that rank.
    pub fn name(&self, place: usize) -> Option<&String> {
        self.names.get(place)
    }

    /// For each rank the first one that is on the same host: a number for every host.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// How many ranks are on the host of that one, itself included.
    pub fn population(&self, place: usize) -> usize {
        let host = self.numbers.get(place);
        self.numbers.iter().filter(|other| Some(*other) == host).count().max(1)
    }

    /// Whether it is the first rank of its host.
    pub fn is_first(&self, place: usize) -> bool {
        self.numbers.get(place) == Some(&place)
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
    fn a_host_is_what_shares_memory_whatever_its_name() {
        let twins = [member("node", Some("a")), member("node", Some("b")), member("alias", Some("a"))];
        let hosts = Hosts::of(&twins);
        assert_eq!(hosts.numbers(), [0, 1, 0]);
        assert_eq!([0, 1, 2].map(|place| hosts.population(place)), [2, 1, 2]);
        assert_eq!([0, 1, 2].map(|place| hosts.is_first(place)), [true, true, false]);
        assert_eq!(hosts.names(), ["node", "node", "alias"]);
    }

    #[test]
    fn names_count_only_where_nobody_knows_better() {
        let (known, other, name) = (Some("a".to_string()), Some("b".to_string()), "node".to_string());
        assert!(are_one((&known, &name), (&known, &"alias".to_string())));
        assert!(!are_one((&known, &name), (&other, &name)));
        assert!(!are_one((&known, &name), (&None, &name)));
        assert!(are_one((&None, &name), (&None, &name)));
    }

    #[test]
    fn who_cannot_tell_is_alone() {
        let hosts = Hosts::of(&[member("node", None), member("node", None)]);
        assert_eq!((hosts.numbers(), hosts.population(0)), (&[0, 1][..], 1));
        assert_eq!((Hosts::one("memory", 3).population(2), Hosts::default().population(0)), (3, 1));
    }
}
