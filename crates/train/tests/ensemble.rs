//! Ensembles: independent models in one file, which answer as one.

mod harness;

use harness::train;
use thalweg_core::Tally;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_data::Data;
use thalweg_graph::Team;
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
    for (combine, members) in [("average", 8), ("vote", 8), ("merge", 1)] {
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
        assert_eq!(each.len(), if members > 1 { members } else { 0 });
        assert_eq!(SavedModel::read(folder.path()).unwrap().members(), members);
        let resumed =
            train(3, folder.path(), &["strategy.preset=gossip-learning", &setting, "train.epochs=32"]);
        assert!(resumed.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
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
    refused(&["model.zoo=autoencoder"], "an auto-encoder has none");
}
