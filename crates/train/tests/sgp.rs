//! SGP against a reference of a few lines, against all-reduce, and what push-sum promises.

mod harness;

use harness::still::{Seen, StillModels};
use harness::{distance, parameters, simulate, train};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thalweg_cluster::engine::simulated;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::{LinkParameters, Network as Simulated};
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::NoHooks;
use thalweg_core::spec::JobLayers;
use thalweg_core::{JobSpec, Model};
use thalweg_data::{Data, Sampler, even_range};
use thalweg_graph::{Network, Options, Team};
use thalweg_train::{Assignment, registry};

const SGP: &str = "strategy.preset=sgp";

/// A directed graph in which not all workers have as many predecessors as successors.
const EDGES: &str = "strategy.neighbours.graph=[[0, 1], [1, 2], [2, 0], [2, 3], [3, 1], [3, 4], [4, 0]]";
const WORKERS: usize = 5;

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

/// To whom each worker pushes in a step.
fn successors(exponential: bool, step: u64) -> [Vec<usize>; WORKERS] {
    match exponential {
        true => std::array::from_fn(|i| vec![(i + [1, 2, 4][step as usize % 3]) % WORKERS]),
        false => [vec![1], vec![2], vec![0, 3], vec![1, 4], vec![0]],
    }
}

/// The program of the paper: all models at once, with momentum. Returns their weighted mean, and the least and the
/// greatest weight.
fn reference(exponential: bool, push_first: bool, steps: u64) -> (Vec<f32>, f32, f32) {
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
    let (mut z, mut a) = (vec![first; WORKERS], [1.0f32; WORKERS]);
    let (mut velocity, mut gradients) = (vec![vec![0.0; length]; WORKERS], vec![vec![0.0; length]; WORKERS]);
    let mut batch = data.training.empty_batch();
    let (mut least, mut greatest) = (1.0f32, 1.0f32);
    for step in 0..steps {
        let (epoch, index) = (step / sampler.steps_per_epoch(), step % sampler.steps_per_epoch());
        let rows = sampler.rows(epoch, index).to_vec();
        let mut x = z.clone();
        for i in 0..WORKERS {
            x[i].iter_mut().for_each(|value| *value *= a[i]);
            let own = &rows[even_range(rows.len(), i, WORKERS)];
            data.training.load(own, epoch, &mut batch).unwrap();
            let scale = 1.0 / (rows.len() as f32 / WORKERS as f32);
            network.gradient(&z[i], &batch, scale, &mut gradients[i], &mut NoHooks).unwrap();
        }
        let mut push = |x: &mut Vec<Vec<f32>>| {
            let to = successors(exponential, step);
            let share = |i: usize| 1.0 / (1 + to[i].len()) as f32;
            let from = |j: usize| (0..WORKERS).filter(|i| to[*i].contains(&j)).collect::<Vec<_>>();
            let sum = |j: usize, k: usize| {
                from(j).iter().fold(share(j) * x[j][k], |sum, i| sum + share(*i) * x[*i][k])
            };
            let pushed = (0..WORKERS).map(|j| (0..length).map(|k| sum(j, k)).collect()).collect();
            a = std::array::from_fn(|j| {
                from(j).iter().fold(share(j) * a[j], |sum, i| sum + share(*i) * a[*i])
            });
            *x = pushed;
        };
        if push_first {
            push(&mut x);
        }
        for i in 0..WORKERS {
            for ((x, v), g) in x[i].iter_mut().zip(&mut velocity[i]).zip(&gradients[i]) {
                *v = 0.9 * *v + g;
                *x -= 0.05 * *v;
            }
        }
        if !push_first {
            push(&mut x);
        }
        for (i, x) in x.iter_mut().enumerate() {
            x.iter_mut().for_each(|value| *value /= a[i]);
        }
        z = x;
        assert!((a.iter().sum::<f32>() - WORKERS as f32).abs() < 1e-4);
        (least, greatest) = a.iter().fold((least, greatest), |(l, g), a| (l.min(*a), g.max(*a)));
    }
    let share = |i: usize| a[i] / WORKERS as f32;
    let sum: f32 = (0..WORKERS).map(share).sum();
    let mean = |k: usize| (0..WORKERS).map(|i| share(i) * z[i][k]).sum::<f32>() / sum;
    ((0..length).map(mean).collect(), least, greatest)
}

