//! D-PSGD against a reference of a few lines, against all-reduce, and against the spectral gap of its graph.

mod harness;

use harness::still::{Seen, StillModels};
use harness::{distance, parameters, simulate, simulate_stopped, train};
use std::f64::consts::TAU;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thalweg_cluster::engine::simulated;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::{
    LinkParameters, Network as Simulated, SimulatedFault, SimulatedFaultKind,
};
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::NoHooks;
use thalweg_core::spec::JobLayers;
use thalweg_core::{JobSpec, Model};
use thalweg_data::{Data, Sampler, even_range};
use thalweg_graph::{Network, Options, Team};
use thalweg_train::mixing::MixingMatrix;
use thalweg_train::{Assignment, registry};

const DPSGD: &str = "strategy.preset=dpsgd";

fn job(settings: &[&str]) -> JobSpec {
    let mut layers = JobLayers::default();
    settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
    registry::resolve(layers).unwrap().spec
}

fn finish(world: usize, folder: &Path, settings: &[&str]) -> Vec<Event> {
    let mut ended = train(world, folder, settings);
    for ended in &ended {
        assert_eq!(ended.result.as_ref().unwrap(), &Outcome::Completed, "{settings:?}");
    }
    let events = ended.swap_remove(0).events;
    for event in &events {
        if let Event::Epoch { audit, .. } = event {
            assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0), "{settings:?}");
        }
    }
    events
}

fn trained(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    finish(world, folder.path(), settings);
    parameters(folder.path())
}

/// Five in a ring: 64 rows are shares of 13, 13, 13, 13 and 12.
const WORKERS: usize = 5;

/// The program of the paper: all models at once, with momentum. Returns their mean.
fn reference(mix_first: bool, steps: u64) -> Vec<f32> {
    let job = job(&["engine.threads=1"]);
    let mut data = Data::open(&job.data, job.train.seed).unwrap();
    if data.needs_statistics() {
        let all = data.statistics(0, 1).unwrap();
        data.fit(&[all]).unwrap();
    }
    let network = Network::for_schema(&job.model.layers, &data.schema, Options::of(&job)).unwrap();
    let mut network = network.with_team(Team::shared(1, 1));
    let mut sampler = Sampler::new(&data.training, job.train.seed, job.train.global_batch);
    let length = network.layout().len();
    let mut first = vec![0.0; length];
    network.initialize(job.train.seed, &mut first);
    let (mut w, mut velocity) = (vec![first; WORKERS], vec![vec![0.0; length]; WORKERS]);
    let (mut batch, mut gradients) = (data.training.empty_batch(), vec![vec![0.0; length]; WORKERS]);
    for step in 0..steps {
        let (epoch, index) = (step / sampler.steps_per_epoch(), step % sampler.steps_per_epoch());
        let rows = sampler.rows(epoch, index).to_vec();
        for i in 0..WORKERS {
            let own = &rows[even_range(rows.len(), i, WORKERS)];
            data.training.load(own, epoch, &mut batch).unwrap();
            // The sum over its rows, times n / R: n r_i / R of their mean.
            let scale = 1.0 / (rows.len() as f32 / WORKERS as f32);
            network.gradient(&w[i], &batch, scale, &mut gradients[i], &mut NoHooks).unwrap();
        }
        let mix = |w: &mut Vec<Vec<f32>>| {
            let third = |i: usize, k: usize| {
                let mut around = [(i + WORKERS - 1) % WORKERS, (i + 1) % WORKERS];
                around.sort_unstable();
                let [one, other] = around.map(|j| (1.0f64 / 3.0) as f32 * w[j][k]);
                (1.0 - 2.0 / 3.0f64) as f32 * w[i][k] + one + other
            };
            *w = (0..WORKERS).map(|i| (0..length).map(|k| third(i, k)).collect()).collect();
        };
        if mix_first {
            mix(&mut w);
        }
        for i in 0..WORKERS {
            for ((w, v), g) in w[i].iter_mut().zip(&mut velocity[i]).zip(&gradients[i]) {
                *v = 0.9 * *v + g;
                *w -= 0.1 * *v;
            }
        }
        if !mix_first {
            mix(&mut w);
        }
    }
    // In the order of ranks, as rank 0 adds them up in a direct all-reduce.
    let share = 1.0 / WORKERS as f32;
    (0..length).map(|k| w.iter().map(|w| share * w[k]).fold(0.0, |sum, value| sum + value)).collect()
}

