//! Which ranks can share memory.

use super::machine::Machine;

/// The same for two processes if they run under one kernel and in one network namespace, so that one can reach the
/// other's doorway; nothing where that cannot be known.
///
/// `THALWEG_HOST` becomes part of it: it can set apart ranks of one machine, but never join two machines.
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
    fn it_stays_the_same() {
        let identity = host_identity().expect("Linux tells");
        assert_eq!(host_identity().as_deref(), Some(identity.as_str()));
        assert!(identity.contains("net:["), "{identity}");
    }
}
