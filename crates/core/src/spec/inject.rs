//! Faults as data: what is to happen to which rank at which step, to see that the job survives it.

use super::setting::{Setting, brief, choice};
use serde::{Deserialize, Serialize};
use toml::Value;

choice! {
    /// What happens to a rank.
    #[derive(Serialize, Deserialize)]
    Mischief {
        /// Its process is killed.
        Kill = "kill",
        /// Its process is stopped.
        Stop = "stop",
        /// It stops progressing inside its next exchange; its process lives on, and so does its heartbeat.
        Livelock = "livelock",
        /// It computes three times slower for twenty steps.
        Slow = "slow",
        /// Its connection to the next rank breaks.
        Cut = "cut",
        /// What it sends to the next rank is lost on its way, and neither is told.
        CutOneWay = "cut-one-way",
        /// It tells the next rank or the coordinator what cannot be true.
        Lie = "lie",
        /// It sends bytes to the next rank that make no sense.
        Corrupt = "corrupt",
        /// No connection between it and the others can be made when it joins the group.
        Unreachable = "unreachable",
        /// Its disk is full when it next writes a checkpoint.
        DiskFull = "disk-full",
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The first step, from this one on, that the rank begins.
    pub step: u64,
    /// Which rank.
    pub rank: usize,
    /// What happens.
    pub kind: Mischief,
}

/// The faults of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl Setting for Faults {
    fn expects() -> String {
        "a list such as [{ step = 40, rank = 2, kind = \"kill\" }]".into()
    }

    fn read(value: &Value) -> Result<Self, String> {
        let mismatch = || format!("expected {}, got {}", Self::expects(), brief(value));
        let items = value.as_array().ok_or_else(mismatch)?;
        items.iter().map(|item| fault(item).ok_or_else(mismatch)?).collect::<Result<_, _>>().map(Faults)
    }

    fn show(&self) -> Option<Value> {
        let table = |fault: &Fault| {
            let mut table = toml::Table::new();
            table.insert("step".into(), Value::Integer(fault.step as i64));
            table.insert("rank".into(), Value::Integer(fault.rank as i64));
            table.insert("kind".into(), Value::String(fault.kind.name().into()));
            Value::Table(table)
        };
        Some(Value::Array(self.0.iter().map(table).collect()))
    }
}

/// Nothing if it is no fault at all; an error if one of its values is wrong.
fn fault(item: &Value) -> Option<Result<Fault, String>> {
    let table = item.as_table()?;
    if let Some(key) = table.keys().find(|key| !["step", "rank", "kind"].contains(&key.as_str())) {
        return Some(Err(format!("a fault has no {key}: it has step, rank and kind")));
    }
    let number = |key: &str| table.get(key)?.as_integer().and_then(|number| u64::try_from(number).ok());
    let (step, rank, name) = (number("step")?, number("rank")?, table.get("kind")?.as_str()?);
    let kind = Mischief::read(&Value::String(name.into()));
    Some(kind.map(|kind| Fault { step, rank: rank as usize, kind }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Faults, String> {
        let table: toml::Table = format!("inject = {text}").parse().unwrap();
        Faults::read(&table["inject"])
    }

    #[test]
    fn faults_are_read_and_shown() {
        let faults =
            read(r#"[{ step = 40, rank = 2, kind = "kill" }, { step = 41, rank = 0, kind = "livelock" }]"#);
        let faults = faults.unwrap();
        assert_eq!(faults.0[0], Fault { step: 40, rank: 2, kind: Mischief::Kill });
        assert_eq!(Faults::read(&faults.show().unwrap()), Ok(faults));
        assert!(read("[]").unwrap().0.is_empty());
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(read("7").unwrap_err().contains("expected a list"));
        assert!(read("[{ step = 1 }]").unwrap_err().contains("expected a list"));
        let error = read(r#"[{ step = 1, rank = 0, kind = "kil" }]"#).unwrap_err();
        assert!(error.contains("did you mean `kill`"), "{error}");
        let error = read(r#"[{ step = 1, rank = 0, kind = "kill", when = 3 }]"#).unwrap_err();
        assert!(error.contains("no when"), "{error}");
    }
}
