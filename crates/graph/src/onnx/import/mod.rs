//! A network from an ONNX file, ready to train on: weights come in as initial parameters, running statistics as state.
//!
//! Nodes are translated one by one, in the file's order. Shapes that the file computes at run time are computed here
//! ([`fold`]); axes are turned around without moving memory ([`view`]); what several nodes say together (an attention, a
//! GELU, a normalisation) is kept in flight ([`item`]) until its last node makes it whole. Whatever cannot be translated
//! is collected, so that one look shows all that is in the way.

mod arithmetic;
mod attention;
mod begin;
mod cuts;
mod fold;
mod foreign;
mod images;
mod importer;
mod item;
mod memory;
mod products;
mod recurrent;
mod reductions;
mod sampling;
mod settings;
mod shapes;
mod tensor;
mod view;
mod weights;

use super::proto::{self, Model};
use super::scaling::Embedded;
use crate::input::Input;
use crate::loss::Loss;
use crate::network::{Network, Options};
pub use importer::operators;
use importer::{Importer, Translated};
use prost::Message;
use std::collections::HashSet;
use tensor::Constant;
use thalweg_core::{Error, Result, Schema, Task};

/// Operators of sets older than this mean other things.
const OLDEST: i64 = 9;
/// The newest set whose operators and attributes have been looked at.
const NEWEST: i64 = 28;

/// What helps where the metadata of an exported file was changed.
const UNSCALED: &str = "export it again, or say data.scale = \"none\": the file scales the rows itself";

/// A model as a file brings it, decoded and checked, not yet fitted to any data.
#[derive(Clone, Debug)]
pub struct Source {
    model: Model,
    /// Whether weights may be missing: a trained model keeps them elsewhere.
    partial: bool,
}

impl Source {
    /// Reads the bytes of an ONNX file.
    pub fn read(bytes: &[u8]) -> Result<Source> {
        Source::decode(bytes, false)
    }

    /// Reads what [`Source::skeleton`] wrote: structure without weights.
    pub fn read_skeleton(bytes: &[u8]) -> Result<Source> {
        Source::decode(bytes, true)
    }

    fn decode(bytes: &[u8], partial: bool) -> Result<Source> {
        let broken = |reason: String| {
            let what = match foreign::recognise(bytes) {
                Some("empty") => "the file is empty".into(),
                Some(what) => format!("not an ONNX file, but {what}"),
                None => format!("not an ONNX file, or a damaged one: {reason}"),
            };
            wrong(what).hint("give a file that torch.onnx.export or another exporter wrote")
        };
        let model = Model::decode(bytes).map_err(|_| broken("it cannot be decoded".into()))?;
        let graph = model.graph.as_ref().ok_or_else(|| broken("it has no graph".into()))?;
        if graph.node.is_empty() || graph.output.is_empty() {
            return Err(broken("its graph computes nothing".into()));
        }
        let own = model.opset_import.iter().find(|set| is_own(&set.domain));
        let version = own.map_or(0, |set| set.version);
        if version < OLDEST {
            return Err(wrong(format!("it is written against operator set {version}, which is too old"))
                .hint(format!("export it with opset_version {OLDEST} or later; 17 is a good choice")));
        }
        if version > NEWEST {
            return Err(wrong(format!(
                "it is written against operator set {version}, which is not known here"
            ))
            .hint(format!("export it with opset_version {NEWEST} or earlier; 17 is a good choice")));
        }
        let mut names = HashSet::new();
        for tensor in &graph.initializer {
            let told = |reason: String| wrong(format!("tensor `{}`: {reason}", tensor.name));
            Constant::read(tensor, partial).map_err(told)?;
            if !names.insert(tensor.name.as_str()) {
                return Err(told("there are two of that name".into()));
            }
        }
        Ok(Source { model, partial })
    }

    /// The scaling that the file brings along, if it was exported here.
    pub fn embedded(&self) -> Result<Option<Embedded>> {
        Embedded::read(&self.model).map_err(|reason| wrong(reason).hint(UNSCALED))
    }

    /// Whether `thalweg export` wrote the file in a version that did not say yet how its rows are scaled.
    pub fn hides_scaling(&self) -> Result<bool> {
        let takes_numbers = self.model.graph.as_ref().is_some_and(|graph| {
            let first = graph.input.first().and_then(|input| input.r#type.as_ref()?.tensor_type.as_ref());
            first.is_some_and(|kind| kind.elem_type == proto::data_type::FLOAT)
        });
        Ok(self.model.producer_name == "thalweg" && takes_numbers && self.embedded()?.is_none())
    }

    /// The same model for rows that are scaled already, as its own scaling says.
    pub fn without_scaling(mut self, embedded: &Embedded) -> Result<Source> {
        embedded.remove(&mut self.model).map_err(|reason| wrong(reason).hint(UNSCALED))?;
        Ok(self)
    }

    /// The network for a data set.
    pub fn for_schema(&self, schema: &Schema, options: Options) -> Result<Network> {
        let loss = if schema.reconstruct { Some(Loss::Reconstruction) } else { options.loss };
        let options = Options { loss, ..options };
        self.network(Input::of(schema), schema.outputs(), schema.task, options)
    }

    /// The network for rows of that shape and a task that needs `outputs` numbers.
    pub fn network(&self, input: Input, outputs: usize, task: Task, options: Options) -> Result<Network> {
        let translated = self.translate(input, task, options)?;
        let (end, name) = (translated.end, translated.name);
        let named = |reason: String| wrong(format!("output `{name}`: {reason}"));
        let network = Network::finish(translated.assembly, end, translated.summaries, task, options, &named)?;
        let hint = "export a model whose last layer has as many units as the data asks for";
        network.check_outputs(outputs).map_err(|reason| named(reason).hint(hint))?;
        Ok(network)
    }

    /// The network as the file alone describes it: rows of the shape it asks for, as a classification.
    pub fn by_itself(&self, options: Options) -> Result<Network> {
        let Some(graph) = &self.model.graph else { return Err(Error::internal("a model without a graph")) };
        let input = begin::own_input(graph).ok_or_else(|| {
            wrong("the file alone does not say which rows it takes")
                .hint("inspect a job that names it instead")
        })?;
        let translated = self.translate(input, Task::Classification, options)?;
        let named = |reason: String| wrong(format!("output `{}`: {reason}", translated.name));
        let Translated { assembly, end, summaries, .. } = translated;
        Network::finish(assembly, end, summaries, Task::Classification, options, &named)
    }

    fn translate(&self, input: Input, task: Task, options: Options) -> Result<Translated> {
        let Some(graph) = &self.model.graph else { return Err(Error::internal("a model without a graph")) };
        let own = self.model.opset_import.iter().find(|set| is_own(&set.domain));
        importer::refuse_unknown(graph)?;
        let loss = options.loss.unwrap_or(Loss::of(task));
        Importer::new(graph, own.map_or(0, |set| set.version), self.partial, input, loss, options)?.run()
    }

    /// The structure without its weights, for a model file that keeps those as tensors.
    pub fn skeleton(&self, schema: &Schema, options: Options) -> Result<Vec<u8>> {
        let weights = self.translate(Input::of(schema), schema.task, options)?.weights;
        let mut model = self.model.clone();
        for tensor in model.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            if weights.contains(&tensor.name) {
                *tensor = proto::Tensor {
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

/// The error that names the key of the job.
fn wrong(reason: impl std::fmt::Display) -> Error {
    Error::job(format!("model.onnx: {reason}"))
}

/// Whether a domain is ONNX's own.
fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}
