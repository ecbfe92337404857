//! Findings of the data scan, as text and as JSON.

use crate::view::formatting::{count, counted};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use thalweg_core::Task;
use thalweg_core::schema::{RowShape, Schema};
use thalweg_data::sniff::{Form, Sniffed, SniffedColumn, TableForm};

/// The findings as text.
pub(super) fn listing(data: &str, sniffed: &Sniffed) -> String {
    let rows = counted(sniffed.rows, "row");
    match &sniffed.form {
        Form::Table(table) => {
            let TableForm { columns, label, why, .. } = table;
            let mut text = format!("{data}: {rows}, {}", counted(columns.len() as u64, "column"));
            for (index, column) in columns.iter().enumerate() {
                let _ = write!(text, "\n  {}", describe(column, index == *label));
            }
            let target = &columns[*label];
            let _ = write!(text, "\nthe label is `{}` ({why}; another one: --label)", target.name);
            match sniffed.task {
                Task::Classification => {
                    _ = write!(text, "\na classification with {} classes", different(target))
                }
                Task::Regression => text += "\na regression",
            }
            text
        }
        Form::Other(schema) => format!("{data}: {}", described(schema, sniffed.rows)),
    }
}

/// Data other than tables.
fn described(schema: &Schema, rows: u64) -> String {
    match &schema.shape {
        RowShape::Text { alphabet, .. } => {
            format!(
                "a text of about {}, {} different",
                counted(rows, "character"),
                count(alphabet.len() as u64)
            )
        }
        shape => {
            let numbers = match shape {
                RowShape::Sparse { columns, .. } => format!("{} sparse columns", count(*columns as u64)),
                _ => counted(schema.width() as u64, "number"),
            };
            let task = match schema.task {
                Task::Classification => format!("{} classes", schema.classes.len()),
                Task::Regression => "a number to predict".into(),
            };
            format!("{} of {numbers}, {task}", counted(rows, "row"))
        }
    }
}

/// One column, in one line.
pub(super) fn describe(column: &SniffedColumn, is_label: bool) -> String {
    let kind = if column.numeric { "numbers" } else { "categories" };
    let mut text = format!("{:<16} {kind}, {} different", column.name, different(column));
    if column.missing > 0 {
        let _ = write!(text, ", {} missing", count(column.missing));
        if !column.missing_words.is_empty() {
            let _ = write!(text, " (spelled {})", column.missing_words.join(", "));
        }
    }
    if !column.examples.is_empty() {
        let _ = write!(text, ", such as {}", column.examples.join(", "));
    }
    if is_label {
        text += "  <- what is predicted";
    } else if let Some(why) = &column.ignore {
        let _ = write!(text, "  <- left out: {why}");
    }
    if let (Some(doubt), None) = (&column.doubt, &column.ignore) {
        let _ = write!(text, "  <- check: {doubt}");
    }
    text
}

fn different(column: &SniffedColumn) -> String {
    format!("{}{}", if column.more { "more than " } else { "" }, count(column.distinct as u64))
}

/// The findings as JSON.
pub(super) fn object(sniffed: &Sniffed, path: &Path) -> Value {
    let task = if sniffed.task == Task::Classification { "classification" } else { "regression" };
    let mut object = json!({ "rows": sniffed.rows, "task": task, "job": path.display().to_string() });
    match &sniffed.form {
        Form::Table(table) => {
            let TableForm { columns, label, why, delimiter, header } = table;
            object["label"] = json!({ "name": columns[*label].name, "place": label, "why": why });
            object["delimiter"] = json!(delimiter);
            object["header"] = json!(header);
            object["columns"] = columns.iter().map(column_object).collect();
        }
        Form::Other(schema) => {
            object["width"] = json!(schema.width());
            object["classes"] = json!(schema.classes.len());
        }
    }
    object
}

fn column_object(column: &SniffedColumn) -> Value {
    json!({
        "name": column.name,
        "kind": if column.numeric { "numbers" } else { "categories" },
        "different": column.distinct,
        "more": column.more,
        "missing": column.missing,
        "examples": column.examples,
        "ignore": column.ignore,
        "doubt": column.doubt,
    })
}
