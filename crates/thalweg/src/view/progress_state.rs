//! Progress of a job, built from its events; shared by the console views.

use super::formatting::{
    bytes as size, count, counted, data_rows, headline, is_uneven, milliseconds, number, printable, rate,
    seconds,
};
use super::waiting::WaitStatus;
use thalweg_cluster::rendezvous::ranks as named;
use thalweg_core::Culprit;
use thalweg_core::event::{Event, Level, Metrics, Record};
use thalweg_core::times::Spread;

/// The state behind the progress bar and the plain lines.
#[derive(Default)]
pub(super) struct ProgressState {
    /// `train.max_steps`.
    max_steps: Option<u64>,
    epochs: u64,
    epoch: u64,
    first_step: u64,
    /// Number of steps of the job.
    pub total: u64,
    /// Number of steps done.
    pub done: u64,
    started: Option<f64>,
    now: f64,
    loss: Option<f64>,
    /// Of the last epoch; on the training rows if there are no validation rows.
    metrics: Option<Metrics>,
    /// Whether there are validation rows.
    validates: bool,
    samples_per_s: f64,
    slowest: Option<(usize, Spread)>,
    mean_rate: MeanRate,
    pub waiting: WaitStatus,
    /// Whether the stop of the job was printed.
    stopping: bool,
    /// Number of epoch lines, and the time of the last.
    epoch_lines: (u32, f64),
}

/// Each of the first epochs has a line; later lines are at least this many seconds apart.
const FIRST_EPOCHS: u32 = 50;
const BETWEEN_EPOCHS: f64 = 0.25;

/// Mean rate over steps: each step has the same weight, whatever the intervals it was reported in (harmonic mean).
#[derive(Clone, Copy, Default)]
pub(super) struct MeanRate {
    steps: f64,
    /// Sum over steps of 1 / rate.
    inverse_rates: f64,
}

impl MeanRate {
    /// Adds `steps` steps at a rate.
    pub fn add(&mut self, steps: u64, samples_per_s: f64) {
        if samples_per_s > 0.0 {
            self.steps += steps as f64;
            self.inverse_rates += steps as f64 / samples_per_s;
        }
    }

    /// The mean rate; 0 without steps.
    pub fn samples_per_s(&self) -> f64 {
        if self.inverse_rates > 0.0 { self.steps / self.inverse_rates } else { 0.0 }
    }
}

impl ProgressState {
    pub fn new(max_steps: Option<u64>) -> ProgressState {
        ProgressState { max_steps, ..ProgressState::default() }
    }

    /// Processes an event and returns the lines to print.
    pub fn update(&mut self, record: &Record) -> Vec<String> {
        self.now = record.time;
        self.waiting.update(record);
        match &record.event {
            Event::Listening { address } if !is_loopback(address) => {
                vec![format!("waiting for the other ranks at {}", printable(address))]
            }
            Event::Joined { hosts, .. } => joined(hosts).into_iter().collect(),
            Event::Regrouped { .. } => regrouped(&record.event),
            Event::CaughtUp { ranks, step, steps, bytes, .. } => {
                let (size, steps) = (size(*bytes), counted(*steps, "step"));
                vec![format!(
                    "{} received the job's state ({size}) in {steps} and trains from step {step} on",
                    named(ranks)
                )]
            }
            Event::Notice { level, message } => vec![notice(record.rank, *level, message)],
            Event::Stopping { ranks, hosts } if !std::mem::replace(&mut self.stopping, true) => {
                vec![stopping(record.rank, ranks, hosts)]
            }
            Event::Checkpoint { step, asked: true, .. } => {
                vec![format!("checkpoint of step {step} written")]
            }
            Event::Started { .. } => self.start(record),
            Event::Step {
                epoch,
                step,
                loss,
                samples_per_s,
                slowest,
                slowest_ms,
                median_ms,
                fastest_ms,
                ..
            } => {
                self.mean_rate.add((step + 1).saturating_sub(self.done), *samples_per_s);
                (self.epoch, self.done) = (*epoch, step + 1);
                (self.loss, self.samples_per_s) = (Some(*loss), *samples_per_s);
                let times = Spread { min: *fastest_ms, median: *median_ms, max: *slowest_ms };
                self.slowest = Some((*slowest, times));
                Vec::new()
            }
            Event::Epoch { epoch, step, loss, validation, .. } => {
                (self.epoch, self.done) = (*epoch, *step);
                self.metrics = Some(validation.clone());
                let (lines, when) = self.epoch_lines;
                if lines >= FIRST_EPOCHS && record.time - when < BETWEEN_EPOCHS && self.done < self.total {
                    return Vec::new();
                }
                self.epoch_lines = (lines + 1, record.time);
                let mean_rate = std::mem::take(&mut self.mean_rate);
                vec![self.epoch_line(*loss, mean_rate)]
            }
            _ => Vec::new(),
        }
    }

