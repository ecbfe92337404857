//! The execution plan of a graph: the order of its operators and the buffer plan of their values.
//!
//! The order is by demand: for each tensor in layout order, the operators its gradient still needs. So gradients
//! complete in layout order, and no operator runs before its result is needed. Values live in numbered slots. A slot
//! is reused once the lifetime of its value has ended, and an in-place operator takes over the slot of its input.
//! Gradients are written directly into the caller's buffer.

use crate::graph::{Graph, NodeId, Shape};
use crate::op::Op;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use thalweg_core::Layout;

/// The memory that holds a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueLocation {
    /// A slot of the executor.
    Slot(usize),
    /// A range of the caller's parameters.
    Parameter(Range<usize>),
    /// A range of the caller's gradient.
    Gradient(Range<usize>),
    /// The features of the batch.
    Features,
    Constant(Arc<[f32]>),
    /// The output of the operator itself, which works in place.
    Output,
}

/// One operator with the locations of its values.
#[derive(Clone, Debug)]
pub struct PlannedOp {
    pub op: Op,
    /// The node of the graph that it computes.
    #[cfg(test)]
    pub node: NodeId,
    pub inputs: Vec<ValueLocation>,
    /// Shapes of the inputs.
    pub shapes: Vec<Shape>,
    pub output: ValueLocation,
    /// Shape of the output.
    pub shape: Shape,
    /// Copied into the output first: the input of an in-place kernel that has other readers.
    pub preload: Option<ValueLocation>,
    /// Slots and shapes of the side outputs that are read.
    pub side_outputs: Vec<Option<(usize, Shape)>>,
    /// The tensor of the layout whose gradient this operator completes.
    pub completes: Option<usize>,
    /// Estimated cost, in elements per row that can be read and written once in the same time.
    pub work: usize,
}

/// Operators in execution order, and the slots they need.
#[derive(Clone, Debug, Default)]
pub struct ExecutionPlan {
    pub steps: Vec<PlannedOp>,
    /// The largest value of each slot.
    pub slots: Vec<Shape>,
    /// Location and shape of the network's output, if the plan computes it.
    pub output: Option<(ValueLocation, Shape)>,
    /// Whether an operator needs the features as dense numbers.
    pub reads_features: bool,
    /// Whether a gradient that is a product over rows is reported as its factors.
    pub factors: bool,
}

impl ExecutionPlan {
    /// The plan that computes the loss and all gradients, which complete in layout order.
    pub fn for_gradients(graph: &Graph, layout: &Layout) -> ExecutionPlan {
        // The layout lists the parameters of the graph in reverse.
        let gradients: Vec<NodeId> = graph.gradients.iter().rev().copied().collect();
        let mut order = TopologicalOrder::new(graph);
        graph.loss.into_iter().chain(gradients.iter().copied()).for_each(|root| order.visit(root));
        let tensors = gradients.into_iter().enumerate().map(|(tensor, id)| (id, tensor)).collect();
        BufferPlanner::new(graph, layout, tensors).plan(order.nodes, None)
    }

    /// The plan that computes only the loss.
    pub fn for_loss(graph: &Graph, layout: &Layout) -> ExecutionPlan {
        let mut order = TopologicalOrder::new(graph);
        graph.loss.into_iter().for_each(|root| order.visit(root));
        BufferPlanner::new(graph, layout, HashMap::new()).plan(order.nodes, None)
    }

    /// The plan that computes only the output.
    pub fn for_output(graph: &Graph, layout: &Layout) -> ExecutionPlan {
        let mut order = TopologicalOrder::new(graph);
        graph.output.into_iter().for_each(|root| order.visit(root));
        BufferPlanner::new(graph, layout, HashMap::new()).plan(order.nodes, graph.output)
    }

    /// Elements of all slots for a batch of `rows` rows: the peak memory of a pass.
    pub fn peak(&self, rows: usize) -> usize {
        self.slots.iter().fold(0, |sum, shape| sum.saturating_add(shape.len(rows)))
    }
}

/// Depth-first topological order: each node after its inputs.
struct TopologicalOrder<'a> {
    graph: &'a Graph,
    seen: Vec<bool>,
    nodes: Vec<NodeId>,
}

impl<'a> TopologicalOrder<'a> {
    fn new(graph: &'a Graph) -> TopologicalOrder<'a> {
        TopologicalOrder { graph, seen: vec![false; graph.nodes().len()], nodes: Vec::new() }
    }

    fn visit(&mut self, id: NodeId) {
        // An explicit stack: recursion on a deep graph would overflow the thread's.
        let mut stack = vec![(id, false)];
        while let Some((id, ready)) = stack.pop() {
            if ready {
                self.nodes.push(id);
            } else if !std::mem::replace(&mut self.seen[id.0], true) {
                stack.push((id, true));
                let inputs = self.graph.node(id).inputs.iter().rev();
                stack.extend(inputs.filter(|input| !self.seen[input.0]).map(|input| (*input, false)));
            }
        }
    }
}

/// Assigns a location to every value.
struct BufferPlanner<'a> {
    graph: &'a Graph,
    layout: &'a Layout,
    /// Nodes that are gradients, with their tensor in the layout.
    tensors: HashMap<NodeId, usize>,
    /// The last step at which each value is read.
    last_use: Vec<usize>,
    locations: Vec<Option<ValueLocation>>,
    slots: Vec<Shape>,
    /// Free slots: whether they have rows, elements per row, index.
    free: BTreeSet<(bool, usize, usize)>,
    /// Per node: the node whose memory holds its value (another one for views).
    owners: Vec<NodeId>,
}