#[test]
fn dpsgd_follows_its_reference() {
    for (mix, first) in [("before", true), ("after", false)] {
        let mix = format!("strategy.neighbours.mix={mix}");
        let optimizer = "train.optimizer={kind='momentum', lr=0.1}";
        let settings = [DPSGD, &mix, optimizer, "train.max_steps=10", "engine.threads=1"];
        let (trained, expected) = (trained(WORKERS, &settings), reference(first, 10));
        assert_eq!(trained.len(), expected.len());
        // The models are equal to the bit; their mean is added up in an order of the all-reduce.
        let apart = trained.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart <= 2.0 * f32::EPSILON, "{mix}: {apart:e}");
        assert!(distance(&expected, &reference(!first, 10)) > 1e-3, "both orders give the same");
    }
}

/// On the complete graph all models are their mean, and so are their gradients.
#[test]
fn a_complete_graph_takes_the_steps_of_all_reduce() {
    let complete = [DPSGD, "strategy.neighbours.graph=complete", "strategy.neighbours.mix=after"];
    for world in [1, 2, 3, 4] {
        let steps = ["train.optimizer={kind='sgd', lr=0.1}", "train.max_steps=60"];
        let reduced = trained(world, &[&["strategy.preset=allreduce"], &steps[..]].concat());
        let mixed = trained(world, &[&complete[..], &steps].concat());
        let apart = distance(&reduced, &mixed);
        assert!(apart < 1e-4, "{world} workers: {apart:e}");
    }
}

#[test]
fn any_graph_learns_the_digits_and_loses_no_row() {
    for graph in ["ring", "torus", "exponential", "complete", "[[0, 1], [1, 2], [1, 3]]"] {
        let (folder, graph) = (tempfile::tempdir().unwrap(), format!("strategy.neighbours.graph={graph}"));
        let events = finish(4, folder.path(), &[DPSGD, &graph, "train.epochs=20"]);
        let accuracy = events.iter().rev().find_map(|event| match event {
            Event::Done { last, .. } => last.get("accuracy").copied(),
            _ => None,
        });
        assert!(accuracy.unwrap() >= 0.93, "{graph}: {accuracy:?}");
    }
}

/// Every worker goes on with the model it had.
#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_interrupted() {
    let settings = [DPSGD, "train.optimizer={kind='adam', lr=0.002}"];
    let [whole, halves] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    finish(3, whole.path(), &[&settings[..], &["train.max_steps=40"]].concat());
    finish(3, halves.path(), &[&settings[..], &["train.max_steps=27"]].concat());
    finish(3, halves.path(), &[&settings[..], &["train.max_steps=40"]].concat());
    assert_eq!(parameters(whole.path()), parameters(halves.path()));
    // With more workers, and with fewer.
    finish(5, halves.path(), &[&settings[..], &["train.max_steps=52"]].concat());
    finish(1, halves.path(), &[&settings[..], &["train.max_steps=60"]].concat());
}