#[test]
fn sgp_follows_its_reference() {
    for (mix, first) in [("before", true), ("after", false)] {
        for graph in ["strategy.neighbours.graph=exponential", EDGES] {
            let mix = format!("strategy.neighbours.mix={mix}");
            let optimizer = "train.optimizer={kind='momentum', lr=0.05}";
            let settings = [SGP, graph, &mix, optimizer, "train.max_steps=10", "engine.threads=1"];
            let (expected, least, greatest) = reference(graph != EDGES, first, 10);
            let trained = trained(WORKERS, &settings);
            // The models are equal to the bit; their mean is added up in an order of the all-reduce.
            let apart = trained.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart <= 4.0 * f32::EPSILON, "{graph}, {mix}: {apart:e}");
            assert_eq!(least < 0.8 && greatest > 1.2, graph == EDGES, "weights of {least} to {greatest}");
            assert!(distance(&expected, &reference(graph != EDGES, !first, 10).0) > 1e-3);
        }
    }
}

/// All pushed to all, and one weight for all: the steps of all-reduce.
#[test]
fn a_complete_graph_takes_the_steps_of_all_reduce() {
    for world in [1, 2, 3, 4] {
        let steps = ["train.optimizer={kind='sgd', lr=0.1}", "train.max_steps=60"];
        let reduced = trained(world, &[&["strategy.preset=allreduce"], &steps[..]].concat());
        let pushed = trained(world, &[&[SGP, "strategy.neighbours.graph=complete"], &steps[..]].concat());
        let apart = distance(&reduced, &pushed);
        assert!(apart < 1e-4, "{world} workers: {apart:e}");
    }
}

#[test]
fn any_graph_learns_the_digits_and_loses_no_row() {
    for graph in ["strategy.neighbours.graph=exponential", "strategy.neighbours.graph=torus", EDGES] {
        let folder = tempfile::tempdir().unwrap();
        let events = finish(WORKERS, folder.path(), &[SGP, graph, "train.epochs=20"]);
        let accuracy = events.iter().rev().find_map(|event| match event {
            Event::Done { last, .. } => last.get("accuracy").copied(),
            _ => None,
        });
        assert!(accuracy.unwrap() >= 0.93, "{graph}: {accuracy:?}");
    }
}

/// In the exponential graph all weights are 1, so nothing is lost by beginning again from the models.
#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_interrupted() {
    let settings = [SGP, "train.optimizer={kind='adam', lr=0.002}"];
    let [whole, halves] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    finish(4, whole.path(), &[&settings[..], &["train.max_steps=40"]].concat());
    finish(4, halves.path(), &[&settings[..], &["train.max_steps=27"]].concat());
    finish(4, halves.path(), &[&settings[..], &["train.max_steps=40"]].concat());
    assert_eq!(parameters(whole.path()), parameters(halves.path()));
    // With more workers, and with fewer.
    finish(5, halves.path(), &[&settings[..], &["train.max_steps=52"]].concat());
    finish(1, halves.path(), &[&settings[..], &["train.max_steps=60"]].concat());
}