impl<'a> BufferPlanner<'a> {
    fn new(graph: &'a Graph, layout: &'a Layout, tensors: HashMap<NodeId, usize>) -> BufferPlanner<'a> {
        let count = graph.nodes().len();
        let locations = vec![None; count];
        let mut owners: Vec<NodeId> = Vec::with_capacity(count);
        for (id, node) in graph.nodes() {
            owners.push(if node.op.operator().is_view() { owners[node.inputs[0].0] } else { id });
        }
        BufferPlanner {
            graph,
            layout,
            tensors,
            last_use: vec![0; count],
            locations,
            slots: Vec::new(),
            free: BTreeSet::new(),
            owners,
        }
    }

    fn plan(mut self, order: Vec<NodeId>, output: Option<NodeId>) -> ExecutionPlan {
        let mut side_outputs: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        for (step, id) in order.iter().enumerate() {
            let node = self.graph.node(*id);
            if matches!(node.op, Op::SideOutput(_)) {
                side_outputs.entry(node.inputs[0]).or_default().push(*id);
                continue;
            }
            for input in &node.inputs {
                let owner = self.owner(*input);
                self.last_use[owner.0] = step;
            }
        }
        if let Some(output) = output {
            let owner = self.owner(output);
            self.last_use[owner.0] = usize::MAX;
        }
        let mut steps = Vec::new();
        for (time, id) in order.iter().enumerate() {
            let node = self.graph.node(*id);
            let runs =
                !matches!(node.op, Op::Parameter(_) | Op::SideOutput(_) | Op::Features(_) | Op::Constant(_));
            if runs && !node.op.operator().is_view() {
                let side_nodes = side_outputs.get(id).map_or(&[][..], Vec::as_slice);
                steps.push(self.plan_op(*id, time, side_nodes));
            } else if !matches!(node.op, Op::SideOutput(_)) {
                self.locations[id.0] = Some(self.leaf_location(*id));
            }
            if !matches!(node.op, Op::SideOutput(_)) {
                self.release(*id, time);
            }
        }
        let reads_features = order.iter().any(|id| matches!(self.graph.node(*id).op, Op::Features(_)));
        let output = output.map(|id| (self.location(id), self.graph.shape(id).clone()));
        ExecutionPlan { steps, slots: self.slots, output, reads_features, factors: false }
    }

    fn owner(&self, id: NodeId) -> NodeId {
        self.owners[id.0]
    }

    fn location(&self, id: NodeId) -> ValueLocation {
        self.locations[id.0].clone().unwrap_or(ValueLocation::Output)
    }

    /// The location of a value that no operator computes, or of a view.
    fn leaf_location(&self, id: NodeId) -> ValueLocation {
        let node = self.graph.node(id);
        match &node.op {
            Op::Parameter(index) => {
                let tensors = self.layout.tensors();
                ValueLocation::Parameter(tensors[tensors.len() - 1 - index].range())
            }
            Op::Features(_) => ValueLocation::Features,
            Op::Constant(constant) => ValueLocation::Constant(constant.values.clone()),
            _ => self.location(node.inputs[0]),
        }
    }

    fn plan_op(&mut self, id: NodeId, time: usize, side_nodes: &[NodeId]) -> PlannedOp {
        let node = self.graph.node(id);
        let mut inputs: Vec<ValueLocation> = node.inputs.iter().map(|input| self.location(*input)).collect();
        let completes = self.tensors.get(&id).copied();
        let mut preload = None;
        let in_place = node.op.operator().in_place();
        let output = match (completes, in_place) {
            (Some(tensor), _) => ValueLocation::Gradient(self.layout.tensors()[tensor].range()),
            (None, Some(index)) => {
                self.take_over(id, index, time).unwrap_or_else(|| self.allocate(&node.shape))
            }
            (None, None) => self.allocate(&node.shape),
        };
        if let Some(index) = in_place {
            let location = std::mem::replace(&mut inputs[index], ValueLocation::Output);
            preload = (location != output).then_some(location);
        }
        self.locations[id.0] = Some(output.clone());
        let mut side_outputs = Vec::new();
        for side in side_nodes {
            let Op::SideOutput(index) = self.graph.node(*side).op else { continue };
            let shape = self.graph.shape(*side).clone();
            let location = self.allocate(&shape);
            self.locations[side.0] = Some(location.clone());
            side_outputs.resize(side_outputs.len().max(index + 1), None);
            if let ValueLocation::Slot(slot) = location {
                side_outputs[index] = Some((slot, shape));
            }
        }
        let shapes = self.graph.input_shapes(id).into_iter().cloned().collect();
        let (op, shape) = (node.op.clone(), node.shape.clone());
        let flops = op.operator().flops(&self.graph.input_shapes(id), &shape);
        // A matrix product executes about 16 FLOPs in the time of one element.
        let work = shape.per_row() + usize::try_from(flops / 16).unwrap_or(usize::MAX / 2);
        PlannedOp {
            op,
            #[cfg(test)]
            node: id,
            inputs,
            shapes,
            output,
            shape,
            preload,
            side_outputs,
            completes,
            work,
        }
    }

    /// The slot of an input whose lifetime ends here, for a kernel that works in place.
    fn take_over(&mut self, id: NodeId, index: usize, time: usize) -> Option<ValueLocation> {
        let node = self.graph.node(id);
        let owner = self.owner(node.inputs[index]);
        let once = node.inputs.iter().filter(|input| self.owner(**input) == owner).count() == 1;
        let slot = match self.location(owner) {
            ValueLocation::Slot(slot) if once && self.last_use[owner.0] == time => slot,
            _ => return None,
        };
        // The new owner frees the slot.
        self.locations[owner.0] = None;
        Some(ValueLocation::Slot(slot))
    }

    /// Allocates a slot: the smallest free one that is large enough, else the largest free one, enlarged.
    fn allocate(&mut self, shape: &Shape) -> ValueLocation {
        let (rows, size) = (shape.has_rows(), shape.per_row());
        let enough = self.free.range((rows, size, 0)..=(rows, usize::MAX, usize::MAX)).next();
        let largest = || self.free.range((rows, 0, 0)..(rows, size, 0)).next_back();
        let slot = match enough.or_else(largest).copied() {
            Some(free) => {
                self.free.remove(&free);
                free.2
            }
            None => {
                self.slots.push(shape.clone());
                self.slots.len() - 1
            }
        };
        if self.slots[slot].per_row() < size {
            self.slots[slot] = shape.clone();
        }
        ValueLocation::Slot(slot)
    }

    /// Frees the slots of values whose lifetime ends with this node.
    fn release(&mut self, id: NodeId, time: usize) {
        let mut owners: Vec<NodeId> = self.graph.node(id).inputs.iter().map(|i| self.owner(*i)).collect();
        owners.push(id);
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            let done = self.last_use[owner.0] <= time && !self.graph.node(owner).op.operator().is_view();
            if let (true, Some(ValueLocation::Slot(slot))) = (done, &self.locations[owner.0]) {
                let shape = &self.slots[*slot];
                self.free.insert((shape.has_rows(), shape.per_row(), *slot));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::optimize;
    use crate::pass::tests::sample;

    fn written_slots(step: &PlannedOp) -> Vec<usize> {
        let output = if let ValueLocation::Slot(slot) = step.output { Some(slot) } else { None };
        output.into_iter().chain(step.side_outputs.iter().flatten().map(|(slot, _)| *slot)).collect()
    }

    #[test]
    fn gradients_complete_in_layout_order() {
        let (graph, layout) = sample();
        for graph in [graph.clone(), optimize(&graph)] {
            let plan = ExecutionPlan::for_gradients(&graph, &layout);
            let completed: Vec<usize> = plan.steps.iter().filter_map(|step| step.completes).collect();
            assert_eq!(completed, (0..layout.tensors().len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_operator_overwrites_a_live_value() {
        let (graph, layout) = sample();
        for graph in [graph.clone(), optimize(&graph)] {
            let plan = ExecutionPlan::for_gradients(&graph, &layout);
            let mut holder = vec![None; plan.slots.len()];
            for step in &plan.steps {
                for (input, location) in graph.node(step.node).inputs.iter().zip(&step.inputs) {
                    if let ValueLocation::Slot(slot) = location {
                        assert!(!written_slots(step).contains(slot), "{step:?}");
                        assert_eq!(holder[*slot], Some(*input), "{step:?}");
                    }
                }
                if let ValueLocation::Slot(slot) = step.output {
                    holder[slot] = Some(step.node);
                }
                for (id, node) in graph.nodes().filter(|(_, node)| node.inputs.first() == Some(&step.node)) {
                    if let Op::SideOutput(index) = node.op {
                        holder[step.side_outputs[index].as_ref().unwrap().0] = Some(id);
                    }
                }
            }
        }
    }

    #[test]
    fn slots_are_reused() {
        let (graph, layout) = sample();
        let optimized = optimize(&graph);
        let plan = ExecutionPlan::for_gradients(&optimized, &layout);
        let values: usize = plan.steps.iter().map(|step| written_slots(step).len()).sum();
        assert!(plan.slots.len() < values, "{} slots for {values} values", plan.slots.len());
        let without = ExecutionPlan::for_gradients(&graph, &layout);
        assert!(plan.peak(8) <= without.peak(8));
    }
}
