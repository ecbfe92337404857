//! The last words of a successful job, for somebody who sees it for the first time.

use super::wording::{bytes, count, counted, headline, is_uneven, milliseconds, number, rate, seconds};
use std::fmt::Write;
use std::path::Path;
use thalweg_core::event::Outcome;
use thalweg_core::report::{RankReport, Report};

/// What a run left behind, and how it was asked for.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    /// Where everything is.
    pub folder: &'a Path,
    /// Whether there is a checkpoint to go on from.
    pub checkpoint: bool,
    /// What stands behind `thalweg train` to run the job again; nothing if only the kept job says all of it.
    pub again: Option<&'a str>,
}

/// What happened, what came out, where it is and what to try next.
pub fn summary(report: &Report, left: Left<'_>) -> String {
    let mut text = String::from("\n");
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "{name:<9} {what}");
    };
    line(ending(report.outcome), what_happened(report));
    if !report.last.is_empty() {
        line("result", result(report));
    }
    if report.train_s > 0.0 {
        line("time", time(report));
    }
    let stayed: Vec<RankReport> =
        report.ranks.iter().filter(|rank| rank.gone_at.is_none()).cloned().collect();
    if let Some(shares) = shares(&stayed) {
        line("ranks", shares);
    }
    if let Some(times) = step_times(&stayed) {
        line("steps", times);
    }
    if report.outcome == Outcome::Interrupted && !report.world.is_empty() {
        line("saved", saved(report));
    }
    let result = match report.outcome {
        Outcome::Interrupted if left.checkpoint => "checkpoints/, ",
        Outcome::Interrupted => "",
        _ => "model.safetensors, ",
    };
    line("files", format!("{}/ {result}report.json, events.jsonl", left.folder.display()));
    if report.world.is_empty() {
        // Nothing came of it: there is nothing to go on from or to compare with.
        return text;
    }
    text.push_str("\ntry next\n");
    let next = next(report, left);
    let width = next.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0).max(44);
    for (command, what) in next {
        let _ = writeln!(text, "  {command:<width$}  {what}");
    }
    text
}

fn ending(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed | Outcome::TargetReached | Outcome::TargetMissed => "trained",
        Outcome::Interrupted => "stopped",
        Outcome::Failed => "failed",
    }
}

