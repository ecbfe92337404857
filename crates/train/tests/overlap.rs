//! Gradients that leave during back-propagation: the same sums, hidden where links are slow, and named when they fail.

mod harness;

use harness::{Silence, distance, parameters, simulate, train, train_with};
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::engine::threads::RankOutcome;
use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};
use thalweg_core::event::{Event, Outcome};
use thalweg_core::report::RankReport;

/// Gradients travel as messages.
const MESSAGES: &str = "strategy.exchange.transport=tcp";
const WHOLE: &str = "strategy.exchange.bucket=whole";
const TENSOR: &str = "strategy.exchange.bucket=tensor";
/// Seven layers, 360 KiB.
const DEEP: &str = "model.layers=['dense 128 relu', 'dense 128 relu', 'dense 128 relu', 'dense 128 relu', 'dense 128 relu', 'dense 128 relu', 'dense auto']";

fn trained(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    for ended in train(world, folder.path(), &[settings, &[MESSAGES]].concat()) {
        assert_eq!(ended.result.unwrap(), Outcome::Completed, "{settings:?}");
    }
    parameters(folder.path())
}

/// With two workers there is only one order of additions: however the gradient is cut, the bits are the same.
#[test]
fn two_workers_get_the_same_bits_in_any_buckets() {
    let steps = "train.max_steps=25";
    let text = tempfile::tempdir().unwrap();
    let path = text.path().join("text.txt");
    std::fs::write(&path, "the valley gathers the water of many slopes; ".repeat(60)).unwrap();
    let source = format!("data.source={}", path.display());
    let cases: [&[&str]; 4] = [
        &[DEEP, steps],
        &[DEEP, steps, "train.accumulate=3"],
        &["model.layers=['dense 32', 'batchnorm', 'dense 16 relu', 'batchnorm', 'dense auto']", steps],
        // Rows of an embedding are announced on their own.
        &[
            &source,
            "data.window=8",
            "model.layers=['embedding 8', 'rnn 16', 'dense auto']",
            "train.max_steps=10",
        ],
    ];
    for case in cases {
        let whole = trained(2, &[case, &[WHOLE]].concat());
        for bucket in [TENSOR, "strategy.exchange.bucket=3KiB"] {
            let cut = trained(2, &[case, &[bucket]].concat());
            assert!(whole == cut, "{case:?} {bucket}: {:e}", distance(&whole, &cut));
        }
    }
}

#[test]
fn a_model_that_never_announces_is_trained_all_the_same() {
    let settings = [DEEP, "train.max_steps=10", MESSAGES, TENSOR];
    let [heard, silent] = [Silence::Never, Silence::Always].map(|silence| {
        let folder = tempfile::tempdir().unwrap();
        for ended in train_with(2, folder.path(), &settings, silence) {
            assert_eq!(ended.result.unwrap(), Outcome::Completed);
        }
        parameters(folder.path())
    });
    assert!(heard == silent);
}

/// Only one of the workers announces: the others' buckets wait for it.
#[test]
fn workers_may_announce_differently() {
    let settings = [DEEP, "train.max_steps=10", MESSAGES, TENSOR];
    let folder = tempfile::tempdir().unwrap();
    for ended in train_with(3, folder.path(), &settings, Silence::Of(1)) {
        assert_eq!(ended.result.unwrap(), Outcome::Completed);
    }
    assert!(distance(&parameters(folder.path()), &trained(3, &[DEEP, "train.max_steps=10", WHOLE])) < 1e-5);
}

/// A server adds what workers push in the order of ranks, however it is cut.
#[test]
fn workers_of_a_server_push_the_same_bits_in_any_buckets() {
    let settings = [DEEP, "train.max_steps=25", "strategy.preset=parameter-server"];
    for more in [&[][..], &["train.accumulate=3"]] {
        let settings = [&settings[..], more].concat();
        let whole = trained(3, &[&settings[..], &[WHOLE]].concat());
        for bucket in [TENSOR, "strategy.exchange.bucket=3KiB"] {
            let cut = trained(3, &[&settings[..], &[bucket]].concat());
            assert!(whole == cut, "{more:?} {bucket}: {:e}", distance(&whole, &cut));
        }
    }
}

fn accounts(ended: &[RankOutcome<Outcome>]) -> Vec<RankReport> {
    let account = |event: &Event| match event {
        Event::Account { account } => Some(account.clone()),
        _ => None,
    };
    ended[0].events.iter().filter_map(account).collect()
}

/// Links on which an exchange takes about as long as the backward pass.
fn slow_links(world: usize) -> Network {
    Network { bandwidth: 1e8, speed: 1e9, jitter: 0.0, buffered: true, ..Network::ordinary(world, 3) }
}

fn simulated(folder: &Path, settings: &[&str]) -> (Vec<RankReport>, f64) {
    let settings = [&[DEEP, "train.max_steps=88"], settings].concat();
    let (ended, _) = simulate(slow_links(4), &[], folder, &settings);
    for ended in &ended {
        assert_eq!(ended.result.as_ref().unwrap(), &Outcome::Completed);
    }
    let seconds = ended[0].events.iter().find_map(|event| match event {
        Event::Done { train_s, .. } => Some(*train_s),
        _ => None,
    });
    (accounts(&ended), seconds.unwrap())
}

