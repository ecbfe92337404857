//! The configuration layers of a job: defaults, preset, file, command line. A later layer overrides an earlier one.

use super::RESOLVED;
use super::nearest;
use super::paths;
use super::setting::{Setting, brief};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use toml::Value;

/// Keys of older files and their names now.
const OLD_KEYS: [(&str, &str); 1] = [("strategy.exchange.probability", "strategy.gossip.probability")];

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    Preset {
        name: String,
        /// How the value follows from n = `engine.workers`, if it does.
        formula: Option<&'static str>,
    },
    /// A line of the job file.
    File {
        /// As given on the command line.
        path: String,
        /// Counted from 1.
        line: usize,
    },
    /// A flag, as typed.
    Flag(String),
    /// Computed from other keys.
    Derived(&'static str),
}

impl Origin {
    /// Whether both are lines of one file.
    fn is_in_file_of(&self, other: &Origin) -> bool {
        matches!((self, other), (Origin::File { path, .. }, Origin::File { path: its, .. }) if path == its)
    }

    /// The earlier of two lines of a file.
    fn earlier<'a>(&'a self, other: &'a Origin) -> &'a Origin {
        match (self, other) {
            (Origin::File { line, .. }, Origin::File { line: its, .. }) if its < line => other,
            _ => self,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::Preset { name, formula: None } => write!(f, "preset {name}"),
            Origin::Preset { name, formula: Some(formula) } => write!(f, "preset {name}, {formula}"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Flag(flag) => write!(f, "{flag}"),
            Origin::Derived(formula) => write!(f, "{formula}"),
        }
    }
}

/// The explicitly set values with their origins.
#[derive(Clone, Debug, Default)]
pub struct JobLayers {
    values: BTreeMap<String, (Value, Origin)>,
    /// Keys that were reset to their defaults.
    unset: BTreeMap<String, Origin>,
}

impl JobLayers {
    /// Sets a value and replaces an earlier one.
    pub fn set(&mut self, path: impl Into<String>, value: Value, origin: Origin) {
        self.values.insert(path.into(), (value, origin));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.values.remove(path);
    }

    /// Keeps the values for which `keep` is true.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str, &Origin) -> bool) {
        self.values.retain(|path, (_, origin)| keep(path, origin));
    }

    pub fn get(&self, path: &str) -> Option<(&Value, &Origin)> {
        self.values.get(path).map(|(value, origin)| (value, origin))
    }

    /// The origin of a value or of its reset.
    pub fn origin(&self, path: &str) -> Origin {
        let set = self.values.get(path).map(|(_, origin)| origin);
        set.or_else(|| self.unset.get(path)).cloned().unwrap_or(Origin::Default)
    }

    /// The file that states every value of its job (`resolved = true`).
    pub(super) fn resolved_file(&self) -> Option<&str> {
        match self.get(RESOLVED)? {
            (Value::Boolean(true), Origin::File { path, .. }) => Some(path),
            _ => None,
        }
    }

    /// Resets a key, or all keys of a group, to the defaults.
    fn unset(&mut self, path: &str, origin: Origin) {
        let group = format!("{path}.");
        self.values.retain(|key, _| key != path && !key.starts_with(&group));
        self.unset.insert(path.into(), origin);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value, &Origin)> {
        self.values.iter().map(|(path, (value, origin))| (path.as_str(), value, origin))
    }

    /// Reads a value if it is set.
    pub fn read<T: Setting>(&self, path: &str, into: &mut T, errors: &mut Vec<String>) {
        let Some((value, origin)) = self.get(path) else { return };
        match T::read(value) {
            Ok(value) => *into = value,
            Err(reason) => errors.push(format!("{origin}: {path}: {reason}")),
        }
    }

    /// Adds the text of a job file. Its paths are relative to its folder.
    pub fn add_file(&mut self, path: &str, text: &str) -> Result<(), String> {
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        self.add_file_with(path, text, &|path| paths::within(folder, path))
    }

