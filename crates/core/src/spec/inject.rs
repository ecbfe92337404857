//! `fault.inject`: faults as data (step, rank, kind), to test recovery.

use super::setting::{Setting, brief, choice};
use serde::{Deserialize, Serialize};
use toml::Value;

choice! {
    /// Kinds of injected faults.
    #[derive(Serialize, Deserialize)]
    FaultKind {
        /// Kills the process (SIGKILL).
        Kill = "kill",
        /// Stops the process (SIGSTOP).
        Stop = "stop",
        /// Stops making progress inside its next exchange; process and heartbeats go on.
        Livelock = "livelock",
        /// Computes three times slower for twenty steps.
        Slow = "slow",
        /// Closes the connection to the next rank.
        Cut = "cut",
        /// Drops everything it sends to the next rank, without an error on either side.
        CutOneWay = "cut-one-way",
        /// Sends an invalid message to the next rank or to the coordinator.
        Lie = "lie",
        /// Sends corrupt bytes to the next rank.
        Corrupt = "corrupt",
        /// Cannot connect to the other ranks when it joins the group.
        Unreachable = "unreachable",
        /// Finds the disk full when it next writes a checkpoint.
        DiskFull = "disk-full",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedFault {
    /// Injected at the first step, from this one on, that the rank begins.
    pub step: u64,
    pub rank: usize,
    pub kind: FaultKind,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InjectedFaults(pub Vec<InjectedFault>);

impl Setting for InjectedFaults {
    fn expects() -> String {
        "a list such as [{ step = 40, rank = 2, kind = \"kill\" }]".into()
    }

    fn read(value: &Value) -> Result<Self, String> {
        let mismatch = || format!("expected {}, got {}", Self::expects(), brief(value));
        let items = value.as_array().ok_or_else(mismatch)?;
        items
            .iter()
            .map(|item| read_fault(item).ok_or_else(mismatch)?)
            .collect::<Result<_, _>>()
            .map(InjectedFaults)
    }

    fn show(&self) -> Option<Value> {
        let table = |fault: &InjectedFault| {
            let mut table = toml::Table::new();
            table.insert("step".into(), Value::Integer(fault.step as i64));
            table.insert("rank".into(), Value::Integer(fault.rank as i64));
            table.insert("kind".into(), Value::String(fault.kind.name().into()));
            Value::Table(table)
        };
        Some(Value::Array(self.0.iter().map(table).collect()))
    }
}

/// None if the value is not a fault; an error if one of its fields is invalid.
fn read_fault(item: &Value) -> Option<Result<InjectedFault, String>> {
    let table = item.as_table()?;
    if let Some(key) = table.keys().find(|key| !["step", "rank", "kind"].contains(&key.as_str())) {
        return Some(Err(format!("a fault has no {key}: it has step, rank and kind")));
    }
    let number = |key: &str| table.get(key)?.as_integer().and_then(|number| u64::try_from(number).ok());
    let (step, rank, name) = (number("step")?, number("rank")?, table.get("kind")?.as_str()?);
    let kind = FaultKind::read(&Value::String(name.into()));
    Some(kind.map(|kind| InjectedFault { step, rank: rank as usize, kind }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<InjectedFaults, String> {
        let table: toml::Table = format!("inject = {text}").parse().unwrap();
        InjectedFaults::read(&table["inject"])
    }

    #[test]
    fn faults_are_read_and_written() {
        let faults =
            read(r#"[{ step = 40, rank = 2, kind = "kill" }, { step = 41, rank = 0, kind = "livelock" }]"#);
        let faults = faults.unwrap();
        assert_eq!(faults.0[0], InjectedFault { step: 40, rank: 2, kind: FaultKind::Kill });
        assert_eq!(InjectedFaults::read(&faults.show().unwrap()), Ok(faults));
        assert!(read("[]").unwrap().0.is_empty());
    }

    #[test]
    fn errors_name_the_field() {
        assert!(read("7").unwrap_err().contains("expected a list"));
        assert!(read("[{ step = 1 }]").unwrap_err().contains("expected a list"));
        let error = read(r#"[{ step = 1, rank = 0, kind = "kil" }]"#).unwrap_err();
        assert!(error.contains("did you mean `kill`"), "{error}");
        let error = read(r#"[{ step = 1, rank = 0, kind = "kill", when = 3 }]"#).unwrap_err();
        assert!(error.contains("no when"), "{error}");
    }
}
