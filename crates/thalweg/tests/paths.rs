//! Paths in a job are relative to its file, those of flags to the working folder; the `job.toml` of a run works
//! anywhere.

mod harness;

use harness::{Ended, Process, Site, TRAINING_LIMIT, free_port};

/// Two numbers and which of them is larger.
fn table(rows: std::ops::Range<u32>) -> String {
    let row = |n: u32| (n * 37 % 101, n * 61 % 103);
    let line = |(a, b): (u32, u32)| format!("{a},{b},{}\n", if a > b { "more" } else { "less" });
    "a,b,which\n".to_string() + &rows.map(row).map(line).collect::<String>()
}

const JOB: &str = "[data]\nsource = \"part-*.csv\"\nvalidation = \"held/later.csv\"\n[train]\nepochs = 2\n";

/// A job and its data in `jobs/`, and an empty folder `elsewhere`.
fn site() -> Site {
    let site = Site::new();
    for folder in ["jobs", "jobs/held", "elsewhere"] {
        std::fs::create_dir(site.path(folder)).unwrap();
    }
    site.write("jobs/part-1.csv", table(0..200));
    site.write("jobs/part-2.csv", table(200..400));
    site.write("jobs/held/later.csv", table(400..500));
    site.write("jobs/sizes.toml", JOB);
    site
}

fn run_in(site: &Site, folder: &str, arguments: &[&str]) -> Ended {
    let mut command = site.thalweg(arguments);
    command.current_dir(site.path(folder));
    Process::start(command).end(TRAINING_LIMIT)
}

fn succeed_in(site: &Site, folder: &str, arguments: &[&str]) -> String {
    let ended = run_in(site, folder, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?} in {folder}: {}", ended.stderr);
    ended.stdout
}

fn name(site: &Site, run: &str) -> String {
    site.report(run)["name"].as_str().unwrap().into()
}

#[test]
fn a_job_and_its_run_folder_work_from_any_folder() {
    let site = site();
    site.succeed(&["train", "-q", "jobs/sizes.toml"]);
    let shown = site.succeed(&["evaluate", "runs/sizes-1"]).stdout;
    assert!(shown.ends_with("on 100 rows of jobs/held/later.csv, kept for validation\n"), "{shown}");
    // The same figures from another folder, where none of the job's paths exists.
    let figures = |text: &str| text.split(" on ").next().map(String::from);
    for model in ["../runs/sizes-1", "../runs/sizes-1/model.safetensors"] {
        assert_eq!(figures(&succeed_in(&site, "elsewhere", &["evaluate", model])), figures(&shown));
    }
    // A run of the copy has the name of the job.
    succeed_in(&site, "elsewhere", &["train", "-q", "../runs/sizes-1/job.toml"]);
    assert_eq!(name(&site, "elsewhere/runs/sizes-1"), "sizes");
    succeed_in(&site, "elsewhere", &["resume", "-q", "../runs/sizes-1", "--set", "train.epochs=3"]);
    assert_eq!(name(&site, "runs/sizes-1"), "sizes");
    assert_eq!(site.report("runs/sizes-1")["epochs"].as_array().unwrap().len(), 3);
}

#[test]
fn equal_models_are_equal_files_wherever_they_were_trained() {
    let site = site();
    let train = ["train", "-q", "sizes.toml", "--out", "run", "--set", "train.reproducible=true"];
    std::fs::create_dir(site.path("elsewhere/held")).unwrap();
    for file in ["sizes.toml", "part-1.csv", "part-2.csv", "held/later.csv"] {
        std::fs::copy(site.path("jobs").join(file), site.path("elsewhere").join(file)).unwrap();
    }
    let [here, there] = ["jobs", "elsewhere"].map(|folder| {
        succeed_in(&site, folder, &train);
        std::fs::read(site.path(folder).join("run/model.safetensors")).unwrap()
    });
    assert!(here == there, "the models differ");
    // The model file does not contain the folder of its data.
    std::fs::create_dir(site.path("alone")).unwrap();
    site.write("alone/model.safetensors", here);
    let ended = run_in(&site, "alone", &["evaluate", "model.safetensors"]);
    ended.assert_error(2, &["part-*.csv"]);
    ended.assert_advice("--data");
    let shown =
        succeed_in(&site, "alone", &["evaluate", "model.safetensors", "--data", "../jobs/part-1.csv"]);
    assert!(shown.contains("on 200 rows"), "{shown}");
}

#[test]
fn paths_of_flags_count_from_the_working_folder() {
    let site = site();
    let held = ["--set", "data.validation=part-2.csv"];
    succeed_in(&site, "jobs", &[&["train", "-q", "sizes.toml", "--out", "../run"][..], &held].concat());
    let ended = run_in(&site, "elsewhere", &[&["train", "-q", "../jobs/sizes.toml"][..], &held].concat());
    ended.assert_error(2, &["cannot read part-2.csv"]);
    let shown = succeed_in(&site, "jobs", &["evaluate", "../run", "--data", "held/later.csv"]);
    assert!(shown.ends_with("on 100 rows of held/later.csv\n"), "{shown}");
    let shown = succeed_in(&site, "elsewhere", &["config", "../jobs/sizes.toml"]);
    assert!(shown.contains("source = \"../jobs/part-*.csv\""), "{shown}");
}

