//! Training in memory that all workers of a host share: the same steps as with messages, to the bit where the sums are.

mod harness;

use harness::{distance, parameters, train};
use thalweg_core::event::{Event, Outcome};

/// The update needs the length of the whole gradient first: every worker updates parameters of its own. No gradient
/// is that long.
const REPLICATED: &str = "train.clip={norm=1e30}";
/// Gradients travel as messages.
const MESSAGES: &str = "strategy.exchange.transport=tcp";

fn trained(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    finish(world, folder.path(), settings);
    parameters(folder.path())
}

/// Trains and returns the name of what carried out the sums.
fn finish(world: usize, folder: &std::path::Path, settings: &[&str]) -> String {
    let mut name = None;
    for ended in train(world, folder, settings) {
        assert_eq!(ended.result.unwrap(), Outcome::Completed, "{settings:?}");
        name = name.or_else(|| {
            ended.events.into_iter().find_map(|event| match event {
                Event::Started { algorithm, .. } => Some(algorithm),
                _ => None,
            })
        });
    }
    name.unwrap()
}

const RULES: [&str; 9] = [
    "train.optimizer={kind='sgd', lr=0.05}",
    "train.optimizer={kind='momentum', lr=0.05}",
    "train.optimizer={kind='nesterov', lr=0.05}",
    "train.optimizer={kind='adagrad', lr=0.05}",
    "train.optimizer={kind='rmsprop', lr=0.001}",
    "train.optimizer={kind='adam', lr=0.001}",
    "train.optimizer={kind='adamw', lr=0.001, weight_decay=0.01}",
    "train.optimizer={kind='lars', lr=0.05}",
    "train.optimizer={kind='lamb', lr=0.001}",
];

/// With two workers there is only one order of additions: shared memory and messages give the same bits.
#[test]
fn two_workers_get_the_bits_they_get_with_messages() {
    for rule in RULES {
        let settings = [rule, "train.max_steps=40", "train.l2=0.001", "train.clip={value=0.5}"];
        let shared = trained(2, &settings);
        let messages = trained(2, &[&settings[..], &[MESSAGES]].concat());
        assert!(shared == messages, "{rule}: {:e}", distance(&shared, &messages));
    }
}

/// Each worker updating its share is, bit by bit, each worker updating everything.
#[test]
fn an_update_in_shares_is_the_replicated_update() {
    for world in [2, 3, 4, 7] {
        for rule in &RULES[..7] {
            let settings = [rule, "train.max_steps=30", "train.l1=0.0001"];
            let shares = trained(world, &settings);
            let replicated = trained(world, &[&settings[..], &[REPLICATED]].concat());
            assert!(shares == replicated, "{world} workers, {rule}: {:e}", distance(&shares, &replicated));
        }
    }
}

/// Running statistics move with the shares they are in.
#[test]
fn running_statistics_are_shared_too() {
    let settings = ["model.layers=['dense 32', 'batchnorm', 'relu', 'dense auto']", "train.max_steps=30"];
    let shares = trained(3, &settings);
    assert!(shares == trained(3, &[&settings[..], &[REPLICATED]].concat()));
}

/// What a checkpoint holds is whole, whoever kept it: a run that was cut in two is the run in one go, on the same
/// world to the bit, on another one up to rounding.
#[test]
fn a_run_goes_on_from_state_that_was_kept_in_shares() {
    let whole = tempfile::tempdir().unwrap();
    assert_eq!(finish(3, whole.path(), &["train.max_steps=60"]), "arena");
    for (world, bound) in [(3, 0.0), (2, 1e-5), (1, 1e-5)] {
        let cut = tempfile::tempdir().unwrap();
        finish(3, cut.path(), &["train.max_steps=25"]);
        finish(world, cut.path(), &["train.max_steps=60"]);
        let difference = distance(&parameters(whole.path()), &parameters(cut.path()));
        assert!(difference <= bound, "{world} workers: {difference:e}");
    }
}

/// A sum that is not finite ends the job and names the tensor, whichever share it is in.
#[test]
fn sums_that_are_not_finite_are_noticed_in_every_share() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.optimizer={kind='sgd', lr=1e30}", "train.max_steps=30"];
    let ended = train(3, folder.path(), &settings);
    let errors: Vec<_> = ended.into_iter().filter_map(|ended| ended.result.err()).collect();
    assert!(!errors.is_empty());
    assert!(errors.iter().any(|error| error.kind == thalweg_core::Kind::NotFinite), "{errors:?}");
    assert!(!folder.path().join("model.safetensors").exists());
}

/// Windows carry the bits that messages carry.
#[test]
fn workers_of_a_server_get_the_bits_they_get_with_messages() {
    let served = "strategy.preset=parameter-server";
    for settings in [
        &[served, "train.max_steps=40"][..],
        &["strategy.preset=easgd", "strategy.scheduling.kind=bsp", "train.max_steps=40"],
    ] {
        for workers in [1, 3] {
            let shared = trained(workers, settings);
            let messages = trained(workers, &[settings, &[MESSAGES]].concat());
            assert!(shared == messages, "{settings:?}: {:e}", distance(&shared, &messages));
        }
    }
    // One worker alone pulls what it has pushed, and no order is left to chance.
    for preset in [served, "strategy.preset=easgd"] {
        let settings = [preset, "strategy.scheduling.kind=async", "train.epochs=3"];
        let shared = trained(1, &settings);
        assert!(shared == trained(1, &[&settings[..], &[MESSAGES]].concat()), "{preset}");
    }
}

/// The bytes of a worker's pushes and pulls pass through windows, and are counted.
#[test]
fn bytes_in_windows_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let wide = "model.layers=['dense 512 relu', 'dense auto']";
    let settings = ["strategy.preset=parameter-server", "train.max_steps=50", "train.epochs=9", wide];
    let ended = train(2, folder.path(), &settings);
    let model = 4.0 * (64.0 * 512.0 + 512.0 + 512.0 * 10.0 + 10.0);
    let accounts = ended[0].events.iter().filter_map(|event| match event {
        Event::Account { account } => Some(account.clone()),
        _ => None,
    });
    for account in accounts {
        let steps = if account.rank == 2 { 100.0 } else { 50.0 };
        let ratio = account.bytes_sent as f64 / (steps * model);
        assert!((0.98..1.1).contains(&ratio), "rank {}: {ratio}", account.rank);
    }
}
