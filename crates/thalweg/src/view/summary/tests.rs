use super::super::ReportView;
use super::*;
use std::time::Duration;
use thalweg_core::Job;
use thalweg_core::report::{EpochReport, WorldSize};
use thalweg_core::times::Spread;

fn files<'a>(folder: &'a str, checkpoint: bool, rerun_args: Option<&'a str>) -> RunFiles<'a> {
    RunFiles { folder: Path::new(folder), checkpoint, rerun_args, same_steps: true }
}

fn report(outcome: Outcome) -> Report {
    let (view, _) = ReportView::open(Path::new("nowhere"), "digits-1", &Job::default(), false);
    let mut report = view.finish(outcome, None, Duration::from_millis(1900));
    let entry = |epoch| EpochReport {
        epoch,
        step: 0,
        loss: 0.1,
        validation: [("accuracy".to_string(), 0.9)].into(),
        training: Default::default(),
        consensus: None,
        members: Vec::new(),
        merge_every: None,
    };
    report.epochs = (0..20).map(entry).collect();
    (report.steps, report.train_s, report.samples_per_s) = (460, 1.2, 41_000.0);
    report.algorithm = "ring".into();
    report.world = vec![WorldSize { step: 0, workers: 2 }];
    report.last = [("accuracy".to_string(), 0.975), ("loss".to_string(), 0.0812)].into();
    let rank = |rank, compute_s, wait_s| {
        let bytes_sent = 9 << 20;
        RankReport { rank, compute_s, wait_s, exchange_s: 0.2, bytes_sent, ..RankReport::default() }
    };
    report.ranks = vec![rank(0, 0.6, 0.2), rank(1, 0.8, 0.0)];
    report
}

#[test]
fn the_summary_names_result_files_and_next_commands() {
    let text = summary(&report(Outcome::Completed), files("runs/digits-1", true, Some("")));
    let expected = "
trained   builtin:digits with \"dense 128 relu\", \"dense auto\"
          on 2 workers (allreduce, ring) for 20 epochs, 460 steps
result    validation accuracy 0.9750, loss 0.0812
time      1.2 s of training at 41 k samples/s, 1.9 s in all
ranks     computing 60/80%, exchanging 20/20%, waiting 20/0%; 18.0 MiB sent
files     runs/digits-1/ model.safetensors, report.json, events.jsonl

try next
  thalweg evaluate runs/digits-1                measure the model again
  thalweg predict runs/digits-1 rows.csv        predict with it
  thalweg train --workers 4                     other workers, the same result
  thalweg strategies                            other ways to share the work
  thalweg init data.csv                         a job for your own data
  tensorboard --logdir runs/digits-1            show the curves
";
    assert_eq!(text, expected);
    assert!(text.lines().all(|line| line.len() <= 80));
}

#[test]
fn a_zoo_network_is_named_and_text_models_continue_a_text() {
    let mut report = report(Outcome::Completed);
    report.job.insert("data.source".into(), "book.txt.gz".into());
    report.job.insert("model.zoo".into(), "gpt-mini".into());
    let text = summary(&report, files("runs/a", true, Some("")));
    assert!(text.contains("book.txt.gz with gpt-mini\n"), "{text}");
    assert!(text.contains("predict runs/a \"Some text\""), "{text}");
}

#[test]
fn an_interrupted_job_shows_the_resume_command() {
    let text = summary(&report(Outcome::Interrupted), files("runs/a", true, None));
    assert!(text.contains("stopped") && text.contains("thalweg resume runs/a"), "{text}");
    assert!(text.contains("runs/a/ checkpoints/, report.json"), "{text}");
}

#[test]
fn metrics_of_a_job_stopped_inside_an_epoch_name_their_epoch() {
    let mut report = report(Outcome::Interrupted);
    let text = summary(&report, files("runs/a", true, None));
    assert!(text.contains("result    validation accuracy 0.9750, loss 0.0812, after epoch 20\n"), "{text}");
    report.epochs.last_mut().unwrap().step = report.steps;
    assert!(!summary(&report, files("runs/a", true, None)).contains("after epoch"));
}

