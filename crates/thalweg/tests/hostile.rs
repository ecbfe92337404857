//! Files whose headers claim more than they hold: exit code 2 with file, position and advice, before memory is
//! allocated.

mod harness;

use harness::Site;
use thalweg_cluster::checkpoint;
use thalweg_cluster::tensorfile::TensorFile;

#[test]
fn a_model_larger_than_memory_is_refused_before_a_worker_starts() {
    let site = Site::new();
    let rows = |row: usize| format!("{} 1:1 {}:2\n", row % 2, if row == 7 { 16_777_216 } else { 3 });
    site.write("stray.libsvm", (0..40).map(rows).collect::<String>());
    // 2^24 columns for 2,048 units: 128 GiB of parameters.
    let job = [
        "train",
        "--set",
        "data.source=stray.libsvm",
        "--set",
        "model.layers=['dense 2048 relu', 'dense auto']",
    ];
    let ended = site.run(&job);
    ended.assert_error(2, &["needs at least", "layers.0.weight"]);
    ended.assert_advice("rows of stray.libsvm have 16777216 columns");
    let job = ["train", "--set", "model.layers=['dense 16777216 relu', 'dense 2000 relu', 'dense auto']"];
    let ended = site.run(&job);
    ended.assert_error(2, &["needs at least"]);
    ended.assert_advice("a smaller model");
}

#[test]
fn a_label_in_another_encoding_is_refused_with_file_and_line() {
    let site = Site::new();
    let mut rows = b"a,b,label\n1,2,tea\n".to_vec();
    rows.extend(b"3,4,caf\xe9\n5,6,tea\n7,8,caf\xe9\n");
    site.write("latin.csv", rows);
    let ended = site.run(&["train", "--set", "data.source=latin.csv"]);
    ended.assert_error(2, &["latin.csv line 3, column `label`", "is not UTF-8"]);
    ended.assert_advice("iconv");
}

#[test]
fn a_simulated_speed_of_zero_is_refused() {
    let site = Site::new();
    site.run(&["train", "--set", "engine.kind=sim", "--set", "engine.network.speed=1e-300"])
        .assert_error(2, &["engine.network.speed", "must be between 1e3 and 1e18"]);
}

#[test]
fn a_checkpoint_whose_audit_is_not_of_these_rows_is_refused_by_name() {
    let site = Site::new();
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "train.max_steps=30"]);
    let path = checkpoint::list(&site.path("run").join("checkpoints")).remove(0);
    let mut file = TensorFile::read(&path).unwrap();
    let length: usize = file.metadata["audit"].parse().unwrap();
    file.metadata.insert("audit".into(), (length - 8).to_string());
    file.write(&path).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let ended = site.run(&["resume", "run", "--set", "train.max_steps=40"]);
    ended.assert_error(2, &[name, "audit", "is not that of 1797 rows"]);
    ended.assert_advice("--overwrite");
}

#[test]
fn a_decompression_bomb_is_refused_by_name() {
    use std::io::Write;
    let site = Site::new();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let line = b"1,2,3\n".repeat(1 << 16);
    (0..64).for_each(|_| packed.write_all(&line).unwrap());
    site.write("bomb.csv.gz", packed.finish().unwrap());
    let settings =
        ["data.source=bomb.csv.gz", "data.memory=1MiB", "data.cache=cache", "data.cache_limit=4MiB"];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let ended = site.run(&[&["train"], &settings[..]].concat());
    ended.assert_error(2, &["bomb.csv.gz unpacks to more than 4 MiB"]);
    ended.assert_advice("data.cache_limit");
    let left = std::fs::read_dir(site.path("cache")).unwrap().flatten();
    assert!(left.map(|entry| entry.metadata().unwrap().len()).sum::<u64>() == 0, "nothing of it is kept");
}

#[test]
fn invalid_text_in_a_checkpoint_is_no_internal_error() {
    let site = Site::new();
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "train.max_steps=30"]);
    let path = checkpoint::list(&site.path("run").join("checkpoints")).remove(0);
    let whole = TensorFile::read(&path).unwrap();
    for (key, text) in [
        ("step", "18446744073709551615"),
        ("step", "9999999999999"),
        ("step", "-1"),
        ("loss", "NaN 18446744073709551615"),
        ("loss", "inf"),
        ("slots", ""),
        ("slots", "m m v"),
        ("job", "[train]\nglobal_batch = 0\n"),
        ("data", ""),
        ("audit", "18446744073709551615"),
        ("format", "9"),
    ] {
        let mut file = whole.clone();
        file.metadata.insert(key.into(), text.into());
        file.write(&path).unwrap();
        let ended = site.run(&["resume", "run", "--quiet", "--set", "train.max_steps=31"]);
        assert!(matches!(ended.code, Some(0 | 2)), "{key} = {text:?}: {:?} {}", ended.code, ended.stderr);
        let named = ended.code == Some(0) || ended.stderr.contains("step-0");
        assert!(named, "{key} = {text:?}: the file is not named: {}", ended.stderr);
        whole.write(&path).unwrap();
    }
}
