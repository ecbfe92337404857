//! A program with its own network and data: the example works and is short, and a rank that never opens its data, or never
//! returns from an evaluation, is blamed.

mod harness;

use harness::{Process, Site, TRAINING_LIMIT, skip};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg::{
    Activation, Batch, Data, Error, Hooks, Layout, Model, Network, Result, Tally, Targets, Trainer,
};

/// Set for a program whose rank 1 hangs: how long the others wait.
const HANGS: &str = "TEST_HANGS";

/// Starts another test of this file as a program whose rank 1 hangs.
fn start_hanging(site: &Site, test: &str, deadline: &str) -> Process {
    let mut command = site.program(std::env::current_exe().unwrap(), &["--exact", test, "--nocapture"]);
    command.env(HANGS, deadline);
    Process::start(command)
}

/// Never returns on rank 1.
fn hang_on_rank_1() {
    while std::env::var("RANK").is_ok_and(|rank| rank == "1") {
        std::thread::park();
    }
}

#[test]
fn the_example_trains_its_own_model_on_two_workers() {
    // `cargo test` builds the examples beside the binary; `cargo test --test library` alone does not.
    let example = Path::new(env!("CARGO_BIN_EXE_thalweg")).with_file_name("examples").join("own_model");
    if !example.exists() {
        return skip(format_args!("{} is not built", example.display()));
    }
    let site = Site::new();
    let ended = Process::start(site.program(&example, &[])).end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let accuracy: f64 = ended.stdout.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap();
    assert!(accuracy > 0.9, "{}", ended.stdout);
    assert_eq!(ended.stdout.lines().count(), 1, "its workers print nothing: {}", ended.stdout);
    let report = site.report("runs/circle-1");
    assert_eq!(report["ranks"].as_array().unwrap().len(), 2);
    assert!(site.path("runs/circle-1/model.safetensors").exists());
    site.assert_empty();
}

#[test]
fn the_example_is_short() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/own_model.rs");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return skip(format_args!("{} is not part of this copy", path.display()));
    };
    assert!(text.lines().count() < 40, "{} lines", text.lines().count());
}

/// The program that the test below starts; without its variable it does nothing.
#[test]
fn a_program_whose_rank_1_never_opens_its_data() {
    let Ok(deadline) = std::env::var(HANGS) else { return };
    let deadline = format!("fault.prepare_deadline={deadline}");
    let trainer = Trainer::new("stuck").quiet(true).set("engine.workers=3").set("fault.elastic=false");
    let trainer = trainer.set(&deadline).data(|job| {
        hang_on_rank_1();
        let rows = (0..100).map(|row| row as f32).collect();
        Data::in_memory(1, rows, Targets::Values(vec![1.0; 100]), 0.2, job.train.seed)
    });
    println!("error: {}", trainer.run().unwrap_err());
}

#[test]
fn a_rank_that_never_opens_its_data_is_named() {
    let site = Site::new();
    let ended = start_hanging(&site, "a_program_whose_rank_1_never_opens_its_data", "1s").end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let error = ended.stdout.lines().find(|line| line.contains("error: ")).unwrap_or_default();
    for part in [
        "error: rank 1 on ",
        " has been busy with reading the data for ",
        "waited for it in all-reduce of data set",
    ] {
        assert!(error.contains(part), "{part:?} is missing in {error:?}");
    }
    assert_eq!(site.report("runs/stuck-1")["failures"][0]["rank"], 1);
    site.assert_empty();
}

/// A network that never returns from an evaluation on rank 1.
struct HangsInEvaluation(Network);

impl Model for HangsInEvaluation {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }
    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        self.0.initialize(seed, parameters);
    }
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.0.gradient(parameters, batch, scale, gradient, hooks)
    }
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        hang_on_rank_1();
        self.0.evaluate(parameters, batch)
    }
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.0.predict(parameters, batch, outputs)
    }
    fn flops_per_row(&self) -> u64 {
        self.0.flops_per_row()
    }
}

/// The program that the test below starts; without its variable it does nothing.
#[test]
fn a_program_whose_rank_1_never_returns_from_an_evaluation() {
    let Ok(deadline) = std::env::var(HANGS) else { return };
    let deadline = format!("fault.step_deadline={deadline}");
    let trainer = Trainer::new("stuck").quiet(true).set("engine.workers=3").set("train.epochs=3");
    let trainer = trainer.set(&deadline).data(|job| {
        let rows = (0..400).map(|row| row as f32).collect();
        let classes = (0..400).map(|row| u32::from(row > 200)).collect();
        Data::in_memory(1, rows, Targets::Classes(classes), 0.5, job.train.seed)
    });
    let trainer = trainer.model(|schema| {
        let network = Network::with_inputs(schema.width()).dense(schema.outputs(), Activation::None);
        Ok::<_, Error>(HangsInEvaluation(network.classification()?))
    });
    trainer.run().unwrap();
}

/// The deadline of steps applies between them, too: that of preparations is ten minutes here.
#[test]
fn a_rank_that_never_returns_from_an_evaluation_is_named_and_the_others_continue() {
    let site = Site::new();
    let program = "a_program_whose_rank_1_never_returns_from_an_evaluation";
    let ended = start_hanging(&site, program, "2s").end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let report = site.report("runs/stuck-1");
    assert_eq!((&report["outcome"], &report["failures"][0]["rank"]), (&"completed".into(), &1.into()));
    let cause = report["failures"][0]["cause"].as_str().unwrap();
    assert!(cause.starts_with("has been busy with end of the epoch for "), "{cause}");
    site.assert_empty();
}

/// Simulated ranks are threads of this process: they share the rows, and each has a model of its own.
#[test]
fn closures_supply_data_and_model_of_simulated_ranks() {
    let (folder, opened) = (tempfile::tempdir().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&opened);
    let report = Trainer::new("simulated")
        .quiet(true)
        .out(folder.path().join("run"))
        .set("engine.kind=sim")
        .set("engine.workers=5")
        .set("train.epochs=2")
        .set("fault.inject=[{ step = 2, rank = 0, kind = 'kill' }]")
        .data(move |job| {
            counter.fetch_add(1, Ordering::Relaxed);
            let rows = (0..400).map(|row| row as f32 / 400.0).collect();
            let sides = (0..200).map(|row| u32::from(row > 90)).collect();
            Data::in_memory(2, rows, Targets::Classes(sides), 0.2, job.train.seed)
        })
        .model(|schema| {
            Network::with_inputs(schema.width()).dense(schema.outputs(), Activation::None).classification()
        })
        .run()
        .unwrap();
    assert_eq!(opened.load(Ordering::Relaxed), 1, "the rows are read once");
    assert_eq!(report.failures.iter().map(|failure| failure.rank).collect::<Vec<_>>(), [Some(0)]);
    assert!(report.audit.iter().all(|epoch| epoch.once == epoch.expected) && report.audit.len() == 2);
}
