//! The strategies to compare, as `--strategies` lists them: `petuum,'parameter-server[scheduling.kind=async]'`, or `all`.

use thalweg_core::spec::{nearest, preset};

/// The name that stands for every preset.
const ALL: &str = "all";

/// One strategy: a preset, and settings on top of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) preset: String,
    /// Keys and values below `[strategy]`.
    pub(super) settings: Vec<String>,
    /// Whether the user has named it: then it must run.
    pub(super) named: bool,
}

impl Entry {
    /// A preset as it is.
    pub(super) fn preset(name: &str, named: bool) -> Entry {
        Entry { preset: name.into(), settings: Vec::new(), named }
    }

    /// The strategy as the user writes it.
    pub(super) fn label(&self) -> String {
        match self.settings.as_slice() {
            [] => self.preset.clone(),
            settings => format!("{}[{}]", self.preset, settings.join(",")),
        }
    }

    /// A name for its folder.
    pub(super) fn folder(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._=-".contains(c) { c } else { '-' };
        self.label().trim_end_matches(']').chars().map(plain).collect()
    }
}

/// Reads a list. Every error is one line.
pub(super) fn parse(list: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for item in split(list)? {
        match item {
            "" => return Err("a strategy has no name: write them as a,b,c".into()),
            ALL => entries.extend(preset::all().map(|preset| Entry::preset(preset.name, false))),
            item => entries.push(entry(item)?),
        }
    }
    // What is named beside `all` must run.
    let named: Vec<Entry> = entries.iter().filter(|entry| entry.named).cloned().collect();
    entries.retain(|entry| entry.named || named.iter().all(|other| other.label() != entry.label()));
    for (index, entry) in entries.iter().enumerate() {
        if let Some(other) = entries[..index].iter().find(|other| other.folder() == entry.folder()) {
            return Err(match other.label() == entry.label() {
                true => format!("`{}` is listed twice", entry.label()),
                false => format!("`{}` and `{}` would share a folder", other.label(), entry.label()),
            });
        }
    }
    Ok(entries)
}

fn entry(item: &str) -> Result<Entry, String> {
    let (preset, settings) = match item.split_once('[') {
        Some((preset, rest)) => {
            let inner = rest.strip_suffix(']').ok_or_else(|| format!("`{item}`: text follows the ]"))?;
            (preset.trim(), split(inner)?)
        }
        None => (item, Vec::new()),
    };
    if preset::find(preset).is_none() {
        let names = preset::all().map(|preset| preset.name).chain([ALL]);
        return Err(nearest::unknown("strategy", preset, names));
    }
    for setting in &settings {
        let Some((key, _)) = setting.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
            return Err(format!("`{item}`: expected key=value in the brackets, got `{setting}`"));
        };
        if let Some(inner) = key.trim().strip_prefix("strategy.") {
            return Err(format!("`{item}`: keys are those below [strategy]: write {inner}"));
        }
    }
    let settings = settings.into_iter().map(String::from).collect();
    Ok(Entry { preset: preset.into(), settings, named: true })
}

/// Splits at the commas outside of brackets and quotes.
fn split(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_i32, None);
    for (at, c) in list.char_indices() {
        match (c, quote) {
            (_, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(c),
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if depth < 0 {
            return Err(format!("`{list}`: a bracket is closed that was not opened"));
        }
    }
    if depth > 0 || quote.is_some() {
        return Err(format!("`{list}`: a bracket or quote is not closed"));
    }
    parts.push(list[start..].trim());
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(list: &str) -> Vec<String> {
        parse(list).unwrap().iter().map(Entry::label).collect()
    }

    #[test]
    fn a_list_has_presets_with_settings() {
        let list =
            "allreduce, sparknet[merge.every=10], gosgd[gossip.probability=0.5,exchange.transport='tcp']";
        let entries = parse(list).unwrap();
        assert_eq!(
            labels(list),
            [
                "allreduce",
                "sparknet[merge.every=10]",
                "gosgd[gossip.probability=0.5,exchange.transport='tcp']"
            ]
        );
        assert_eq!(entries[2].settings, ["gossip.probability=0.5", "exchange.transport='tcp'"]);
        assert_eq!(entries[1].folder(), "sparknet-merge.every=10");
        assert_eq!(labels("sparknet[x=[1,2],y={a=1,b=2}],single").len(), 2, "commas in values");
    }

    #[test]
    fn all_is_every_preset_and_what_is_named_beside_it_must_run() {
        let entries = parse("all,gosgd,gosgd[gossip.probability=1]").unwrap();
        assert_eq!(entries.len(), preset::all().count() + 1);
        let named: Vec<String> = entries.iter().filter(|entry| entry.named).map(Entry::label).collect();
        assert_eq!(named, ["gosgd", "gosgd[gossip.probability=1]"]);
    }

    #[test]
    fn what_is_not_a_list_of_strategies_is_refused() {
        for (list, expected) in [
            ("gosdg", "did you mean `gosgd`"),
            ("", "no name"),
            ("allreduce,,gosgd", "no name"),
            ("gosgd[gossip.probability=1", "not closed"),
            ("gosgd]", "not opened"),
            ("gosgd[gossip.probability]", "expected key=value"),
            ("gosgd[x=1]y", "text follows"),
            ("gosgd[strategy.gossip.probability=1]", "write gossip.probability"),
            ("gosgd,gosgd", "listed twice"),
            ("gosgd[a=1],gosgd[a-1]", "expected key=value"),
            ("gosgd[a=/],gosgd[a=:]", "share a folder"),
        ] {
            let error = parse(list).unwrap_err();
            assert!(error.contains(expected), "{list}: {error}");
        }
    }
}