#[test]
fn on_slow_links_most_of_the_exchange_is_hidden_and_steps_are_shorter() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (whole, slow) = simulated(folders[0].path(), &[WHOLE]);
    let (cut, fast) = simulated(folders[1].path(), &["strategy.exchange.bucket=70KiB"]);
    assert!(whole.iter().all(|rank| rank.hidden_s == 0.0));
    for (whole, cut) in whole.iter().zip(&cut) {
        let share = cut.hidden_s / (cut.hidden_s + cut.exchange_s);
        assert!(share > 0.5, "rank {}: {share:.2} of {:?}", cut.rank, cut);
        // What is said to be hidden is what the exchange lasts no longer.
        let saved = whole.exchange_s + whole.wait_s - cut.exchange_s - cut.wait_s;
        assert!(cut.hidden_s < 1.15 * saved, "rank {}: {} hidden, {saved} saved", cut.rank, cut.hidden_s);
    }
    assert!(fast < 0.8 * slow, "{fast:.3} s in buckets, {slow:.3} s as a whole");
    // Of other lengths, added up by other algorithms: what 88 steps make of rounding.
    let apart = distance(&parameters(folders[0].path()), &parameters(folders[1].path()));
    assert!(apart < 1e-4, "{apart:e} apart");
}

/// The links of the server are the bottleneck.
#[test]
fn pushes_to_a_server_hide_behind_the_pass_on_slow_links() {
    let run = |bucket: &str| {
        let folder = tempfile::tempdir().unwrap();
        let settings = [DEEP, "train.max_steps=44", "strategy.preset=parameter-server", bucket];
        let (ended, _) = simulate(slow_links(3), &[], folder.path(), &settings);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
        let workers: Vec<RankReport> = accounts(&ended).into_iter().filter(|rank| rank.rank < 3).collect();
        (workers, parameters(folder.path()))
    };
    let ((whole, one), (cut, other)) = (run(WHOLE), run("strategy.exchange.bucket=70KiB"));
    assert!(one == other, "the same sums in the same order");
    assert!(whole.iter().all(|rank| rank.hidden_s == 0.0));
    for (whole, cut) in whole.iter().zip(&cut) {
        let saved = whole.exchange_s + whole.wait_s - cut.exchange_s - cut.wait_s;
        assert!(cut.hidden_s > 0.1 * cut.exchange_s, "rank {}: {cut:?}", cut.rank);
        assert!(cut.hidden_s < 1.15 * saved, "rank {}: {} hidden, {saved} saved", cut.rank, cut.hidden_s);
    }
}

#[test]
fn repeats_in_buckets_have_the_same_bits_and_the_same_trace() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let settings = [DEEP, "train.max_steps=8", "strategy.exchange.bucket=100KiB"];
    let [one, other] = [&folders[0], &folders[1]]
        .map(|folder| simulate(Network::ordinary(5, 11), &[], folder.path(), &settings).1);
    assert!(one == other);
    assert_eq!(parameters(folders[0].path()), parameters(folders[1].path()));
}

#[test]
fn a_death_in_the_middle_of_a_pass_names_the_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let kill = SimulatedFault::at(Duration::from_millis(100), SimulatedFaultKind::Kill { rank: 1 });
    let settings = [DEEP, "train.epochs=100", TENSOR, "strategy.exchange.algorithm=ring"];
    let (ended, _) = simulate(slow_links(2), &[kill], folder.path(), &settings);
    let error = ended[0].result.as_ref().unwrap_err();
    let culprit = error.culprit.as_ref().unwrap();
    assert_eq!(culprit.rank, 1, "{error}");
    let operation = culprit.operation.as_deref().unwrap();
    assert!(operation.starts_with("all-reduce of gradients of layers."), "{operation}");
    assert!(operation.ends_with("of 14)"), "{operation}");
}

#[test]
fn tuning_tries_and_says_what_it_chose() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [DEEP, "train.max_steps=5", MESSAGES, "strategy.tune=true"];
    let ended = train(3, folder.path(), &settings);
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{ended:?}");
    let said = |event: &Event| match event {
        Event::Notice { message, .. } => message.contains("tuned in") && message.contains("last bits"),
        _ => false,
    };
    assert_eq!(ended[0].events.iter().filter(|event| said(event)).count(), 1);
    let chosen = ended[0].events.iter().find_map(|event| match event {
        Event::Started { buckets, .. } => Some(buckets.iter().map(|bucket| bucket.bytes).sum::<u64>()),
        _ => None,
    });
    assert!(chosen.unwrap() > 360_000);
    // Trials are no steps: the result is that of an ordinary run.
    let plain = trained(3, &[DEEP, "train.max_steps=5"]);
    assert!(distance(&plain, &parameters(folder.path())) < 1e-5);
}
