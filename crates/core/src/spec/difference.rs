//! A readable difference of two jobs.

use super::paths;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// Keys listed at most.
const MAX_KEYS: usize = 3;

/// Characters of a value shown at most.
const MAX_CHARACTERS: usize = 40;

/// `train.epochs is 5 on rank 1 and 3 on rank 0`, from the job files of rank 0 and another rank; None if they are equal
/// apart from paths, or not TOML.
pub fn difference(here: &str, rank: usize, there: &str) -> Option<String> {
    let (here, there) = (flatten(here)?, flatten(there)?);
    let keys: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    let is_location = |key: &str| {
        let path = |values: &BTreeMap<String, Value>| {
            values.get(key).is_some_and(|value| paths::is_path(key, value))
        };
        key == paths::CACHE || (path(&here) && path(&there))
    };
    let differ: Vec<String> = keys
        .into_iter()
        .filter(|key| here.get(*key) != there.get(*key) && !is_location(key))
        .map(|key| {
            format!(
                "{key} is {} on rank {rank} and {} on rank 0",
                display(there.get(key)),
                display(here.get(key))
            )
        })
        .collect();
    match differ.len() {
        0 => None,
        count if count <= MAX_KEYS => Some(differ.join(", ")),
        count => Some(format!("{}, and {} more", differ[..MAX_KEYS].join(", "), count - MAX_KEYS)),
    }
}

fn display(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "not set".into(), ToString::to_string);
    if text.chars().count() <= MAX_CHARACTERS {
        return text;
    }
    format!("{}...", text.chars().take(MAX_CHARACTERS).collect::<String>())
}

/// Values by dotted key.
fn flatten(text: &str) -> Option<BTreeMap<String, Value>> {
    let mut values = BTreeMap::new();
    collect("", text.parse().ok()?, &mut values);
    Some(values)
}

fn collect(prefix: &str, table: Table, values: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) => collect(&key, inner, values),
            value => drop(values.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobSpec;

    #[test]
    fn differing_keys_are_listed_without_paths() {
        let job = JobSpec::default();
        let mut other = job.clone();
        (other.train.epochs, other.data.cache) = (99, Some("/tmp/cache".into()));
        let text = difference(&job.to_toml(), 1, &other.to_toml()).unwrap();
        assert_eq!(text, format!("train.epochs is 99 on rank 1 and {} on rank 0", job.train.epochs));
        assert_eq!(difference(&job.to_toml(), 1, &job.to_toml()), None);
        let here = "[data]\nsource = \"a.csv\"\n[model]\nlayers = [\"dense 1\"]\n";
        assert_eq!(difference(here, 1, &here.replace("a.csv", "/data/a.csv")), None);
        let builtin = here.replace("a.csv", "builtin:digits");
        assert_eq!(
            difference(here, 1, &builtin).unwrap(),
            "data.source is \"builtin:digits\" on rank 1 and \"a.csv\" on rank 0"
        );
        assert_eq!(
            difference("a = 1", 1, "b = 2").unwrap(),
            "a is not set on rank 1 and 1 on rank 0, b is 2 on rank 1 and not set on rank 0"
        );
        let many: String = (0..9).map(|key| format!("k{key} = 1\n")).collect();
        assert!(difference("", 1, &many).unwrap().ends_with(", and 6 more"));
        let long = format!("k = \"{}\"", "ä".repeat(500));
        assert!(difference("k = 1", 1, &long).unwrap().len() < 200);
        assert_eq!(difference("not toml", 1, "a = 1"), None);
    }
}