/// Nobody waits for all: but whoever is slow, every model is averaged with those of the same step.
#[test]
fn the_result_does_not_depend_on_the_time_that_messages_take() {
    let run = |change: &dyn Fn(&mut Simulated)| {
        let folder = tempfile::tempdir().unwrap();
        let mut network = Simulated::ordinary(6, 3);
        change(&mut network);
        let (ended, trace) = simulate(network, &[], folder.path(), &[DPSGD, "train.epochs=2"]);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
        (parameters(folder.path()), trace)
    };
    let (usual, trace) = run(&|_| ());
    assert_eq!(run(&|_| ()), (usual.clone(), trace));
    let slow = LinkParameters { latency: Some(Duration::from_millis(30)), bandwidth: None };
    let (late, _) = run(&|network| network.links.extend([((2, 3), slow)]));
    assert_eq!(usual, late);
    let (jittered, _) = run(&|network| (network.jitter, network.seed) = (5.0, 9));
    assert_eq!(usual, jittered);
}

/// One of five is asked to stop in its eighth step: its messages of the ninth say that all meet after the tenth, as two edges is
/// the most between two of them.
#[test]
fn a_stop_travels_with_the_models() {
    let folder = tempfile::tempdir().unwrap();
    for ended in simulate_stopped(Simulated::ordinary(5, 7), (3, 8), folder.path(), &[DPSGD]) {
        assert_eq!(ended, Ok(Outcome::Interrupted));
    }
    let events = finish(5, folder.path(), &[DPSGD, "train.max_steps=30"]);
    let first = events.iter().find_map(|event| match event {
        Event::Started { first_step, .. } => Some(*first_step),
        _ => None,
    });
    assert_eq!(first, Some(10));
}

#[test]
fn a_graph_in_two_parts_is_refused() {
    let mut layers = JobLayers::default();
    for setting in [DPSGD, "engine.workers=4", "strategy.neighbours.graph=[[0, 1], [2, 3]]"] {
        layers.add_assignment(setting).unwrap();
    }
    let error = registry::resolve(layers).unwrap_err();
    for piece in ["strategy.neighbours.graph", "not connected", "from worker 0 to worker 2"] {
        assert!(error.message.contains(piece), "{error}");
    }
}

