//! A network: layers in a row with a loss at their end, as graph and as plans.

use crate::Activation;
use crate::assembly::Assembly;
use crate::autodiff::differentiate;
use crate::executor::Executor;
use crate::flat_order::FlatOrders;
use crate::graph::{Graph, NodeId, Shape};
use crate::input::Input;
use crate::layer::{self, Dense, Layer, Units};
use crate::loss::Loss;
use crate::op::Op;
use crate::op::class_loss::{ClassLoss, Contest};
use crate::op::cross_entropy::CrossEntropy;
use crate::op::distance::{Distance, Judgement};
use crate::op::elementwise::Step;
use crate::op::last::Last;
use crate::op::softmax::Softmax;
use crate::pass::{early_pool, gather, inference, optimize, softmax_loss};
use crate::plan::Plan;
use crate::team::Team;
use std::fmt;
use std::sync::Arc;
use thalweg_core::spec::model::{BatchStatistics, Initialization};
use thalweg_core::{Error, JobSpec, Layout, Result, Schema, Task};

/// What a layer does to the shape, for people.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) text: String,
    pub(crate) input: Shape,
    pub(crate) output: Shape,
    pub(crate) parameters: usize,
}

/// What a network is besides its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// What it is blamed for; the task's usual loss if nobody says.
    pub loss: Option<Loss>,
    /// What dropout draws from, with epoch, row and layer.
    pub seed: u64,
    /// Whether batch normalisation looks at all workers' rows, where a layer does not say it itself.
    pub synchronized: bool,
    /// How weights are drawn.
    pub initialization: Initialization,
    /// Whether gradients of dense layers' weights are announced as factors. The buffer holds their product as ever.
    pub factors: bool,
}

impl Options {
    /// What a job asks for.
    pub fn of(job: &JobSpec) -> Options {
        Options {
            loss: Loss::asked(job.model.loss),
            seed: job.train.seed,
            synchronized: job.model.batchnorm == BatchStatistics::Synchronized,
            initialization: job.model.initializer,
            factors: false,
        }
    }
}

/// A network: layers, then softmax cross-entropy (classification) or the squared error (regression).
///
/// Its tensors are called `layers.0.weight` (`[units, inputs]`) and `layers.0.bias`, and stand in the layout last
/// layer first, bias before weight: the order in which back-propagation finishes them. Softmax belongs to the loss of
/// a classification; an activation on its last layer is allowed, and comes before the softmax.
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) task: Task,
    pub(crate) input: Input,
    /// Whether rows must come as symbols.
    pub(crate) needs_symbols: bool,
    /// Positions of a row for which it answers.
    pub(crate) positions: usize,
    outputs: usize,
    pub(crate) summaries: Vec<Summary>,
    graph: Graph,
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    pub(crate) training: Plan,
    pub(crate) evaluation: Plan,
    pub(crate) prediction: Plan,
    /// The answers at every position, where there are several.
    pub(crate) sequence: Option<Plan>,
    pub(crate) executor: Executor,
}

impl Network {
    /// The network of a job's layer list, for rows of `width` numbers and a task that needs `outputs` numbers.
    pub fn build(layers: &[String], width: usize, outputs: usize, task: Task) -> Result<Network> {
        Network::build_for(layers, Input::Flat(width), outputs, task)
    }

    /// The network of a job's layer list for a data set: images keep their shape, texts their sequence. Where rows are
    /// to be made again, that is what it is blamed for.
    pub fn for_schema(layers: &[String], schema: &Schema, options: Options) -> Result<Network> {
        let loss = if schema.reconstruct { Some(Loss::Reconstruction) } else { options.loss };
        let options = Options { loss, ..options };
        Network::build_with(layers, Input::of(schema), schema.outputs(), schema.task, options)
    }

    /// The network of a job's layer list for an input of that shape and a task that needs `outputs` numbers.
    pub fn build_for(layers: &[String], input: Input, outputs: usize, task: Task) -> Result<Network> {
        Network::build_with(layers, input, outputs, task, Options::default())
    }

