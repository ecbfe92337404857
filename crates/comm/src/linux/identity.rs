//! Identity of a host, by which ranks know whether they can share memory.

use super::machine::Machine;

/// Equal for two processes that run under one kernel and in one network namespace, so that one can reach the other's
/// local socket; `None` where that cannot be known.
///
/// `THALWEG_HOST` is part of it: it can separate ranks of one machine, but never join two machines.
pub fn host_identity() -> Option<String> {
    let boot = Machine::read().boot_id?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    let name = std::env::var("THALWEG_HOST").unwrap_or_default();
    Some(format!("{boot} {} {name}", network.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_stable() {
        let identity = host_identity().expect("an identity on Linux");
        assert_eq!(host_identity().as_deref(), Some(identity.as_str()));
        assert!(identity.contains("net:["), "{identity}");
    }
}
