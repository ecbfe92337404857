//! `thalweg export`: writes a trained model as an ONNX file.

use clap::Args;
use std::path::PathBuf;
use thalweg_cluster::durable::write_atomically;
use thalweg_core::schema::RowShape;
use thalweg_core::{Error, Result, Schema};
use thalweg_graph::onnx::{Metadata, export, export_ensemble};

/// Arguments of `export`.
///
/// The ONNX model takes unscaled rows and returns what `predict` prints: the scaling learned in training is part of it.
/// Input of tables is [rows, columns] (categories as 0/1 columns), of images [rows, channels, height, width] with
/// pixels from 0 to 255, of texts [rows, window] indices of characters. The file's metadata lists the columns, classes
/// and characters.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The folder of a run, its model.safetensors, or a checkpoint (of a stopped run, the newest is taken)
    pub model: PathBuf,
    /// The ONNX file to write (default: model.onnx in the folder of the run)
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

/// Reads the model and writes the file.
pub fn run(args: &ExportArgs) -> Result<()> {
    let path = args.file.clone().unwrap_or_else(|| {
        let folder = if args.model.is_dir() { Some(args.model.as_path()) } else { args.model.parent() };
        folder.map(PathBuf::from).unwrap_or_default().join("model.onnx")
    });
    if path.exists() && !args.force {
        return Err(Error::job(format!("{} exists already", path.display()))
            .hint("choose another file, or replace it with --force"));
    }
    let saved = super::rows::model(&args.model)?;
    let (network, parameters) = saved.network()?;
    let metadata = metadata(&saved.schema)?;
    let bytes = match saved.combine {
        Some(combine) => export_ensemble(&network, &parameters, combine, &saved.schema, metadata)?,
        None => export(&network, &parameters, &saved.schema, metadata)?,
    };
    write_atomically(&path, &bytes)?;
    for name in imprecise_columns(&saved.schema) {
        eprintln!(
            "warning: column `{name}`: the ONNX input is single precision, which is too coarse for numbers that large; \
             `thalweg predict` reads them in double precision"
        );
    }
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// Columns whose values are so far from zero, relative to their deviation, that single precision loses their
/// differences.
fn imprecise_columns(schema: &Schema) -> Vec<String> {
    /// In standard deviations: beyond it, a thousandth of one is lost.
    const FAR: f64 = (1 << 14) as f64;
    let scaling = &schema.scaling;
    let far = |index: usize| (scaling.shift(index) * f64::from(scaling.factor(index))).abs() > FAR;
    let names = schema.names().into_iter().enumerate();
    names.filter(|(index, _)| far(*index)).map(|(_, name)| name).collect()
}

/// Names of the columns and classes, or the characters of a text model.
fn metadata(schema: &Schema) -> Result<Metadata> {
    let mut lists = Vec::new();
    match &schema.shape {
        RowShape::Text { alphabet, .. } => {
            lists.push(("alphabet", alphabet.iter().map(char::to_string).collect()))
        }
        RowShape::Table { .. } => lists.push(("columns", schema.names())),
        RowShape::Image { .. } | RowShape::Sparse { .. } => {}
    }
    if !schema.classes.is_empty() && !schema.reconstruct {
        lists.push(("classes", schema.classes.clone()));
    }
    let json = |list: &Vec<String>| {
        serde_json::to_string(list)
            .map_err(|error| Error::internal(format!("cannot be written as JSON: {error}")))
    };
    lists.iter().map(|(key, list)| Ok((key.to_string(), json(list)?))).collect()
}
