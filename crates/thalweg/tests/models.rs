//! Networks of the zoo, losses and text models from the command line.

mod harness;

use harness::Site;

fn trained(site: &Site, out: &str, settings: &[&str]) {
    let mut arguments = vec!["train", "--quiet", "--out", out];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    site.succeed(&arguments);
}

/// A repetitive text that is easily learned.
fn song() -> String {
    "the wheels on the bus go round and round\n".repeat(120)
}

#[test]
fn a_network_of_the_zoo_is_trained_by_name() {
    let site = Site::new();
    trained(&site, "mlp", &["model.zoo=mlp", "train.epochs=10"]);
    let report = site.report("mlp");
    assert_eq!((&report["job"]["model.zoo"], &report["job"]["model.layers"]), (&"mlp".into(), &().into()));
    assert!(report["final"]["accuracy"].as_f64().unwrap() > 0.9, "{report}");
    let ended = site.succeed(&["evaluate", "mlp"]);
    assert!(ended.stdout.starts_with("accuracy 0.9"), "{}", ended.stdout);
    site.succeed(&["train", "mlp/job.toml", "--quiet", "--out", "again", "--set", "train.epochs=1"]);
    site.run(&["train", "mlp/job.toml", "--set", "model.layers=['dense auto']"])
        .assert_error(2, &["model.layers defines the model already"]);
    site.run(&["train", "--set", "model.zoo=lenet"]).assert_error(2, &["lenet needs images"]);
    site.run(&["train", "--set", "model.zoo=gpt-mini"]).assert_error(2, &["gpt-mini needs text"]);
}

/// An IDX folder of 8 x 8 images, bright on the left or on the right.
fn images(site: &Site) {
    std::fs::create_dir(site.path("images")).unwrap();
    let count = 160u32;
    let mut pixels = [[0, 0, 8, 3], count.to_be_bytes(), 8u32.to_be_bytes(), 8u32.to_be_bytes()].concat();
    let mut labels = [[0, 0, 8, 1], count.to_be_bytes()].concat();
    for image in 0..count {
        let right = image % 3 == 0;
        labels.push(u8::from(right));
        pixels.extend((0..64).map(|place| {
            let bright = (place % 8 >= 4) == right;
            if bright { 200 } else { 20 + (image * 7 + place * 13) as u8 % 31 }
        }));
    }
    site.write("images/train-images-idx3-ubyte", pixels);
    site.write("images/train-labels-idx1-ubyte", labels);
}

#[test]
fn convolutions_learn_images() {
    let site = Site::new();
    images(&site);
    // Running statistics need some tens of steps to catch up with the batches.
    let source = ["data.source=images", "train.epochs=12", "train.global_batch=16"];
    trained(&site, "resnet", &[&source[..], &["model.zoo=resnet-small"]].concat());
    assert!(site.report("resnet")["final"]["accuracy"].as_f64().unwrap() > 0.9, "{}", site.report("resnet"));
    trained(&site, "encoder", &[&source[..], &["model.zoo=autoencoder-conv"]].concat());
    let made = site.succeed(&["predict", "encoder", "images"]).stdout;
    assert_eq!((made.lines().count(), made.lines().nth(1).unwrap().split(',').count()), (161, 64));
    let settings = ["--set", "data.source=images", "--set", "model.zoo=lenet"];
    site.run(&[&["train"], &settings[..]].concat())
        .assert_error(2, &["model.zoo: lenet does not fit the data: model.layers[2]"]);
    let parts =
        ["--set", "data.source=images", "--set", "model.zoo=resnet-small", "--set", "train.accumulate=2"];
    let ended = site.run(&[&["train"], &parts[..]].concat());
    ended.assert_error(2, &["train.accumulate: a step in 2 parts"]);
    ended.assert_advice("model.batchnorm = \"local\"");
}

