//! The plan of a graph: in which order its nodes run, and where each value lives.
//!
//! The order is by demand: for each tensor in the order of the layout, whatever its gradient still lacks. So gradients
//! finish in the order of the arena, and nothing runs before somebody needs it. Values live in numbered slots; a slot
//! is given to a new value once the last reader of the old one is done, and a node that may work in place takes the slot
//! of what it reads. A gradient is written straight into the caller's buffer.

use crate::graph::{Graph, NodeId, Shape};
use crate::op::Op;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use thalweg_core::Layout;

/// Where a value lives.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In a slot of the executor.
    Slot(usize),
    /// In the caller's parameters.
    Parameter(Range<usize>),
    /// In the caller's gradient.
    Gradient(Range<usize>),
    /// In the batch.
    Features,
    /// In the graph.
    Constant(Arc<[f32]>),
    /// In the output, where the kernel works in place.
    Output,
}

/// One node to run.
#[derive(Clone, Debug)]
pub struct Step {
    /// What to do.
    pub op: Op,
    /// Which node of the graph it is.
    pub node: NodeId,
    /// What it reads.
    pub inputs: Vec<Place>,
    /// The shapes of what it reads.
    pub shapes: Vec<Shape>,
    /// Where the result goes.
    pub output: Place,
    /// The shape of the result.
    pub shape: Shape,
    /// What to copy into the output first, for a kernel that works in place on what somebody else still needs.
    pub load: Option<Place>,
    /// The slots of the parts that somebody reads, with their shapes.
    pub parts: Vec<Option<(usize, Shape)>>,
    /// The tensor of the layout whose gradient is then complete.
    pub announce: Option<usize>,
    /// About how long it takes, as the number of elements per row that could be read and written once in that time.
    pub work: usize,
}

/// What to run in which order, and how much memory it takes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// The largest value each slot holds.
    pub slots: Vec<Shape>,
    /// Where the answer is found in the end.
    pub answer: Option<(Place, Shape)>,
    /// Whether features must be written out as numbers.
    pub reads_features: bool,
    /// Whether a gradient that is a product over rows is announced by its factors.
    pub factors: bool,
}

impl Plan {
    /// The plan that computes the loss and all gradients, finished in the layout's order.
    pub fn gradients(graph: &Graph, layout: &Layout) -> Plan {
        // The layout lists the graph's parameters backwards.
        let wanted: Vec<NodeId> = graph.gradients.iter().rev().copied().collect();
        let mut order = Order::new(graph);
        graph.loss.into_iter().chain(wanted.iter().copied()).for_each(|root| order.visit(root));
        let tensors = wanted.into_iter().enumerate().map(|(tensor, id)| (id, tensor)).collect();
        Planner::new(graph, layout, tensors).plan(order.nodes, None)
    }

    /// The plan that computes the loss alone.
    pub fn loss(graph: &Graph, layout: &Layout) -> Plan {
        let mut order = Order::new(graph);
        graph.loss.into_iter().for_each(|root| order.visit(root));
        Planner::new(graph, layout, HashMap::new()).plan(order.nodes, None)
    }

    /// The plan that computes the answer alone.
    pub fn answer(graph: &Graph, layout: &Layout) -> Plan {
        let mut order = Order::new(graph);
        graph.answer.into_iter().for_each(|root| order.visit(root));
        Planner::new(graph, layout, HashMap::new()).plan(order.nodes, graph.answer)
    }

    /// Elements that all slots hold together for that many rows: the peak of what a pass keeps.
    pub fn peak(&self, rows: usize) -> usize {
        self.slots.iter().fold(0, |sum, shape| sum.saturating_add(shape.len(rows)))
    }
}

/// Depth first: a node behind all it reads.
struct Order<'a> {
    graph: &'a Graph,
    seen: Vec<bool>,
    nodes: Vec<NodeId>,
}