/// Earlier versions wrote paths relative to the working folder of the run, and no name.
#[test]
fn copies_with_relative_paths_still_count_from_the_working_folder() {
    let site = site();
    succeed_in(&site, "jobs", &["train", "-q", "sizes.toml", "--out", "../runs/old-7"]);
    let job = std::fs::read_to_string(site.path("runs/old-7/job.toml")).unwrap();
    let folder = format!("{}/", site.path("jobs").canonicalize().unwrap().display());
    assert!(job.contains(&folder), "{job}");
    let older = job.replace(&folder, "").replace("name = \"sizes\"\n", "");
    site.write("runs/old-7/job.toml", &older);
    succeed_in(&site, "jobs", &["train", "-q", "../runs/old-7/job.toml"]);
    assert_eq!(name(&site, "jobs/runs/old-1"), "old");
    succeed_in(&site, "jobs", &["resume", "-q", "../runs/old-7", "--set", "train.epochs=3"]);
    // Where the working folder has no such file, the copy's own folder may.
    site.write("runs/old-7/job.toml", older.replace("part-*", "rows").replace("held/later", "rows"));
    std::fs::copy(site.path("jobs/part-1.csv"), site.path("runs/old-7/rows.csv")).unwrap();
    succeed_in(&site, "elsewhere", &["train", "-q", "../runs/old-7/job.toml"]);
}

#[test]
fn a_run_folder_given_as_a_job_names_the_resume_command() {
    let site = site();
    site.succeed(&["train", "-q", "jobs/sizes.toml"]);
    let ended = site.run(&["train", "runs/sizes-1"]);
    ended.assert_error(2, &["runs/sizes-1 is the folder of a run, not a job"]);
    ended.assert_advice("`thalweg resume runs/sizes-1` continues it");
    site.run(&["train", "jobs"]).assert_error(2, &["jobs is a folder without a run, not a job"]);
}

#[test]
fn ranks_with_the_job_in_other_folders_train_together() {
    let site = site();
    for file in ["sizes.toml", "part-1.csv", "part-2.csv"] {
        std::fs::copy(site.path("jobs").join(file), site.path("elsewhere").join(file)).unwrap();
    }
    std::fs::create_dir(site.path("elsewhere/held")).unwrap();
    std::fs::copy(site.path("jobs/held/later.csv"), site.path("elsewhere/held/later.csv")).unwrap();
    let port = free_port();
    let absolute = site.path("elsewhere/sizes.toml").display().to_string();
    let ranks = ["jobs/sizes.toml", &absolute].into_iter().enumerate();
    let ranks = ranks.map(|(rank, job)| site.rank(rank, 2, port, &["train", "-q", "--out", "run", job]));
    for rank in ranks.map(Process::start).collect::<Vec<_>>() {
        let ended = rank.end(TRAINING_LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

#[test]
fn a_worker_joins_from_any_folder_and_may_set_its_paths() {
    let site = site();
    let endless = ["--set", "train.epochs=100000", "--set", "engine.pace=2ms"];
    let job =
        site.start(&[&["train", "jobs/sizes.toml", "--workers", "1", "--out", "run"][..], &endless].concat());
    site.await_step("run", 1);
    let join = |more: &[&str]| {
        let mut command = site.thalweg(&[&["join", "../run"][..], more].concat());
        command.current_dir(site.path("elsewhere"));
        Process::start(command)
    };
    let first = join(&[]);
    first.await_stderr("joined as rank 1; ");
    std::fs::create_dir(site.path("copies")).unwrap();
    for file in ["part-1.csv", "part-2.csv"] {
        std::fs::copy(site.path("jobs").join(file), site.path("copies").join(file)).unwrap();
    }
    let second = join(&["--set", "data.source=../copies/part-*.csv"]);
    second.await_stderr("joined as rank 2; ");
    join(&["--set", "train.epochs=3"]).end(TRAINING_LIMIT).assert_error(2, &["takes the job as it runs"]);
    job.signal(nix::sys::signal::Signal::SIGINT);
    assert_eq!(job.end(TRAINING_LIMIT).code, Some(130));
    for joining in [first, second] {
        joining.end(TRAINING_LIMIT);
    }
}

#[test]
fn init_writes_paths_that_count_from_the_job_it_writes() {
    let site = site();
    let source = |job: &str| {
        let text = std::fs::read_to_string(site.path(job)).unwrap();
        text.lines().find(|line| line.starts_with("source = ")).unwrap().to_string()
    };
    site.succeed(&["init", "jobs/part-1.csv"]);
    assert_eq!(source("part-1.toml"), "source = \"jobs/part-1.csv\"");
    site.succeed(&["init", "jobs/part-1.csv", "--out", "jobs/one.toml"]);
    assert_eq!(source("jobs/one.toml"), "source = \"part-1.csv\"");
    site.succeed(&["init", "jobs/part-1.csv", "--out", "elsewhere/one.toml"]);
    let written = source("elsewhere/one.toml");
    assert!(written.starts_with("source = \"/") && written.ends_with("/jobs/part-1.csv\""), "{written}");
    site.succeed(&["train", "-q", "elsewhere/one.toml", "--set", "train.max_steps=1"]);
}
