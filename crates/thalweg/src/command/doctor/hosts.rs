//! Hosts named by the launcher's environment.

use std::net::IpAddr;

/// Limit of the number of names; the rest is left out.
const MAX_HOSTS: usize = 64;

/// MASTER_ADDR and the hosts of Slurm's node list, without duplicates.
pub(super) fn named(variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    let listed = variable("SLURM_JOB_NODELIST").map(|list| expand(&list)).unwrap_or_default();
    for host in variable("MASTER_ADDR").into_iter().chain(listed) {
        if !hosts.contains(&host) && hosts.len() < MAX_HOSTS {
            hosts.push(host);
        }
    }
    hosts
}

/// Whether a name is that of the loopback interface.
pub(super) fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Expands a list such as `node[03-05,9]-ib,login`.
fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for group in split_outside_brackets(list) {
        let parts = group.split_once('[').and_then(|(prefix, rest)| {
            let (inside, suffix) = rest.split_once(']')?;
            Some((prefix, inside, suffix))
        });
        let Some((prefix, inside, suffix)) = parts else {
            hosts.push(group.to_string());
            continue;
        };
        for range in inside.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Ok(from), Ok(to)) = (first.parse::<u64>(), last.parse::<u64>()) else { continue };
            let width = first.len();
            let numbers = (from..=to).take(MAX_HOSTS);
            hosts.extend(numbers.map(|number| format!("{prefix}{number:0width$}{suffix}")));
        }
    }
    hosts.retain(|host| !host.is_empty());
    hosts
}

/// Splits at commas outside brackets.
fn split_outside_brackets(list: &str) -> Vec<&str> {
    let mut depth = 0;
    list.split(|character| {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded() {
        assert_eq!(expand("a"), ["a"]);
        assert_eq!(expand("a,b"), ["a", "b"]);
        assert_eq!(expand("n[08-10,3]-ib,x"), ["n08-ib", "n09-ib", "n10-ib", "n3-ib", "x"]);
        assert_eq!(expand("n[5-2]"), Vec::<String>::new());
        assert_eq!(expand("n["), ["n["]);
        assert_eq!(expand("n[0-999999999]").len(), MAX_HOSTS);
    }

    #[test]
    fn each_host_is_named_once() {
        let variable = |name: &str| match name {
            "MASTER_ADDR" => Some("n1".to_string()),
            "SLURM_JOB_NODELIST" => Some("n[1-2]".to_string()),
            _ => None,
        };
        assert_eq!(named(&variable), ["n1", "n2"]);
        assert!(is_local("127.0.0.1") && is_local("localhost") && is_local("::1") && !is_local("n1"));
    }
}