impl<'a> Order<'a> {
    fn new(graph: &'a Graph) -> Order<'a> {
        Order { graph, seen: vec![false; graph.nodes().len()], nodes: Vec::new() }
    }

    fn visit(&mut self, id: NodeId) {
        // A stack of its own: graphs may be deeper than a thread's.
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

/// Gives every value its place.
struct Planner<'a> {
    graph: &'a Graph,
    layout: &'a Layout,
    /// The tensor that a node is the gradient of.
    tensors: HashMap<NodeId, usize>,
    /// The last step at which each value is read.
    last_use: Vec<usize>,
    places: Vec<Option<Place>>,
    slots: Vec<Shape>,
    /// Slots without a value, by whether they have rows and by size.
    free: BTreeSet<(bool, usize, usize)>,
    /// The node whose memory each node's value is in.
    owners: Vec<NodeId>,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, layout: &'a Layout, tensors: HashMap<NodeId, usize>) -> Planner<'a> {
        let count = graph.nodes().len();
        let places = vec![None; count];
        let mut owners: Vec<NodeId> = Vec::with_capacity(count);
        for (id, node) in graph.nodes() {
            owners.push(if node.op.operator().is_view() { owners[node.inputs[0].0] } else { id });
        }
        Planner {
            graph,
            layout,
            tensors,
            last_use: vec![0; count],
            places,
            slots: Vec::new(),
            free: BTreeSet::new(),
            owners,
        }
    }

    fn plan(mut self, order: Vec<NodeId>, answer: Option<NodeId>) -> Plan {
        let mut parts: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        for (step, id) in order.iter().enumerate() {
            let node = self.graph.node(*id);
            if matches!(node.op, Op::Part(_)) {
                parts.entry(node.inputs[0]).or_default().push(*id);
                continue;
            }
            for input in &node.inputs {
                let owner = self.owner(*input);
                self.last_use[owner.0] = step;
            }
        }
        if let Some(answer) = answer {
            let owner = self.owner(answer);
            self.last_use[owner.0] = usize::MAX;
        }
        let mut steps = Vec::new();
        for (time, id) in order.iter().enumerate() {
            let node = self.graph.node(*id);
            let runs = !matches!(node.op, Op::Parameter(_) | Op::Part(_) | Op::Features(_) | Op::Constant(_));
            if runs && !node.op.operator().is_view() {
                let parts = parts.get(id).map_or(&[][..], Vec::as_slice);
                steps.push(self.step(*id, time, parts));
            } else if !matches!(node.op, Op::Part(_)) {
                self.places[id.0] = Some(self.given(*id));
            }
            if !matches!(node.op, Op::Part(_)) {
                self.release(*id, time);
            }
        }
        let reads_features = order.iter().any(|id| matches!(self.graph.node(*id).op, Op::Features(_)));
        let answer = answer.map(|id| (self.place(id), self.graph.shape(id).clone()));
        Plan { steps, slots: self.slots, answer, reads_features, factors: false }
    }

    /// The node whose memory a node's value is in.
    fn owner(&self, id: NodeId) -> NodeId {
        self.owners[id.0]
    }

    fn place(&self, id: NodeId) -> Place {
        self.places[id.0].clone().unwrap_or(Place::Output)
    }

    /// The place of a value that nobody computes.
    fn given(&self, id: NodeId) -> Place {
        let node = self.graph.node(id);
        match &node.op {
            Op::Parameter(index) => {
                let tensors = self.layout.tensors();
                Place::Parameter(tensors[tensors.len() - 1 - index].range())
            }
            Op::Features(_) => Place::Features,
            Op::Constant(constant) => Place::Constant(constant.values.clone()),
            _ => self.place(node.inputs[0]),
        }
    }

    fn step(&mut self, id: NodeId, time: usize, part_nodes: &[NodeId]) -> Step {
        let node = self.graph.node(id);
        let mut inputs: Vec<Place> = node.inputs.iter().map(|input| self.place(*input)).collect();
        let announce = self.tensors.get(&id).copied();
        let mut load = None;
        let carried = node.op.operator().in_place();
        let output = match (announce, carried) {
            (Some(tensor), _) => Place::Gradient(self.layout.tensors()[tensor].range()),
            (None, Some(index)) => self.taken_over(id, index, time).unwrap_or_else(|| self.slot(&node.shape)),
            (None, None) => self.slot(&node.shape),
        };
        if let Some(index) = carried {
            let place = std::mem::replace(&mut inputs[index], Place::Output);
            load = (place != output).then_some(place);
        }
        self.places[id.0] = Some(output.clone());
        let mut parts = Vec::new();
        for part in part_nodes {
            let Op::Part(index) = self.graph.node(*part).op else { continue };
            let shape = self.graph.shape(*part).clone();
            let place = self.slot(&shape);
            self.places[part.0] = Some(place.clone());
            parts.resize(parts.len().max(index + 1), None);
            if let Place::Slot(slot) = place {
                parts[index] = Some((slot, shape));
            }
        }
        let shapes = self.graph.input_shapes(id).into_iter().cloned().collect();
        let (op, shape) = (node.op.clone(), node.shape.clone());
        let flops = op.operator().flops(&self.graph.input_shapes(id), &shape);
        // A product makes about sixteen operations in the time of one element.
        let work = shape.per_row() + usize::try_from(flops / 16).unwrap_or(usize::MAX / 2);
        Step { op, node: id, inputs, shapes, output, shape, load, parts, announce, work }
    }

    /// The slot of an input that is not read again, for a kernel that works in place.
    fn taken_over(&mut self, id: NodeId, index: usize, time: usize) -> Option<Place> {
        let node = self.graph.node(id);
        let owner = self.owner(node.inputs[index]);
        let once = node.inputs.iter().filter(|input| self.owner(**input) == owner).count() == 1;
        let slot = match self.place(owner) {
            Place::Slot(slot) if once && self.last_use[owner.0] == time => slot,
            _ => return None,
        };
        // The slot lives on under its new owner.
        self.places[owner.0] = None;
        Some(Place::Slot(slot))
    }

    /// A slot for a value: the smallest free one that is large enough, else the largest free one, made larger.
    fn slot(&mut self, shape: &Shape) -> Place {
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
        Place::Slot(slot)
    }

    /// Frees the slots of values whose last reader was this step.
    fn release(&mut self, id: NodeId, time: usize) {
        let mut owners: Vec<NodeId> = self.graph.node(id).inputs.iter().map(|i| self.owner(*i)).collect();
        owners.push(id);
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            let done = self.last_use[owner.0] <= time && !self.graph.node(owner).op.operator().is_view();
            if let (true, Some(Place::Slot(slot))) = (done, &self.places[owner.0]) {
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

    /// Which slots a step writes.
    fn written(step: &Step) -> Vec<usize> {
        let output = if let Place::Slot(slot) = step.output { Some(slot) } else { None };
        output.into_iter().chain(step.parts.iter().flatten().map(|(slot, _)| *slot)).collect()
    }

    #[test]
    fn gradients_finish_in_the_order_of_the_layout() {
        let (graph, layout) = sample();
        for graph in [graph.clone(), optimize(&graph)] {
            let plan = Plan::gradients(&graph, &layout);
            let announced: Vec<usize> = plan.steps.iter().filter_map(|step| step.announce).collect();
            assert_eq!(announced, (0..layout.tensors().len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_step_writes_what_it_reads_or_what_is_still_needed() {
        let (graph, layout) = sample();
        for graph in [graph.clone(), optimize(&graph)] {
            let plan = Plan::gradients(&graph, &layout);
            let mut holder = vec![None; plan.slots.len()];
            for step in &plan.steps {
                for (input, place) in graph.node(step.node).inputs.iter().zip(&step.inputs) {
                    if let Place::Slot(slot) = place {
                        assert!(!written(step).contains(slot), "{step:?}");
                        assert_eq!(holder[*slot], Some(*input), "{step:?}");
                    }
                }
                if let Place::Slot(slot) = step.output {
                    holder[slot] = Some(step.node);
                }
                for (id, node) in graph.nodes().filter(|(_, node)| node.inputs.first() == Some(&step.node)) {
                    if let Op::Part(index) = node.op {
                        holder[step.parts[index].as_ref().unwrap().0] = Some(id);
                    }
                }
            }
        }
    }

    #[test]
    fn slots_are_used_again() {
        let (graph, layout) = sample();
        let optimized = optimize(&graph);
        let plan = Plan::gradients(&optimized, &layout);
        let values: usize = plan.steps.iter().map(|step| written(step).len()).sum();
        assert!(plan.slots.len() < values, "{} slots for {values} values", plan.slots.len());
        let without = Plan::gradients(&graph, &layout);
        assert!(plan.peak(8) <= without.peak(8));
    }
}
