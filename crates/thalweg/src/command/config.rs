//! `thalweg config`: the resolved job and the origin of each value; with `--keys`, every key of a job.

use super::{print, print_json};
use crate::view::formatting::{printable, wrapped};
use serde_json::json;
use std::fmt::Write;
use thalweg_core::spec::section::Key;
use thalweg_core::spec::{FORMAT, Job, JobSpec, NAME, RESOLVED};
use thalweg_core::{Result, spec::Resolved};

/// Prints the resolved job, as a job file with comments or as JSON.
pub fn run(job: &Job, as_json: bool) -> Result<()> {
    if as_json { print_json(&job.explain()) } else { print(&resolved(&job.explain())) }
}

/// Prints every key of a job with its default and meaning.
pub fn run_keys(as_json: bool) -> Result<()> {
    if !as_json {
        return print(&keys());
    }
    let list: Vec<_> = JobSpec::keys()
        .iter()
        .map(|key| {
            let names: Vec<&str> = key.choices.iter().map(|(name, _)| *name).collect();
            json!({ "key": key.path, "default": key.default, "expects": key.expects, "doc": key.doc, "choices": names })
        })
        .collect();
    print_json(&list)
}

/// `train` and `epochs` of `train.epochs`.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// A job file with every value, and its origin in a comment.
fn resolved(lines: &[Resolved]) -> String {
    let written: Vec<(String, String)> = lines
        .iter()
        .map(|line| {
            let name = split(&line.key).1;
            match &line.value {
                Some(value) => (format!("{name} = {value}"), printable(&line.origin).replace('\n', " ")),
                None => (format!("# {name}"), "not set".into()),
            }
        })
        .collect();
    let width = written.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0).min(48);
    let mut text = format!("format = {FORMAT}\n{RESOLVED} = true\n");
    let mut section = "";
    for (line, (left, right)) in lines.iter().zip(&written) {
        let (group, _) = split(&line.key);
        if group != section {
            let _ = writeln!(text, "\n[{group}]");
            section = group;
        }
        let _ = writeln!(text, "{left:<width$}  # {right}");
    }
    text
}

/// Sections with their keys, in the order of declaration.
fn sections() -> Vec<(&'static str, &'static str, Vec<Key>)> {
    let keys = JobSpec::keys();
    let of = |name| keys.iter().filter(|key| split(&key.path).0 == name).cloned().collect();
    JobSpec::sections().into_iter().map(|(name, about)| (name, about, of(name))).collect()
}

/// Every key with its default and meaning, for a terminal.
fn keys() -> String {
    let mut text = String::new();
    for (name, about, keys) in sections() {
        let _ = writeln!(text, "[{name}]  {about}");
        for key in keys {
            let (_, name) = split(&key.path);
            let default = key.default.map_or("(not set)".into(), |value| format!("= {value}"));
            let _ = writeln!(text, "  {name} {default}");
            text += &wrapped(&format!("{} Takes {}.", key.doc, key.expects), 6);
            for (choice, meaning) in key.choices {
                text += &wrapped(&format!("{choice}: {meaning}"), 8);
            }
        }
        text.push('\n');
    }
    text
}

/// Generates `docs/job.md`.
pub fn document() -> String {
    let mut text = String::from(
        "# The job file\n\n\
         A job is a TOML file; every key has a default, so an empty file is a job. `--set section.key=value` overrides any key,\n\
         `thalweg config JOB` prints the resolved job with the origin of each value, `thalweg config --keys` prints this list.\n\
         Unknown keys and values are refused with the nearest valid name.\n\n\
         ```toml\n\
         [data]\n\
         source = \"measurements.csv\"\n\
         label = \"quality\"\n\n\
         [train]\n\
         epochs = 10\n\
         optimizer = { kind = \"momentum\", lr = 0.05 }\n\n\
         [engine]\n\
         workers = 4\n\
         ```\n\n\
         *Generated from the declarations in `crates/core/src/spec`; `THALWEG_BLESS=1 cargo test -p thalweg --test docs` renews it.*\n",
    );
    let _ = write!(
        text,
        "\nThree keys are at the top level: `format = {FORMAT}` is the version of this format, `{NAME} = \"iris\"` names the run folder\n\
         (`runs/iris-1`; the default is the name of the file), `{RESOLVED} = true` marks files that Thalweg wrote with every value: these\n\
         values apply even if the preset they came from has changed since. Paths in a job are relative to its folder, those on the command line to the\n\
         working folder. The copy in a run folder has absolute paths and the run's name.\n"
    );
    for (name, about, keys) in sections() {
        let _ = write!(
            text,
            "\n## `[{name}]`\n\n{about}\n\n| key | default | takes | meaning |\n|---|---|---|---|\n"
        );
        for key in keys {
            let default = key.default.map_or("not set".into(), |value| format!("`{value}`"));
            let choices: Vec<String> =
                key.choices.iter().map(|(choice, meaning)| format!("<br>`{choice}`: {meaning}")).collect();
            let takes = if choices.is_empty() { key.expects } else { "one of these names".into() };
            let cells = [format!("`{}`", split(&key.path).1), default, takes, key.doc + &choices.concat()];
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::JobLayers;
    use thalweg_train::registry;

    fn job() -> Job {
        let mut layers = JobLayers::default();
        layers.add_file("job.toml", "[data]\nlabel = \"quality\"\n\n[train]\nepochs = 3\n").unwrap();
        layers.add_assignment("train.seed=11").unwrap();
        layers.add_assignment("strategy.preset=horovod").unwrap();
        registry::resolve(layers).unwrap()
    }

    #[test]
    fn every_value_has_its_origin() {
        let text = resolved(&job().explain());
        let line = |start: &str| {
            let found = text.lines().find(|line| line.starts_with(start));
            found
                .unwrap_or_else(|| panic!("no {start} in {text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(line("epochs"), "epochs = 3 # job.toml:5");
        assert_eq!(line("seed"), "seed = 11 # --set train.seed=11");
        assert_eq!(line("algorithm"), "algorithm = \"ring\" # preset horovod");
        assert_eq!(line("global_batch"), "global_batch = 64 # default");
        assert_eq!(line("# max_steps"), "# max_steps # not set");
    }

    #[test]
    fn the_output_is_a_valid_job() {
        let mut layers = JobLayers::default();
        layers.add_file("printed", &resolved(&job().explain())).unwrap();
        assert_eq!(registry::resolve(layers).unwrap().spec, job().spec);
    }

    #[test]
    fn every_key_is_in_the_list_and_in_the_page() {
        for key in JobSpec::keys() {
            let name = split(&key.path).1;
            assert!(keys().contains(&format!("\n  {name} ")), "{name}");
            assert!(document().contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
