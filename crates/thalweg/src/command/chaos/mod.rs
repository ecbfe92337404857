//! `thalweg chaos`: runs a job under a random schedule of faults and reports the recovery.

mod fault_schedule;
mod gaps;

use crate::cli::TrainArgs;
use crate::command::{print, print_json};
use crate::launch::lock;
use crate::scratch::Scratch;
use crate::trainer::Trainer;
use clap::Args;
use fault_schedule::{ChaosStats, FaultSchedule, Pacing};
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex};
use thalweg_core::report::Report;
use thalweg_core::spec::{JobLayers, Origin, preset};
use thalweg_core::{Error, Result};
use thalweg_train::kept;
use thalweg_train::registry;
use thalweg_train::roles::Roles;

/// Arguments of `chaos`.
#[derive(Args, Debug, Clone)]
pub struct ChaosArgs {
    /// The job, and the arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
    /// Number of faults, one after another
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub faults: u64,
    /// Seed of the fault schedule; --seed is the job's
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub fault_seed: u64,
}

/// Epochs of the job: the fault schedule ends it before.
const ENDLESS: i64 = 1_000_000;

/// The printed result.
#[derive(Serialize)]
struct ChaosReport {
    finished: bool,
    faults: u64,
    kinds: std::collections::BTreeMap<&'static str, u64>,
    seed: u64,
    steps: u64,
    /// Steps, or rounds of several: a run that stands still commits none.
    units_committed: u64,
    samples_missed: u64,
    samples_repeated: u64,
    max_steps_redone: u64,
    /// Of killed processes.
    median_detect_s: Option<f64>,
    /// Of stopped processes.
    max_detect_hang_s: Option<f64>,
    /// Of livelocked processes.
    max_detect_livelock_s: Option<f64>,
    median_recover_s: Option<f64>,
    max_recover_s: Option<f64>,
    /// Longest time without an event.
    max_silence_s: f64,
    /// Longest time between two committed steps.
    max_stall_s: f64,
    goodput: Option<f64>,
    accuracy: Option<f64>,
    accuracy_without_faults: Option<f64>,
    /// Set if the preset's optimizer replaced that of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<String>,
}

/// Runs the job with faults and without; returns the exit code.
pub fn run(args: &ChaosArgs) -> Result<u8> {
    let mut layers = args.train.job.layers()?;
    let name = args.train.job.name(&layers);
    if layers.get("fault.step_deadline").is_none() {
        layers.set("fault.step_deadline", "2s".into(), Origin::Flag("chaos".into()));
    }
    let notice = preset::prefer_optimizer(&mut layers);
    let job = registry::resolve(layers.clone())?;
    if !registry::is_elastic(&job.spec) {
        let elastic = registry::all().filter(|strategy| strategy.claims.elastic);
        let names: Vec<String> = elastic.map(|strategy| format!("`{}`", strategy.name)).collect();
        return Err(Error::job("this job ends when a worker is lost, so it cannot run under faults")
            .hint(format!("{} continue, unless fault.elastic = false (docs/elastic.md)", names.join(", "))));
    }
    let workers = job.spec.engine.workers;
    let folder = Scratch::create("chaos")?;
    let mut endless = layers.clone();
    endless.set("train.epochs", ENDLESS.into(), Origin::Flag("chaos".into()));
    let pacing = Pacing {
        unit: registry::unit_steps(&job.spec),
        ranks: registry::ranks(&job.spec),
        max_workers: workers.max(2),
        servers: Roles::of(&job.spec).servers(),
    };
    let chaos = Arc::new(Mutex::new(FaultSchedule::new(args.fault_seed, args.faults, pacing)));
    let trainer = trainer(&name, endless, &folder.0.join("chaos.toml"))?
        .overwrite(args.train.overwrite)
        .quiet(args.train.quiet)
        .director(chaos.clone());
    let trainer = match &args.train.out {
        Some(out) => trainer.out(out),
        None => trainer,
    };
    let result = trainer.finish()?;
    let report = result.report.ok_or_else(|| Error::internal("a run without a report"))?;
    if result.code != 0 {
        return Ok(result.code);
    }
    let stats = lock(&chaos).stats.clone();
    let plain = without_faults(layers, &report, &folder)?;
    let outcome = ChaosReport { notice, ..summarize(args.fault_seed, &stats, &report, &plain) };
    if args.train.json {
        print_json(&outcome)?
    } else {
        print(&describe(&outcome))?
    }
    Ok(u8::from(outcome.faults < args.faults))
}

/// Runs the same job, for as many epochs, without faults.
fn without_faults(mut layers: JobLayers, report: &Report, folder: &Scratch) -> Result<Report> {
    let epochs = i64::try_from(report.epochs.len()).unwrap_or(i64::MAX);
    layers.set("train.epochs", epochs.into(), Origin::Flag("chaos".into()));
    let trainer = trainer("plain", layers, &folder.0.join("plain.toml"))?;
    trainer.quiet(true).out(folder.0.join("plain")).run()
}

