//! Imports an ONNX file as a trainable network: initializers become initial parameters or running statistics.
//!
//! Nodes are translated one by one, in the file's order. Shapes that the file computes at run time are constant-folded
//! ([`fold`]); axes are permuted without moving memory ([`view`]); a pattern of several nodes (attention, GELU,
//! normalisation) is kept as an intermediate [`value`] until its last node completes it. All nodes that cannot be
//! translated are collected into one error.

mod arithmetic;
mod attention;
mod attributes;
mod constant;
mod file_type;
mod fold;
mod graph_input;
mod images;
mod importer;
mod layout;
mod products;
mod recurrent;
mod reductions;
mod sampling;
mod shapes;
mod slicing;
mod value;
mod view;
mod weights;

use super::proto::{self, ModelProto};
use super::scaling::{EmbeddedScaling, MEMBERS};
use crate::input::Input;
use crate::loss::Loss;
use crate::network::{Network, Options};
use constant::ConstantTensor;
pub use importer::operators;
use importer::{Importer, Translation};
use prost::Message;
use std::collections::HashSet;
use thalweg_core::{Error, Result, Schema, Task};

/// Operators of older sets have other semantics.
const OLDEST: i64 = 9;
/// The newest set whose operators and attributes have been checked.
const NEWEST: i64 = 28;

/// Hint for a file whose scaling metadata was modified.
const UNSCALED: &str = "export it again, or set data.scale = \"none\": the graph then scales the rows itself";

/// A decoded and checked ONNX file, not yet bound to any data.
#[derive(Clone, Debug)]
pub struct OnnxModel {
    model: ModelProto,
    /// Whether initializers may lack data: a model file stores the weights separately.
    weights_optional: bool,
}

impl OnnxModel {
    pub fn read(bytes: &[u8]) -> Result<OnnxModel> {
        OnnxModel::decode(bytes, false)
    }

    /// Reads the output of [`OnnxModel::structure`].
    pub fn read_structure(bytes: &[u8]) -> Result<OnnxModel> {
        OnnxModel::decode(bytes, true)
    }

    fn decode(bytes: &[u8], weights_optional: bool) -> Result<OnnxModel> {
        let invalid = |reason: String| {
            let what = match file_type::detect(bytes) {
                Some("empty") => "the file is empty".into(),
                Some(what) => format!("not an ONNX file, but {what}"),
                None => format!("not an ONNX file, or damaged: {reason}"),
            };
            job_error(what).hint("name a file that torch.onnx.export or another exporter wrote")
        };
        let model = ModelProto::decode(bytes).map_err(|_| invalid("it cannot be decoded".into()))?;
        let graph = model.graph.as_ref().ok_or_else(|| invalid("it has no graph".into()))?;
        if graph.node.is_empty() || graph.output.is_empty() {
            return Err(invalid("its graph has no nodes or no output".into()));
        }
        let onnx = model.opset_import.iter().find(|set| is_onnx_domain(&set.domain));
        let version = onnx.map_or(0, |set| set.version);
        if version < OLDEST {
            return Err(job_error(format!("operator set {version} is too old"))
                .hint(format!("export it with opset_version {OLDEST} or later; 17 is a good choice")));
        }
        if version > NEWEST {
            return Err(job_error(format!(
                "operator set {version} is newer than the newest supported, {NEWEST}"
            ))
            .hint(format!("export it with opset_version {NEWEST} or earlier; 17 is a good choice")));
        }
        if let Some(members) = model.metadata_props.iter().find(|property| property.key == MEMBERS) {
            return Err(job_error(format!("it is an ensemble of {} models, not a network", members.value))
                .hint("train the members again by their own job; the ensemble is for prediction"));
        }
        let mut names = HashSet::new();
        for tensor in &graph.initializer {
            let named = |reason: String| job_error(format!("initializer `{}`: {reason}", tensor.name));
            ConstantTensor::read(tensor, weights_optional).map_err(named)?;
            if !names.insert(tensor.name.as_str()) {
                return Err(named("the name is used twice".into()));
            }
        }
        Ok(OnnxModel { model, weights_optional })
    }

