//! Hosts on one machine: network namespaces on a bridge, each link as fast as asked for.

use crate::command::{Outcome, spelled, succeeds};
use std::process::Command;

/// So many hosts; they are gone when this is.
pub struct Network {
    switch: String,
    hosts: Vec<String>,
}

impl Network {
    /// Why there can be none here; nothing if there can.
    pub fn missing() -> Option<String> {
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

    /// Makes them, each with a link of that rate in both directions.
    pub fn up(count: usize, rate: &str) -> Outcome<Network> {
        let mark = format!("thwb{}", std::process::id());
        let hosts = (0..count).map(|number| format!("{mark}h{number}")).collect();
        let network = Network { switch: format!("{mark}s"), hosts };
        let switch = network.switch.as_str();
        quietly("ip", &["netns", "add", switch])?;
        quietly("ip", &["-n", switch, "link", "add", "hub", "type", "bridge"])?;
        quietly("ip", &["-n", switch, "link", "set", "hub", "up"])?;
        for (number, host) in network.hosts.iter().enumerate() {
            let (port, address) = (format!("p{number}"), format!("{}/24", network.address(number)));
            quietly("ip", &["netns", "add", host])?;
            quietly("ip", &["-n", host, "link", "set", "lo", "up"])?;
            let pair = ["type", "veth", "peer", "name", &port, "netns", switch];
            quietly("ip", &[&["link", "add", "eth", "netns", host][..], &pair].concat())?;
            quietly("ip", &["-n", switch, "link", "set", &port, "master", "hub", "up"])?;
            quietly("ip", &["-n", host, "addr", "add", &address, "dev", "eth"])?;
            quietly("ip", &["-n", host, "link", "set", "eth", "up"])?;
            for (place, device) in [(host.as_str(), "eth"), (switch, port.as_str())] {
                let shaped = ["tbf", "rate", rate, "burst", "128kb", "latency", "100ms"];
                quietly(
                    "tc",
                    &[&["-n", place, "qdisc", "replace", "dev", device, "root"][..], &shaped].concat(),
                )?;
            }
        }
        Ok(network)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// The address of a host.
    pub fn address(&self, number: usize) -> String {
        format!("10.78.9.{}", number + 1)
    }

    /// A command that runs a program on a host.
    pub fn inside(&self, number: usize, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[number]]).arg(program);
        command
    }

    /// Pulls a host's cable.
    pub fn cut(&self, number: usize) -> Outcome {
        quietly("ip", &["-n", &self.hosts[number], "link", "set", "eth", "down"])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.switch]) {
            // One that was never made is no loss.
            succeeds(Command::new("ip").args(["netns", "del", name]));
        }
    }
}

/// Runs it; what it has to say belongs to the error.
fn quietly(program: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("`{}`: {}", spelled(&command), String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("cannot start `{}`: {error}", spelled(&command))),
    }
}
