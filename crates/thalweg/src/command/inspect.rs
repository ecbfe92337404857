//! `thalweg inspect`: the structure of a model, the cost of a step, and its graph for Graphviz.

use super::{print, print_json};
use crate::cli::{JobArgs, JobFlags};
use crate::components::{SpecComponents, read_onnx, with_onnx_path};
use crate::preflight::as_job_error;
use crate::view::formatting::{bytes, count};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use thalweg_cluster::durable::write_atomically;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::describe::{LayerSummary, NetworkSummary, OperatorSummary};
use thalweg_graph::{Network, Options};
use thalweg_train::JobComponents;

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// A job file, the folder of a run, its model.safetensors, a checkpoint, or an ONNX file (default: the built-in
    /// job)
    #[arg(value_name = "MODEL|JOB")]
    pub what: Option<PathBuf>,
    /// Set any value of a job: --set model.zoo=mlp
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Rows of the batch for which memory is counted (default: one worker's share of a step)
    #[arg(long, value_name = "N")]
    pub rows: Option<usize>,
    /// Write the graph for Graphviz, - for standard output: `dot -Tsvg FILE`
    #[arg(long, value_name = "FILE")]
    pub dot: Option<PathBuf>,
    /// As JSON
    #[arg(long, conflicts_with = "dot")]
    pub json: bool,
}

/// Describes the model and prints.
pub fn run(args: &InspectArgs) -> Result<()> {
    let (network, job, ensemble) = load(args)?;
    match &args.dot {
        Some(path) if path.as_os_str() == "-" => return print(&network.dot()),
        Some(path) => return write_atomically(path, network.dot().as_bytes()),
        None => {}
    }
    let rows = args.rows.unwrap_or_else(|| job.train.global_batch.div_ceil(job.engine.workers));
    let description = network.describe(rows);
    if args.json {
        return print_json(&object(&description, rows, &ensemble));
    }
    print(&format!("{}{}", ensemble.listing(), listing(&description, rows)))
}

/// How many networks answer together, and how.
struct EnsembleSummary {
    members: usize,
    combine: Option<Combine>,
    combiner: Vec<f32>,
}

impl EnsembleSummary {
    const ALONE: EnsembleSummary = EnsembleSummary { members: 1, combine: None, combiner: Vec::new() };

    fn listing(&self) -> String {
        let (members, combiner) = (self.members, &self.combiner);
        match self.combine {
            Some(Combine::Stack) => format!(
                "each of {members} members of an ensemble, with the weights {:?} and the biases {:?}\n\n",
                &combiner[..members.min(combiner.len())],
                &combiner[members.min(combiner.len())..]
            ),
            _ if members > 1 => format!("each of {members} members of an ensemble\n\n"),
            _ => String::new(),
        }
    }
}

/// The network, its job, and how many of them answer together.
fn load(args: &InspectArgs) -> Result<(Network, JobSpec, EnsembleSummary)> {
    if let Some(path) = &args.what
        && (path.is_dir() || is_model(path))
    {
        let saved = super::rows::model(path)?;
        let members = saved.members();
        let together = EnsembleSummary { members, combine: saved.combine, combiner: saved.combiner.clone() };
        return Ok((saved.network()?.0, saved.job()?, together));
    }
    if let Some(path) = &args.what
        && path.extension().is_some_and(|ending| ending == "onnx")
    {
        let job = JobSpec::default();
        let network = read_onnx(path)?.standalone_network(Options::of(&job));
        return Ok((network.map_err(|error| with_onnx_path(path, error))?, job, EnsembleSummary::ALONE));
    }
    let job =
        JobArgs { job: args.what.clone(), flags: JobFlags { set: args.set.clone(), ..JobFlags::default() } };
    let job = job.resolve()?.spec;
    let components = SpecComponents::new(&job);
    let data = components.data(&job).map_err(as_job_error)?;
    Ok((components.network(&data.schema)?, job, EnsembleSummary::ALONE))
}

fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "safetensors")
        || (path.is_file() && TensorFile::is_tensor_file(path).unwrap_or(false))
}

/// The description as JSON.
fn object(description: &NetworkSummary, rows: usize, together: &EnsembleSummary) -> Value {
    let layer = |line: &LayerSummary| json!({ "layer": line.layer, "input": line.input, "output": line.output, "parameters": line.parameters });
    let operator = |line: &OperatorSummary| json!({ "operator": line.operator, "shape": line.shape, "flops": line.flops, "completes": line.completes });
    json!({
        "layers": description.layers.iter().map(layer).collect::<Vec<_>>(),
        "loss": description.loss,
        "operators": description.operators.iter().map(operator).collect::<Vec<_>>(),
        "parameters": description.parameters,
        "flops_per_row": description.flops_per_row,
        "rows": rows,
        "members": together.members,
        "combine": together.combine.map(Combine::name),
        "combiner": together.combiner,
        "activation_bytes": description.activation_bytes,
        "peak_bytes": description.peak_bytes,
    })
}

/// The description as text.
fn listing(description: &NetworkSummary, rows: usize) -> String {
    let layers = description.layers.iter().flat_map(|line| {
        let shape = format!("{} -> {}", line.input, line.output);
        // A composite layer takes a line for each of its parts.
        let mut parts = line.layer.split(" | ");
        let first = parts.next().unwrap_or_default().to_string();
        let first = [first, shape, count(line.parameters as u64), String::new()];
        std::iter::once(first)
            .chain(parts.map(|part| [format!("  | {part}"), "".into(), "".into(), "".into()]))
    });
    let mut text = table(["layer", "shape of a row", "parameters", ""], layers);
    let _ = writeln!(text, "loss: {}\n", description.loss);
    let operators = description.operators.iter().map(|line| {
        let completes = line.completes.clone().unwrap_or_default();
        [line.operator.clone(), line.shape.clone(), flops(line.flops).trim_end().into(), completes]
    });
    text += &table(
        ["operator, in the order of a training pass", "result", "FLOP/row", "completes the gradient of"],
        operators,
    );
    let parameters = description.parameters as u64;
    let facts = [
        ("parameters", format!("{} ({})", count(parameters), bytes(4 * parameters))),
        (
            "training",
            format!("{}FLOP per row, {}FLOP per batch of {rows}", flops(description.flops_per_row), {
                flops(description.flops_per_row.saturating_mul(rows as u64))
            }),
        ),
        (
            "activations",
            format!("{} if each had memory of its own", bytes(description.activation_bytes as u64)),
        ),
        ("peak", format!("{} as planned, for {rows} rows", bytes(description.peak_bytes as u64))),
    ];
    text.push('\n');
    for (name, fact) in facts {
        let _ = writeln!(text, "{name:<12} {fact}");
    }
    text
}

/// A table with columns as wide as their content; the third one, numbers, is right-aligned.
fn table(head: [&str; 4], lines: impl Iterator<Item = [String; 4]>) -> String {
    let lines: Vec<[String; 4]> = std::iter::once(head.map(String::from)).chain(lines).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let [first, second, third] = [0, 1, 2].map(width);
    let line = |[name, shape, number, rest]: &[String; 4]| {
        let text = format!("{name:<first$}  {shape:<second$}  {number:>third$}  {rest}");
        text.trim_end().to_string() + "\n"
    };
    lines.iter().map(line).collect()
}

/// `12.3 M`.
fn flops(number: u64) -> String {
    const UNITS: [&str; 5] = [" ", " k", " M", " G", " T"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} ") } else { format!("{value:.1}{}", UNITS[unit]) }
}
