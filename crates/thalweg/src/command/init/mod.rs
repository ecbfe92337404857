//! `thalweg init`: a commented job for a data file of one's own.

mod budget;
mod job;
mod job_file;
mod listing;

use crate::preflight::nothing_started;
use clap::Args;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_cluster::durable::write_atomically;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::{Job, Layers, Origin};
use thalweg_core::{Error, Result};
use thalweg_data::sniff::{Form, Sniffed, sniff};

/// How long a look may take before its progress is shown.
const SILENT: Duration = Duration::from_secs(1);

/// What `init` takes.
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
    /// Where the job goes (default: the data's name with .toml, here); - for standard output
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace a job file that is there
    #[arg(long)]
    pub force: bool,
    /// Print what was seen as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Looks at the data and writes the job.
pub fn run(args: &InitArgs) -> Result<()> {
    if args.json && args.out.as_deref() == Some(Path::new("-")) {
        return Err(Error::job("--json and --out - both take standard output")
            .hint("name a file for the job with --out"));
    }
    let layers = layers(args)?;
    let spec = Job::resolve(layers.clone())?.spec.data;
    let sniffed = look(&spec).map_err(nothing_started)?;
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
        return Err(Error::job(format!("{} is there already", path.display()))
            .hint("choose another file with --out, or replace it with --force"));
    }
    write_atomically(&path, text.as_bytes())?;
    if args.json {
        return super::print_json(&listing::object(&sniffed, &path));
    }
    let shown = path.display();
    eprintln!("{}", listing::listing(&args.data, &sniffed));
    eprintln!("\nwrote {shown}; look it over, then\n  thalweg train {shown}");
    Ok(())
}

/// What the flags say about the job.
fn layers(args: &InitArgs) -> Result<Layers> {
    let mut layers = Layers::default();
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

/// Looks at all rows; on a terminal, a look that takes long shows how far it is.
fn look(spec: &DataSpec) -> Result<Sniffed> {
    let (start, terminal) = (Instant::now(), std::io::stderr().is_terminal());
    let mut shown = Duration::ZERO;
    let sniffed = sniff(spec, &mut |done, total| {
        let elapsed = start.elapsed();
        if terminal && elapsed > SILENT && elapsed - shown > SILENT / 5 {
            shown = elapsed;
            eprint!("\rreading {}: {} %", spec.source, done * 100 / total.max(1));
        }
    });
    if !shown.is_zero() {
        eprintln!();
    }
    sniffed
}

/// Without a column to learn from there is no job to write.
fn check(data: &str, sniffed: &Sniffed) -> Result<()> {
    let Form::Table(table) = &sniffed.form else { return Ok(()) };
    let kept = |place: usize| place != table.label && table.columns[place].ignore.is_none();
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

/// The data's name with `.toml`; if that is the job of other data, the whole name with its ending before that.
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
    let mut layers = Layers::default();
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
