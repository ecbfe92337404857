//! Runs a plan for a batch. Slots and scratch memory are kept from step to step: once the largest batch was seen,
//! nothing is allocated again.
//!
//! A step takes its output's memory out of the slots, reads the others, and puts it back: the borrow checker sees that
//! no kernel writes what it reads.

use crate::graph::Shape;
use crate::op::Op;
use crate::op::product::Product;
use crate::op::sparse::SparseInput;
use crate::pass::MOST_INPUTS;
use crate::plan::{Place, Plan, Step};
use crate::shares;
use crate::team::Team;
use std::sync::Arc;
use thalweg_core::model::Density;
use thalweg_core::{Batch, Features, Gradient, Hooks, Layout, Result, Tally, progress};

/// Most values that an operator writes beside its result.
pub const MOST_PARTS: usize = 3;

/// What a kernel sees: its inputs, its output, and the pass it belongs to.
pub struct Call<'a, 'p> {
    /// The first row of the batch that it works on.
    pub first: usize,
    /// Rows of the batch that it works on.
    pub rows: usize,
    /// What it reads; the one that it works on in place is empty.
    pub inputs: &'a [&'a [f32]],
    /// The shapes of what it reads.
    pub shapes: &'a [Shape],
    /// Where the result goes.
    pub output: &'a mut [f32],
    /// The shape of the result.
    pub shape: &'a Shape,
    /// Where the parts go that somebody reads.
    pub parts: [Option<&'a mut [f32]>; MOST_PARTS],
    /// The pass.
    pub pass: &'a mut Pass<'p>,
}

/// One pass over a batch.
pub struct Pass<'p> {
    /// The rows.
    pub batch: &'p Batch,
    /// What gradients are multiplied with.
    pub scale: f32,
    /// What random choices are keyed by.
    pub seed: u64,
    /// What the loss counts.
    pub tally: Tally,
    /// What kernels keep from step to step.
    pub memory: &'p mut Memory,
    /// Who listens.
    pub hooks: &'p mut dyn Hooks,
    /// Who helps.
    pub team: &'p Team,
}

/// What kernels keep from step to step.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The features, where they are sparse.
    pub sparse: SparseInput,
    /// Sums in double precision.
    pub sums: Vec<f64>,
    /// Room for a kernel while it runs.
    pub scratch: Vec<f32>,
    /// The rows of a row-sparse gradient, ascending.
    rows: Vec<u32>,
}

/// The front of a kernel's memory, made longer if need be; what is in it is of no meaning.
pub(crate) fn room(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    &mut memory[..len]
}

/// The memory in which plans run.
#[derive(Clone, Debug, Default)]
pub struct Executor {
    slots: Vec<Vec<f32>>,
    /// The features written out, where the batch has them in another form and a kernel wants numbers.
    features: Vec<f32>,
    memory: Memory,
    /// The memory of each share of a step.
    memories: Vec<Memory>,
    team: Arc<Team>,
}

impl Executor {
    /// An executor that works with a team.
    pub fn with(team: Arc<Team>) -> Executor {
        Executor { team, ..Executor::default() }
    }

    /// Runs a plan and returns what the loss counted. The gradient buffer is written by plans that have gradients.
    #[expect(clippy::too_many_arguments, reason = "the pass in full, from one caller")]
    pub fn run(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        parameters: &[f32],
        gradient: &mut [f32],
        batch: &Batch,
        scale: f32,
        seed: u64,
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.prepare(plan, batch);
        let Executor { slots, features, memory, memories, team } = self;
        let features = match &batch.features {
            Features::Dense(values) => values.as_slice(),
            _ => features.as_slice(),
        };
        let mut pass = Pass { batch, scale, seed, tally: Tally::default(), memory, hooks, team };
        let mut room = Room { slots, parameters, gradient, features, memories };
        let (mut done, work) = (0.0, plan.steps.iter().map(|step| step.work as f64).sum::<f64>().max(1.0));
        for step in &plan.steps {
            room.run(step, &mut pass)?;
            progress::advance();
            done += step.work as f64;
            pass.hooks.progress(done / work)?;
            if let (Some(tensor), Place::Gradient(range)) = (step.announce, &step.output) {
                match plan.factors.then(|| room.factors(step, batch)).flatten() {
                    Some((left, right)) => pass.hooks.gradient(Gradient::Factors { tensor, left, right })?,
                    None => announce(&mut pass, layout, tensor, &room.gradient[range.clone()])?,
                }
            }
        }
        Ok(pass.tally)
    }

    /// The answer of the plan that ran last.
    pub fn answer<'a>(&'a self, plan: &Plan, rows: usize) -> &'a [f32] {
        match &plan.answer {
            Some((Place::Slot(slot), shape)) => &self.slots[*slot][..shape.len(rows)],
            _ => &[],
        }
    }

    /// Makes room for a batch, and reads features that are not plain numbers.
    fn prepare(&mut self, plan: &Plan, batch: &Batch) {
        self.slots.resize_with(self.slots.len().max(plan.slots.len()), Vec::new);
        for (slot, shape) in self.slots.iter_mut().zip(&plan.slots) {
            let len = shape.len(batch.len());
            if slot.len() < len {
                slot.resize(len, 0.0);
            }
        }
        if !matches!(batch.features, Features::Dense(_)) {
            self.memory.sparse.read(&batch.features, batch.width);
            if plan.reads_features {
                self.memory.sparse.spell_out(&mut self.features, batch.width);
            }
        }
    }
}

