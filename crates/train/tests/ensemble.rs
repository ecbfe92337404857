//! Ensembles: independent models in one file, which answer as one.

mod harness;

use harness::{simulate, train};
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Model as _, Tally};
use thalweg_data::Data;
use thalweg_graph::{Ensemble, Team, stacking};
use thalweg_train::{SavedModel, validate};

const ENSEMBLE: &str = "strategy.preset=ensemble";

/// The validation of an epoch's ensemble and of its members, at the end.
fn last_epoch(events: &[Event]) -> (Metrics, Vec<Metrics>, f64) {
    let last = events.iter().rev().find_map(|event| match event {
        Event::Epoch { validation, members, consensus, .. } => {
            Some((validation.clone(), members.clone(), consensus.expect("models of their own")))
        }
        _ => None,
    });
    last.expect("an epoch")
}

/// The file at the end evaluates to what the job reported.
#[test]
fn an_ensemble_learns_reports_its_members_and_is_one_file() {
    for combine in ["average", "vote"] {
        let folder = tempfile::tempdir().unwrap();
        let setting = format!("strategy.ensemble.combine={combine}");
        let ended = train(4, folder.path(), &[ENSEMBLE, &setting, "train.epochs=30"]);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
        let (together, members, consensus) = last_epoch(&ended[0].events);
        let each: Vec<f64> = members.iter().map(|member| member["accuracy"]).collect();
        let mean = each.iter().sum::<f64>() / 4.0;
        assert!(each.len() == 4 && together["accuracy"] >= mean, "{together:?} of {each:?}");
        assert!(together["accuracy"] >= 0.88 && consensus > 1.0, "{together:?}, {consensus}");
        for event in &ended[0].events {
            if let Event::Epoch { audit, .. } = event {
                assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
            }
        }
        let saved = SavedModel::read(folder.path()).unwrap();
        assert_eq!(saved.members(), 4);
        let (mut model, parameters) = saved.model(Team::shared(1, 1)).unwrap();
        assert_eq!(parameters.len(), 4 * model.layout().len());
        let job = saved.job().unwrap();
        let data = Data::open_with_schema(&job.data, job.train.seed, &saved.schema).unwrap();
        let mut batch = data.validation.empty_batch();
        let mut evaluate = |parameters: &[f32]| -> Tally {
            validate::evaluate(model.as_mut(), parameters, &data.validation, &mut batch).unwrap()
        };
        assert_eq!(evaluate(&parameters).metrics(&saved.schema), together);
        for (own, metrics) in parameters.chunks(parameters.len() / 4).zip(&members) {
            assert_eq!(evaluate(own).metrics(&saved.schema), *metrics);
        }
        // Its last checkpoint is the same ensemble.
        std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        let checkpoint = SavedModel::read(folder.path()).unwrap();
        assert!(SavedModel::is_checkpoint(&checkpoint.tensors) && checkpoint.combine == saved.combine);
        assert!(checkpoint.network().unwrap().1 == parameters, "another ensemble");
    }
}

/// The rows that it is learned from are in no model. File and checkpoint hold it.
#[test]
fn a_learned_combination_is_part_of_the_model_and_of_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [ENSEMBLE, "strategy.ensemble.combine=stack", "strategy.ensemble.stack_share=0.2"];
    let network = Simulated::ordinary(3, 5);
    let (ended, _) = simulate(network, &[], folder.path(), &[&settings[..], &["train.epochs=20"]].concat());
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{:?}", ended[0].result);
    let (together, members, consensus) = last_epoch(&ended[0].events);
    assert!(members.len() == 3 && consensus > 1.0, "{members:?}, {consensus}");
    assert!(together["accuracy"] >= 0.85, "{together:?}");
    let saved = SavedModel::read(folder.path()).unwrap();
    assert_eq!((saved.members(), saved.combiner.len()), (3, 3 + saved.schema.classes.len()));
    let (mut model, parameters) = saved.model(Team::shared(1, 1)).unwrap();
    let job = saved.job().unwrap();
    let mut data = Data::open_with_schema(&job.data, job.train.seed, &saved.schema).unwrap();
    let mut batch = data.validation.empty_batch();
    let mut evaluate = |parameters: &[f32]| -> Tally {
        validate::evaluate(model.as_mut(), parameters, &data.validation, &mut batch).unwrap()
    };
    assert_eq!(evaluate(&parameters).metrics(&saved.schema), together);
    let whole = data.training.len();
    data.hold_out(0.2, job.train.seed).unwrap();
    assert_eq!(data.held_out.as_ref().unwrap().len(), (whole as f64 * 0.2).round() as u64);
    for event in &ended[0].events {
        match event {
            Event::Started { rows, .. } => assert_eq!(*rows, data.training.len(), "rows to train on"),
            Event::Epoch { audit, .. } => {
                assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
            }
            _ => {}
        }
    }
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let checkpoint = SavedModel::read(folder.path()).unwrap();
    assert!(SavedModel::is_checkpoint(&checkpoint.tensors));
    assert!(checkpoint.network().unwrap().1 == parameters, "another ensemble");
    // With another share the members would have been trained on rows that are held out.
    let other = [ENSEMBLE, "strategy.ensemble.combine=stack", "strategy.ensemble.stack_share=0.3"];
    let refused = train(3, folder.path(), &[&other[..], &["train.epochs=22"]].concat());
    assert!(refused[0].result.as_ref().unwrap_err().message.contains("data has changed"));
    let resumed = train(2, folder.path(), &[&settings[..], &["train.epochs=22"]].concat());
    assert!(resumed.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
    assert_eq!(SavedModel::read(folder.path()).unwrap().combiner.len(), 2 + saved.schema.classes.len());
}

