//! `thalweg export`: a trained model for other runtimes.

use clap::Args;
use std::path::PathBuf;
use thalweg_cluster::durable::write_atomically;
use thalweg_core::schema::Shape;
use thalweg_core::{Error, Result, Schema};
use thalweg_graph::onnx::{Metadata, export};

/// What `export` takes.
///
/// The file takes rows as the data has them and answers as `predict` does: the scaling learned in training is part of it.
/// Tables come as [rows, columns] (categories as 0/1 columns), images as [rows, channels, height, width] with pixels from
/// 0 to 255, texts as [rows, window] numbers of characters. What the columns, classes and characters are is written into
/// the file's metadata.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The folder of a run, its model.safetensors, or a checkpoint (of a stopped run, the newest is taken)
    pub model: PathBuf,
    /// The ONNX file to write (default: model.onnx in the folder of the run)
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Replace a file that is there
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
        return Err(Error::job(format!("{} is there already", path.display()))
            .hint("choose another file, or replace it with --force"));
    }
    let saved = super::rows::model(&args.model)?;
    let (network, parameters) = saved.network()?;
    let bytes = export(&network, &parameters, &saved.schema, metadata(&saved.schema)?)?;
    write_atomically(&path, &bytes)?;
    for name in coarse(&saved.schema) {
        eprintln!(
            "warning: column `{name}`: the file takes single precision, which is too coarse for numbers that large; \
             `thalweg predict` takes them as they are"
        );
    }
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// Columns whose numbers lie so far from zero for their deviation that single precision loses what tells them apart.
fn coarse(schema: &Schema) -> Vec<String> {
    /// Deviations: a thousandth of one is lost beyond.
    const FAR: f64 = (1 << 14) as f64;
    let scaling = &schema.scaling;
    let far = |place: usize| (scaling.shift(place) * f64::from(scaling.factor(place))).abs() > FAR;
    let names = schema.names().into_iter().enumerate();
    names.filter(|(place, _)| far(*place)).map(|(_, name)| name).collect()
}

/// What numbers mean: columns in, classes out, characters of a text.
fn metadata(schema: &Schema) -> Result<Metadata> {
    let mut lists = Vec::new();
    match &schema.shape {
        Shape::Text { alphabet, .. } => {
            lists.push(("alphabet", alphabet.iter().map(char::to_string).collect()))
        }
        Shape::Table { .. } => lists.push(("columns", schema.names())),
        Shape::Image { .. } | Shape::Sparse { .. } => {}
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
