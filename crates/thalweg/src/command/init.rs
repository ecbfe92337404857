//! `thalweg init`: a commented job for a data file of one's own.

use crate::preflight::nothing_started;
use clap::Args;
use std::fmt::Write as _;
use std::path::PathBuf;
use thalweg_cluster::durable::write_atomically;
use thalweg_core::schema::Shape;
use thalweg_core::spec::JobSpec;
use thalweg_core::{Error, Result, Task};
use thalweg_data::sniff::{Form, Sniffed, SniffedColumn, sniff};

/// What `init` takes.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// The data: a file, a folder or a pattern, as in `data.source`
    pub data: String,
    /// Where the job goes (default: the data's name with .toml, here); - for standard output
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace a job file that is there
    #[arg(long)]
    pub force: bool,
}

/// Looks at the data and writes the job.
pub fn run(args: &InitArgs) -> Result<()> {
    let sniffed = sniff(&args.data).map_err(nothing_started)?;
    check(&args.data, &sniffed)?;
    let text = job(&args.data, &sniffed);
    let path = args.out.clone().unwrap_or_else(|| default_path(&args.data));
    if path.as_os_str() == "-" {
        return super::print(&text);
    }
    if path.exists() && !args.force {
        return Err(Error::job(format!("{} is there already", path.display()))
            .hint("choose another file with --out, or replace it with --force"));
    }
    write_atomically(&path, text.as_bytes())?;
    let shown = path.display();
    eprintln!("{}", first_look(&args.data, &sniffed));
    eprintln!("\nwrote {shown}; look it over, then\n  thalweg train {shown}");
    Ok(())
}

/// Without a column to learn from there is no job to write.
fn check(data: &str, sniffed: &Sniffed) -> Result<()> {
    let Form::Table { columns, label, .. } = &sniffed.form else { return Ok(()) };
    if columns.iter().enumerate().any(|(place, column)| place != *label && column.ignore.is_none()) {
        return Ok(());
    }
    let name = &columns[*label].name;
    let why: Vec<String> = columns
        .iter()
        .filter_map(|column| column.ignore.map(|why| format!("; `{}` is left out: {why}", column.name)))
        .collect();
    Err(Error::data(format!("{data}: there is no column to learn from besides `{name}`{}", why.concat()))
        .hint("a model learns from numbers and categories: turn dates and texts into such columns first"))
}

fn default_path(data: &str) -> PathBuf {
    let name = data.trim_end_matches('/').rsplit('/').next().unwrap_or("job");
    let stem = name.trim_start_matches("builtin:").split('.').next().unwrap_or("job").replace(['*', '?'], "");
    PathBuf::from(format!("{}.toml", if stem.is_empty() { "job" } else { &stem }))
}

/// What was seen, for the terminal.
fn first_look(data: &str, sniffed: &Sniffed) -> String {
    let rows = format!("{}{} rows", if sniffed.rows_exact { "" } else { "about " }, sniffed.rows);
    match &sniffed.form {
        Form::Table { columns, label, .. } => {
            let mut text = format!("{data}: {rows}, {} columns", columns.len());
            for (place, column) in columns.iter().enumerate() {
                let _ = write!(text, "\n  {}", describe(column, place == *label));
            }
            let classes = columns[*label].distinct;
            match sniffed.task {
                Task::Classification => _ = write!(text, "\na classification with {classes} classes"),
                Task::Regression => text += "\na regression",
            }
            text
        }
        Form::Other(schema) if is_text(sniffed) => {
            format!("{data}: a text of about {} characters, {} different", sniffed.rows, schema.classes.len())
        }
        Form::Other(schema) => {
            format!("{data}: {rows} of {} numbers, {} classes", schema.width(), schema.classes.len())
        }
    }
}

fn describe(column: &SniffedColumn, is_label: bool) -> String {
    let kind = if column.numeric { "numbers" } else { "categories" };
    let mut text = format!("{:<16} {kind}, {} different", column.name, column.distinct);
    if column.missing > 0 {
        let _ = write!(text, ", {} missing", column.missing);
    }
    let _ = write!(text, ", such as {}", column.examples.join(", "));
    if is_label {
        text += "  <- what is predicted";
    } else if let Some(why) = column.ignore {
        let _ = write!(text, "  <- left out: {why}");
    }
    text
}