    fn start(&mut self, record: &Record) -> Vec<String> {
        let Event::Started { validation_rows, parameters, model, .. } = &record.event else {
            return Vec::new();
        };
        if let Event::Started { epochs, steps_per_epoch, first_step, .. } = &record.event {
            let steps = epochs.saturating_mul(*steps_per_epoch);
            self.total = self.max_steps.map_or(steps, |most| most.min(steps));
            (self.epochs, self.first_step, self.done) = (*epochs, *first_step, *first_step);
            self.epoch = first_step / (*steps_per_epoch).max(1);
            self.started = Some(record.time);
            self.validates = *validation_rows > 0;
        }
        let validation = match validation_rows {
            0 => "none kept for validation".into(),
            rows => format!("{} to validate on", count(*rows)),
        };
        let mut lines = vec![
            format!("data   {}; {validation}", data_rows(&record.event)),
            format!("model  {} ({})", printable(model), counted(*parameters as u64, "parameter")),
        ];
        if self.first_step > 0 && self.first_step >= self.total {
            let (what, done) = match self.epoch >= self.epochs {
                true => ("epoch", self.epoch),
                false => ("step", self.first_step),
            };
            let key = if what == "epoch" { "train.epochs" } else { "train.max_steps" };
            let (trained, more) = (counted(done, what), done + done.div_ceil(5));
            lines.push(format!("warning: already trained for {trained}; continue with --set {key}={more}"));
        }
        lines
    }

    /// `epoch  3/20`.
    pub fn epoch(&self) -> String {
        let width = self.epochs.to_string().len();
        format!("epoch {:>width$}/{}", self.epoch + 1, self.epochs)
    }

    /// `epoch  3/20  loss 0.1234  validation accuracy 0.9610  41 k samples/s`.
    fn epoch_line(&self, loss: f64, mean_rate: MeanRate) -> String {
        let mut line = format!("{}  loss {}", self.epoch(), number(loss));
        if let Some(metric) = self.metric() {
            line += &format!("  {metric}");
        }
        if mean_rate.samples_per_s() > 0.0 {
            line += &format!("  {}", rate(mean_rate.samples_per_s()));
        }
        line
    }

    fn metric(&self) -> Option<String> {
        let (name, value) = headline(self.metrics.as_ref()?)?;
        let rows = if self.validates { "validation" } else { "training" };
        Some(format!("{rows} {name} {}", number(value)))
    }

    /// The current wait for other ranks, or else loss and rates.
    pub fn status(&self) -> String {
        self.waiting.status().map_or_else(|| self.rates(), str::to_owned)
    }

