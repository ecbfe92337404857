//! A network: a stack of layers with a loss, as a graph and as execution plans.

use crate::Activation;
use crate::autodiff::differentiate;
use crate::executor::PlanExecutor;
use crate::flat_order::FlatOrders;
use crate::graph::{Graph, NodeId, Shape};
use crate::graph_builder::GraphBuilder;
use crate::input::Input;
use crate::layer::{self, DenseLayer, Layer, Units};
use crate::loss::Loss;
use crate::op::Op;
use crate::op::class_loss::{ClassLoss, ClassLossKind};
use crate::op::cross_entropy::CrossEntropy;
use crate::op::elementwise::ElementwiseStep;
use crate::op::last::Last;
use crate::op::regression_loss::{RegressionLoss, RegressionLossKind};
use crate::op::softmax::Softmax;
use crate::pass::{embedding_products, fuse_softmax_loss, hoist_max_pool, inference, optimize};
use crate::plan::ExecutionPlan;
use crate::team::Team;
use std::fmt;
use std::sync::Arc;
use thalweg_core::spec::model::{BatchStatistics, Initialization};
use thalweg_core::{Error, JobSpec, Layout, Result, Schema, Task};

/// A layer's text, shapes and size, for summaries.
#[derive(Clone, Debug)]
pub(crate) struct LayerInfo {
    pub(crate) text: String,
    pub(crate) input: Shape,
    pub(crate) output: Shape,
    pub(crate) parameters: usize,
}

/// Settings of a network besides its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// `None` for the default loss of the task.
    pub loss: Option<Loss>,
    /// Seed of dropout masks, which also depend on epoch, row and layer.
    pub seed: u64,
    /// Default of batch normalisation layers: whether statistics are taken over the rows of all workers.
    pub synchronized: bool,
    pub initialization: Initialization,
    /// Whether weight gradients of dense layers are reported to the hooks as factors. The gradient buffer holds their
    /// product all the same.
    pub factors: bool,
}

impl Options {
    /// The settings of a job.
    pub fn of(job: &JobSpec) -> Options {
        Options {
            loss: Loss::from_choice(job.model.loss),
            seed: job.train.seed,
            synchronized: job.model.batchnorm == BatchStatistics::Synchronized,
            initialization: job.model.initializer,
            factors: false,
        }
    }
}

/// A trainable network: layers, then a loss.
///
/// Tensors are named `layers.0.weight` (`[units, inputs]`), `layers.0.bias` and so on. The layout lists them last layer
/// first, bias before weight: the order in which back-propagation completes their gradients. Softmax is part of the
/// cross-entropy loss; an activation of the last layer is applied before it.
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) task: Task,
    pub(crate) input: Input,
    /// Whether features must be symbols: an embedding reads them.
    pub(crate) needs_symbols: bool,
    /// Positions of a row with a prediction; 1 unless the output is a sequence.
    pub(crate) positions: usize,
    outputs: usize,
    // Clones share what is never changed: all simulated ranks of a process train one network.
    pub(crate) summaries: Arc<[LayerInfo]>,
    graph: Arc<Graph>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) options: Options,
    pub(crate) training: Arc<ExecutionPlan>,
    pub(crate) evaluation: Arc<ExecutionPlan>,
    pub(crate) prediction: Arc<ExecutionPlan>,
    /// Predictions at every position, if there are several.
    pub(crate) sequence: Option<Arc<ExecutionPlan>>,
    pub(crate) executor: PlanExecutor,
}

impl Network {
    /// Builds the network of a job's layer list for rows of `width` numbers and a task with `outputs` outputs.
    pub fn build(layers: &[String], width: usize, outputs: usize, task: Task) -> Result<Network> {
        Network::build_for(layers, Input::Flat(width), outputs, task)
    }