    /// The same with paths resolved by `locate`.
    pub fn add_file_with(
        &mut self,
        path: &str,
        text: &str,
        locate: &dyn Fn(&str) -> String,
    ) -> Result<(), String> {
        let table = toml::de::DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            format!("{path}:{line}: {}", error.message())
        })?;
        self.add_table("", table.into_inner(), path, text);
        self.rename_old_keys()?;
        for (key, (value, origin)) in &mut self.values {
            let here = matches!(origin, Origin::File { path: file, .. } if file == path);
            if let (true, Value::String(path)) = (here && paths::is_path(key, value), value) {
                *path = locate(path);
            }
        }
        Ok(())
    }

    /// Gives keys of older files their new names. Another value under the new name is refused.
    fn rename_old_keys(&mut self) -> Result<(), String> {
        for (old, new) in OLD_KEYS {
            let Some((value, origin)) = self.values.remove(old) else { continue };
            match self.get(new) {
                Some((other, _)) if *other != value => {
                    return Err(format!(
                        "{origin}: {old} is called {new} now, which is {other}; drop one of the two"
                    ));
                }
                _ => self.set(new, value, origin),
            }
        }
        Ok(())
    }

    fn add_table(&mut self, prefix: &str, table: toml::de::DeTable<'_>, path: &str, text: &str) {
        for (key, value) in table {
            let line = line_of(text, key.span().start);
            let full = if prefix.is_empty() {
                key.into_inner().to_string()
            } else {
                format!("{prefix}.{}", key.into_inner())
            };
            match value.into_inner() {
                toml::de::DeValue::Table(inner) if !inner.is_empty() => {
                    self.add_table(&full, inner, path, text);
                }
                // An empty table is kept: its name may be wrong.
                other => self.set(full, without_spans(other), Origin::File { path: path.into(), line }),
            }
        }
    }

    /// Adds `section.key=value` as given to `--set`. A value that is not TOML is a string; an empty value unsets the key.
    pub fn add_assignment(&mut self, assignment: &str) -> Result<(), String> {
        let (path, text) = assignment
            .split_once('=')
            .ok_or_else(|| format!("--set {assignment}: expected section.key=value"))?;
        let (path, text) = (path.trim(), text.trim());
        let origin = Origin::Flag(format!("--set {assignment}"));
        if text.is_empty() {
            self.unset(path, origin);
            return Ok(());
        }
        let value = toml::from_str::<toml::Table>(&format!("v = {text}"))
            .ok()
            .filter(|table| table.len() == 1)
            .and_then(|mut table| table.remove("v"))
            .unwrap_or_else(|| Value::String(text.into()));
        self.add_value(path, value, &origin);
        Ok(())
    }

    fn add_value(&mut self, path: &str, value: Value, origin: &Origin) {
        match value {
            Value::Table(table) if !table.is_empty() => {
                for (key, value) in table {
                    self.add_value(&format!("{path}.{key}"), value, origin);
                }
            }
            value => self.set(path, value, origin.clone()),
        }
    }

    /// Joins the keys below `path` into one table value with user-defined keys. The last key's origin is kept.
    pub(super) fn fold(&mut self, path: &str) {
        let prefix = format!("{path}.");
        let inner: Vec<String> = self.values.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        if inner.is_empty() {
            return;
        }
        let (mut table, mut origin) = (toml::Table::new(), Origin::Default);
        for key in inner {
            if let Some((value, last)) = self.values.remove(&key) {
                table.insert(key[prefix.len()..].to_string(), value);
                origin = last;
            }
        }
        self.set(path, Value::Table(table), origin);
    }

    /// Splits a list given as a flag at its commas.
    pub(super) fn split_list(&mut self, path: &str) {
        if let Some((value, Origin::Flag(_))) = self.values.get_mut(path)
            && let Some(text) = value.as_str().map(String::from).or(value.as_integer().map(|n| n.to_string()))
        {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            *value = Value::Array(names.map(Value::from).collect());
        }
    }

    /// An error per unknown key, with the nearest known one. A misspelt section of a file is one error, at its first key.
    pub(super) fn unknown_keys(&self, known: &[&str]) -> Vec<String> {
        let is_group = |path: &str| known.iter().any(|key| key.starts_with(&format!("{path}.")));
        let group = Value::Table(toml::Table::new());
        let unset = self.unset.iter().map(|(path, origin)| (path.as_str(), &group, origin));
        let unknown = self
            .iter()
            .chain(unset)
            .filter(|(path, ..)| !known.contains(path))
            .filter(|(path, value, _)| !(value.is_table() && is_group(path)));
        let mut errors: Vec<(&Origin, String)> = Vec::new();
        for (path, value, origin) in unknown {
            let reason = self.explain_unknown(path, value, known);
            match errors.iter_mut().find(|(first, same)| *same == reason && first.is_in_file_of(origin)) {
                Some((first, _)) => *first = first.earlier(origin),
                None => errors.push((origin, reason)),
            }
        }
        errors.iter().map(|(origin, reason)| format!("{origin}: {reason}")).collect()
    }

    fn explain_unknown(&self, path: &str, value: &Value, known: &[&str]) -> String {
        if known.iter().any(|key| key.starts_with(&format!("{path}."))) {
            return format!("`{path}` is a group of keys, but got {}", brief(value));
        }
        let (group, name) = path.rsplit_once('.').unwrap_or(("", path));
        let siblings = known.iter().filter_map(|key| {
            let (parent, leaf) = key.rsplit_once('.')?;
            (parent == group).then_some(leaf)
        });
        if siblings.clone().next().is_some() {
            // The exact name in another section is a better suggestion than a similar one in this section, unless that
            // section is part of a section about something else.
            let top = |path: &'_ str| path.split('.').next().map(String::from);
            let is_near = |parent: &str| !parent.contains('.') || top(parent) == top(group);
            let elsewhere = known.iter().find(|key| {
                key.rsplit_once('.').is_some_and(|(parent, leaf)| leaf == name && is_near(parent))
            });
            return match elsewhere {
                Some(key) => format!("unknown key `{path}`; did you mean `{key}`?"),
                None => nearest::unknown("key", name, siblings) + &format!(" (in [{group}])"),
            };
        }
        let sections = known.iter().filter_map(|key| key.split_once('.').map(|(section, _)| section));
        let mut sections: Vec<&str> = sections.collect();
        sections.dedup();
        match path.split_once('.') {
            Some((section, _)) if !sections.contains(&section) => {
                nearest::unknown("section", section, sections.iter().copied())
            }
            Some(_) => nearest::unknown("key", path, known.iter().copied()),
            None => match known.iter().find(|key| key.ends_with(&format!(".{path}"))) {
                Some(key) => format!("unknown key `{path}`; did you mean `{key}`?"),
                None => nearest::unknown("section", path, sections.iter().copied()),
            },
        }
    }
}

/// The line of a byte, counted from 1.
fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
}

/// A parsed value without its spans. The parser leaves numbers as text. An integer that is too large becomes a float,
/// which integer keys refuse.
fn without_spans(value: toml::de::DeValue<'_>) -> Value {
    use toml::de::DeValue;
    match value {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Boolean(value) => Value::Boolean(value),
        DeValue::Datetime(value) => Value::Datetime(value),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| float(number.as_str()), Value::Integer),
        DeValue::Float(number) => float(number.as_str()),
        DeValue::Array(items) => {
            Value::Array(items.into_iter().map(|item| without_spans(item.into_inner())).collect())
        }
        DeValue::Table(table) => Value::Table(
            table
                .into_iter()
                .map(|(key, value)| (key.into_inner().into_owned(), without_spans(value.into_inner())))
                .collect(),
        ),
    }
}

fn float(text: &str) -> Value {
    Value::Float(text.parse().unwrap_or(f64::NAN))
}
