//! Invalid jobs, data and environments are refused before anything starts: exit code 2, a name, advice, and no files
//! left.

mod harness;

use harness::{Ended, LIMIT, Process, Site, skip};
use std::os::unix::fs::PermissionsExt;

const GOOD: &str = "a,b,label\n1,2,yes\n2,3,no\n3,4,yes\n4,4,no\n5,1,yes\n";

/// The names in a folder.
fn names(site: &Site, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(site.path(folder)).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Asserts a refusal with these parts in its output, and an unchanged folder.
#[track_caller]
fn assert_refused(site: &Site, arguments: &[&str], parts: &[&str]) -> Ended {
    let before = names(site, ".");
    let ended = site.run(arguments);
    assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
    assert!(ended.stderr.starts_with("error: "), "{arguments:?}: {}", ended.stderr);
    for part in parts {
        assert!(ended.stderr.contains(part), "{arguments:?}: {part:?} is missing in\n{}", ended.stderr);
    }
    assert_eq!(names(site, "."), before, "{arguments:?} left something");
    ended
}

/// A source that must be refused.
#[track_caller]
fn assert_source_refused(site: &Site, source: &str, more: &[&str], parts: &[&str]) {
    let source = format!("data.source={source}");
    let ended = assert_refused(site, &[&["train", "--set", &source], more].concat(), parts);
    ended.assert_advice("");
}

#[test]
fn sources_without_usable_rows() {
    let site = Site::new();
    assert_source_refused(
        &site,
        "nowhere.csv",
        &[],
        &["nowhere.csv", "no such file", "on the command line from the working folder"],
    );
    assert_source_refused(&site, "part-*.csv", &[], &["no file matches `part-*.csv`"]);
    site.write("empty.csv", "");
    assert_source_refused(&site, "empty.csv", &[], &["empty.csv is empty"]);
    site.write("header.csv", "a,b,label\n");
    assert_source_refused(&site, "header.csv", &[], &["header.csv", "no rows"]);
    site.write("one.csv", "a,b,label\n1,2,yes\n2,3,yes\n3,4,yes\n");
    assert_source_refused(&site, "one.csv", &[], &["every row has the same label `yes`", "two classes"]);
    site.write("rows.dat", "1,2,3\n");
    assert_source_refused(&site, "rows.dat", &[], &["rows.dat", ".csv"]);
    std::fs::create_dir(site.path("folder.csv")).unwrap();
    assert_source_refused(&site, "folder.csv", &[], &["folder.csv"]);
}

#[test]
fn validation_labels_that_are_not_in_the_training_rows() {
    let site = Site::new();
    site.write("rows.csv", GOOD);
    site.write("held.csv", "a,b,label\n1,2,yes\n2,3,maybe\n");
    let parts = ["held.csv line 3", "`maybe` is not known to the model"];
    // Ranks read the rows: the one that finds it reports it, and the job fails.
    let sets = ["--set", "data.source=rows.csv", "--set", "data.validation=held.csv", "--workers", "1"];
    site.run(&[&["train"], &sets[..]].concat()).assert_error(3, &parts);
    std::fs::create_dir(site.path("images")).unwrap();
    let images = |count: u32| [[0, 0, 8, 3], count.to_be_bytes(), [0, 0, 0, 2], [0, 0, 0, 2]].concat();
    let labels = |labels: &[u8]| [&[0, 0, 8, 1], &(labels.len() as u32).to_be_bytes()[..], labels].concat();
    for (part, classes) in [("train", [0u8, 1, 1, 0]), ("t10k", [1, 0, 7, 1])] {
        site.write(&format!("images/{part}-images-idx3-ubyte"), [images(4), vec![9; 16]].concat());
        site.write(&format!("images/{part}-labels-idx1-ubyte"), labels(&classes));
    }
    let parts = ["t10k-labels-idx1-ubyte row 3", "the label 7 is not one of the classes 0, 1"];
    assert_source_refused(&site, "images", &[], &parts);
}

#[test]
fn a_source_without_read_permission() {
    if nix::unistd::Uid::effective().is_root() {
        return skip("the administrator may read every file");
    }
    let site = Site::new();
    site.write("secret.csv", GOOD);
    std::fs::set_permissions(site.path("secret.csv"), std::fs::Permissions::from_mode(0o000)).unwrap();
    assert_source_refused(&site, "secret.csv", &[], &["cannot read", "secret.csv", "ermission denied"]);
}

#[test]
fn sources_that_are_not_files() {
    let site = Site::new();
    nix::unistd::mkfifo(&site.path("rows.csv"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_source_refused(&site, "rows.csv", &[], &["rows.csv is a pipe, not a file"]);
}

#[test]
fn pipes_instead_of_files_are_refused_at_once() {
    let site = Site::new();
    let pipe = |name: &str| {
        nix::unistd::mkfifo(&site.path(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    pipe("job.toml");
    let job = assert_refused(&site, &["train", "job.toml"], &["job.toml: it is a pipe, not a file"]);
    job.assert_advice("write it to a file first");
    pipe("net.onnx");
    let onnx = ["train", "--set", "model.onnx=net.onnx"];
    assert_refused(&site, &onnx, &["net.onnx: it is a pipe, not a file"]);
    pipe("model.safetensors");
    for command in ["predict", "evaluate", "inspect", "export"] {
        let ended = site.run(&[command, "model.safetensors"]);
        assert!(ended.code == Some(1) || ended.code == Some(2), "{command}: {}", ended.stderr);
        assert!(ended.stderr.contains("model.safetensors"), "{command}: {}", ended.stderr);
    }
    std::fs::create_dir(site.path("run")).unwrap();
    pipe("run/.lock");
    let lock = assert_refused(&site, &["train", "--out", "run"], &["run/.lock: it is a pipe, not a file"]);
    lock.assert_advice("choose another --out");
}

#[test]
fn urls_are_refused_where_paths_are_expected() {
    let site = Site::new();
    let out =
        assert_refused(&site, &["train", "--out", "s3://bucket/run"], &["--out s3://bucket/run is a URL"]);
    out.assert_advice("mount it first");
    assert_refused(
        &site,
        &["train", "--set", "data.source=s3://bucket/rows.csv"],
        &["data.source", "is a URL"],
    );
    site.write("job.toml", "[data]\nsource = \"hdfs://host/rows.csv\"\n");
    assert_refused(&site, &["train", "job.toml"], &["`hdfs://host/rows.csv` is a URL"]);
    assert_refused(&site, &["train", "--set", "data.cache=gs://bucket"], &["data.cache", "is a URL"]);
}

/// A folder that another user prepared: the targets of its links stay unchanged.
#[test]
fn links_in_a_run_folder_are_not_followed() {
    use std::os::unix::fs::symlink;
    let site = Site::new();
    site.write("precious", "kept");
    std::fs::create_dir(site.path("run")).unwrap();
    symlink(site.path("precious"), site.path("run/.lock")).unwrap();
    let refused = assert_refused(&site, &["train", "--out", "run"], &["run/.lock: it is a symbolic link"]);
    refused.assert_advice("remove it if you trust the folder");
    std::fs::remove_file(site.path("run/.lock")).unwrap();
    symlink(site.path("precious"), site.path("run/join.json")).unwrap();
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "train.max_steps=5"]);
    assert_eq!(std::fs::read(site.path("precious")).unwrap(), b"kept");
    // The lock file of an earlier version has content, which stays too.
    site.write("run/.lock", "words");
    site.succeed(&["train", "--quiet", "--out", "run", "--overwrite", "--set", "train.max_steps=5"]);
    assert_eq!(std::fs::read(site.path("run/.lock")).unwrap(), b"words");
}

/// `ulimit` for one command.
fn limited(site: &Site, limit: &str, arguments: &[&str]) -> Ended {
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    let all = [&["-c", &script, env!("CARGO_BIN_EXE_thalweg")], arguments].concat();
    Process::start(site.program("sh", &all)).end(LIMIT)
}

#[test]
fn the_limit_of_open_files_is_named() {
    for workers in ["3", "4"] {
        let site = Site::new();
        let ended = limited(&site, "-n 20", &["train", "--quiet", "--workers", workers, "--out", "run"]);
        ended.assert_error(1, &["rank ", "this process may open no more files (20, as `ulimit -n` says)"]);
        ended.assert_advice("ulimit -n");
        assert!(!ended.stderr.contains("firewall"), "{}", ended.stderr);
        site.assert_empty();
    }
}

/// With little memory a job ends soon, with success or with an error about memory.
#[test]
fn too_little_memory_is_no_internal_error() {
    for limit in ["-v 42000", "-v 48000", "-v 54000"] {
        let site = Site::new();
        let ended =
            limited(&site, limit, &["train", "--quiet", "--workers", "4", "--set", "train.max_steps=5"]);
        assert!(
            !ended.stderr.contains("firewall") && !ended.stderr.contains("bug"),
            "{limit}: {}",
            ended.stderr
        );
        site.assert_empty();
    }
}

#[test]
fn sources_that_do_not_fit_the_job() {
    let site = Site::new();
    site.write("rows.csv", GOOD);
    let label = ["--set", "data.label=lable"];
    assert_source_refused(&site, "rows.csv", &label, &["unknown column `lable`", "did you mean `label`?"]);
    assert_source_refused(&site, "rows.csv", &["--set", "data.label=9"], &["data.label = 9", "3 columns"]);
    let crowd = ["--workers", "9"];
    assert_source_refused(&site, "rows.csv", &crowd, &["9 workers for 4 training rows", "--workers 4"]);
    let eight = r#"model.layers=["dense 8"]"#;
    let parts =
        ["model.layers[0] \"dense 8\"", "expected 10 numbers (the data has 10 classes), got 8", "dense auto"];
    assert_source_refused(&site, "builtin:digits", &["--set", eight], &parts);
    let target = ["--set", "train.target.accuracy=0.9"];
    site.write("numbers.csv", "a,y\n1,1.5\n2,2.5\n3,3.5\n4,4.75\n");
    let regression = [&target[..], &["--set", "data.task=regression"]].concat();
    assert_source_refused(&site, "numbers.csv", &regression, &["train.target.accuracy", "train.target.loss"]);
}

#[test]
fn files_of_one_source_with_different_columns() {
    let site = Site::new();
    site.write("part-1.csv", GOOD);
    site.write("part-2.csv", "a,label\n1,yes\n2,no\n");
    assert_source_refused(&site, "part-*.csv", &[], &["part-2.csv has 2 columns where part-1.csv has 3"]);
}

#[test]
fn jobs_with_invalid_values() {
    let site = Site::new();
    for (assignment, part) in [
        ("train.epoch=3", "unknown key `epoch`; did you mean `epochs`?"),
        ("trian.epochs=3", "unknown section `trian`; did you mean `train`?"),
        ("train.optimizer.kind=adan", "unknown value `adan`; did you mean `adam`?"),
        ("train.epochs=many", "expected a whole number"),
        ("train.global_batch=0", "must be at least 1"),
        ("fault.step_deadline=5 parsecs", "expected a time such as"),
        ("train.epochs", "expected section.key=value"),
    ] {
        assert_refused(&site, &["train", "--set", assignment], &[&format!("--set {assignment}"), part]);
    }
    let typo = ["unknown preset `horovd`", "did you mean `horovod`?"];
    assert_refused(&site, &["train", "--strategy", "horovd"], &typo);
    let conflict = ["--workers 2: engine.workers = 2 conflicts with preset `single`, which sets 1"];
    let ended = assert_refused(&site, &["train", "--strategy", "single", "--workers", "2"], &conflict);
    assert_eq!(ended.stderr.lines().count(), 1, "one cause, one complaint: {}", ended.stderr);
    assert_refused(&site, &["train", "--workers", "0"], &["--workers 0", "between 1 and"]);
}

#[test]
fn a_transport_that_is_not_built_in_or_not_available() {
    let site = Site::new();
    let todo = if cfg!(feature = "mpi") { "mpirun -n" } else { "cargo build --release --features mpi" };
    for workers in ["2", "4"] {
        let mpi = ["train", "--workers", workers, "--set", "strategy.exchange.transport=mpi"];
        assert_refused(&site, &mpi, &["`mpi`", "what to do", todo]);
    }
    assert_refused(&site, &["bench", "allreduce", "--transport", "mpi"], &["mpi", "what to do", todo]);
    assert_refused(&site, &["bench", "allreduce", "--algorithm", "native"], &["`shm`", "--transport mpi"]);
}

#[test]
fn errors_in_job_files_name_the_line() {
    let site = Site::new();
    site.write("job.toml", "[train]\nepoch = 3\nseed = 4\n\n[modle]\nlayers = []\n");
    assert_refused(&site, &["train", "job.toml"], &["job.toml:2", "`epochs`", "job.toml:6", "`model`"]);
    site.write("broken.toml", "[train\n");
    assert_refused(&site, &["train", "broken.toml"], &["broken.toml:1"]);
    assert_refused(&site, &["train", "nowhere.toml"], &["nowhere.toml", "no such file"]);
    site.write("old.toml", "[strategy]\npreset = \"horovod\"\nexchange = { kind = \"none\" }\n");
    assert_refused(
        &site,
        &["train", "old.toml"],
        &["old.toml:3", "strategy.exchange.kind", "preset `horovod`"],
    );
}

#[test]
fn data_instead_of_a_job() {
    let site = Site::new();
    site.write("rows.csv", GOOD);
    site.write("rows.csv.gz", [0x1f, 0x8b, 0xff]);
    for name in ["rows.csv", "rows.csv.gz"] {
        let ended = assert_refused(&site, &["train", name], &[&format!("{name} is data, not a job")]);
        ended.assert_advice(&format!("`thalweg init {name}`"));
        ended.assert_advice(&format!("--set data.source={name}"));
    }
}

#[test]
fn output_folders_that_cannot_be_used() {
    let site = Site::new();
    site.write("file", "kept");
    let below = assert_refused(&site, &["train", "--out", "file/run"], &["file/run"]);
    below.assert_advice("--out");
    let is_file = assert_refused(&site, &["train", "--out", "file"], &["file is a file, not a folder"]);
    is_file.assert_advice("--out");
    assert_eq!(std::fs::read(site.path("file")).unwrap(), b"kept");
    // Not even root can write there.
    let unwritable = assert_refused(&site, &["train", "--out", "/proc/run"], &["/proc/run"]);
    unwritable.assert_advice("--out");
}

#[test]
fn a_folder_with_a_run_is_not_touched_unless_asked() {
    let site = Site::new();
    let short = ["train", "--quiet", "--out", "run", "--set", "train.max_steps=5"];
    site.succeed(&short);
    let model = std::fs::read(site.path("run/model.safetensors")).unwrap();
    let ended = assert_refused(&site, &short, &["run holds a run already"]);
    ended.assert_advice("--overwrite");
    // Also with --overwrite, a job that cannot start leaves it.
    let hopeless = [&short[..], &["--overwrite", "--set", "data.source=nowhere.csv"]].concat();
    assert_refused(&site, &hopeless, &["nowhere.csv"]);
    assert!(std::fs::read(site.path("run/model.safetensors")).unwrap() == model);
    assert_eq!(site.report("run")["steps"], 5);
    site.write("run/notes.txt", "mine");
    site.succeed(&[&short[..], &["--overwrite", "--set", "train.seed=8"]].concat());
    assert!(std::fs::read(site.path("run/model.safetensors")).unwrap() != model);
    assert_eq!(site.checkpoints("run"), [5]);
    assert_eq!(std::fs::read(site.path("run/notes.txt")).unwrap(), b"mine", "what is not ours stays");
}

#[test]
fn folders_created_for_a_refused_job_are_removed() {
    let site = Site::new();
    let hopeless = ["train", "--set", "data.source=nowhere.csv"];
    assert_refused(&site, &hopeless, &["nowhere.csv"]);
    assert_refused(&site, &[&hopeless[..], &["--out", "deep/er/run"]].concat(), &["nowhere.csv"]);
    std::fs::create_dir(site.path("mine")).unwrap();
    assert_refused(&site, &[&hopeless[..], &["--out", "mine"]].concat(), &["nowhere.csv"]);
}

#[test]
fn invalid_environment_variables() {
    let site = Site::new();
    for (variables, part) in [
        (&[("RANK", "0")][..], "RANK is set, but WORLD_SIZE is not"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2, but WORLD_SIZE=2: ranks are 0 to 1"),
        (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK=one is not a number"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "http")], "MASTER_PORT=http is not a port"),
    ] {
        let mut command = site.thalweg(&["train"]);
        command.envs(variables.iter().copied());
        Process::start(command).end(LIMIT).assert_error(2, &[part]);
    }
    assert!(names(&site, ".").is_empty());
}