/// One member is not trained at all.
#[test]
fn a_learned_combination_is_better_than_the_mean_with_a_bad_member() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [ENSEMBLE, "strategy.ensemble.combine=stack", "train.epochs=20"];
    let (ended, _) = simulate(Simulated::ordinary(3, 5), &[], folder.path(), &settings);
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
    let saved = SavedModel::read(folder.path()).unwrap();
    let (network, parameters) = saved.network().unwrap();
    let (job, length) = (saved.job().unwrap(), network.layout().len());
    let mut members = parameters[..3 * length].to_vec();
    network.initialize(77, &mut members[length..2 * length]);
    // It is sure of what it does not know.
    members[length..2 * length].iter_mut().for_each(|weight| *weight *= 4.0);
    let mut data = Data::open_with_schema(&job.data, job.train.seed, &saved.schema).unwrap();
    data.hold_out(job.ensemble.stack_share, job.train.seed).unwrap();
    let held_out = data.held_out.unwrap();
    let mut batch = held_out.empty_batch();
    held_out.load(&held_out.ids().collect::<Vec<u64>>(), 0, &mut batch).unwrap();
    let mut predictions = Vec::new();
    for member in members.chunks_exact(length) {
        network.clone().predict(member, &batch, &mut predictions).unwrap();
    }
    let combiner = stacking::learn(&predictions, 3, &batch.targets).unwrap();
    assert!(combiner[1].abs() < 0.2 * combiner[0].max(combiner[2]), "{combiner:?}");
    let loss = network.loss();
    let mut evaluate = |combine, parameters: &[f32]| {
        let mut model = Ensemble::new(Box::new(network.clone()), combine, loss, network.outputs());
        validate::evaluate(&mut model, parameters, &data.validation, &mut batch).unwrap()
    };
    let mean = evaluate(Combine::Average, &members);
    let stacked = evaluate(Combine::Stack, &[members, combiner].concat());
    assert!(stacked.loss < 0.8 * mean.loss && stacked.correct >= mean.correct, "{stacked:?}, {mean:?}");
}

/// Each worker goes on with its model; with fewer workers the ensemble has fewer members, with more some begin with the same.
#[test]
fn an_ensemble_resumes_with_any_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    for (workers, epochs) in [(3, 4), (2, 6), (5, 8), (1, 9)] {
        let epochs = format!("train.epochs={epochs}");
        let ended = train(workers, folder.path(), &[ENSEMBLE, &epochs]);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{workers} workers");
        assert_eq!(last_epoch(&ended[0].events).1.len(), workers);
        assert_eq!(SavedModel::read(folder.path()).unwrap().members(), workers);
    }
    // Another strategy goes on from one member.
    let ended = train(2, folder.path(), &["strategy.preset=allreduce", "train.epochs=12"]);
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
    let saved = SavedModel::read(folder.path()).unwrap();
    assert_eq!((saved.members(), saved.combine), (1, None));
    let notices = ended[0].events.iter().filter_map(|event| match event {
        Event::Notice { message, .. } => Some(message.as_str()),
        _ => None,
    });
    assert!(notices.into_iter().any(|notice| notice.contains("goes on from the published one")));
}

/// The models of all caches are the ensemble, or one model that is their mean.
#[test]
fn walking_models_learn_the_digits_and_lose_no_row() {
    for (combine, members) in [("average", 8), ("vote", 8), ("stack", 8), ("merge", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let setting = format!("strategy.ensemble.combine={combine}");
        let ended =
            train(4, folder.path(), &["strategy.preset=gossip-learning", &setting, "train.epochs=30"]);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
        for event in &ended[0].events {
            if let Event::Epoch { audit, .. } = event {
                assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
            }
        }
        let (together, each, _) = last_epoch(&ended[0].events);
        assert!(together["accuracy"] >= 0.88, "{combine}: {together:?}");
        assert_eq!(each.len(), if members > 1 { members } else { 4 }, "the models at hand");
        let saved = SavedModel::read(folder.path()).unwrap();
        assert_eq!(saved.members(), members);
        // The last checkpoint has the same models. Hardly any leaves after it, so those of caches are from there.
        std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        let checkpoint = SavedModel::read(folder.path()).unwrap();
        assert!(checkpoint.network().unwrap().1 == saved.network().unwrap().1, "other models");
        for (workers, epochs, resumed_members) in [(3, 32, 6), (5, 33, 10)] {
            let epochs = format!("train.epochs={epochs}");
            let rare =
                ["strategy.preset=gossip-learning", &setting, &epochs, "strategy.gossip.probability=1e-9"];
            let resumed = train(workers, folder.path(), &rare);
            assert!(resumed.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
            let count = SavedModel::read(folder.path()).unwrap().members();
            assert_eq!(count, if members > 1 { resumed_members } else { 1 });
        }
    }
}

#[test]
fn models_that_cannot_answer_together_are_refused() {
    let refused = |settings: &[&str], piece: &str| {
        let folder = tempfile::tempdir().unwrap();
        for ended in train(2, folder.path(), &[&[ENSEMBLE], settings].concat()) {
            let error = ended.result.unwrap_err();
            assert!(error.message.contains(piece), "{error}");
        }
    };
    refused(&["data.task=regression", "strategy.ensemble.combine=vote"], "a vote is for a class");
    refused(
        &["strategy.ensemble.combine=stack", "strategy.ensemble.stack_share=0.0001"],
        "leaves none on one side",
    );
    refused(&["model.zoo=autoencoder"], "an auto-encoder has none");
}
