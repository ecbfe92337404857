//! In which keys two jobs differ, in words.

use super::paths;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// How many keys are named.
const NAMED: usize = 3;

/// How long a value may be to be shown.
const LONGEST: usize = 40;

/// `train.epochs is 5 there and 3 here`, from two job files; nothing if they differ in nothing that can be named. Where
/// files are may differ.
pub fn difference(here: &str, there: &str) -> Option<String> {
    let (here, there) = (flat(here)?, flat(there)?);
    let keys: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    let places = |key: &str| {
        let path = |values: &BTreeMap<String, Value>| {
            values.get(key).is_some_and(|value| paths::is_path(key, value))
        };
        key == paths::CACHE || (path(&here) && path(&there))
    };
    let differ: Vec<String> = keys
        .into_iter()
        .filter(|key| here.get(*key) != there.get(*key) && !places(key))
        .map(|key| format!("{key} is {} there and {} here", shown(there.get(key)), shown(here.get(key))))
        .collect();
    match differ.len() {
        0 => None,
        count if count <= NAMED => Some(differ.join(", ")),
        count => Some(format!("{}, and {} more", differ[..NAMED].join(", "), count - NAMED)),
    }
}

fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "not set".into(), ToString::to_string);
    if text.chars().count() <= LONGEST {
        return text;
    }
    format!("{}...", text.chars().take(LONGEST).collect::<String>())
}

/// The values by their dotted keys.
fn flat(text: &str) -> Option<BTreeMap<String, Value>> {
    let mut values = BTreeMap::new();
    collect("", text.parse().ok()?, &mut values);
    Some(values)
}

fn collect(before: &str, table: Table, values: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        let key = if before.is_empty() { key } else { format!("{before}.{key}") };
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
    fn what_differs_is_named_and_where_files_are_is_not() {
        let job = JobSpec::default();
        let mut other = job.clone();
        (other.train.epochs, other.data.cache) = (99, Some("/tmp/cache".into()));
        let words = difference(&job.to_toml(), &other.to_toml()).unwrap();
        assert_eq!(words, format!("train.epochs is 99 there and {} here", job.train.epochs));
        assert_eq!(difference(&job.to_toml(), &job.to_toml()), None);
        let here = "[data]\nsource = \"a.csv\"\n[model]\nlayers = [\"dense 1\"]\n";
        assert_eq!(difference(here, &here.replace("a.csv", "/data/a.csv")), None);
        let builtin = here.replace("a.csv", "builtin:digits");
        assert_eq!(
            difference(here, &builtin).unwrap(),
            "data.source is \"builtin:digits\" there and \"a.csv\" here"
        );
        assert_eq!(
            difference("a = 1", "b = 2").unwrap(),
            "a is not set there and 1 here, b is 2 there and not set here"
        );
        let many: String = (0..9).map(|key| format!("k{key} = 1\n")).collect();
        assert!(difference("", &many).unwrap().ends_with(", and 6 more"));
        let long = format!("k = \"{}\"", "ä".repeat(500));
        assert!(difference("k = 1", &long).unwrap().len() < 200);
        assert_eq!(difference("not toml", "a = 1"), None);
    }
}