    /// The scaling in the file's metadata; `None` if another tool exported it.
    pub fn embedded_scaling(&self) -> Result<Option<EmbeddedScaling>> {
        EmbeddedScaling::read(&self.model).map_err(|reason| job_error(reason).hint(UNSCALED))
    }

    /// Whether the file was written by an early `thalweg export`, which scaled rows without metadata about it.
    pub fn has_undeclared_scaling(&self) -> Result<bool> {
        let reads_floats = self.model.graph.as_ref().is_some_and(|graph| {
            let first = graph.input.first().and_then(|input| input.r#type.as_ref()?.tensor_type.as_ref());
            first.is_some_and(|kind| kind.elem_type == proto::data_type::FLOAT)
        });
        Ok(self.model.producer_name == "thalweg" && reads_floats && self.embedded_scaling()?.is_none())
    }

    /// The same model for rows that are already scaled.
    pub fn without_scaling(mut self, embedded: &EmbeddedScaling) -> Result<OnnxModel> {
        embedded.remove(&mut self.model).map_err(|reason| job_error(reason).hint(UNSCALED))?;
        Ok(self)
    }

    pub fn for_schema(&self, schema: &Schema, options: Options) -> Result<Network> {
        let loss = if schema.reconstruct { Some(Loss::Reconstruction) } else { options.loss };
        let options = Options { loss, ..options };
        self.network(Input::of(schema), schema.outputs(), schema.task, options)
    }

    /// The network for rows of shape `input` and a task that needs `outputs` values per row.
    pub fn network(&self, input: Input, outputs: usize, task: Task, options: Options) -> Result<Network> {
        let Translation { builder, output, name, summaries, .. } = self.translate(input, task, options)?;
        let named = |reason: String| job_error(format!("output `{name}`: {reason}"));
        let network = Network::finish(builder, output, summaries, task, options, &named)?;
        let hint = "export a model whose last layer has as many units as the data needs";
        network.check_outputs(outputs).map_err(|reason| named(reason).hint(hint))?;
        Ok(network)
    }

    /// The network as the file alone describes it: the file's own input shape, as a classification.
    pub fn standalone_network(&self, options: Options) -> Result<Network> {
        let Some(graph) = &self.model.graph else { return Err(Error::internal("a model without a graph")) };
        let input = graph_input::declared_input(graph).ok_or_else(|| {
            job_error("the file does not declare the shape of its input")
                .hint("inspect a job that names it instead")
        })?;
        let Translation { builder, output, name, summaries, .. } =
            self.translate(input, Task::Classification, options)?;
        let named = |reason: String| job_error(format!("output `{name}`: {reason}"));
        Network::finish(builder, output, summaries, Task::Classification, options, &named)
    }

    fn translate(&self, input: Input, task: Task, options: Options) -> Result<Translation> {
        let Some(graph) = &self.model.graph else { return Err(Error::internal("a model without a graph")) };
        let onnx = self.model.opset_import.iter().find(|set| is_onnx_domain(&set.domain));
        let version = onnx.map_or(0, |set| set.version);
        importer::check_operators(graph)?;
        let loss = options.loss.unwrap_or(Loss::default_for(task));
        Importer::new(graph, version, self.weights_optional, input, loss, options)?.run()
    }

    /// The file without its weights, for a model file that stores those as tensors.
    pub fn structure(&self, schema: &Schema, options: Options) -> Result<Vec<u8>> {
        let weights = self.translate(Input::of(schema), schema.task, options)?.used_initializers;
        let mut model = self.model.clone();
        for tensor in model.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            if weights.contains(&tensor.name) {
                *tensor = proto::TensorProto {
                    float_data: Vec::new(),
                    raw_data: Vec::new(),
                    double_data: Vec::new(),
                    data_type: proto::data_type::FLOAT,
                    ..tensor.clone()
                };
            }
        }
        Ok(model.encode_to_vec())
    }
}

/// An error under the job key that names the file.
fn job_error(reason: impl std::fmt::Display) -> Error {
    Error::job(format!("model.onnx: {reason}"))
}

/// Whether `domain` is that of ONNX's own operators.
fn is_onnx_domain(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}