/// A trainer whose workers read the same job from a file.
fn trainer(name: &str, layers: JobLayers, file: &Path) -> Result<Trainer> {
    let text = kept(&registry::resolve(layers)?.spec).to_toml();
    std::fs::write(file, &text)
        .map_err(|error| Error::io(format_args!("cannot write {}", file.display()), &error))?;
    let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
    let command: Vec<OsString> = vec![program.into(), "train".into(), file.into()];
    let mut layers = JobLayers::default();
    layers.add_file(&file.display().to_string(), &text).map_err(Error::internal)?;
    Ok(Trainer::from_layers(name, layers).worker_command(command))
}

fn summarize(seed: u64, stats: &ChaosStats, report: &Report, plain: &Report) -> ChaosReport {
    let missed = report.audit.iter().map(|audit| audit.missed).sum();
    let repeated = report.audit.iter().map(|audit| audit.repeated).sum();
    let rate = |report: &Report| (report.samples_per_s > 0.0).then_some(report.samples_per_s);
    let accuracy = |report: &Report| report.last.get("accuracy").copied();
    let longest = |values: &[f64]| values.iter().copied().max_by(f64::total_cmp);
    ChaosReport {
        finished: true,
        faults: stats.faults(),
        kinds: stats.kinds.clone(),
        seed,
        steps: report.steps,
        units_committed: report.units,
        samples_missed: missed,
        samples_repeated: repeated,
        max_steps_redone: stats.steps_redone,
        median_detect_s: median(&stats.detect_death),
        max_detect_hang_s: longest(&stats.detect_hang),
        max_detect_livelock_s: longest(&stats.detect_livelock),
        median_recover_s: median(&stats.recover),
        max_recover_s: longest(&stats.recover),
        max_silence_s: stats.gaps.silence,
        max_stall_s: stats.gaps.stall,
        goodput: rate(report).zip(rate(plain)).map(|(faulty, plain)| faulty / plain),
        accuracy: accuracy(report),
        accuracy_without_faults: accuracy(plain),
        notice: None,
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn describe(outcome: &ChaosReport) -> String {
    let detected = |what: &str, which: &str, value: Option<f64>| match value {
        Some(value) => format!("{what} after {value:.3} s ({which})"),
        None => format!("no {what}"),
    };
    let recovered = match (outcome.median_recover_s, outcome.max_recover_s) {
        (Some(median), Some(max)) => format!("after {median:.3} s (median), {max:.3} s (longest)"),
        _ => "nothing was lost".into(),
    };
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.4}"));
    let notice = outcome.notice.as_ref().map_or(String::new(), |notice| format!("notice     {notice}\n"));
    let kinds: Vec<String> = outcome.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    notice
        + &format!(
            "survived   {} faults ({}) in {} steps, {} commit units\n\
         audit      {} rows missed, {} seen twice; at most {} steps repeated for a fault\n\
         detected   {}, {}, {}\n\
         recovered  {}\n\
         longest    {:.1} s without an event, {:.1} s without a step\n\
         goodput    {} of a run without faults\n\
         accuracy   {} against {} without faults\n",
            outcome.faults,
            kinds.join(", "),
            outcome.steps,
            outcome.units_committed,
            outcome.samples_missed,
            outcome.samples_repeated,
            outcome.max_steps_redone,
            detected("deaths", "median", outcome.median_detect_s),
            detected("hangs", "longest", outcome.max_detect_hang_s),
            detected("livelocks", "longest", outcome.max_detect_livelock_s),
            recovered,
            outcome.max_silence_s,
            outcome.max_stall_s,
            number(outcome.goodput),
            number(outcome.accuracy),
            number(outcome.accuracy_without_faults),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ReportView;
    use thalweg_core::Job;

    #[test]
    fn kinds_of_faults_that_did_not_occur_are_described() {
        let (view, _) = ReportView::open(Path::new("nowhere"), "x", &Job::default(), false);
        let report = view.finish(thalweg_core::event::Outcome::Completed, None, std::time::Duration::ZERO);
        let stats = ChaosStats { detect_death: vec![0.25], recover: vec![0.5], ..ChaosStats::default() };
        let text = describe(&summarize(1, &stats, &report, &report));
        assert!(text.contains("deaths after 0.250 s (median), no hangs, no livelocks\n"), "{text}");
        let text = describe(&summarize(1, &ChaosStats::default(), &report, &report));
        assert!(text.contains("no deaths, no hangs, no livelocks\nrecovered  nothing was lost\n"), "{text}");
    }
}