    /// Builds the network of a job's layer list for a data set: images keep their shape, texts their sequence. A schema
    /// that asks for reconstruction overrides the loss.
    pub fn for_schema(layers: &[String], schema: &Schema, options: Options) -> Result<Network> {
        let loss = if schema.reconstruct { Some(Loss::Reconstruction) } else { options.loss };
        let options = Options { loss, ..options };
        Network::build_with(layers, Input::of(schema), schema.outputs(), schema.task, options)
    }

    /// Builds the network of a job's layer list for an input shape and a task with `outputs` outputs.
    pub fn build_for(layers: &[String], input: Input, outputs: usize, task: Task) -> Result<Network> {
        Network::build_with(layers, input, outputs, task, Options::default())
    }

    /// As [`Network::build_for`], with options.
    pub fn build_with(
        layers: &[String],
        input: Input,
        outputs: usize,
        task: Task,
        options: Options,
    ) -> Result<Network> {
        let mut layers = layer::parse(layers)?;
        let last = layers.len().saturating_sub(1);
        match layers.last_mut() {
            None => return Err(Error::job("model.layers: must have at least one layer")),
            Some(Layer::Dense(DenseLayer { units: units @ Units::Auto, .. })) => {
                *units = Units::Count(outputs)
            }
            Some(_) => {}
        }
        let network = Network::assemble(input, &layers, task, options)?;
        network.check_outputs(outputs).map_err(|reason| {
            layer::shape_error(last, &layers[last], reason)
                .hint(format!("make the last layer \"dense auto\" or \"dense {outputs}\""))
        })?;
        Ok(network)
    }

    /// Checks the width of the output against the data.
    pub(crate) fn check_outputs(&self, outputs: usize) -> Result<(), String> {
        if self.outputs == outputs || self.options.loss == Some(Loss::Reconstruction) {
            return Ok(());
        }
        let classes = match self.task {
            Task::Classification => format!(" (the data has {})", counted(outputs, "class", "classes")),
            Task::Regression => String::new(),
        };
        let expected = counted(outputs, "number", "numbers");
        Err(format!("expected {expected}{classes}, got {}", self.outputs))
    }

    /// Builds the graph of layers whose sizes are all known.
    pub(crate) fn assemble(input: Input, layers: &[Layer], task: Task, options: Options) -> Result<Network> {
        input.check()?;
        let (mut builder, mut value) = GraphBuilder::new(input);
        builder.synchronized = options.synchronized;
        builder.initialization = options.initialization;
        let mut summaries = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            builder.begin_layer(index);
            let (input, before) = (builder.shape(value).clone(), builder.graph.parameters.len());
            value = layer
                .append(&mut builder, value)
                .map_err(|reason| layer::shape_error(index, layer, reason))?;
            let added = &builder.graph.parameters[before..];
            let parameters = added.iter().map(|added| added.shape.iter().product::<usize>()).sum();
            let output = builder.shape(value).clone();
            summaries.push(LayerInfo { text: layer.to_string(), input, output, parameters });
        }
        let wrong = |reason: String| match layers.last() {
            Some(layer) => layer::shape_error(layers.len() - 1, layer, reason),
            None => Error::job(reason),
        };
        Network::finish(builder, value, summaries, task, options, &wrong)
    }

    /// Appends the loss to the value of the last layer and compiles the plans; `wrong` makes the error for a value that
    /// does not fit the loss.
    pub(crate) fn finish(
        mut builder: GraphBuilder,
        value: NodeId,
        summaries: Vec<LayerInfo>,
        task: Task,
        options: Options,
        wrong: &dyn Fn(String) -> Error,
    ) -> Result<Network> {
        let input = builder.input;
        let loss = options.loss.unwrap_or(Loss::default_for(task));
        loss.check(task)?;
        let (positions, outputs) = output_sizes(builder.shape(value), input, loss, wrong)?;
        if positions > 1 {
            loss.check_positions()?;
        }
        append_loss(&mut builder, value, task, loss).map_err(wrong)?;
        let mut graph = builder.graph;
        if !builder.is_imported {
            FlatOrders::check(&graph).map_err(wrong)?;
            let orders = FlatOrders::of(&graph, input, loss == Loss::Reconstruction).of_parameters(&graph);
            let parameters = graph.parameters.iter_mut().zip(orders);
            parameters.for_each(|(parameter, order)| parameter.file_order = order);
        }
        let needs_symbols = graph.nodes().any(|(_, node)| matches!(node.op, Op::Embedding(_)));
        let (mut training, evaluation, prediction, layout) = compile(&graph);
        training.factors = options.factors;
        let sequence = (positions > 1).then(|| plan_every_position(&graph, &layout));
        Ok(Network {
            task,
            input,
            needs_symbols,
            positions,
            outputs,
            summaries: summaries.into(),
            graph: Arc::new(graph),
            layout: Arc::new(layout),
            options,
            training: Arc::new(training),
            evaluation: Arc::new(evaluation),
            prediction: Arc::new(prediction),
            sequence: sequence.map(Arc::new),
            executor: PlanExecutor::default(),
        })
    }

    /// Runs the network on a thread team.
    pub fn with_team(self, team: Arc<Team>) -> Network {
        Network { executor: PlanExecutor::with_team(team), ..self }
    }

    /// Numbers per row of the input.
    pub fn inputs(&self) -> usize {
        self.input.width()
    }

    /// Numbers per prediction.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn loss(&self) -> Loss {
        self.options.loss.unwrap_or(Loss::default_for(self.task))
    }

    /// The graph of output and loss, before any pass.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }
}