    /// The same with options.
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
            Some(Layer::Dense(Dense { units: units @ Units::Auto, .. })) => *units = Units::Count(outputs),
            Some(_) => {}
        }
        let network = Network::assemble(input, &layers, task, options)?;
        network.check_outputs(outputs).map_err(|reason| {
            layer::misfit(last, &layers[last], reason)
                .hint(format!("make the last layer \"dense auto\" or \"dense {outputs}\""))
        })?;
        Ok(network)
    }

    /// Whether it answers with as many numbers as the data asks for.
    pub(crate) fn check_outputs(&self, outputs: usize) -> Result<(), String> {
        if self.outputs == outputs || self.options.loss == Some(Loss::Reconstruction) {
            return Ok(());
        }
        let asked = match self.task {
            Task::Classification => format!(" (the data has {})", counted(outputs, "class", "classes")),
            Task::Regression => String::new(),
        };
        let expected = counted(outputs, "number", "numbers");
        Err(format!("expected {expected}{asked}, got {}", self.outputs))
    }

    /// Puts layers of known size into a row.
    pub(crate) fn assemble(input: Input, layers: &[Layer], task: Task, options: Options) -> Result<Network> {
        input.check()?;
        let (mut assembly, mut value) = Assembly::new(input);
        assembly.synchronized = options.synchronized;
        assembly.initialization = options.initialization;
        let mut summaries = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            assembly.begin_layer(index);
            let (input, before) = (assembly.shape(value).clone(), assembly.graph.parameters.len());
            value =
                layer.append(&mut assembly, value).map_err(|reason| layer::misfit(index, layer, reason))?;
            let own = &assembly.graph.parameters[before..];
            let parameters = own.iter().map(|own| own.shape.iter().product::<usize>()).sum();
            let output = assembly.shape(value).clone();
            summaries.push(Summary { text: layer.to_string(), input, output, parameters });
        }
        let wrong = |reason: String| match layers.last() {
            Some(layer) => layer::misfit(layers.len() - 1, layer, reason),
            None => Error::job(reason),
        };
        Network::finish(assembly, value, summaries, task, options, &wrong)
    }

    /// Puts a loss behind the value that the layers end with; `wrong` names that end where it does not fit.
    pub(crate) fn finish(
        mut assembly: Assembly,
        value: NodeId,
        summaries: Vec<Summary>,
        task: Task,
        options: Options,
        wrong: &dyn Fn(String) -> Error,
    ) -> Result<Network> {
        let input = assembly.input;
        let loss = options.loss.unwrap_or(Loss::of(task));
        loss.check(task)?;
        let (positions, outputs) = answers(assembly.shape(value), input, loss, wrong)?;
        if positions > 1 {
            loss.check_positions()?;
        }
        end(&mut assembly, value, task, loss).map_err(wrong)?;
        let mut graph = assembly.graph;
        if !assembly.is_imported {
            FlatOrders::check(&graph).map_err(wrong)?;
            let orders = FlatOrders::of(&graph, input, loss == Loss::Reconstruction).of_parameters(&graph);
            let parameters = graph.parameters.iter_mut().zip(orders);
            parameters.for_each(|(parameter, order)| parameter.file_order = order);
        }
        let needs_symbols = graph.nodes().any(|(_, node)| matches!(node.op, Op::Embedding(_)));
        let (mut training, evaluation, prediction, layout) = compile(&graph);
        training.factors = options.factors;
        let sequence = (positions > 1).then(|| every_position(&graph, &layout));
        Ok(Network {
            task,
            input,
            needs_symbols,
            positions,
            outputs,
            summaries,
            graph,
            layout,
            options,
            training,
            evaluation,
            prediction,
            sequence,
            executor: Executor::default(),
        })
    }

    /// The same network, run by a team of threads.
    pub fn with_team(self, team: Arc<Team>) -> Network {
        Network { executor: Executor::with(team), ..self }
    }

    /// Numbers the network reads per row.
    pub fn inputs(&self) -> usize {
        self.input.width()
    }

    /// Numbers the network answers with per row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// What it is blamed for.
    pub fn loss(&self) -> Loss {
        self.options.loss.unwrap_or(Loss::of(self.task))
    }

    /// What it learns.
    pub fn task(&self) -> Task {
        self.task
    }

    /// The graph of answer and loss, before anything was fused.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

/// The plans of training, evaluation and prediction, and the layout they share.
fn compile(graph: &Graph) -> (Plan, Plan, Plan, Layout) {
    let mut layout = Layout::default();
    for parameter in graph.parameters.iter().rev() {
        let index = layout.push(&parameter.name, &parameter.shape, parameter.role, parameter.density);
        layout.set_file_order(index, parameter.file_order.clone());
    }
    let graph = &early_pool::run(graph);
    let fused = softmax_loss::run(&gather::run(graph));
    let training = Plan::gradients(&optimize(&differentiate(&fused.without_answer())), &layout);
    let evaluation = Plan::loss(&optimize(&inference::run(&fused.without_answer())), &layout);
    let prediction = Plan::answer(&optimize(&inference::run(&graph.without_loss())), &layout);
    (training, evaluation, prediction, layout)
}