/// A value of the job as a word.
fn said(report: &Report, key: &str) -> String {
    match report.job.get(key) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

/// How many workers there were, or would have been.
fn workers(report: &Report) -> u64 {
    let wanted = || report.job.get("engine.workers").and_then(|value| value.as_u64());
    report.world.last().map(|world| world.workers as u64).or_else(wanted).unwrap_or(1)
}

/// `"dense 128 relu", "dense auto"`, or the name of a network of the zoo or of an ONNX file.
fn model(report: &Report) -> String {
    if let Some(zoo) = report.job.get("model.zoo").and_then(|value| value.as_str()) {
        return zoo.into();
    }
    if let Some(file) = report.job.get("model.onnx").and_then(|value| value.as_str()) {
        return file.into();
    }
    let layers = report.job.get("model.layers").and_then(|value| value.as_array());
    let layers: Vec<&str> = layers.into_iter().flatten().filter_map(|layer| layer.as_str()).collect();
    format!("\"{}\"", layers.join("\", \""))
}

/// `builtin:digits with dense 128 relu, dense auto on 2 workers (allreduce, ring), 20 epochs, 460 steps`.
fn what_happened(report: &Report) -> String {
    if report.world.is_empty() {
        return "before training began".into();
    }
    let preset = report.job.get("strategy.preset").and_then(|value| value.as_str());
    let mut strategy = preset.unwrap_or("your own dials").to_string();
    if workers(report) > 1
        && !matches!(report.algorithm.as_str(), "" | "none")
        && report.algorithm != strategy
    {
        let _ = write!(strategy, ", {}", report.algorithm);
    }
    let what = format!("{} with {}\n{:<9}", said(report, "data.source"), model(report), "");
    let workers = counted(workers(report), "worker");
    format!(
        "{what} on {workers} ({strategy}) for {}, {}",
        counted(report.epochs.iter().filter(|epoch| !epoch.metrics().is_empty()).count() as u64, "epoch"),
        counted(report.steps, "step"),
    )
}

fn result(report: &Report) -> String {
    let first = headline(&report.last);
    let mut parts: Vec<String> = Vec::new();
    if let Some((name, value)) = first {
        let trained_on = report.epochs.last().is_some_and(|epoch| !epoch.training.is_empty());
        let rows = if trained_on { "training" } else { "validation" };
        parts.push(format!("{rows} {name} {}", number(value)));
    }
    let others = report.last.iter().filter(|(name, _)| first.is_none_or(|(shown, _)| *name != shown));
    parts.extend(others.map(|(name, value)| format!("{name} {}", number(*value))));
    if let Some(epoch) = measured_before_the_end(report) {
        parts.push(format!("after epoch {}", count(epoch + 1)));
    }
    match report.outcome {
        Outcome::TargetReached => parts.push("target reached".into()),
        Outcome::TargetMissed => parts.push("target missed".into()),
        _ => {}
    }
    parts.join(", ")
}

/// The last epoch with metrics, if the job was stopped inside a later one: they are not those of the checkpoint.
fn measured_before_the_end(report: &Report) -> Option<u64> {
    let measured = report.epochs.iter().rev().find(|epoch| !epoch.metrics().is_empty())?;
    (report.outcome == Outcome::Interrupted && measured.step < report.steps).then_some(measured.epoch)
}

/// What a stopped job can go on from.
fn saved(report: &Report) -> String {
    match report.checkpoint_step {
        Some(step) if step >= report.steps => format!("checkpoint of step {}", count(step)),
        Some(step) => {
            let lost = counted(report.steps - step, "step");
            format!("checkpoint of step {}; {lost} after it are lost", count(step))
        }
        None => "no checkpoint".into(),
    }
}

fn time(report: &Report) -> String {
    format!(
        "{} of training at {}, {} in all",
        seconds(report.train_s),
        rate(report.samples_per_s),
        seconds(report.wall_s)
    )
}

/// How the ranks spent their time, in one line: each of a few, the mean of many.
fn shares(ranks: &[RankReport]) -> Option<String> {
    let each = |rank: &RankReport| {
        let total = rank.compute_s + rank.exchange_s + rank.wait_s;
        (total > 0.0).then(|| [rank.compute_s, rank.exchange_s, rank.wait_s].map(|part| 100.0 * part / total))
    };
    let shares: Vec<[f64; 3]> = ranks.iter().filter_map(each).collect();
    if shares.len() < 2 {
        return None;
    }
    let column = |part: usize| {
        let values: Vec<f64> = shares.iter().map(|share| share[part]).collect();
        if values.len() > 4 {
            return format!("{:.0}%", values.iter().sum::<f64>() / values.len() as f64);
        }
        values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join("/") + "%"
    };
    let sent: u64 = ranks.iter().map(|rank| rank.bytes_sent).sum();
    Some(format!(
        "computing {}, exchanging {}, waiting {}; {} sent{}",
        column(0),
        column(1),
        column(2),
        bytes(sent),
        hidden_share(ranks)
            .map_or(String::new(), |share| format!("; {share:.0}% of the exchange was hidden")),
    ))
}

/// How long steps took, rank by rank, if that differs much: of a few each, of many the fastest and the slowest.
fn step_times(ranks: &[RankReport]) -> Option<String> {
    let computed: Vec<&RankReport> = ranks.iter().filter(|rank| rank.rows > 0).collect();
    let by_median =
        |one: &&&RankReport, other: &&&RankReport| one.step_ms.median.total_cmp(&other.step_ms.median);
    let fastest = *computed.iter().min_by(by_median)?;
    let slowest = *computed.iter().max_by(by_median)?;
    if !is_uneven(fastest.step_ms.median, slowest.step_ms.median) {
        return None;
    }
    let told = if computed.len() > 4 { vec![fastest, slowest] } else { computed };
    let each = |rank: &&RankReport| format!("{} on rank {}", milliseconds(&rank.step_ms), rank.rank);
    let told: Vec<String> = told.iter().map(each).collect();
    Some(format!("computing took {} (min/median/max)", told.join(", ")))
}

/// What share of the exchange went on behind computation, in percent; nothing if none could.
fn hidden_share(ranks: &[RankReport]) -> Option<f64> {
    let hidden: f64 = ranks.iter().map(|rank| rank.hidden_s).sum();
    let shown: f64 = ranks.iter().map(|rank| rank.exchange_s).sum();
    (hidden > 0.0).then(|| 100.0 * hidden / (hidden + shown))
}

fn next(report: &Report, left: Left<'_>) -> Vec<(String, &'static str)> {
    let folder = left.folder.display();
    let mut lines = Vec::new();
    if left.checkpoint && report.outcome == Outcome::Interrupted {
        lines.push((format!("thalweg resume {folder}"), "go on where it stopped"));
    } else if report.outcome != Outcome::Interrupted {
        lines.push((format!("thalweg evaluate {folder}"), "measure the model again"));
        let source = said(report, "data.source");
        let (input, what) = match source.strip_suffix(".gz").unwrap_or(&source).ends_with(".txt") {
            true => ("\"Some text\"", "continue a text"),
            false => ("rows.csv", "predict with it"),
        };
        lines.push((format!("thalweg predict {folder} {input}"), what));
    }
    let others = if workers(report) == 4 { 2 } else { 4 };
    let job = match left.again {
        Some("") => String::new(),
        Some(job) => format!("{job} "),
        None => format!("{folder}/job.toml "),
    };
    // Where each worker keeps a state of its own, their number is part of the result.
    let alike =
        said(report, "strategy.optimization") == "centralized" && said(report, "model.batchnorm") != "local";
    let what = if alike { "other workers, the same result" } else { "other workers" };
    lines.push((format!("thalweg train {job}--workers {others}"), what));
    lines.push(("thalweg strategies".into(), "other ways to share the work"));
    if said(report, "data.source") == "builtin:digits" {
        lines.push(("thalweg init data.csv".into(), "a job for your own data"));
    }
    lines.push((format!("tensorboard --logdir {folder}"), "show the curves"));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::ReportView;
    use super::*;
    use std::time::Duration;
    use thalweg_core::Job;
    use thalweg_core::report::{EpochReport, World};
    use thalweg_core::times::Spread;

    fn left<'a>(folder: &'a str, checkpoint: bool, again: Option<&'a str>) -> Left<'a> {
        Left { folder: Path::new(folder), checkpoint, again }
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
        };
        report.epochs = (0..20).map(entry).collect();
        (report.steps, report.train_s, report.samples_per_s) = (460, 1.2, 41_000.0);
        report.algorithm = "ring".into();
        report.world = vec![World { step: 0, workers: 2 }];
        report.last = [("accuracy".to_string(), 0.975), ("loss".to_string(), 0.0812)].into();
        let rank = |rank, compute_s, wait_s| {
            let bytes_sent = 9 << 20;
            RankReport { rank, compute_s, wait_s, exchange_s: 0.2, bytes_sent, ..RankReport::default() }
        };
        report.ranks = vec![rank(0, 0.6, 0.2), rank(1, 0.8, 0.0)];
        report
    }

    #[test]
    fn a_newcomer_reads_what_happened_and_what_to_try() {
        let text = summary(&report(Outcome::Completed), left("runs/digits-1", true, Some("")));
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
    fn a_network_of_the_zoo_is_told_by_its_name_and_a_text_is_written_on() {
        let mut report = report(Outcome::Completed);
        report.job.insert("data.source".into(), "book.txt.gz".into());
        report.job.insert("model.zoo".into(), "gpt-mini".into());
        let text = summary(&report, left("runs/a", true, Some("")));
        assert!(text.contains("book.txt.gz with gpt-mini\n"), "{text}");
        assert!(text.contains("predict runs/a \"Some text\""), "{text}");
    }

    #[test]
    fn an_interrupted_job_is_told_how_to_go_on() {
        let text = summary(&report(Outcome::Interrupted), left("runs/a", true, None));
        assert!(text.contains("stopped") && text.contains("thalweg resume runs/a"), "{text}");
        assert!(text.contains("runs/a/ checkpoints/, report.json"), "{text}");
    }

    #[test]
    fn metrics_of_a_job_stopped_inside_an_epoch_are_told_with_their_epoch() {
        let mut report = report(Outcome::Interrupted);
        let text = summary(&report, left("runs/a", true, None));
        assert!(
            text.contains("result    validation accuracy 0.9750, loss 0.0812, after epoch 20\n"),
            "{text}"
        );
        report.epochs.last_mut().unwrap().step = report.steps;
        assert!(!summary(&report, left("runs/a", true, None)).contains("after epoch"));
    }

    #[test]
    fn an_interrupted_job_says_what_was_saved() {
        let saved = |step| {
            let report = Report { checkpoint_step: step, ..report(Outcome::Interrupted) };
            let text = summary(&report, left("runs/a", step.is_some(), None));
            text.lines().find_map(|line| line.strip_prefix("saved     ")).unwrap().to_string()
        };
        assert_eq!(saved(Some(460)), "checkpoint of step 460");
        assert_eq!(saved(Some(400)), "checkpoint of step 400; 60 steps after it are lost");
        assert_eq!(saved(None), "no checkpoint");
        let text = summary(&report(Outcome::Completed), left("runs/a", true, None));
        assert!(!text.contains("\nsaved"), "{text}");
    }

    #[test]
    fn a_job_stopped_before_it_began_promises_nothing() {
        let (view, _) = ReportView::open(Path::new("nowhere"), "digits-1", &Job::default(), false);
        let report = view.finish(Outcome::Interrupted, None, Duration::from_millis(1900));
        let text = summary(&report, left("runs/a", false, Some("")));
        let expected = "
stopped   before training began
files     runs/a/ report.json, events.jsonl
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_users_own_job_and_data_are_spoken_of() {
        let mut report = report(Outcome::Completed);
        report.job.insert("data.source".into(), "iris.csv".into());
        let folder = "runs/a-folder-with-quite-a-long-name-1";
        let text = summary(&report, left(folder, true, Some("iris.toml")));
        assert!(text.contains("  thalweg train iris.toml --workers 4 "), "{text}");
        assert!(!text.contains("thalweg init"), "{text}");
        let column = |what: &str| text.lines().find_map(|line| line.find(what)).unwrap();
        assert_eq!(column("predict with it"), column("show the curves"), "{text}");
        let text = summary(&report, left(folder, true, None));
        assert!(text.contains(&format!("thalweg train {folder}/job.toml --workers 4")), "{text}");
    }

    #[test]
    fn the_same_result_is_promised_only_where_it_holds() {
        let promise = |changes: &[(&str, &str)]| {
            let mut report = report(Outcome::Completed);
            for (key, value) in changes {
                report.job.insert(key.to_string(), (*value).into());
            }
            let text = summary(&report, left("runs/a", true, Some("")));
            assert!(text.contains("--workers 4") && text.contains("other workers"), "{text}");
            text.contains("the same result")
        };
        assert!(promise(&[]));
        assert!(!promise(&[("strategy.optimization", "decentralized")]));
        assert!(!promise(&[("model.batchnorm", "local")]));
    }

    #[test]
    fn uneven_ranks_are_told_with_their_times() {
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
    fn many_ranks_are_told_by_their_mean() {
        let rank = |rank| RankReport { rank, compute_s: 1.0, wait_s: 1.0, ..RankReport::default() };
        let ranks: Vec<RankReport> = (0..8).map(rank).collect();
        assert_eq!(shares(&ranks).unwrap(), "computing 50%, exchanging 0%, waiting 50%; 0 B sent");
        assert_eq!(shares(&ranks[..1]), None);
    }
}
