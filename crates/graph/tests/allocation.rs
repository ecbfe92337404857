//! Steps after the first allocate nothing, neither in the gradient nor in the update, in place or not.

mod training_state;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::{Batch, Features, Model, NoHooks, Rng, Targets, Task};
use thalweg_graph::{Input, Moment, Optimizer, Options, Team, zoo};
use training_state::TrainingState;

/// Counts the allocations of the system allocator.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller's guarantees are forwarded.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.alloc(layout) }
    }
    // SAFETY: the caller's guarantees are forwarded.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
    // SAFETY: the caller's guarantees are forwarded.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const IMAGE: Input = Input::Image([28, 28, 1]);
const TEXT: Input = Input::Symbols { window: 16, vocabulary: 11 };

fn batch(input: Input, rows: usize, classes: u64, seed: u64) -> Batch {
    let mut rng = Rng::keyed(seed, "allocation", &[]);
    let features = match input {
        Input::Symbols { window, vocabulary } => Features::Tokens {
            symbols: (0..rows * window).map(|_| rng.below(vocabulary as u64) as u32).collect(),
            window,
            vocabulary,
        },
        input => Features::Dense((0..rows * input.width()).map(|_| rng.uniform()).collect()),
    };
    let targets = Targets::Classes((0..rows).map(|_| rng.below(classes) as u32).collect());
    Batch { epoch: 0, rows: (0..rows as u64).collect(), width: input.width(), features, targets }
}

#[test]
fn steps_after_the_first_allocate_nothing() {
    for model in &zoo::MODELS {
        let (input, classes) = if (model.layers)(IMAGE).is_ok() { (IMAGE, 10) } else { (TEXT, 11) };
        for threads in [1, 2] {
            let team = Team::shared(threads, 1);
            let network = zoo::network(model.name, input, classes, Task::Classification, Options::default());
            let mut network = network.unwrap().with_team(team.clone());
            let mut parameters = vec![0.0; network.layout().len()];
            network.initialize(1, &mut parameters);
            let mut gradient = parameters.clone();
            let rule = UpdateRule::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
            let optimizer = Optimizer::for_layout(rule, network.layout()).with_team(team);
            let mut state = TrainingState::new(rule, parameters);
            let mut other_copy = state.columns.clone();
            let batches: Vec<Batch> = [6, 6, 5, 6]
                .into_iter()
                .zip(0..)
                .map(|(rows, seed)| batch(input, rows, classes as u64, seed))
                .collect();
            let mut counts = Vec::new();
            for batch in &batches {
                let before = COUNT.load(Ordering::Relaxed);
                network.gradient(&state.columns[0], batch, 0.25, &mut gradient, &mut NoHooks).unwrap();
                state.update(&optimizer, rule.lr(), &gradient);
                optimizer.apply_range(
                    Moment { updates: state.updates, rate: rule.lr() },
                    0..gradient.len(),
                    state.columns.each_ref().map(|values| &values[..]),
                    other_copy.each_mut().map(|values| &mut values[..]),
                    &gradient,
                );
                counts.push(COUNT.load(Ordering::Relaxed) - before);
            }
            assert_eq!(counts[1..], [0, 0, 0], "{} with {threads} threads", model.name);
        }
    }
}
