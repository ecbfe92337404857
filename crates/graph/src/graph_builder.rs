//! Builds a graph: layers and ONNX nodes append their nodes and parameters to it.

use crate::activation::Activation;
use crate::graph::{Graph, MAX_ELEMENTS, NodeId, Parameter, Shape};
use crate::initialize::Initializer;
use crate::input::Input;
use crate::op::elementwise::ElementwiseStep;
use crate::op::product::Product;
use crate::op::reshape::Reshape;
use crate::op::{Op, leaf};
use thalweg_core::FileOrder;
use thalweg_core::model::{Density, TensorRole};
use thalweg_core::spec::model::Initialization;

/// The graph so far, and the state of the current layer.
#[derive(Clone, Debug)]
pub(crate) struct GraphBuilder {
    pub graph: Graph,
    pub input: Input,
    /// Prefix of the current layer's tensor names: `layers.0`.
    scope: String,
    /// Key of the current layer's random initial values.
    layer: u64,
    /// Randomly initialized tensors of the current layer so far.
    random_tensors: u64,
    /// Dropout operators of the network so far.
    dropouts: u64,
    /// Default of batch normalisation layers: whether statistics are taken over the rows of all workers.
    pub synchronized: bool,
    pub initialization: Initialization,
    /// Whether the graph comes from a file: its tensors then keep the element order of that file.
    pub is_imported: bool,
}

impl GraphBuilder {
    /// Starts a graph; also returns the node of the features.
    pub fn new(input: Input) -> (GraphBuilder, NodeId) {
        let graph = Graph::default();
        let mut builder = GraphBuilder {
            graph,
            input,
            scope: String::new(),
            layer: 0,
            random_tensors: 0,
            dropouts: 0,
            synchronized: false,
            initialization: Initialization::default(),
            is_imported: false,
        };
        let features = builder.features(&input.sizes());
        (builder, features)
    }

    /// The features as a flat vector.
    pub fn flat_features(&mut self) -> NodeId {
        self.features(&[self.input.width()])
    }

    /// The features in any shape with as many elements.
    pub fn features(&mut self, sizes: &[usize]) -> NodeId {
        self.graph.must_add(Op::Features(leaf::FeatureInput { sizes: sizes.to_vec() }), &[])
    }

    /// Makes `layer` the current layer.
    pub fn begin_layer(&mut self, layer: usize) {
        self.scope = format!("layers.{layer}");
        self.layer = layer as u64;
        self.random_tensors = 0;
    }

    /// Enters a layer nested in the current one; returns the scope to pass to [`GraphBuilder::leave_scope`].
    pub fn enter_scope(&mut self, index: usize) -> String {
        let inner = format!("{}.{index}", self.scope);
        std::mem::replace(&mut self.scope, inner)
    }

    pub fn leave_scope(&mut self, outer: String) {
        self.scope = outer;
    }

    /// An index that is unique among the dropouts of the network.
    pub fn next_dropout(&mut self) -> u64 {
        self.dropouts += 1;
        self.dropouts - 1
    }

    pub fn shape(&self, node: NodeId) -> &Shape {
        self.graph.shape(node)
    }

    /// Whether a value is the features themselves.
    pub fn is_features(&self, node: NodeId) -> bool {
        matches!(self.graph.node(node).op, Op::Features(_))
    }

    pub fn add(&mut self, op: Op, inputs: &[NodeId]) -> Result<NodeId, String> {
        self.graph.add(op, inputs)
    }

    /// Appends a trainable tensor of the current layer.
    pub fn parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
    ) -> Result<NodeId, String> {
        self.tensor(name, shape, initializer, TensorRole::Trainable, Density::Dense)
    }

    /// Appends a tensor of the current layer.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
        role: TensorRole,
        density: Density,
    ) -> Result<NodeId, String> {
        let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
        let len = shape.iter().try_fold(1usize, |len, size| len.checked_mul(*size));
        if len.is_none_or(|len| len > MAX_ELEMENTS) {
            return Err(format!("{} weights are more than a machine can hold", sizes.join(" x ")));
        }
        let name = format!("{}.{name}", self.scope);
        Ok(self.named_tensor(name, shape, initializer, role, density))
    }

    /// Appends a tensor with a full name.
    pub fn named_tensor(
        &mut self,
        name: String,
        shape: &[usize],
        initializer: Initializer,
        role: TensorRole,
        density: Density,
    ) -> NodeId {
        let mut key = vec![self.layer];
        if !matches!(initializer, Initializer::Constant(_) | Initializer::Given(_)) {
            // The first random tensor of a layer is keyed by the layer alone.
            key.extend((self.random_tensors > 0).then_some(self.random_tensors));
            self.random_tensors += 1;
        }
        let parameter =
            Parameter { name, shape: shape.to_vec(), role, density, initializer, key, file_order: None };
        self.graph.add_parameter(parameter)
    }

    /// Sets the element order of a tensor in files.
    pub fn set_file_order(&mut self, tensor: NodeId, order: Option<FileOrder>) {
        if let Op::Parameter(index) = self.graph.node(tensor).op {
            self.graph.parameters[index].file_order = order;
        }
    }

    /// The initializer of a weight with these fans.
    pub fn weight_initializer(&self, fan_in: usize, fan_out: usize) -> Initializer {
        Initializer::variance_scaling(self.initialization, fan_in, fan_out)
    }

    /// Appends `input * weight^T + bias` with tensors named `{prefix}weight` and `{prefix}bias`.
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
        let product = self.add(Op::Product(Product::transposed_right()), &[input, weight])?;
        self.add(Op::elementwise(ElementwiseStep::Bias), &[product, bias])
    }

    /// Views a value under other sizes.
    pub fn reshape(&mut self, input: NodeId, sizes: &[usize]) -> Result<NodeId, String> {
        self.add(Op::Reshape(Reshape { sizes: sizes.to_vec() }), &[input])
    }

    /// Views each row as a flat vector.
    pub fn flatten(&mut self, input: NodeId) -> Result<NodeId, String> {
        let len = self.shape(input).per_row();
        match (self.shape(input).sizes().len(), self.is_features(input)) {
            (1, _) => Ok(input),
            // Flat features need no dense copy, so they are read as such from the start.
            (_, true) => Ok(self.features(&[len])),
            _ => self.reshape(input, &[len]),
        }
    }

    /// Flattens everything but sequences; features are flattened in any case.
    pub fn flatten_unless_sequence(&mut self, input: NodeId) -> Result<NodeId, String> {
        match self.shape(input).sizes().len() == 2 && !self.is_features(input) {
            true => Ok(input),
            false => self.flatten(input),
        }
    }

    pub fn expect_sequence(&self, input: NodeId) -> Result<(), String> {
        match self.shape(input).sizes().len() {
            2 => Ok(()),
            _ => Err(format!("expected a sequence (positions x numbers), got {}", self.shape(input))),
        }
    }

    /// Appends an activation; none for [`Activation::None`].
    pub fn activate(&mut self, input: NodeId, activation: Activation) -> Result<NodeId, String> {
        match activation {
            Activation::None => Ok(input),
            activation => self.add(Op::elementwise(ElementwiseStep::Activate(activation)), &[input]),
        }
    }
}
