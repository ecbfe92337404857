//! `engine.network.links`: links of a simulated network that differ from its defaults.

use super::setting::{Bytes, Setting, brief};
use std::time::Duration;
use toml::Value;

/// Latency and bandwidth from some ranks to others, in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Senders.
    pub from: Vec<usize>,
    /// Receivers.
    pub to: Vec<usize>,
    pub latency: Option<Duration>,
    /// Bytes per second.
    pub bandwidth: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSpecs(pub Vec<LinkSpec>);

const KEYS: [&str; 4] = ["from", "to", "latency", "bandwidth"];

impl LinkSpec {
    /// Sender and receiver of every link of the entry.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let pairs = self.from.iter().flat_map(|from| self.to.iter().map(move |to| (*from, *to)));
        pairs.filter(|(from, to)| from != to)
    }

    fn read(item: &Value) -> Result<LinkSpec, String> {
        let table = item.as_table().ok_or_else(|| format!("expected a table, got {}", brief(item)))?;
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!("a link has no {key}: it has from, to, latency and bandwidth"));
        }
        let side = |key: &str| ranks(table.get(key)).map_err(|reason| format!("{key}: {reason}"));
        let link = LinkSpec {
            from: side("from")?,
            to: side("to")?,
            latency: table.get("latency").map(Duration::read).transpose()?,
            bandwidth: table.get("bandwidth").map(Bytes::read).transpose()?,
        };
        match (link.latency, link.bandwidth) {
            (None, None) => Err("a link needs a latency, a bandwidth or both".into()),
            _ => Ok(link),
        }
    }

    fn show(&self) -> Value {
        let side = |ranks: &[usize]| match ranks {
            [rank] => Value::Integer(*rank as i64),
            _ => Value::Array(ranks.iter().map(|rank| Value::Integer(*rank as i64)).collect()),
        };
        let shown = [
            Some(side(&self.from)),
            Some(side(&self.to)),
            self.latency.and_then(|latency| latency.show()),
            self.bandwidth.and_then(|bandwidth| bandwidth.show()),
        ];
        let pairs = KEYS.into_iter().zip(shown);
        Value::Table(pairs.filter_map(|(key, value)| Some((key.to_string(), value?))).collect())
    }
}

/// A rank or a list of ranks.
fn ranks(value: Option<&Value>) -> Result<Vec<usize>, String> {
    let mismatch = || {
        let got = value.map_or("nothing".into(), brief);
        format!("expected a rank such as 0 or ranks such as [0, 1], got {got}")
    };
    match value.ok_or_else(mismatch)? {
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| usize::read(item).map_err(|_| mismatch())).collect()
        }
        one => usize::read(one).map(|rank| vec![rank]).map_err(|_| mismatch()),
    }
}

impl LinkSpecs {
    /// Senders and receivers of all links.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().flat_map(|link| link.from.iter().chain(&link.to).copied())
    }

    pub(super) fn check(&self, refuse: &mut dyn FnMut(String)) {
        for link in &self.0 {
            if link.pairs().next().is_none() {
                refuse(format!("rank {} has no link to itself", link.from[0]));
            }
            if link.bandwidth.is_some_and(|bandwidth| bandwidth.0 == 0) {
                refuse("a bandwidth must be above 0".into());
            }
        }
    }
}

impl Setting for LinkSpecs {
    fn expects() -> String {
        "a list such as [{ from = [0, 1], to = 2, latency = \"20ms\", bandwidth = \"10MiB\" }]".into()
    }

    fn read(value: &Value) -> Result<Self, String> {
        let mismatch = || format!("expected {}, got {}", Self::expects(), brief(value));
        let items = value.as_array().ok_or_else(mismatch)?;
        items.iter().map(LinkSpec::read).collect::<Result<_, _>>().map(LinkSpecs)
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Array(self.0.iter().map(LinkSpec::show).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LinkSpecs, String> {
        let table: toml::Table = format!("links = {text}").parse().unwrap();
        LinkSpecs::read(&table["links"])
    }

    fn errors(text: &str) -> Vec<String> {
        let mut errors = Vec::new();
        read(text).unwrap().check(&mut |what| errors.push(what));
        errors
    }

    #[test]
    fn links_are_read_and_written() {
        let links = read(
            r#"[{ from = [0, 1], to = [1, 2], latency = "20ms" }, { from = 2, to = 0, bandwidth = "10MiB" }]"#,
        )
        .unwrap();
        assert_eq!(links.0[0].pairs().collect::<Vec<_>>(), [(0, 1), (0, 2), (1, 2)]);
        assert_eq!(links.0[1].bandwidth, Some(Bytes(10 << 20)));
        assert_eq!(LinkSpecs::read(&links.show().unwrap()), Ok(links));
        assert_eq!(errors(r#"[{ from = 0, to = [0, 2], latency = "1s" }]"#), [""; 0]);
    }

    #[test]
    fn errors_name_the_field() {
        for (text, reason) in [
            ("7", "expected a list"),
            ("[3]", "expected a table"),
            (r#"[{ to = 1, latency = "1s" }]"#, "from: expected a rank"),
            (r#"[{ from = 0, to = [], latency = "1s" }]"#, "to: expected a rank"),
            (r#"[{ from = 0, to = -1, latency = "1s" }]"#, "to: expected a rank"),
            ("[{ from = 0, to = 1 }]", "a latency, a bandwidth or both"),
            (r#"[{ from = 0, to = 1, latency = "soon" }]"#, "expected a time"),
            (r#"[{ from = 0, to = 1, speed = "1s" }]"#, "a link has no speed"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert_eq!(errors(r#"[{ from = 1, to = 1, latency = "1s" }]"#), ["rank 1 has no link to itself"]);
        assert_eq!(errors(r#"[{ from = 1, to = 0, bandwidth = "0B" }]"#), ["a bandwidth must be above 0"]);
    }
}
