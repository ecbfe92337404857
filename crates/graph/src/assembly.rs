//! A graph in the making: what layers append their nodes and parameters to.

use crate::activation::Activation;
use crate::graph::{Graph, MOST_ELEMENTS, NodeId, Parameter, Shape};
use crate::initialize::Initializer;
use crate::input::Input;
use crate::op::elementwise::Step;
use crate::op::product::Product;
use crate::op::reshape::Reshape;
use crate::op::{Op, leaf};
use thalweg_core::FileOrder;
use thalweg_core::model::{Density, Role};
use thalweg_core::spec::model::Initialization;

/// The graph so far, and which layer is at hand.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    pub graph: Graph,
    /// What the network reads.
    pub input: Input,
    /// What the names of the layer's tensors begin with: `layers.0`.
    scope: String,
    /// What the layer's random numbers are keyed by.
    layer: u64,
    /// Tensors of the layer that are drawn so far.
    drawn: u64,
    /// Dropouts of the network so far.
    dropouts: u64,
    /// Whether batch normalisation looks at all workers' rows, where a layer does not say it itself.
    pub synchronized: bool,
    /// How weights are drawn.
    pub initialization: Initialization,
    /// Whether tensors have come from a file, whose order they keep in files.
    pub is_imported: bool,
}

impl Assembly {
    /// Begins a graph, and gives it the features.
    pub fn new(input: Input) -> (Assembly, NodeId) {
        let graph = Graph::default();
        let mut assembly = Assembly {
            graph,
            input,
            scope: String::new(),
            layer: 0,
            drawn: 0,
            dropouts: 0,
            synchronized: false,
            initialization: Initialization::default(),
            is_imported: false,
        };
        let features = assembly.features(&input.sizes());
        (assembly, features)
    }

    /// The features in one line.
    pub fn flat_features(&mut self) -> NodeId {
        self.features(&[self.input.width()])
    }

    /// The features in that shape.
    pub fn features(&mut self, sizes: &[usize]) -> NodeId {
        self.graph.must_add(Op::Features(leaf::Features { sizes: sizes.to_vec() }), &[])
    }

    /// Begins the layer of that number.
    pub fn begin_layer(&mut self, layer: usize) {
        self.scope = format!("layers.{layer}");
        self.layer = layer as u64;
        self.drawn = 0;
    }

    /// Begins a layer inside the layer at hand, and returns what [`Assembly::leave`] goes back to.
    pub fn enter(&mut self, index: usize) -> String {
        let inner = format!("{}.{index}", self.scope);
        std::mem::replace(&mut self.scope, inner)
    }

    /// Goes back to the layer outside.
    pub fn leave(&mut self, outer: String) {
        self.scope = outer;
    }

    /// A number that no other dropout of the network has.
    pub fn next_dropout(&mut self) -> u64 {
        self.dropouts += 1;
        self.dropouts - 1
    }

    /// The shape of a value.
    pub fn shape(&self, node: NodeId) -> &Shape {
        self.graph.shape(node)
    }

    /// Whether a value is the data itself.
    pub fn is_features(&self, node: NodeId) -> bool {
        matches!(self.graph.node(node).op, Op::Features(_))
    }

    /// Appends a node.
    pub fn add(&mut self, op: Op, inputs: &[NodeId]) -> Result<NodeId, String> {
        self.graph.add(op, inputs)
    }

    /// Appends a learned tensor of the layer at hand.
    pub fn parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
    ) -> Result<NodeId, String> {
        self.tensor(name, shape, initializer, Role::Trainable, Density::Dense)
    }

    /// Appends a tensor of any role.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
        role: Role,
        density: Density,
    ) -> Result<NodeId, String> {
        let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
        let len = shape.iter().try_fold(1usize, |len, size| len.checked_mul(*size));
        if len.is_none_or(|len| len > MOST_ELEMENTS) {
            return Err(format!("{} weights are more than a machine can hold", sizes.join(" x ")));
        }
        let name = format!("{}.{name}", self.scope);
        Ok(self.named_tensor(name, shape, initializer, role, density))
    }

    /// Appends a tensor under a name of its own.
    pub fn named_tensor(
        &mut self,
        name: String,
        shape: &[usize],
        initializer: Initializer,
        role: Role,
        density: Density,
    ) -> NodeId {
        let mut key = vec![self.layer];
        if !matches!(initializer, Initializer::Constant(_) | Initializer::Given(_)) {
            // The first drawn tensor of a layer is keyed by the layer alone.
            key.extend((self.drawn > 0).then_some(self.drawn));
            self.drawn += 1;
        }
        let parameter =
            Parameter { name, shape: shape.to_vec(), role, density, initializer, key, file_order: None };
        self.graph.add_parameter(parameter)
    }

    /// Says how files order a tensor.
    pub fn set_file_order(&mut self, tensor: NodeId, order: Option<FileOrder>) {
        if let Op::Parameter(index) = self.graph.node(tensor).op {
            self.graph.parameters[index].file_order = order;
        }
    }

    /// How the weights of a layer with so many numbers behind each result, and results behind each number, begin.
    pub fn spread(&self, fan_in: usize, fan_out: usize) -> Initializer {
        Initializer::spread(self.initialization, fan_in, fan_out)
    }

    /// Appends `input * weight^T + bias`, tensors called `PREFIXweight` and `PREFIXbias`.
    pub fn affine(
        &mut self,
        input: NodeId,
        units: usize,
        prefix: &str,
        initializer: Initializer,
    ) -> Result<NodeId, String> {
        let inputs = self.shape(input).width();
        let weight = self.parameter(&format!("{prefix}weight"), &[units, inputs], initializer)?;
        let bias = self.parameter(&format!("{prefix}bias"), &[units], Initializer::Constant(0.0))?;
        let product = self.add(Op::Product(Product::with_transposed()), &[input, weight])?;
        self.add(Op::step(Step::Bias), &[product, bias])
    }

    /// The same numbers under other sizes.
    pub fn reshape(&mut self, input: NodeId, sizes: &[usize]) -> Result<NodeId, String> {
        self.add(Op::Reshape(Reshape { sizes: sizes.to_vec() }), &[input])
    }

    /// All numbers of a row in one line.
    pub fn flatten(&mut self, input: NodeId) -> Result<NodeId, String> {
        let len = self.shape(input).per_row();
        match (self.shape(input).sizes().len(), self.is_features(input)) {
            (1, _) => Ok(input),
            // Features can be read in any shape, and flat ones need not be written out.
            (_, true) => Ok(self.features(&[len])),
            _ => self.reshape(input, &[len]),
        }
    }

    /// Sequences stay what they are, unless they are the data itself; all else is flattened.
    pub fn flat_unless_sequence(&mut self, input: NodeId) -> Result<NodeId, String> {
        match self.shape(input).sizes().len() == 2 && !self.is_features(input) {
            true => Ok(input),
            false => self.flatten(input),
        }
    }

    /// Refuses what is not a sequence.
    pub fn expect_sequence(&self, input: NodeId) -> Result<(), String> {
        match self.shape(input).sizes().len() {
            2 => Ok(()),
            _ => Err(format!("expected a sequence (positions x numbers), got {}", self.shape(input))),
        }
    }

    /// Appends an activation, if there is one.
    pub fn activate(&mut self, input: NodeId, activation: Activation) -> Result<NodeId, String> {
        match activation {
            Activation::None => Ok(input),
            activation => self.add(Op::step(Step::Activate(activation)), &[input]),
        }
    }
}
