//! Runs an execution plan for a batch. Slots and scratch memory are kept between steps: after the largest batch nothing
//! is allocated.
//!
//! Each operator moves its output buffer out of the slots, reads the other slots and moves the buffer back, so the
//! borrow checker proves that no operator writes another one's slot.

use crate::graph::Shape;
use crate::op::Op;
use crate::op::product::Product;
use crate::op::sparse::SparseInput;
use crate::partition;
use crate::pass::MAX_INPUTS;
use crate::plan::{ExecutionPlan, PlannedOp, ValueLocation};
use crate::team::Team;
use std::sync::Arc;
use thalweg_core::model::Density;
use thalweg_core::{Batch, Features, Gradient, Hooks, Layout, Result, Tally, progress};

/// Most values that an operator writes besides its result.
pub const MAX_SIDE_OUTPUTS: usize = 3;

/// The arguments of one kernel invocation.
pub struct OperatorCall<'a, 'p> {
    /// The first row of the batch in this call: above 0 where threads split the batch.
    pub first_row: usize,
    pub rows: usize,
    /// The input that is transformed in place is empty.
    pub inputs: &'a [&'a [f32]],
    /// Shapes of the inputs.
    pub shapes: &'a [Shape],
    pub output: &'a mut [f32],
    /// Shape of the output.
    pub shape: &'a Shape,
    /// Side outputs; `None` for those without a reader.
    pub side_outputs: [Option<&'a mut [f32]>; MAX_SIDE_OUTPUTS],
    pub context: &'a mut RunContext<'p>,
}

/// What all operators of one pass over a batch share.
pub struct RunContext<'p> {
    pub batch: &'p Batch,
    /// Factor on the gradient of the loss.
    pub scale: f32,
    /// Seed of dropout masks.
    pub seed: u64,
    /// Accumulated by the loss operator.
    pub tally: Tally,
    pub workspace: &'p mut Workspace,
    pub hooks: &'p mut dyn Hooks,
    pub team: &'p Team,
}

/// Temporary memory of kernels, kept between steps.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    /// The features, if they are sparse.
    pub sparse: SparseInput,
    /// Accumulators in double precision.
    pub sums: Vec<f64>,
    pub scratch: Vec<f32>,
    /// The rows of a row-sparse gradient, ascending.
    rows: Vec<u32>,
}

/// The first `len` elements of a scratch buffer, which grows if needed; their contents are unspecified.
pub(crate) fn scratch_slice(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Runs plans; owns the slots and workspaces they use.
#[derive(Clone, Debug, Default)]
pub struct PlanExecutor {
    slots: Vec<Vec<f32>>,
    /// Dense copy of sparse features, for plans with an operator that needs one.
    features: Vec<f32>,
    workspace: Workspace,
    /// One workspace per chunk of a row-wise operator.
    chunk_workspaces: Vec<Workspace>,
    team: Arc<Team>,
}

impl PlanExecutor {
    pub fn with_team(team: Arc<Team>) -> PlanExecutor {
        PlanExecutor { team, ..PlanExecutor::default() }
    }

    /// Runs a plan and returns the tally of its loss. Only plans with gradients write the gradient buffer.
    #[expect(clippy::too_many_arguments, reason = "the pass in full, from one caller")]
    pub fn run(
        &mut self,
        plan: &ExecutionPlan,
        layout: &Layout,
        parameters: &[f32],
        gradient: &mut [f32],
        batch: &Batch,
        scale: f32,
        seed: u64,
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.prepare(plan, batch);
        let PlanExecutor { slots, features, workspace, chunk_workspaces, team } = self;
        let features = match &batch.features {
            Features::Dense(values) => values.as_slice(),
            _ => features.as_slice(),
        };
        let mut context = RunContext { batch, scale, seed, tally: Tally::default(), workspace, hooks, team };
        let mut buffers = Buffers { slots, parameters, gradient, features, chunk_workspaces };
        let (mut done, work) = (0.0, plan.steps.iter().map(|step| step.work as f64).sum::<f64>().max(1.0));
        for step in &plan.steps {
            buffers.run(step, &mut context)?;
            progress::advance();
            done += step.work as f64;
            context.hooks.progress(done / work)?;
            if let (Some(tensor), ValueLocation::Gradient(range)) = (step.completes, &step.output) {
                match plan.factors.then(|| buffers.factors(step, batch)).flatten() {
                    Some((left, right)) => {
                        context.hooks.gradient(Gradient::Factors { tensor, left, right })?;
                    }
                    None => report_gradient(&mut context, layout, tensor, &buffers.gradient[range.clone()])?,
                }
            }
        }
        Ok(context.tally)
    }

    /// The output of the plan that ran last.
    pub fn output<'a>(&'a self, plan: &ExecutionPlan, rows: usize) -> &'a [f32] {
        match &plan.output {
            Some((ValueLocation::Slot(slot), shape)) => &self.slots[*slot][..shape.len(rows)],
            _ => &[],
        }
    }

    /// Grows the slots for a batch, and indexes features that are not dense.
    fn prepare(&mut self, plan: &ExecutionPlan, batch: &Batch) {
        self.slots.resize_with(self.slots.len().max(plan.slots.len()), Vec::new);
        for (slot, shape) in self.slots.iter_mut().zip(&plan.slots) {
            let len = shape.len(batch.len());
            if slot.len() < len {
                slot.resize(len, 0.0);
            }
        }
        if !matches!(batch.features, Features::Dense(_)) {
            self.workspace.sparse.read(&batch.features, batch.width);
            if plan.reads_features {
                self.workspace.sparse.write_dense(&mut self.features, batch.width);
            }
        }
    }
}