/// By how much the models of workers in a ring, which start in an eigenvector of the second eigenvalue, come closer to
/// their mean in a step: the mean of that many steps.
fn contraction(workers: usize, steps: usize) -> f64 {
    let settings = [
        DPSGD,
        &format!("engine.workers={workers}"),
        &format!("train.global_batch={workers}"),
        &format!("train.max_steps={}", steps + 1),
        "train.optimizer={kind='sgd', lr=0.1}",
        "fault.checkpoint_every=0",
    ];
    let (job, folder, seen) = (job(&settings), tempfile::tempdir().unwrap(), Seen::default());
    let config = MembershipConfig::fixed(job.fault.step_deadline);
    let (ended, _) = simulated::simulate(Simulated::ordinary(workers, 5), &[], &config, |rank| {
        let start = (TAU * rank.index() as f64 / workers as f64).cos();
        let rows = workers * (steps + 1);
        let components =
            StillModels { worker: rank.index(), start, slope: 0.0, rows, seen: Arc::clone(&seen) };
        let assignment =
            Assignment { job: &job, components: &components, folder: folder.path(), resume: false };
        thalweg_train::run(rank, &assignment, None)
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{:?}", ended[0].result);
    let mut of_workers = vec![Vec::new(); workers];
    seen.lock()
        .unwrap()
        .iter()
        .for_each(|(worker, parameter)| of_workers[*worker].push(f64::from(*parameter)));
    let spread = |step: usize| of_workers.iter().map(|of| of[step].powi(2)).sum::<f64>().sqrt();
    (spread(steps) / spread(0)).powf(1.0 / steps as f64)
}

/// `1 - |lambda2|` within 5%.
fn assert_contracts(workers: usize, steps: usize, known: f64) {
    let all: Vec<usize> = (0..workers).collect();
    let lambda = MixingMatrix::of_members(&job(&[DPSGD]).neighbours.graph, workers, &all).second_eigenvalue();
    assert!((lambda - known).abs() < 1e-4, "{lambda}");
    let (found, expected) = (1.0 - contraction(workers, steps), 1.0 - lambda);
    assert!((found - expected).abs() <= 0.05 * expected, "{workers} workers: {found} and {expected}");
}

#[test]
fn four_in_a_ring_agree_at_the_rate_of_the_second_eigenvalue() {
    assert_contracts(4, 10, 1.0 / 3.0);
}

#[test]
fn sixty_four_in_a_ring_agree_at_the_rate_of_the_second_eigenvalue() {
    assert_contracts(64, 60, 0.9968);
}

/// Six in a ring, of which the first computes slowly: the others run ahead of it, up to three steps. Then some are lost.
/// Returns how many steps the workers were apart at the first loss.
fn lose(lost: &[usize], mix: &str) -> usize {
    let mix = format!("strategy.neighbours.mix={mix}");
    let settings = [
        DPSGD,
        &mix,
        "engine.workers=6",
        "train.global_batch=13",
        "train.epochs=2",
        "train.optimizer={kind='sgd', lr=0.1}",
        "fault.checkpoint_every=0",
    ];
    let (job, folder, seen) = (job(&settings), tempfile::tempdir().unwrap(), Seen::default());
    let network = Simulated { speed: 1e6, ..Simulated::ordinary(6, 5) };
    let at = |milliseconds| Duration::from_millis(milliseconds);
    let mut faults = vec![SimulatedFault::at(at(1), SimulatedFaultKind::Slow { rank: 0, factor: 8.0 })];
    faults.extend(
        lost.iter().map(|rank| SimulatedFault::at(at(150), SimulatedFaultKind::Kill { rank: *rank })),
    );
    let deadline = Duration::from_secs(5);
    let config = MembershipConfig {
        elastic: true,
        limits: Limits { min: 1, max: 6, timeout: deadline, unit: registry::steps_apart(&job) },
        servers: 0..0,
        step_deadline: deadline,
        prepare_deadline: deadline,
        epoch: 0.0,
    };
    let (ended, _) = simulated::simulate(network, &faults, &config, |rank| {
        let (worker, start) = (rank.index(), 1.0);
        let components = StillModels { worker, start, slope: 0.0, rows: 500, seen: Arc::clone(&seen) };
        let assignment =
            Assignment { job: &job, components: &components, folder: folder.path(), resume: false };
        thalweg_train::run(rank, &assignment, None)
    });
    let mut epochs = 0;
    for (rank, ended) in ended.iter().enumerate() {
        assert_eq!(ended.result.is_ok(), !lost.contains(&rank), "{lost:?}: rank {rank}: {:?}", ended.result);
        for event in &ended.events {
            if let Event::Epoch { audit, .. } = event {
                assert_eq!((audit.once, audit.missed, audit.repeated), (500, 0, 0), "{lost:?}: {audit:?}");
                epochs += 1;
            }
        }
    }
    assert_eq!(epochs, 2, "{lost:?}");
    let seen = seen.lock().unwrap();
    // The slow one had begun its step, and all others go on as far as its model lets them, before anything is lost.
    let last = seen.iter().rposition(|(worker, _)| lost.contains(worker)).unwrap();
    let begun = seen[..=last].iter().rposition(|(worker, _)| *worker == 0).unwrap();
    let apart = |end: usize| {
        let steps = |worker| seen[..end].iter().filter(|(of, _)| *of == worker).count();
        let steps: Vec<usize> = (0..6).map(steps).collect();
        steps.iter().max().unwrap() - steps.iter().min().unwrap()
    };
    (begun + 1..=begun + 6).map(apart).max().unwrap()
}

#[test]
fn a_loss_among_workers_that_are_steps_apart_costs_no_row() {
    for mix in ["before", "after"] {
        let apart = [&[3][..], &[1], &[2, 3], &[4, 5], &[0], &[0, 1, 5], &[1, 2, 3, 4, 5]]
            .map(|lost| lose(lost, mix));
        assert!(apart.iter().all(|steps| *steps >= 2), "{mix}: {apart:?}");
    }
}