/// Compiles the plans of training, evaluation and prediction, and their common layout.
fn compile(graph: &Graph) -> (ExecutionPlan, ExecutionPlan, ExecutionPlan, Layout) {
    let mut layout = Layout::default();
    for parameter in graph.parameters.iter().rev() {
        let index = layout.push(&parameter.name, &parameter.shape, parameter.role, parameter.density);
        layout.set_file_order(index, parameter.file_order.clone());
    }
    let graph = &hoist_max_pool::run(graph);
    let fused = fuse_softmax_loss::run(&embedding_products::run(graph));
    let training = ExecutionPlan::for_gradients(&optimize(&differentiate(&fused.without_output())), &layout);
    let evaluation = ExecutionPlan::for_loss(&optimize(&inference::run(&fused.without_output())), &layout);
    let prediction = ExecutionPlan::for_output(&optimize(&inference::run(&graph.without_loss())), &layout);
    (training, evaluation, prediction, layout)
}

/// The plan of the predictions at all positions, which are the input of the loss.
fn plan_every_position(graph: &Graph, layout: &Layout) -> ExecutionPlan {
    let mut sequence = graph.without_loss();
    sequence.output = graph.loss.map(|loss| graph.node(loss).inputs[0]);
    ExecutionPlan::for_output(&optimize(&inference::run(&sequence)), layout)
}

/// The number of positions with a prediction, and the numbers of each.
fn output_sizes(
    shape: &Shape,
    input: Input,
    loss: Loss,
    wrong: &dyn Fn(String) -> Error,
) -> Result<(usize, usize)> {
    match *shape.sizes() {
        _ if loss == Loss::Reconstruction => Ok((1, shape.per_row())),
        [outputs] => Ok((1, outputs)),
        [positions, outputs] if input == (Input::Symbols { window: positions, vocabulary: outputs }) => {
            Ok((positions, outputs))
        }
        _ => Err(wrong(format!("expected a flat vector at the end, got {shape}"))
            .hint("end with \"dense auto\", after \"last\" or \"flatten\" for one prediction per row")),
    }
}