/// A ring is a path back to the sender: with a slow link some workers are many steps ahead of others, and wait.
#[test]
fn the_result_does_not_depend_on_the_time_that_messages_take() {
    for graph in ["exponential", "ring"] {
        let graph = format!("strategy.neighbours.graph={graph}");
        let run = |change: &dyn Fn(&mut Simulated)| {
            let folder = tempfile::tempdir().unwrap();
            let mut network = Simulated::ordinary(12, 3);
            change(&mut network);
            let (ended, _) = simulate(network, &[], folder.path(), &[SGP, &graph, "train.epochs=2"]);
            assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{graph}");
            parameters(folder.path())
        };
        let usual = run(&|_| ());
        let slow = LinkParameters { latency: Some(Duration::from_millis(300)), bandwidth: None };
        assert_eq!(usual, run(&|network| network.links.extend([((2, 3), slow)])), "{graph}");
        assert_eq!(usual, run(&|network| (network.jitter, network.seed) = (5.0, 9)), "{graph}");
    }
}

/// The parameters of each worker, step by step, without a gradient. Worker i begins at i.
fn still(settings: &[&str], workers: usize, steps: usize) -> Vec<Vec<f32>> {
    let own = [
        SGP,
        &format!("engine.workers={workers}"),
        &format!("train.global_batch={workers}"),
        &format!("train.max_steps={steps}"),
        "train.optimizer={kind='sgd', lr=0.1}",
        "fault.checkpoint_every=0",
    ];
    let (job, folder, seen) =
        (job(&[&own, settings].concat()), tempfile::tempdir().unwrap(), Seen::default());
    let config = MembershipConfig::fixed(job.fault.step_deadline);
    let (ended, _) = simulated::simulate(Simulated::ordinary(workers, 5), &[], &config, |rank| {
        let (worker, rows) = (rank.index(), workers * steps);
        let components =
            StillModels { worker, start: worker as f64, slope: 0.0, rows, seen: Arc::clone(&seen) };
        let assignment =
            Assignment { job: &job, components: &components, folder: folder.path(), resume: false };
        thalweg_train::run(rank, &assignment, None)
    });
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{:?}", ended[0].result);
    let mut models = vec![Vec::new(); workers];
    seen.lock().unwrap().iter().for_each(|(worker, parameter)| models[*worker].push(*parameter));
    models
}

/// After log2 n steps of the exponential graph, and in the long run of any other, all have the mean of all models.
#[test]
fn without_a_gradient_all_models_become_their_mean() {
    for (settings, workers, steps) in
        [(&[][..], 8, 4), (&[][..], 64, 7), (&[][..], 11, 40), (&[EDGES], 5, 80)]
    {
        let mean = (workers - 1) as f32 / 2.0;
        for model in still(settings, workers, steps) {
            assert!(model.iter().all(|value| (0.0..=workers as f32).contains(value)));
            let last = model[steps - 1];
            assert!((last - mean).abs() < 1e-3, "{workers} workers: {last}, and the mean is {mean}");
        }
    }
}

/// The weighted mean stays what it is only with the weights of push-sum: they are found from the models, as worker 0 alone
/// begins elsewhere than at 0.
#[test]
fn push_sum_weights_add_up_to_the_number_of_workers() {
    let (mut a, mut x) = ([1.0f32; WORKERS], std::array::from_fn::<f32, WORKERS, _>(|i| i as f32));
    let models = still(&[EDGES], WORKERS, 30);
    for step in 0..30 {
        for (i, model) in models.iter().enumerate() {
            assert!((model[step] - x[i] / a[i]).abs() < 1e-4, "worker {i} at step {step}");
        }
        let to = successors(false, step as u64);
        let push = |values: &[f32; WORKERS]| -> [f32; WORKERS] {
            let mut pushed = [0.0; WORKERS];
            for (i, to) in to.iter().enumerate() {
                let share = values[i] / (1 + to.len()) as f32;
                to.iter().chain([&i]).for_each(|j| pushed[*j] += share);
            }
            pushed
        };
        (a, x) = (push(&a), push(&x));
        assert!((a.iter().sum::<f32>() - WORKERS as f32).abs() < 1e-4);
    }
    assert!(a.iter().any(|weight| (weight - 1.0).abs() > 0.2), "{a:?}");
}
