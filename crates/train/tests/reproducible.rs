//! `train.reproducible`: the same bits on every world, in shared memory, by messages and on a simulated network.

mod harness;

use harness::{simulate, train};
use std::path::Path;
use thalweg_comm::transport::sim::Network;
use thalweg_core::event::{Event, Metrics, Outcome};

const ON: &str = "train.reproducible=true";
const MESSAGES: &str = "strategy.exchange.transport=tcp";

/// What a run leaves behind: the bytes of its model file, and what it told of every epoch.
#[derive(PartialEq)]
struct Left {
    model: Vec<u8>,
    epochs: Vec<(u64, f64, Metrics)>,
}

fn left(folder: &Path, events: &[Event]) -> Left {
    let epochs = events.iter().filter_map(|event| match event {
        Event::Epoch { epoch, loss, validation, .. } => Some((*epoch, *loss, validation.clone())),
        _ => None,
    });
    Left { model: std::fs::read(folder.join("model.safetensors")).unwrap(), epochs: epochs.collect() }
}

fn run_in(folder: &Path, world: usize, settings: &[&str]) -> Left {
    let ended = train(world, folder, &[&[ON], settings].concat());
    for ended in &ended {
        assert_eq!(ended.result, Ok(Outcome::Completed), "{world} workers, {settings:?}");
    }
    left(folder, &ended[0].events)
}

fn run(world: usize, settings: &[&str]) -> Left {
    run_in(tempfile::tempdir().unwrap().path(), world, settings)
}

fn assert_same(one: &Left, other: &Left, what: &str) {
    assert!(one.model == other.model, "{what}: another model");
    assert_eq!(one.epochs, other.epochs, "{what}");
}

#[test]
fn every_world_gets_the_same_bits_in_shared_memory_and_by_messages() {
    let settings = ["train.max_steps=50"];
    let alone = run(1, &["train.max_steps=50", "strategy.preset=single"]);
    assert_eq!(alone.epochs.len(), 3, "short last steps of epochs are among them");
    for world in [1, 2, 3, 4, 5, 7, 12] {
        assert_same(&alone, &run(world, &settings), &format!("{world} workers, shared"));
        assert_same(&alone, &run(world, &[settings[0], MESSAGES]), &format!("{world} workers, messages"));
    }
}

#[test]
fn a_simulated_network_gets_the_same_bits() {
    let settings = [ON, "train.max_steps=30", "train.global_batch=300"];
    let alone = run(1, &settings[1..]);
    for world in [2, 3, 6, 17] {
        let folder = tempfile::tempdir().unwrap();
        let (ended, _) = simulate(Network::ordinary(world, 7), &[], folder.path(), &settings);
        assert_eq!(ended[0].result, Ok(Outcome::Completed));
        assert_same(&alone, &left(folder.path(), &ended[0].events), &format!("{world} simulated workers"));
    }
}

#[test]
fn a_server_of_any_number_of_workers_gets_the_bits_of_all_reduce() {
    // The recipe in the file of the model has the preset's kind of batch normalisation.
    let (served, local) = ("strategy.preset=parameter-server", "model.batchnorm=local");
    for optimizer in ["train.optimizer={kind='momentum', lr=0.05}", "train.optimizer={kind='adam', lr=0.002}"]
    {
        let settings = ["train.max_steps=50", optimizer, local];
        let alone = run(1, &settings);
        for workers in [1, 2, 3, 4, 7] {
            let what = format!("{workers} workers and a server, {optimizer}");
            assert_same(&alone, &run(workers, &[&settings[..], &[served]].concat()), &what);
            assert_same(&alone, &run(workers, &[&settings[..], &[served, MESSAGES]].concat()), &what);
        }
    }
    // Fewer rows than workers, and several servers.
    let few = ["train.global_batch=3", "train.max_steps=490", local];
    assert_same(&run(1, &few), &run(4, &[&few[..], &[served]].concat()), "three rows a step");
    let alone = run(1, &["train.max_steps=50", local]);
    for servers in ["strategy.servers.count=2", "strategy.servers.count=3"] {
        assert_same(&alone, &run(3, &["train.max_steps=50", served, servers]), servers);
    }
}

#[test]
fn every_optimizer_keeps_its_bits() {
    let kinds = ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "lars", "lamb"];
    for (index, kind) in kinds.into_iter().enumerate() {
        let optimizer = format!("train.optimizer={{kind='{kind}', lr=0.01}}");
        let clip = if index % 2 == 0 { "train.clip={norm=0.5}" } else { "train.clip={value=0.05}" };
        let settings = [&optimizer, "train.max_steps=25", "train.l2=0.001", clip];
        let alone = run(1, &settings);
        assert_same(&alone, &run(3, &settings), kind);
        assert_same(&alone, &run(2, &[&settings[..], &[MESSAGES]].concat()), kind);
    }
}

#[test]
fn a_run_goes_on_in_another_world_as_if_nothing_had_happened() {
    let whole = run(1, &["train.max_steps=70"]);
    let folder = tempfile::tempdir().unwrap();
    for (world, steps) in [(3, "train.max_steps=20"), (1, "train.max_steps=33"), (5, "train.max_steps=51")] {
        run_in(folder.path(), world, &[steps]);
    }
    let end = run_in(folder.path(), 2, &["train.max_steps=70", MESSAGES]);
    assert!(whole.model == end.model);
    assert_eq!(whole.epochs.last(), end.epochs.last());
}

#[test]
fn fewer_rows_than_workers_and_shares_by_speed_change_nothing() {
    let few = ["train.global_batch=3", "train.max_steps=490"];
    assert_same(&run(1, &few), &run(4, &few), "three rows a step");
    let speed = ["strategy.split=speed", "engine.slow={1=4.0}", "train.max_steps=60"];
    assert_same(&run(1, &["train.max_steps=60"]), &run(3, &speed), "shares by speed");
}

#[test]
fn convolutions_dropout_and_sequences_keep_their_bits() {
    let networks = [
        "model.layers=['reshape 8x8x1', 'conv 4 3 relu', 'pool max 2', 'flatten', 'dropout 0.2', 'dense auto']",
        "model.layers=['dense 24', 'layernorm', 'tanh', 'dense auto']",
    ];
    for network in networks {
        let settings = [network, "train.max_steps=12"];
        assert_same(&run(1, &settings), &run(3, &settings), network);
    }
}

#[test]
fn batch_normalisation_is_refused_with_the_reason() {
    for layer in ["batchnorm", "batchnorm local"] {
        let layers = format!("model.layers=['dense 8', '{layer}', 'dense auto']");
        let ended = train(2, tempfile::tempdir().unwrap().path(), &[ON, &layers]);
        let error = ended[0].result.as_ref().unwrap_err();
        assert!(error.message.starts_with("train.reproducible: batch normalisation"), "{error}");
    }
}