/// The plan of the answers at all positions: what the loss reads.
fn every_position(graph: &Graph, layout: &Layout) -> Plan {
    let mut sequence = graph.without_loss();
    sequence.answer = graph.loss.map(|loss| graph.node(loss).inputs[0]);
    Plan::answer(&optimize(&inference::run(&sequence)), layout)
}

/// For how many positions a network answers, and with how many numbers at each.
fn answers(
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
        _ => Err(wrong(format!("expected one line of numbers at the end, got {shape}"))
            .hint("end with \"dense auto\", behind \"last\" or \"flatten\" for one answer per row")),
    }
}

/// Appends what the network answers and what it is blamed for.
fn end(assembly: &mut Assembly, value: NodeId, task: Task, loss: Loss) -> Result<(), String> {
    let mut last = value;
    if loss != Loss::Reconstruction && assembly.shape(value).sizes().len() == 2 {
        last = assembly.add(Op::Last(Last), &[value])?;
    }
    let distance = |judgement| Op::Distance(Distance { judgement });
    let blamed = match loss {
        Loss::CrossEntropy => {
            let shares = assembly.add(Op::Softmax(Softmax), &[value])?;
            assembly.add(Op::CrossEntropy(CrossEntropy { of_logits: false }), &[shares])?
        }
        Loss::BinaryCrossEntropy => {
            assembly.add(Op::ClassLoss(ClassLoss { contest: Contest::Binary }), &[value])?
        }
        Loss::Hinge => assembly.add(Op::ClassLoss(ClassLoss { contest: Contest::Hinge }), &[value])?,
        Loss::Squared => assembly.add(distance(Judgement::Squared), &[value])?,
        Loss::Absolute => assembly.add(distance(Judgement::Absolute), &[value])?,
        Loss::Huber => assembly.add(distance(Judgement::Huber), &[value])?,
        Loss::Reconstruction => {
            let truth = assembly.flat_features();
            let answers = assembly.flatten(value)?;
            assembly.add(distance(Judgement::Squared), &[answers, truth])?
        }
    };
    assembly.graph.loss = Some(blamed);
    assembly.graph.answer = Some(match (loss, task) {
        (Loss::Reconstruction, _) | (_, Task::Regression) => last,
        (Loss::BinaryCrossEntropy, _) => {
            assembly.add(Op::step(Step::Activate(Activation::Sigmoid)), &[last])?
        }
        _ => assembly.add(Op::Softmax(Softmax), &[last])?,
    });
    Ok(())
}

/// One line per layer with its shape and its number of parameters, then the sum.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = |shape: &Shape| shape.to_string().replacen("rows x ", "", 1);
        for Summary { text, input, output, parameters } in &self.summaries {
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
    fn tensors_stand_in_the_order_in_which_they_are_finished() {
        let network = build(&["dense 128 relu", "dense auto"], 10, Task::Classification).unwrap();
        let names: Vec<&str> = network.layout().tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["layers.1.bias", "layers.1.weight", "layers.0.bias", "layers.0.weight"]);
        assert_eq!(network.layout().tensors()[3].shape, [128, 784]);
        assert_eq!((network.inputs(), network.outputs(), network.layout().len()), (784, 10, 101_770));
    }

    #[test]
    fn a_wrong_number_of_answers_is_explained() {
        let error = build(&["dense 4", "dense 8"], 10, Task::Classification).unwrap_err();
        let expected = "model.layers[1] \"dense 8\": expected 10 numbers (the data has 10 classes), got 8";
        assert_eq!(error.message, expected);
        assert!(error.hint.unwrap().contains("\"dense auto\" or \"dense 10\""));
        let error = build(&["dense 8"], 1, Task::Regression).unwrap_err();
        assert!(error.message.ends_with("expected 1 number, got 8"));
        assert!(build(&[], 1, Task::Regression).unwrap_err().message.contains("at least one layer"));
    }

    #[test]
    fn a_network_shows_shapes_and_sizes() {
        let network = build(&["dense 128 relu", "dense auto"], 10, Task::Classification).unwrap();
        let text = network.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "dense 128 relu 784 -> 128 100480 parameters");
        assert_eq!(lines[1].join(" "), "dense 10 128 -> 10 1290 parameters");
        assert_eq!(lines[2].join(" "), "softmax cross-entropy 101770 parameters");
    }
}
