//! A job file as sections of lines: a value can be replaced in place, and comments stay.

use crate::view::formatting::printable;
use std::fmt::Write as _;
use toml::Value;

/// The text of a job.
pub(super) struct JobFile {
    sections: Vec<Section>,
}

struct Section {
    name: String,
    lines: Vec<Line>,
}

enum Line {
    Comment(String),
    Setting { key: String, value: Value, comment: Option<String> },
}

impl JobFile {
    /// An empty file with these sections, in order.
    pub(super) fn new(sections: &[&str]) -> JobFile {
        let section = |name: &&str| Section { name: name.to_string(), lines: Vec::new() };
        JobFile { sections: sections.iter().map(section).collect() }
    }

    fn section(&mut self, name: &str) -> &mut Section {
        let index = match self.sections.iter().position(|section| section.name == name) {
            Some(index) => index,
            None => {
                self.sections.push(Section { name: name.into(), lines: Vec::new() });
                self.sections.len() - 1
            }
        };
        &mut self.sections[index]
    }

    /// Adds a comment line.
    pub(super) fn comment(&mut self, section: &str, text: impl Into<String>) {
        self.section(section).lines.push(Line::Comment(one_line(&text.into())));
    }

    /// Adds a value.
    pub(super) fn add(&mut self, section: &str, key: &str, value: impl Into<Value>, comment: Option<&str>) {
        let comment = comment.map(one_line);
        self.section(section).lines.push(Line::Setting { key: key.into(), value: value.into(), comment });
    }

    /// Removes a value.
    pub(super) fn remove(&mut self, section: &str, name: &str) {
        self.section(section).lines.retain(|line| !matches!(line, Line::Setting { key, .. } if key == name));
    }

    /// Sets the value at `section.key` or `section.table.key`, replacing an existing one in place.
    pub(super) fn set(&mut self, path: &str, value: &Value) {
        let (section, name) = path.split_once('.').unwrap_or(("", path));
        let section = self.section(section);
        for line in &mut section.lines {
            let Line::Setting { key, value: old, .. } = line else { continue };
            if key == name {
                *old = value.clone();
                return;
            }
            if let (Some(inner), Value::Table(table)) =
                (name.strip_prefix(key.as_str()).and_then(|rest| rest.strip_prefix('.')), old)
            {
                table.insert(inner.into(), value.clone());
                return;
            }
        }
        section.lines.push(Line::Setting { key: name.into(), value: value.clone(), comment: None });
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("# A job for thalweg. Every key: thalweg config --keys\n");
        for section in &self.sections {
            let _ = writeln!(text, "\n[{}]", section.name);
            for line in &section.lines {
                let _ = match line {
                    Line::Comment(comment) => writeln!(text, "# {comment}"),
                    Line::Setting { key, value, comment: None } => writeln!(text, "{key} = {value}"),
                    Line::Setting { key, value, comment: Some(comment) } => {
                        writeln!(text, "{key} = {value}  # {comment}")
                    }
                };
            }
        }
        text
    }
}

/// Text for a comment: TOML allows no control characters there.
fn one_line(text: &str) -> String {
    printable(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_stay_out_of_comments() {
        let mut file = JobFile::new(&["data"]);
        file.comment("data", "a\r\nb\u{1}c");
        file.add("data", "label", "a\r\nb\u{1}c\u{7f}", Some("d\re\nf"));
        let text = file.text();
        assert!(text.contains("# a? b?c\n") && text.contains("  # d?e f\n"), "{text:?}");
        let parsed: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(parsed["data"]["label"].as_str(), Some("a\r\nb\u{1}c\u{7f}"));
    }

    #[test]
    fn values_are_replaced_in_place() {
        let mut file = JobFile::new(&["data", "train"]);
        file.add("data", "source", "a \"b\".csv", None);
        file.add("train", "epochs", 5, Some("passes"));
        let optimizer = toml::Table::from_iter([("kind".into(), "adam".into()), ("lr".into(), 0.003.into())]);
        file.add("train", "optimizer", optimizer, None);
        file.set("train.epochs", &7.into());
        file.set("train.optimizer.lr", &0.5.into());
        file.set("strategy.merge.every", &3.into());
        let text = file.text();
        for line in ["epochs = 7  # passes", "lr = 0.5", "[strategy]\nmerge.every = 3"] {
            assert!(text.contains(line), "{text}");
        }
        let parsed: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(parsed["data"]["source"].as_str(), Some("a \"b\".csv"));
        assert_eq!(parsed["train"]["optimizer"]["kind"].as_str(), Some("adam"));
        assert_eq!(parsed["strategy"]["merge"]["every"].as_integer(), Some(3));
    }
}