/// Everything a step may read or write.
struct Room<'a> {
    slots: &'a mut [Vec<f32>],
    parameters: &'a [f32],
    gradient: &'a mut [f32],
    features: &'a [f32],
    memories: &'a mut Vec<Memory>,
}

impl Room<'_> {
    /// The two values whose product over rows the step has just computed, if that is what it does.
    fn factors<'b>(&'b self, step: &Step, batch: &'b Batch) -> Option<(&'b [f32], &'b [f32])> {
        let read = |index: usize| match &step.inputs[index] {
            Place::Slot(slot) => Some(&self.slots[*slot][..step.shapes[index].len(batch.len())]),
            Place::Features => Some(&self.features[..step.shapes[index].len(batch.len())]),
            _ => None,
        };
        match (&step.op, &batch.features) {
            (Op::Product(product), _) if *product == Product::over_rows() => Some((read(0)?, read(1)?)),
            (Op::FeatureGradient(_), Features::Dense(values)) => Some((read(0)?, values)),
            _ => None,
        }
    }

    fn run(&mut self, step: &Step, pass: &mut Pass<'_>) -> Result<()> {
        let rows = pass.batch.len();
        let len = step.shape.len(rows);
        let mut taken = match step.output {
            Place::Slot(slot) => std::mem::take(&mut self.slots[slot]),
            _ => Vec::new(),
        };
        let mut taken_parts: [Vec<f32>; MOST_PARTS] = Default::default();
        for (taken, (slot, _)) in
            taken_parts.iter_mut().zip(&step.parts).filter_map(|(t, p)| Some((t, p.as_ref()?)))
        {
            *taken = std::mem::take(&mut self.slots[*slot]);
        }
        let Room { slots, parameters, gradient, features, memories } = self;
        let read = |place: &Place, len: usize| -> &[f32] {
            match place {
                Place::Slot(slot) => &slots[*slot][..len],
                Place::Parameter(range) => &parameters[range.clone()],
                Place::Features => &features[..len],
                // No step reads a gradient, and an output's memory belongs to the output.
                Place::Gradient(_) | Place::Output => &[],
                Place::Constant(_) => &[],
            }
        };
        let output: &mut [f32] = match &step.output {
            Place::Gradient(range) => &mut gradient[range.clone()],
            _ => &mut taken[..len],
        };
        let load = step.load.as_ref().map(|place| resolve(place, len, &read));
        let mut inputs: [&[f32]; MOST_INPUTS] = [&[]; MOST_INPUTS];
        for ((input, place), shape) in inputs.iter_mut().zip(&step.inputs).zip(&step.shapes) {
            *input = resolve(place, shape.len(rows), &read);
        }
        let mut part_slices: [Option<&mut [f32]>; MOST_PARTS] = Default::default();
        for ((slice, taken), part) in part_slices.iter_mut().zip(&mut taken_parts).zip(&step.parts) {
            *slice = part.as_ref().map(|(_, shape)| &mut taken[..shape.len(rows)]);
        }
        let operator = step.op.operator();
        let together = pass.team.threads() > 1 && step.shape.has_rows() && operator.is_by_rows(pass.batch);
        let work = if together { rows.saturating_mul(step.work) } else { 0 };
        let count = shares::count(pass.team, rows, work);
        let mut call = Call {
            first: 0,
            rows,
            inputs: &inputs[..step.inputs.len()],
            shapes: &step.shapes,
            output,
            shape: &step.shape,
            parts: part_slices,
            pass,
        };
        let result = if count > 1 {
            shares::run(operator, call, load, count, memories)
        } else {
            if let Some(values) = load {
                call.output.copy_from_slice(values);
            }
            operator.run(&mut call)
        };
        if let Place::Slot(slot) = step.output {
            self.slots[slot] = taken;
        }
        for (taken, part) in taken_parts.into_iter().zip(&step.parts) {
            if let Some((slot, _)) = part {
                self.slots[*slot] = taken;
            }
        }
        result
    }
}

/// Where a value is read; constants bring their own memory.
fn resolve<'a>(place: &'a Place, len: usize, read: &impl Fn(&Place, usize) -> &'a [f32]) -> &'a [f32] {
    match place {
        Place::Constant(values) => values,
        place => read(place, len),
    }
}

/// Tells the listener that a tensor's gradient is complete: whole, or the rows that the batch touched.
fn announce(pass: &mut Pass<'_>, layout: &Layout, tensor: usize, values: &[f32]) -> Result<()> {
    let described = &layout.tensors()[tensor];
    let symbols = match (&pass.batch.features, described.density) {
        (Features::Tokens { symbols, .. }, Density::Rows) => symbols,
        _ => return pass.hooks.gradient(Gradient::Dense { tensor, values }),
    };
    let width = described.shape[1];
    let Memory { rows, scratch, .. } = pass.memory;
    rows.clear();
    rows.extend_from_slice(symbols);
    rows.sort_unstable();
    rows.dedup();
    scratch.clear();
    rows.iter().for_each(|row| scratch.extend_from_slice(&values[*row as usize * width..][..width]));
    pass.hooks.gradient(Gradient::Rows { tensor, rows, values: scratch })
}