/// Appends the loss and the output.
fn append_loss(builder: &mut GraphBuilder, value: NodeId, task: Task, loss: Loss) -> Result<(), String> {
    let mut last = value;
    if loss != Loss::Reconstruction && builder.shape(value).sizes().len() == 2 {
        last = builder.add(Op::Last(Last), &[value])?;
    }
    let regression = |kind| Op::RegressionLoss(RegressionLoss { kind });
    let loss_node = match loss {
        Loss::CrossEntropy => {
            let probabilities = builder.add(Op::Softmax(Softmax), &[value])?;
            builder.add(Op::CrossEntropy(CrossEntropy { of_logits: false }), &[probabilities])?
        }
        Loss::BinaryCrossEntropy => {
            builder.add(Op::ClassLoss(ClassLoss { kind: ClassLossKind::Binary }), &[value])?
        }
        Loss::Hinge => builder.add(Op::ClassLoss(ClassLoss { kind: ClassLossKind::Hinge }), &[value])?,
        Loss::Squared => builder.add(regression(RegressionLossKind::Squared), &[value])?,
        Loss::Absolute => builder.add(regression(RegressionLossKind::Absolute), &[value])?,
        Loss::Huber => builder.add(regression(RegressionLossKind::Huber), &[value])?,
        Loss::Reconstruction => {
            let targets = builder.flat_features();
            let predictions = builder.flatten(value)?;
            builder.add(regression(RegressionLossKind::Squared), &[predictions, targets])?
        }
    };
    builder.graph.loss = Some(loss_node);
    builder.graph.output = Some(match (loss, task) {
        (Loss::Reconstruction, _) | (_, Task::Regression) => last,
        (Loss::BinaryCrossEntropy, _) => {
            builder.add(Op::elementwise(ElementwiseStep::Activate(Activation::Sigmoid)), &[last])?
        }
        _ => builder.add(Op::Softmax(Softmax), &[last])?,
    });
    Ok(())
}

/// One line per layer with its shapes and its number of parameters, then the total.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = |shape: &Shape| shape.to_string().replacen("rows x ", "", 1);
        for LayerInfo { text, input, output, parameters } in self.summaries.iter() {
            let shape = format!("{} -> {}", sizes(input), sizes(output));
            writeln!(f, "{text:<20} {shape:<16} {parameters:>12} parameters")?;
        }
        let loss = match self.loss() {
            Loss::CrossEntropy => "softmax cross-entropy",
            Loss::Squared => "squared error",
            loss => loss.name(),
        };
        write!(f, "{loss:<37} {:>12} parameters", self.layout.len())
    }
}

/// `1 class`, `10 classes`.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::Model;

    fn build(layers: &[&str], outputs: usize, task: Task) -> Result<Network> {
        let layers: Vec<String> = layers.iter().map(|text| text.to_string()).collect();
        Network::build(&layers, 784, outputs, task)
    }

    #[test]
    fn the_layout_lists_tensors_in_back_propagation_order() {
        let network = build(&["dense 128 relu", "dense auto"], 10, Task::Classification).unwrap();
        let names: Vec<&str> = network.layout().tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["layers.1.bias", "layers.1.weight", "layers.0.bias", "layers.0.weight"]);
        assert_eq!(network.layout().tensors()[3].shape, [128, 784]);
        assert_eq!((network.inputs(), network.outputs(), network.layout().len()), (784, 10, 101_770));
    }

    #[test]
    fn a_wrong_output_width_is_reported() {
        let error = build(&["dense 4", "dense 8"], 10, Task::Classification).unwrap_err();
        let expected = "model.layers[1] \"dense 8\": expected 10 numbers (the data has 10 classes), got 8";
        assert_eq!(error.message, expected);
        assert!(error.hint.unwrap().contains("\"dense auto\" or \"dense 10\""));
        let error = build(&["dense 8"], 1, Task::Regression).unwrap_err();
        assert!(error.message.ends_with("expected 1 number, got 8"));
        assert!(build(&[], 1, Task::Regression).unwrap_err().message.contains("at least one layer"));
    }

    #[test]
    fn the_summary_shows_shapes_and_sizes() {
        let network = build(&["dense 128 relu", "dense auto"], 10, Task::Classification).unwrap();
        let text = network.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "dense 128 relu 784 -> 128 100480 parameters");
        assert_eq!(lines[1].join(" "), "dense 10 128 -> 10 1290 parameters");
        assert_eq!(lines[2].join(" "), "softmax cross-entropy 101770 parameters");
    }
}