#[test]
fn an_interrupted_job_names_its_checkpoint() {
    let saved = |step| {
        let report = Report { checkpoint_step: step, ..report(Outcome::Interrupted) };
        let text = summary(&report, files("runs/a", step.is_some(), None));
        text.lines().find_map(|line| line.strip_prefix("saved     ")).unwrap().to_string()
    };
    assert_eq!(saved(Some(460)), "checkpoint of step 460");
    assert_eq!(saved(Some(400)), "checkpoint of step 400; 60 steps after it are lost");
    assert_eq!(saved(None), "no checkpoint");
    let text = summary(&report(Outcome::Completed), files("runs/a", true, None));
    assert!(!text.contains("\nsaved"), "{text}");
}

#[test]
fn a_job_stopped_before_training_has_no_next_commands() {
    let (view, _) = ReportView::open(Path::new("nowhere"), "digits-1", &Job::default(), false);
    let report = view.finish(Outcome::Interrupted, None, Duration::from_millis(1900));
    let text = summary(&report, files("runs/a", false, Some("")));
    let expected = "
stopped   before training began
files     runs/a/ report.json, events.jsonl
";
    assert_eq!(text, expected);
}

#[test]
fn the_next_commands_use_the_job_file_of_the_user() {
    let mut report = report(Outcome::Completed);
    report.job.insert("data.source".into(), "iris.csv".into());
    let folder = "runs/a-folder-with-quite-a-long-name-1";
    let text = summary(&report, files(folder, true, Some("iris.toml")));
    assert!(text.contains("  thalweg train iris.toml --workers 4 "), "{text}");
    assert!(!text.contains("thalweg init"), "{text}");
    let column = |what: &str| text.lines().find_map(|line| line.find(what)).unwrap();
    assert_eq!(column("predict with it"), column("show the curves"), "{text}");
    let text = summary(&report, files(folder, true, None));
    assert!(text.contains(&format!("thalweg train {folder}/job.toml --workers 4")), "{text}");
}

#[test]
fn the_same_result_is_promised_only_where_it_holds() {
    let promise = |changes: &[(&str, &str)]| {
        let mut report = report(Outcome::Completed);
        for (key, value) in changes {
            report.job.insert(key.to_string(), (*value).into());
        }
        let text = summary(&report, files("runs/a", true, Some("")));
        assert!(text.contains("--workers 4") && text.contains("other workers"), "{text}");
        text.contains("the same result")
    };
    assert!(promise(&[]));
    let own_models = RunFiles { same_steps: false, ..files("runs/a", true, Some("")) };
    assert!(!summary(&report(Outcome::Completed), own_models).contains("the same result"));
    assert!(!promise(&[("model.batchnorm", "local"), ("model.zoo", "resnet-small")]));
    let promise = |layer: &str, statistics: &str| {
        let mut report = report(Outcome::Completed);
        report.job.insert("model.layers".into(), ["dense 8", layer].as_slice().into());
        report.job.insert("model.batchnorm".into(), statistics.into());
        summary(&report, files("runs/a", true, Some(""))).contains("the same result")
    };
    assert!(promise("relu", "local"), "a network without batch normalisation");
    assert!(promise("batchnorm", "synchronized"));
    assert!(!promise("batchnorm", "local") && !promise("batchnorm local", "synchronized"));
}

#[test]
fn step_times_of_uneven_ranks_are_shown() {
    let rank = |rank, median| {
        let step_ms = Spread { min: median - 1.0, median, max: 2.0 * median };
        RankReport { rank, rows: 7, step_ms, ..RankReport::default() }
    };
    let mut ranks = vec![rank(0, 20.0), rank(1, 61.0)];
    assert_eq!(
        step_times(&ranks).unwrap(),
        "computing took 19/20/40 ms on rank 0, 60/61/122 ms on rank 1 (min/median/max)"
    );
    ranks.extend((2..6).map(|number| rank(number, 20.0 + number as f64)));
    assert_eq!(step_times(&ranks).unwrap().matches("on rank").count(), 2);
    ranks.remove(1);
    assert_eq!(step_times(&ranks[..2]), None, "much the same");
}

#[test]
fn many_ranks_are_shown_by_their_mean() {
    let rank = |rank| RankReport { rank, compute_s: 1.0, wait_s: 1.0, ..RankReport::default() };
    let ranks: Vec<RankReport> = (0..8).map(rank).collect();
    assert_eq!(shares(&ranks).unwrap(), "computing 50%, exchanging 0%, waiting 50%; 0 B sent");
    assert_eq!(shares(&ranks[..1]), None);
}
