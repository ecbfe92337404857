//! How an all-reduce of messages is carried out: by a schedule of ours, or by the transport itself.

use super::algorithm::Algorithm;

/// A way to carry out an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A schedule of ours, on any transport.
    Schedule(Algorithm),
    /// The transport's own, where it has one: see [`native`](super::native).
    Native,
}

impl Method {
    /// Its name in jobs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Method::Schedule(algorithm) => algorithm.name(),
            Method::Native => "native",
        }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Method> + Clone {
        Algorithm::ALL.into_iter().map(Method::Schedule).chain([Method::Native])
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Method> {
        Method::all().find(|method| method.name() == name)
    }

    /// The choice for so many bytes and ranks, where nobody chooses: the transport's own, or one from a fixed table.
    /// `hosts[r]` says on which host rank r is, by any number.
    pub fn choose(native: bool, bytes: usize, hosts: &[usize]) -> Method {
        if native { Method::Native } else { Method::Schedule(Algorithm::choose(bytes, hosts)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_methods() {
        for method in Method::all() {
            assert_eq!(Method::named(method.name()), Some(method));
        }
        assert_eq!(Method::named("rings"), None);
    }
}
