//! Hosts on one machine: network namespaces on a bridge, with links of a given rate.

use crate::command::{Outcome, shell_line, succeeds};
use std::process::Command;

/// A set of hosts, removed on drop.
pub struct Network {
    switch: String,
    hosts: Vec<String>,
}

impl Network {
    /// Why this machine cannot have hosts; None if it can.
    pub fn unavailable() -> Option<String> {
        for tool in ["ip", "tc"] {
            if !succeeds(Command::new(tool).arg("-V")) {
                return Some(format!("the command `{tool}` is missing (Debian: iproute2)"));
            }
        }
        match Network::up(1, "1gbit") {
            Ok(_) => None,
            Err(error) => Some(format!("network namespaces cannot be made, which needs root: {error}")),
        }
    }

    /// Creates the hosts, each with a link of that rate in both directions.
    pub fn up(count: usize, rate: &str) -> Outcome<Network> {
        let mark = format!("thwb{}", std::process::id());
        let hosts = (0..count).map(|number| format!("{mark}h{number}")).collect();
        let network = Network { switch: format!("{mark}s"), hosts };
        let switch = network.switch.as_str();
        run_quietly("ip", &["netns", "add", switch])?;
        run_quietly("ip", &["-n", switch, "link", "add", "hub", "type", "bridge"])?;
        run_quietly("ip", &["-n", switch, "link", "set", "hub", "up"])?;
        for (number, host) in network.hosts.iter().enumerate() {
            let (port, address) = (format!("p{number}"), format!("{}/24", network.address(number)));
            run_quietly("ip", &["netns", "add", host])?;
            run_quietly("ip", &["-n", host, "link", "set", "lo", "up"])?;
            let pair = ["type", "veth", "peer", "name", &port, "netns", switch];
            run_quietly("ip", &[&["link", "add", "eth", "netns", host][..], &pair].concat())?;
            run_quietly("ip", &["-n", switch, "link", "set", &port, "master", "hub", "up"])?;
            run_quietly("ip", &["-n", host, "addr", "add", &address, "dev", "eth"])?;
            run_quietly("ip", &["-n", host, "link", "set", "eth", "up"])?;
            for (namespace, device) in [(host.as_str(), "eth"), (switch, port.as_str())] {
                let shaped = ["tbf", "rate", rate, "burst", "128kb", "latency", "100ms"];
                run_quietly(
                    "tc",
                    &[&["-n", namespace, "qdisc", "replace", "dev", device, "root"][..], &shaped].concat(),
                )?;
            }
        }
        Ok(network)
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn address(&self, number: usize) -> String {
        format!("10.78.9.{}", number + 1)
    }

    /// A command that runs a program on a host.
    pub fn command_on(&self, number: usize, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[number]]).arg(program);
        command
    }

    pub fn disconnect(&self, number: usize) -> Outcome {
        run_quietly("ip", &["-n", &self.hosts[number], "link", "set", "eth", "down"])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.switch]) {
            // A namespace that was not created yet is not an error.
            succeeds(Command::new("ip").args(["netns", "del", name]));
        }
    }
}

/// Runs a command; the error contains its standard error.
fn run_quietly(program: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("`{}`: {}", shell_line(&command), String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("cannot start `{}`: {error}", shell_line(&command))),
    }
}
