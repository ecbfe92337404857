//! `thalweg inspect` on jobs, runs and the zoo.

mod harness;

use harness::Site;

const TEXT: &str = "round and round they go\n";

#[test]
fn a_job_and_its_model_are_the_same_network() {
    let site = Site::new();
    let job = "[model]\nlayers = [\"dense 16 relu\", \"dense auto\"]\n[train]\nepochs = 1\n";
    site.write("job.toml", job);
    let of_job = site.succeed(&["inspect", "job.toml"]).stdout;
    let lines: Vec<String> =
        of_job.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[1], "dense 16 relu 64 -> 16 1,040");
    assert!(lines.contains(&"parameters 1,210 (4.7 KiB)".into()), "{of_job}");
    assert!(lines.iter().any(|line| line.starts_with("peak") && line.ends_with("for 32 rows")), "{of_job}");
    site.succeed(&["train", "job.toml", "--quiet", "--out", "run"]);
    for model in ["run", "run/model.safetensors"] {
        assert_eq!(site.succeed(&["inspect", model]).stdout, of_job, "{model}");
    }
    let few = site.succeed(&["inspect", "run", "--rows", "1", "--json"]).stdout;
    let few: serde_json::Value = serde_json::from_str(&few).unwrap();
    assert_eq!((&few["rows"], &few["parameters"]), (&1.into(), &1210.into()));
    assert_eq!(few["layers"][1]["layer"], "dense 10");
    assert_eq!(few["operators"][0]["shape"], "rows x 16");
    site.run(&["inspect", "no.toml"]).assert_error(2, &["cannot read the job file no.toml"]);
    site.run(&["inspect", "no.safetensors"]).assert_error(2, &["no.safetensors does not exist"]);
}

#[test]
fn every_network_of_the_zoo_is_listed_and_drawn() {
    let site = Site::new();
    site.write("song.txt", TEXT.repeat(40));
    std::fs::create_dir(site.path("images")).unwrap();
    let head = |magic: u8| [[0, 0, 8, magic], 20u32.to_be_bytes()].concat();
    let sides = [28u32.to_be_bytes(), 28u32.to_be_bytes()].concat();
    let pixels: Vec<u8> = (0..20 * 784u32).map(|place| (place * place % 251) as u8).collect();
    site.write("images/train-images-idx3-ubyte", [head(3), sides, pixels].concat());
    site.write("images/train-labels-idx1-ubyte", [head(1), (0..20).map(|row| row % 10).collect()].concat());
    let cases = [
        ("mlp", "images", "dense 128 relu"),
        ("lenet", "images", "convolution 5x5"),
        ("resnet-small", "images", "normalize columns synchronized"),
        ("char-lstm", "song.txt", "lstm 256"),
        ("gpt-mini", "song.txt", "attention of 4 heads, causal"),
        ("autoencoder", "images", "loss: reconstruction"),
        ("autoencoder-conv", "images", "upsample 2"),
    ];
    for (zoo, source, expected) in cases {
        let (zoo, source) = (format!("model.zoo={zoo}"), format!("data.source={source}"));
        let arguments = ["inspect", "--set", &zoo, "--set", &source];
        let shown = site.succeed(&arguments).stdout;
        assert!(shown.contains(expected), "{zoo}: {shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 110), "{zoo}: {shown}");
        let dot = site.succeed(&[&arguments[..], &["--dot", "-"]].concat()).stdout;
        assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{zoo}");
        site.succeed(&[&arguments[..], &["--dot", "picture.dot"]].concat());
        assert_eq!(std::fs::read_to_string(site.path("picture.dot")).unwrap(), dot);
    }
}
