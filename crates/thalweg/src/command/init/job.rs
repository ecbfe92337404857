//! The job proposed for the scanned data.

use super::budget::Budget;
use super::job_file::JobFile;
use super::listing::describe;
use std::path::Path;
use thalweg_core::schema::RowShape;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::paths::{is_path, within};
use thalweg_core::spec::{JobLayers, JobSpec};
use thalweg_core::{Error, Result, Task};
use thalweg_data::sniff::{Form, Sniffed, TableForm};
use thalweg_train::registry;
use toml::Value;

/// Keys that the scan has applied already: the job contains its findings.
const READ_BY_SNIFF: [&str; 5] =
    ["data.source", "data.label", "data.task", "data.ignore", "data.categorical"];

/// The text of the job; values in `asked` take precedence.
pub(super) fn job(
    spec: &DataSpec,
    sniffed: &Sniffed,
    asked: &JobLayers,
    folder: Option<&Path>,
) -> Result<String> {
    let mut file = JobFile::new(&["data", "model", "train", "strategy", "engine"]);
    file.add("data", "source", relative_to(folder, "data.source", &spec.source.clone().into()), None);
    match &sniffed.form {
        Form::Other(schema) if matches!(schema.shape, RowShape::Text { .. }) => text_job(&mut file),
        form => {
            if let Form::Table(table) = form {
                add_columns(&mut file, table);
            }
            add_task(&mut file, sniffed);
            add_model(&mut file, sniffed);
        }
    }
    let defaults = JobSpec::default();
    file.add("strategy", "preset", "allreduce", Some("see: thalweg strategies"));
    file.add("engine", "workers", defaults.engine.workers as i64, None);
    for (path, value, _) in asked.iter().filter(|(path, ..)| !READ_BY_SNIFF.contains(path)) {
        if matches!(path, "model.zoo" | "model.onnx") {
            file.remove("model", "layers");
        }
        file.set(path, &relative_to(folder, path, value));
    }
    let text = file.text();
    let mut layers = JobLayers::default();
    layers.add_file("the job", &text).map_err(Error::job)?;
    registry::resolve(layers)?;
    Ok(text)
}

/// A value for the job file: paths are relative to its folder.
fn relative_to(folder: Option<&Path>, key: &str, value: &Value) -> Value {
    let folder = folder.filter(|folder| !matches!(folder.to_str(), Some("" | ".")));
    let (Some(folder), Some(path)) = (folder, value.as_str().filter(|_| is_path(key, value))) else {
        return value.clone();
    };
    match Path::new(path).strip_prefix(folder).ok().and_then(Path::to_str) {
        Some(inside) => inside.into(),
        None => std::env::current_dir().map_or_else(|_| path.into(), |here| within(&here, path).into()),
    }
}

fn add_columns(file: &mut JobFile, table: &TableForm) {
    let TableForm { columns, label, why, delimiter, header } = table;
    file.comment("data", "What is predicted. The columns seen:");
    for (index, column) in columns.iter().enumerate() {
        file.comment("data", format!("  {}", describe(column, index == *label)));
    }
    let why = format!("{why}{}", if *header { "" } else { "; counted from 0: the file has no header" });
    match header {
        true => file.add("data", "label", columns[*label].name.as_str(), Some(&why)),
        false => file.add("data", "label", *label as i64, Some(&why)),
    }
    let named = |keep: &dyn Fn(usize) -> bool| -> Vec<String> {
        (0..columns.len()).filter(|&index| keep(index)).map(|index| columns[index].name.clone()).collect()
    };
    let ignored = named(&|index| columns[index].ignore.is_some());
    if !ignored.is_empty() {
        file.add("data", "ignore", ignored, Some("see above for the reasons"));
    }
    let declared = named(&|index| columns[index].declare && columns[index].ignore.is_none());
    if !declared.is_empty() {
        file.add("data", "categorical", declared, None);
    }
    let kept = |index: usize| index != *label && columns[index].ignore.is_none();
    if (0..columns.len()).any(|index| kept(index) && columns[index].missing > 0) {
        file.add("data", "missing", "mean", Some("some values are missing; \"error\" refuses them"));
    }
    if let Some(delimiter) = delimiter {
        file.comment("data", format!("delimiter = \"auto\"  # seen: {delimiter}"));
    }
}

fn add_task(file: &mut JobFile, sniffed: &Sniffed) {
    let classes = sniffed.task == Task::Classification;
    let amount = matches!(&sniffed.form, Form::Table(table) if table.columns[table.label].numeric);
    let doubt = (amount && classes).then_some("or \"regression\", if it is an amount");
    file.add("data", "task", if classes { "classification" } else { "regression" }, doubt);
    file.comment("data", "validation = 0.2  # the share of rows kept for validation, or another file");
    file.comment("data", "scale = \"auto\"  # none, minmax, standard");
}

fn add_model(file: &mut JobFile, sniffed: &Sniffed) {
    let Budget { layers, why, batch, epochs, rate } = Budget::of(sniffed);
    if let Some(why) = why {
        file.comment("model", why);
    }
    file.comment("model", "auto: as many outputs as the data asks for");
    file.add("model", "layers", layers, None);
    file.add("train", "global_batch", batch as i64, Some("rows of one step, over all workers"));
    file.add("train", "epochs", epochs as i64, None);
    file.add("train", "seed", JobSpec::default().train.seed as i64, None);
    file.add("train", "optimizer", optimizer(rate), None);
    file.add(
        "train",
        "schedule",
        toml::Table::from_iter([("kind".into(), "cosine".into())]),
        Some("the rate falls to 0 at the end"),
    );
}

fn optimizer(rate: f64) -> toml::Table {
    toml::Table::from_iter([("kind".into(), "adam".into()), ("lr".into(), rate.into())])
}

/// A character-level language model.
fn text_job(file: &mut JobFile) {
    file.add("data", "window", 64, Some("characters of context"));
    file.add("data", "validation", 0.02, Some("the end of the text"));
    file.add("model", "zoo", "char-lstm", Some("or gpt-mini"));
    file.add("train", "global_batch", 64, Some("rows of one step, over all workers"));
    file.add("train", "epochs", 1, Some("every position of the text is a row"));
    file.add("train", "max_steps", 1500, None);
    file.add("train", "seed", JobSpec::default().train.seed as i64, None);
    file.add("train", "optimizer", optimizer(4e-3), None);
    let schedule = [("kind".into(), "cosine".into()), ("warmup_steps".into(), 100.into())];
    file.add("train", "schedule", toml::Table::from_iter(schedule), None);
    file.add("train", "clip", toml::Table::from_iter([("norm".into(), 1.0.into())]), None);
}