/// A batch and a number of epochs that make some two thousand steps: enough to see whether the data can be learned.
fn steps_for(rows: u64) -> (u64, u64) {
    let batch = match rows {
        0..500 => 16,
        500..2_000 => 32,
        2_000..20_000 => 64,
        _ => 256,
    };
    (batch, (2_000 * batch / rows.max(1)).clamp(5, 200))
}

/// Whether it is a text, to be learned character by character.
fn is_text(sniffed: &Sniffed) -> bool {
    matches!(&sniffed.form, Form::Other(schema) if matches!(schema.shape, Shape::Text { .. }))
}

/// The job file for a text.
fn text_job(data: &str, defaults: &JobSpec) -> String {
    format!(
        "# A job for thalweg. Every key: thalweg config --keys\n\n\
         [data]\nsource = {}\nwindow = 64        # characters it looks back\n\
         validation = 0.02  # the end of the text\n\n\
         [model]\nzoo = \"char-lstm\"  # or gpt-mini\n\n\
         [train]\nglobal_batch = 64  # rows of one step, over all workers\n\
         epochs = 1         # every place of the text is a row\nmax_steps = 1500\nseed = {}\n\
         optimizer = {{ kind = \"adam\", lr = 4e-3 }}\n\
         schedule = {{ kind = \"cosine\", warmup_steps = 100 }}\nclip = {{ norm = 1.0 }}\n\n\
         [strategy]\npreset = \"allreduce\"  # see: thalweg strategies\n\n[engine]\nworkers = {}\n",
        toml::Value::String(data.into()),
        defaults.train.seed,
        defaults.engine.workers
    )
}

/// The job file.
fn job(data: &str, sniffed: &Sniffed) -> String {
    let defaults = JobSpec::default();
    if is_text(sniffed) {
        return text_job(data, &defaults);
    }
    let quote = |text: &str| toml::Value::String(text.into()).to_string();
    let mut text = String::from("# A job for thalweg. Every key: thalweg config --keys\n\n[data]\n");
    let _ = writeln!(text, "source = {}", quote(data));
    if let Form::Table { columns, label, delimiter, header } = &sniffed.form {
        let target = &columns[*label];
        text += "# What is predicted. The columns seen:\n";
        for (place, column) in columns.iter().enumerate() {
            let _ = writeln!(text, "#   {}", describe(column, place == *label).replace('\n', " "));
        }
        match header {
            true => _ = writeln!(text, "label = {}", quote(&target.name)),
            false => _ = writeln!(text, "label = {label}  # counted from 0: the file has no header"),
        }
        let ignored: Vec<String> = columns
            .iter()
            .filter(|column| column.ignore.is_some())
            .map(|column| quote(&column.name))
            .collect();
        if !ignored.is_empty() {
            let _ = writeln!(text, "ignore = [{}]  # see above for the reasons", ignored.join(", "));
        }
        if columns.iter().any(|column| column.missing > 0 && column.ignore.is_none()) {
            text += "missing = \"mean\"  # some values are missing; \"error\" refuses them\n";
        }
        if let Some(delimiter) = delimiter {
            let _ = writeln!(text, "# delimiter = \"auto\"  # seen: {delimiter}");
        }
    }
    let task = if sniffed.task == Task::Classification { "classification" } else { "regression" };
    let amount = matches!(&sniffed.form, Form::Table { columns, label, .. } if columns[*label].numeric);
    let doubt =
        if amount && task == "classification" { "  # or \"regression\", if it is an amount" } else { "" };
    let _ = writeln!(text, "task = \"{task}\"{doubt}");
    text += "# validation = 0.2  # the share of rows kept for validation, or another file\n";
    text += "# scale = \"auto\"  # none, minmax, standard\n";
    text += "\n[model]\n# auto: as many outputs as the data asks for\nlayers = [\"dense 128 relu\", \"dense auto\"]\n";
    let (batch, epochs) = steps_for(sniffed.rows);
    let _ = write!(
        text,
        "\n[train]\nglobal_batch = {batch}  # rows of one step, over all workers\nepochs = {epochs}\nseed = {}\n\
         optimizer = {{ kind = \"adam\", lr = 1e-3 }}\n",
        defaults.train.seed
    );
    text += "\n[strategy]\npreset = \"allreduce\"  # see: thalweg strategies\n";
    let _ = write!(text, "\n[engine]\nworkers = {}\n", defaults.engine.workers);
    text
}