/// All memory that an operator may read or write.
struct Buffers<'a> {
    slots: &'a mut [Vec<f32>],
    parameters: &'a [f32],
    gradient: &'a mut [f32],
    features: &'a [f32],
    chunk_workspaces: &'a mut Vec<Workspace>,
}

impl Buffers<'_> {
    /// The two factors of a gradient that is a matrix product over rows; `None` for other operators.
    fn factors<'b>(&'b self, step: &PlannedOp, batch: &'b Batch) -> Option<(&'b [f32], &'b [f32])> {
        let read = |index: usize| match &step.inputs[index] {
            ValueLocation::Slot(slot) => Some(&self.slots[*slot][..step.shapes[index].len(batch.len())]),
            ValueLocation::Features => Some(&self.features[..step.shapes[index].len(batch.len())]),
            _ => None,
        };
        match (&step.op, &batch.features) {
            (Op::Product(product), _) if *product == Product::transposed_left() => Some((read(0)?, read(1)?)),
            (Op::FeatureGradient(_), Features::Dense(values)) => Some((read(0)?, values)),
            _ => None,
        }
    }

    fn run(&mut self, step: &PlannedOp, context: &mut RunContext<'_>) -> Result<()> {
        let rows = context.batch.len();
        let len = step.shape.len(rows);
        let mut taken = match step.output {
            ValueLocation::Slot(slot) => std::mem::take(&mut self.slots[slot]),
            _ => Vec::new(),
        };
        let mut taken_sides: [Vec<f32>; MAX_SIDE_OUTPUTS] = Default::default();
        for (taken, (slot, _)) in
            taken_sides.iter_mut().zip(&step.side_outputs).filter_map(|(t, p)| Some((t, p.as_ref()?)))
        {
            *taken = std::mem::take(&mut self.slots[*slot]);
        }
        let Buffers { slots, parameters, gradient, features, chunk_workspaces } = self;
        let read = |location: &ValueLocation, len: usize| -> &[f32] {
            match location {
                ValueLocation::Slot(slot) => &slots[*slot][..len],
                ValueLocation::Parameter(range) => &parameters[range.clone()],
                ValueLocation::Features => &features[..len],
                // No operator reads a gradient, and an in-place input is already in the output.
                ValueLocation::Gradient(_) | ValueLocation::Output => &[],
                ValueLocation::Constant(_) => &[],
            }
        };
        let output: &mut [f32] = match &step.output {
            ValueLocation::Gradient(range) => &mut gradient[range.clone()],
            _ => &mut taken[..len],
        };
        let preload = step.preload.as_ref().map(|location| resolve(location, len, &read));
        let mut inputs: [&[f32]; MAX_INPUTS] = [&[]; MAX_INPUTS];
        for ((input, location), shape) in inputs.iter_mut().zip(&step.inputs).zip(&step.shapes) {
            *input = resolve(location, shape.len(rows), &read);
        }
        let mut side_outputs: [Option<&mut [f32]>; MAX_SIDE_OUTPUTS] = Default::default();
        for ((slice, taken), side) in side_outputs.iter_mut().zip(&mut taken_sides).zip(&step.side_outputs) {
            *slice = side.as_ref().map(|(_, shape)| &mut taken[..shape.len(rows)]);
        }
        let operator = step.op.operator();
        let splits =
            context.team.threads() > 1 && step.shape.has_rows() && operator.is_rowwise(context.batch);
        let work = if splits { rows.saturating_mul(step.work) } else { 0 };
        let count = partition::chunk_count(context.team, rows, work);
        let mut call = OperatorCall {
            first_row: 0,
            rows,
            inputs: &inputs[..step.inputs.len()],
            shapes: &step.shapes,
            output,
            shape: &step.shape,
            side_outputs,
            context,
        };
        let result = if count > 1 {
            partition::run_rowwise(operator, call, preload, count, chunk_workspaces)
        } else {
            if let Some(values) = preload {
                call.output.copy_from_slice(values);
            }
            operator.run(&mut call)
        };
        if let ValueLocation::Slot(slot) = step.output {
            self.slots[slot] = taken;
        }
        for (taken, side) in taken_sides.into_iter().zip(&step.side_outputs) {
            if let Some((slot, _)) = side {
                self.slots[*slot] = taken;
            }
        }
        result
    }
}

/// The elements at a location; a constant carries its own.
fn resolve<'a>(
    location: &'a ValueLocation,
    len: usize,
    read: &impl Fn(&ValueLocation, usize) -> &'a [f32],
) -> &'a [f32] {
    match location {
        ValueLocation::Constant(values) => values,
        location => read(location, len),
    }
}

/// Passes a complete gradient to the hooks: all of it, or for a row-sparse tensor the rows that the batch touched.
fn report_gradient(
    context: &mut RunContext<'_>,
    layout: &Layout,
    tensor: usize,
    values: &[f32],
) -> Result<()> {
    let described = &layout.tensors()[tensor];
    let symbols = match (&context.batch.features, described.density) {
        (Features::Tokens { symbols, .. }, Density::Rows) => symbols,
        _ => return context.hooks.gradient(Gradient::Dense { tensor, values }),
    };
    let width = described.shape[1];
    let Workspace { rows, scratch, .. } = context.workspace;
    rows.clear();
    rows.extend_from_slice(symbols);
    rows.sort_unstable();
    rows.dedup();
    scratch.clear();
    rows.iter().for_each(|row| scratch.extend_from_slice(&values[*row as usize * width..][..width]));
    context.hooks.gradient(Gradient::Rows { tensor, rows, values: scratch })
}