    /// `loss 0.1234  validation accuracy 0.9610  41 k samples/s  slowest: rank 1`.
    pub fn rates(&self) -> String {
        let parts = [
            self.loss.map(|loss| format!("loss {}", number(loss))),
            self.metric(),
            (self.samples_per_s > 0.0).then(|| rate(self.samples_per_s)),
            self.slowest.map(|(rank, times)| slowest(rank, &times)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
    }

    /// `step  812/20400`.
    pub fn step(&self) -> String {
        let width = self.total.to_string().len();
        format!("step {:>width$}/{}", self.done, self.total)
    }

    /// Estimated time left, from the steps of this run; `None` before the first step and while ranks wait for others.
    pub fn remaining(&self) -> Option<String> {
        if self.waiting.status().is_some() {
            return None;
        }
        let done = self.done.saturating_sub(self.first_step);
        let elapsed = self.now - self.started?;
        let left = self.total.saturating_sub(self.done);
        (done > 0 && elapsed > 0.0).then(|| seconds(elapsed / done as f64 * left as f64))
    }
}

/// `slowest: rank 1`, with minimum, median and maximum step time of the ranks if they differ much.
fn slowest(rank: usize, times: &Spread) -> String {
    match is_uneven(times.min, times.max) {
        true => format!("slowest: rank {rank} ({})", milliseconds(times)),
        false => format!("slowest: rank {rank}"),
    }
}

/// Lines of a membership change: ranks lost, left and joined, and the step from which the group continues.
fn regrouped(event: &Event) -> Vec<String> {
    let Event::Regrouped { step, members, lost, joined, left, recover_s, .. } = event else {
        return Vec::new();
    };
    let removed = |rank: usize| !members.contains(&rank);
    let mut lines: Vec<String> = lost
        .iter()
        .map(|Culprit { rank, host, step, operation, cause, .. }| {
            let on = host.as_ref().map_or(String::new(), |host| format!(" on {}", printable(host)));
            let at = step.map_or(String::new(), |step| format!(" at step {step}"));
            let waited = match operation {
                Some(operation) if removed(*rank) => format!("; the others were in {}", printable(operation)),
                _ => String::new(),
            };
            format!("warning: rank {rank}{on} {}{at}{waited}", printable(cause))
        })
        .collect();
    let numbers = |ranks: &[usize]| ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if !left.is_empty() {
        lines.push(format!("rank {} left", numbers(left)));
    }
    if !joined.is_empty() {
        lines.push(format!("rank {} joined", numbers(joined)));
    }
    let count = counted(members.len() as u64, "worker");
    lines.push(format!("going on from step {step} with {count} after {recover_s:.2} s"));
    lines
}

/// A notice as a line, with the rank unless it is 0.
fn notice(rank: Option<usize>, level: Level, message: &str) -> String {
    let source = match rank {
        Some(rank) if rank > 0 => format!("rank {rank}: "),
        _ => String::new(),
    };
    let prefix = if level == Level::Warning { "warning: " } else { "" };
    format!("{prefix}{source}{}", printable(message))
}

/// The line of a stop: after a signal to this process, or to other ranks.
fn stopping(reporter: Option<usize>, ranks: &[usize], hosts: &[String]) -> String {
    match reporter {
        Some(rank) if !ranks.contains(&rank) => {
            format!(
                "warning: stopping after this step: {} on {} received a signal",
                named(ranks),
                printable(&hosts.join(", "))
            )
        }
        _ => "stopping after this step, with a checkpoint (once more to end at once)".into(),
    }
}

/// Hosts and their numbers of ranks; `None` for a single host.
fn joined(hosts: &[String]) -> Option<String> {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for host in hosts {
        match counted.iter_mut().find(|(name, _)| name == host) {
            Some((_, ranks)) => *ranks += 1,
            None => counted.push((host, 1)),
        }
    }
    let names: Vec<String> =
        counted.iter().map(|(host, ranks)| format!("{} ({ranks})", printable(host))).collect();
    (counted.len() > 1)
        .then(|| format!("{} workers on {} hosts: {}", hosts.len(), counted.len(), names.join(", ")))
}

fn is_loopback(address: &str) -> bool {
    match address.parse::<std::net::SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => address.starts_with("localhost:"),
    }
}

#[cfg(test)]
pub(super) mod tests;
