//! `thalweg init`: writes a commented job for the user's data.

mod budget;
mod job;
mod job_file;
mod listing;

use crate::preflight::as_job_error;
use clap::Args;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_cluster::durable::write_atomically;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::{JobLayers, Origin};
use thalweg_core::{Error, Result};
use thalweg_data::sniff::{Form, Sniffed, sniff};
use thalweg_train::registry;

/// Time after which a scan shows its progress.
const QUIET: Duration = Duration::from_secs(1);

/// Arguments of `init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// The data: a file, a folder or a pattern, as in `data.source`
    pub data: String,
    /// The column to predict, by name or number (-1 is the last)
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub label: Option<String>,
    /// What is learned: classification or regression
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    /// Set any value of the job: --set train.epochs=5
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// The job file to write (default: the data's name with .toml, here); - for standard output
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace an existing job file
    #[arg(long)]
    pub force: bool,
    /// Print the findings as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Scans the data and writes the job.
pub fn run(args: &InitArgs) -> Result<()> {
    if args.json && args.out.as_deref() == Some(Path::new("-")) {
        return Err(Error::job("--json and --out - both take standard output")
            .hint("name a file for the job with --out"));
    }
    let layers = layers(args)?;
    let spec = registry::resolve(layers.clone())?.spec.data;
    let sniffed = scan(&spec).map_err(as_job_error)?;
    check(&args.data, &sniffed)?;
    let path = match &args.out {
        Some(path) => path.clone(),
        None => free_path(&args.data, args.force),
    };
    let text = job::job(&spec, &sniffed, &layers, path.parent())?;
    if path.as_os_str() == "-" {
        return super::print(&text);
    }
    if path.exists() && !args.force {
        return Err(Error::job(format!("{} exists already", path.display()))
            .hint("choose another file with --out, or replace it with --force"));
    }
    write_atomically(&path, text.as_bytes())?;
    if args.json {
        return super::print_json(&listing::object(&sniffed, &path));
    }
    let shown = path.display();
    eprintln!("{}", listing::listing(&args.data, &sniffed));
    eprintln!("\nwrote {shown}; review it, then\n  thalweg train {shown}");
    Ok(())
}

/// The job settings of the flags.
fn layers(args: &InitArgs) -> Result<JobLayers> {
    let mut layers = JobLayers::default();
    for assignment in &args.set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    layers.set("data.source", args.data.clone().into(), Origin::Flag(args.data.clone()));
    if let Some(label) = &args.label {
        let value = label.parse::<i64>().map_or_else(|_| label.clone().into(), toml::Value::Integer);
        layers.set("data.label", value, Origin::Flag(format!("--label {label}")));
    }
    if let Some(task) = &args.task {
        layers.set("data.task", task.clone().into(), Origin::Flag(format!("--task {task}")));
    }
    Ok(layers)
}

/// Scans all rows; on a terminal, a scan that takes long shows its progress.
fn scan(spec: &DataSpec) -> Result<Sniffed> {
    let (start, terminal) = (Instant::now(), std::io::stderr().is_terminal());
    let mut shown = Duration::ZERO;
    let sniffed = sniff(spec, &mut |done, total| {
        let elapsed = start.elapsed();
        if terminal && elapsed > QUIET && elapsed - shown > QUIET / 5 {
            shown = elapsed;
            eprint!("\rreading {}: {} %", spec.source, done * 100 / total.max(1));
        }
    });
    if !shown.is_zero() {
        eprintln!();
    }
    sniffed
}

/// Refuses a table without a feature column.
fn check(data: &str, sniffed: &Sniffed) -> Result<()> {
    let Form::Table(table) = &sniffed.form else { return Ok(()) };
    let kept = |index: usize| index != table.label && table.columns[index].ignore.is_none();
    if (0..table.columns.len()).any(kept) {
        return Ok(());
    }
    let name = &table.columns[table.label].name;
    let left_out = |column: &thalweg_data::sniff::SniffedColumn| {
        column.ignore.as_ref().map(|why| format!("; `{}` is left out: {why}", column.name))
    };
    let why: Vec<String> = table.columns.iter().filter_map(left_out).collect();
    Err(Error::data(format!("{data}: there is no column to learn from besides `{name}`{}", why.concat()))
        .hint("a model learns from numbers and categories: turn dates and texts into such columns first"))
}

/// The data's name with `.toml` for its extension; appended to it if the short name is taken by the job of other data.
fn free_path(data: &str, force: bool) -> PathBuf {
    let name = data.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain = |text: &str| {
        let kept: String =
            text.trim_start_matches("builtin:").chars().filter(|c| !"*?[]".contains(*c)).collect();
        let kept = kept.trim_matches(['.', '-', '_']);
        PathBuf::from(format!("{}.toml", if kept.is_empty() { "job" } else { kept }))
    };
    let short = plain(thalweg_data::stem(name));
    if force || !is_job_of_other_data(&short, data) { short } else { plain(name) }
}

fn is_job_of_other_data(path: &Path, data: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(path) else { return false };
    let mut layers = JobLayers::default();
    layers.add_file("", &text).is_ok()
        && layers
            .get("data.source")
            .and_then(|(source, _)| source.as_str())
            .is_some_and(|source| source != data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_after_its_data() {
        let name = |data: &str| free_path(data, true).display().to_string();
        assert_eq!(name("/data/higgs.train.tsv.gz"), "higgs.train.toml");
        assert_eq!(name("iris.csv"), "iris.toml");
        assert_eq!(name("part-*.csv"), "part.toml");
        assert_eq!(name("mnist/"), "mnist.toml");
        assert_eq!(name("builtin:digits"), "digits.toml");
        assert_eq!(name("*.csv"), "job.toml");
    }
}