#[test]
fn an_auto_encoder_reconstructs_rows() {
    let site = Site::new();
    site.write("rows.csv", {
        let row = |n: u32| {
            format!("{},{},{},{}\n", n % 17, 2 * (n % 17), 34 - n % 17, ["red", "blue"][n as usize % 2])
        };
        "a,b,c,kind\n".to_string() + &(0..400).map(row).collect::<String>()
    });
    for (out, model) in
        [("zoo", "model.zoo=autoencoder"), ("own", "model.layers=['dense 8 tanh', 'dense auto']")]
    {
        trained(&site, out, &["data.source=rows.csv", model, "model.loss=reconstruction", "train.epochs=60"]);
        let report = site.report(out);
        assert!(report["final"]["accuracy"].is_null(), "{report}");
        assert!(report["final"]["rmse"].as_f64().unwrap() < 0.2, "{report}");
        let evaluated = site.succeed(&["evaluate", out]).stdout;
        assert!(evaluated.contains("mae") && evaluated.contains("rmse"), "{evaluated}");
        site.write("new.csv", "a,b,c\n5,10,29\n");
        let made = site.succeed(&["predict", out, "new.csv"]).stdout;
        let mut lines = made.lines();
        assert_eq!(lines.next(), Some("a,b,c"));
        let again: Vec<f32> = lines.next().unwrap().split(',').map(|field| field.parse().unwrap()).collect();
        for (made, original) in again.iter().zip([5.0, 10.0, 29.0]) {
            assert!((made - original).abs() < 3.0, "{made} for {original}");
        }
    }
    site.run(&["train", "--set", "model.zoo=autoencoder", "--set", "train.target.accuracy=0.9"])
        .assert_error(2, &["an auto-encoder has no accuracy"]);
}

#[test]
fn a_loss_that_does_not_fit_is_refused_with_those_that_do() {
    let site = Site::new();
    let ended = site.run(&["train", "--set", "model.loss=huber"]);
    ended.assert_error(2, &["model.loss: `huber` is a loss of regression, but the task is classification"]);
    ended.assert_advice("cross-entropy, binary-cross-entropy, hinge");
    for loss in ["binary-cross-entropy", "hinge"] {
        let loss = format!("model.loss={loss}");
        trained(&site, &loss, &[&loss, "train.epochs=15"]);
        assert!(site.report(&loss)["final"]["accuracy"].as_f64().unwrap() > 0.9, "{loss}");
        site.succeed(&["evaluate", &loss]);
    }
}

#[test]
fn a_text_is_learned_and_continued() {
    let site = Site::new();
    site.write("song.txt", song());
    let output = site.succeed(&["init", "song.txt"]).stderr;
    assert!(output.contains("song.txt: a text of about 4") && output.contains(" different"), "{output}");
    site.succeed(&["config", "song.toml"]);
    let settings = [
        "data.source=song.txt",
        "data.window=24",
        "model.layers=['embedding 16', 'gru 48', 'dense auto']",
        "train.epochs=3",
        "train.optimizer.lr=1e-2",
    ];
    trained(&site, "run", &settings);
    assert!(site.report("run")["final"]["loss"].as_f64().unwrap() < 0.2, "{}", site.report("run"));
    let write = |more: &[&str]| site.succeed(&[&["predict", "run"], more].concat()).stdout;
    let likeliest = write(&["the wheels on the bus", "--temperature", "0", "--length", "20"]);
    assert_eq!(likeliest, "the wheels on the bus go round and round\n\n");
    let short = ["th", "--length", "60", "--temperature", "2", "--seed", "3"];
    let text = write(&short);
    assert_eq!((text.as_str(), text.chars().count()), (write(&short).as_str(), 63));
    assert_ne!(text, write(&["th", "--length", "60", "--temperature", "2", "--seed", "4"]));
    site.write("beginning.txt", "th\n");
    assert_eq!(text, write(&[&["beginning.txt"], &short[1..]].concat()), "a file with the same beginning");
    write(&["th", "--out", "song-2.txt"]);
    assert_eq!(std::fs::read_to_string(site.path("song-2.txt")).unwrap().chars().count(), 503);
    site.run(&["predict", "run", "zebra 7"]).assert_error(2, &["the text holds 'z'", "not seen in training"]);
    site.run(&["predict", "run", "th", "--temperature=-1"])
        .assert_error(2, &["temperature must be at least 0"]);
    site.write("rows.jsonl", "{\"text\": \"wheels on the bus go rou\"}\n");
    let next = write(&["rows.jsonl", "--format", "jsonl"]);
    assert!(next.starts_with("{\"prediction\":\"n\""), "the next character of every row: {next}");
}
