//! The summary at the end of a run: what was trained, the result, the files and the next commands to try.

use super::formatting::{bytes, count, counted, headline, is_uneven, milliseconds, number, rate, seconds};
use std::fmt::Write;
use std::path::Path;
use thalweg_core::event::Outcome;
use thalweg_core::report::{RankReport, Report};

/// Files of a run that the summary refers to.
#[derive(Clone, Copy)]
pub struct RunFiles<'a> {
    /// The run folder.
    pub folder: &'a Path,
    /// Whether there is a checkpoint to resume from.
    pub checkpoint: bool,
    /// Arguments of `thalweg train` that repeat the job; `None` if only the `job.toml` of the run has all settings.
    pub rerun_args: Option<&'a str>,
    /// Whether the strategy takes the same steps with any number of workers.
    pub same_steps: bool,
}

/// The text of the summary.
pub fn summary(report: &Report, files: RunFiles<'_>) -> String {
    let mut text = String::from("\n");
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "{name:<9} {what}");
    };
    line(ending(report.outcome), training(report));
    if !report.last.is_empty() {
        line("result", result(report));
    }
    if report.train_s > 0.0 {
        line("time", time(report));
    }
    let remaining: Vec<RankReport> =
        report.ranks.iter().filter(|rank| rank.gone_at.is_none()).cloned().collect();
    if let Some(shares) = shares(&remaining) {
        line("ranks", shares);
    }
    if let Some(times) = step_times(&remaining) {
        line("steps", times);
    }
    if report.outcome == Outcome::Interrupted && !report.world.is_empty() {
        line("saved", saved(report));
    }
    let result = match report.outcome {
        Outcome::Interrupted if files.checkpoint => "checkpoints/, ",
        Outcome::Interrupted => "",
        _ => "model.safetensors, ",
    };
    line("files", format!("{}/ {result}report.json, events.jsonl", files.folder.display()));
    if report.world.is_empty() {
        // Training has not begun: there is nothing to resume or to compare with.
        return text;
    }
    text.push_str("\ntry next\n");
    let next = next(report, files);
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

/// A value of the job as text.
fn setting(report: &Report, key: &str) -> String {
    match report.job.get(key) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

/// Number of workers at the end, or of the job if training has not begun.
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
fn training(report: &Report) -> String {
    if report.world.is_empty() {
        return "before training began".into();
    }
    let preset = report.job.get("strategy.preset").and_then(|value| value.as_str());
    let mut strategy = preset.unwrap_or("your own settings").to_string();
    if workers(report) > 1
        && !matches!(report.algorithm.as_str(), "" | "none")
        && report.algorithm != strategy
    {
        let _ = write!(strategy, ", {}", report.algorithm);
    }
    let what = format!("{} with {}\n{:<9}", setting(report, "data.source"), model(report), "");
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

/// The last epoch with metrics, if the job was stopped inside a later one: the checkpoint is newer than the metrics.
fn measured_before_the_end(report: &Report) -> Option<u64> {
    let measured = report.epochs.iter().rev().find(|epoch| !epoch.metrics().is_empty())?;
    (report.outcome == Outcome::Interrupted && measured.step < report.steps).then_some(measured.epoch)
}

/// The checkpoint that a stopped job can resume from.
fn saved(report: &Report) -> String {
    match report.checkpoint_step {
        Some(step) if step >= report.steps => format!("checkpoint of step {step}"),
        Some(step) => {
            let lost = counted(report.steps - step, "step");
            format!("checkpoint of step {step}; {lost} after it are lost")
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

/// Shares of compute, exchange and wait time: of each rank up to 4, the mean above.
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
        overlap_share(ranks)
            .map_or(String::new(), |share| format!("; {share:.0}% of the exchange was hidden")),
    ))
}

/// Compute time per step of the ranks, if it differs much: of each rank up to 4, of the fastest and slowest above.
fn step_times(ranks: &[RankReport]) -> Option<String> {
    let computed: Vec<&RankReport> = ranks.iter().filter(|rank| rank.rows > 0).collect();
    let by_median =
        |one: &&&RankReport, other: &&&RankReport| one.step_ms.median.total_cmp(&other.step_ms.median);
    let fastest = *computed.iter().min_by(by_median)?;
    let slowest = *computed.iter().max_by(by_median)?;
    if !is_uneven(fastest.step_ms.median, slowest.step_ms.median) {
        return None;
    }
    let shown = if computed.len() > 4 { vec![fastest, slowest] } else { computed };
    let each = |rank: &&RankReport| format!("{} on rank {}", milliseconds(&rank.step_ms), rank.rank);
    let shown: Vec<String> = shown.iter().map(each).collect();
    Some(format!("computing took {} (min/median/max)", shown.join(", ")))
}

/// Percentage of the exchange that overlapped with computation; `None` without overlap.
fn overlap_share(ranks: &[RankReport]) -> Option<f64> {
    let hidden: f64 = ranks.iter().map(|rank| rank.hidden_s).sum();
    let shown: f64 = ranks.iter().map(|rank| rank.exchange_s).sum();
    (hidden > 0.0).then(|| 100.0 * hidden / (hidden + shown))
}

fn next(report: &Report, files: RunFiles<'_>) -> Vec<(String, &'static str)> {
    let folder = files.folder.display();
    let mut lines = Vec::new();
    if files.checkpoint && report.outcome == Outcome::Interrupted {
        lines.push((format!("thalweg resume {folder}"), "continue where it stopped"));
    } else if report.outcome != Outcome::Interrupted {
        lines.push((format!("thalweg evaluate {folder}"), "measure the model again"));
        let source = setting(report, "data.source");
        let (input, what) = match source.strip_suffix(".gz").unwrap_or(&source).ends_with(".txt") {
            true => ("\"Some text\"", "continue a text"),
            false => ("rows.csv", "predict with it"),
        };
        lines.push((format!("thalweg predict {folder} {input}"), what));
    }
    let others = if workers(report) == 4 { 2 } else { 4 };
    let job = match files.rerun_args {
        Some("") => String::new(),
        Some(job) => format!("{job} "),
        None => format!("{folder}/job.toml "),
    };
    // If workers have their own state, the result depends on their number.
    let alike = files.same_steps && !has_local_statistics(report);
    let what = if alike { "other workers, the same result" } else { "other workers" };
    lines.push((format!("thalweg train {job}--workers {others}"), what));
    lines.push(("thalweg strategies".into(), "other ways to share the work"));
    if setting(report, "data.source") == "builtin:digits" {
        lines.push(("thalweg init data.csv".into(), "a job for your own data"));
    }
    lines.push((format!("tensorboard --logdir {folder}"), "show the curves"));
    lines
}

/// Whether workers may normalise by their own rows only; the layers of other networks than `model.layers` are not known here.
fn has_local_statistics(report: &Report) -> bool {
    let is_local = setting(report, "model.batchnorm") == "local";
    let is_absent = |key| report.job.get(key).is_none_or(|value| value.is_null());
    match report.job.get("model.layers").and_then(|layers| layers.as_array()) {
        Some(layers) if is_absent("model.zoo") && is_absent("model.onnx") => {
            let mut layers = layers.iter().filter_map(|layer| layer.as_str());
            layers.any(|layer| layer.contains("batchnorm") && (is_local || layer.contains("local")))
        }
        _ => is_local,
    }
}

#[cfg(test)]
mod tests;
