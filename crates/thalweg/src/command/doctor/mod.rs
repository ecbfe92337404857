//! `thalweg doctor`: checks whether this machine can run the job. Each check has a finding and, if needed, advice.
//!
//! To compare the clocks of two hosts, run `thalweg doctor --listen HOST:PORT` on one and `thalweg doctor --peer
//! HOST:PORT` on the other.

use super::{print, print_json};
use check::{Check, listing};
use std::net::ToSocketAddrs;
use std::time::Duration;
use thalweg_cluster::engine::environment;
use thalweg_cluster::linux::Machine;
use thalweg_core::{Error, Job, Result};
use thalweg_train::registry;

mod check;
mod clock;
mod hosts;
mod launcher;
mod network;
mod resources;

/// How long `--listen` serves.
const LISTEN: Duration = Duration::from_secs(600);

/// Checks this machine for a job; returns whether no check failed.
pub fn run(job: &Job, as_json: bool) -> Result<bool> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let rank_env = environment::detect(&variable);
    let known = rank_env.as_ref().ok().and_then(Option::as_ref);
    let hosts = hosts::named(&variable);
    let several = hosts.iter().any(|host| !hosts::is_local(host));

    let mut checks = resources::checks(&Machine::read(), &job.spec, known.is_none());
    checks.push(network::loopback());
    checks.push(network::port(&job.spec, known));
    checks.extend(network::names(&hosts, several));
    checks.push(clock::unmeasured(several));
    checks.push(launcher::assigned_rank(&rank_env));
    checks.extend(launcher::survival(known, several, registry::is_elastic(&job.spec)));
    checks.push(launcher::variables(&variable));
    checks.push(launcher::token(variable("THALWEG_TOKEN").as_deref(), several));
    print_checks(&checks, as_json)
}

/// Serves clock comparisons of other hosts for ten minutes.
pub fn listen(address: &str) -> Result<()> {
    let listener = network::bind(resolve(address)?)?;
    eprintln!("answering `thalweg doctor --peer {address}` for 10 minutes; Ctrl-C ends it");
    clock::serve(&listener, &clock::now, LISTEN, &mut |peer| eprintln!("{peer} asked for the time"))
        .map_err(|error| Error::io(format_args!("cannot accept connections on {address}"), &error))
}

/// Measures clock offset and round trip to another host; returns whether that succeeded.
pub fn peer(address: &str, as_json: bool) -> Result<bool> {
    let check = clock::compare(resolve(address)?, &clock::now);
    print_checks(&[check], as_json)
}

fn print_checks(checks: &[Check], as_json: bool) -> Result<bool> {
    if as_json {
        print_json(&checks)?;
    } else {
        print(&listing(checks))?;
    }
    Ok(!checks.iter().any(Check::failed))
}

/// The first address that `HOST:PORT` resolves to.
fn resolve(address: &str) -> Result<std::net::SocketAddr> {
    let wrong = |reason: String| {
        Error::job(format!("{address}: {reason}")).hint("write HOST:PORT, for example node1:29600")
    };
    let mut found = address.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("has no address".into()))
}
