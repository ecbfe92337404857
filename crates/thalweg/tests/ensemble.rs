//! Ensembles from the command line: trained, evaluated, exported and asked as one model.

mod harness;

use harness::Site;

/// The columns of a CSV file after the first `skip`.
fn numbers(text: &str, skip: usize) -> Vec<Vec<f32>> {
    let rows = text.lines().skip(1);
    rows.map(|row| row.split(',').skip(skip).map(|field| field.parse().unwrap()).collect()).collect()
}

#[test]
fn an_ensemble_is_one_model() {
    let site = Site::new();
    let ensemble = ["train", "--quiet", "--strategy", "ensemble", "--workers", "3"];
    site.succeed(&[&ensemble[..], &["--set", "train.epochs=6", "--out", "run"]].concat());
    let report = site.report("run");
    let epoch = report["epochs"].as_array().unwrap().last().unwrap();
    assert_eq!(epoch["members"].as_array().unwrap().len(), 3, "{epoch}");
    let accuracy = report["final"]["accuracy"].as_f64().unwrap();
    let evaluated = site.succeed(&["evaluate", "run"]).stdout;
    assert!(evaluated.starts_with(&format!("accuracy {accuracy:.4}")), "{evaluated}, {accuracy}");
    assert!(site.succeed(&["inspect", "run"]).stdout.starts_with("each of 3 members of an ensemble\n"));
    // Its predictions are those of three models, whose files hold one member each.
    let predict = |model: &str| {
        let arguments = ["predict", model, "builtin:digits", "--probabilities"];
        numbers(&site.succeed(&arguments).stdout, 2)
    };
    let saved = thalweg_train::SavedModel::read(&site.path("run")).unwrap();
    let members: Vec<Vec<Vec<f32>>> = (0..3)
        .map(|member| {
            let (prefix, mut one) = (format!("members.{member}."), saved.clone());
            one.combine = None;
            one.tensors.metadata.remove("combine");
            one.tensors.tensors = std::mem::take(&mut one.tensors.tensors)
                .into_iter()
                .filter_map(|(name, tensor)| Some((name.strip_prefix(&prefix)?.to_string(), tensor)))
                .collect();
            let file = format!("member-{member}.safetensors");
            one.write(&site.path(&file)).unwrap();
            predict(&file)
        })
        .collect();
    for (row, together) in predict("run").iter().enumerate() {
        for (class, probability) in together.iter().enumerate() {
            let mean = members.iter().map(|member| member[row][class]).sum::<f32>() / 3.0;
            assert!((mean - probability).abs() < 1e-5, "row {row}: {mean} and {probability}");
        }
    }
    // The exported file is no network to train.
    site.succeed(&["export", "run", "ensemble.onnx"]);
    let train = ["train", "--set", "model.onnx=ensemble.onnx"];
    site.run(&train).assert_error(2, &["ensemble.onnx: it is an ensemble of 3 models"]);
    let vote = ["--set", "strategy.ensemble.combine=vote", "--set", "train.max_steps=20", "--out", "vote"];
    site.succeed(&[&ensemble[..], &vote[..]].concat());
    site.succeed(&["export", "vote"]);
    let accuracy = site.report("vote")["final"]["accuracy"].as_f64().unwrap();
    let evaluated = site.succeed(&["evaluate", "vote"]).stdout;
    assert!(evaluated.starts_with(&format!("accuracy {accuracy:.4}")), "{evaluated}, {accuracy}");
}

/// Of a text, rows next to those that the combination is learned from are in neither part.
#[test]
fn a_stacked_ensemble_of_a_text_is_evaluated_on_the_rows_that_it_was_validated_on() {
    let site = Site::new();
    let text: String = (0..700).map(|word| ["one ", "two ", "three "][word * word % 3]).collect();
    site.write("book.txt", text);
    let settings = [
        "data.source=book.txt",
        "data.window=8",
        r#"model.layers=["embedding 4", "lstm 6", "last", "dense auto"]"#,
        "strategy.ensemble.combine=stack",
        "train.epochs=2",
    ];
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let train = ["train", "--quiet", "--strategy", "ensemble", "--workers", "2", "--out", "run"];
    site.succeed(&[&train[..], &settings].concat());
    let accuracy = site.report("run")["final"]["accuracy"].as_f64().unwrap();
    let evaluated = site.succeed(&["evaluate", "run"]).stdout;
    assert!(evaluated.contains(&format!("accuracy {accuracy:.4}")), "{evaluated}, {accuracy}");
    assert!(site.succeed(&["inspect", "run"]).stdout.starts_with("each of 2 members of an ensemble"));
}

#[test]
fn ensembles_that_cannot_be_are_refused_before_anything_starts() {
    let site = Site::new();
    let refused = |settings: &[&str], pieces: &[&str]| {
        let ensemble = ["train", "--strategy", "ensemble", "--workers", "2"];
        site.run(&[&ensemble[..], settings].concat()).assert_error(2, pieces);
        assert!(!site.path("runs").exists());
    };
    refused(&["--set", "model.loss=hinge"], &["model.loss", "predictions and no scores"]);
    refused(&["--set", "model.zoo=autoencoder"], &["an auto-encoder has none"]);
    let text = "the wheels on the bus go round and round, all through the town\n".repeat(12);
    site.write("song.txt", text);
    let sequence =
        ["--set", "data.source=song.txt", "--set", "data.window=12", "--set", "model.zoo=char-lstm"];
    refused(&sequence, &["predicts at every position"]);
    site.write("numbers.csv", "a,b,y\n".to_string() + &"1,2,3.5\n2,1,4.5\n3,3,1.25\n0,1,2.75\n".repeat(20));
    let numbers = ["--set", "data.source=numbers.csv", "--set", "strategy.ensemble.combine=vote"];
    refused(&numbers, &["strategy.ensemble.combine", "this is a regression"]);
    let reduced = ["train", "--set", "strategy.ensemble.combine=vote"];
    site.run(&reduced).assert_error(2, &["does not use [strategy.ensemble]"]);
}
