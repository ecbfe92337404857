//! Where the job stands, as far as the events have told; the terminal's views say it each in their way.

use super::waiting::Waiting;
use super::wording::{
    bytes as size, count, counted, data_rows, headline, is_uneven, milliseconds, number, printable, rate,
    seconds,
};
use thalweg_cluster::rendezvous::ranks as named;
use thalweg_core::Culprit;
use thalweg_core::event::{Event, Level, Metrics, Record};
use thalweg_core::times::Spread;

/// The state behind the progress bar and the plain lines.
#[derive(Default)]
pub(super) struct Course {
    /// The step at which training ends early, if the job says so.
    max_steps: Option<u64>,
    epochs: u64,
    epoch: u64,
    first_step: u64,
    /// Steps there will be.
    pub total: u64,
    /// Steps done.
    pub done: u64,
    started: Option<f64>,
    now: f64,
    loss: Option<f64>,
    /// After the last epoch, on the validation rows or, without such, the training rows.
    metrics: Option<Metrics>,
    /// Whether there are validation rows.
    validates: bool,
    samples_per_s: f64,
    slowest: Option<(usize, Spread)>,
    pace: Pace,
    /// That ranks wait for others.
    pub waiting: Waiting,
    /// It was said that the job stops.
    stopping: bool,
    /// Lines about epochs so far, and when the last one was.
    told: (u32, f64),
}

/// The first epochs all get their line; after that, so many seconds lie between two.
const EPOCHS_TOLD: u32 = 50;
const BETWEEN_EPOCHS: f64 = 0.25;

/// The mean rate of some steps: each step weighs the same, whatever the intervals it was reported in.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    steps: f64,
    /// Sum over steps of 1 / rate.
    slowness: f64,
}

impl Pace {
    /// Adds steps that went at a rate.
    pub fn add(&mut self, steps: u64, samples_per_s: f64) {
        if samples_per_s > 0.0 {
            self.steps += steps as f64;
            self.slowness += steps as f64 / samples_per_s;
        }
    }

    /// The mean rate; 0 if nothing was added.
    pub fn samples_per_s(&self) -> f64 {
        if self.slowness > 0.0 { self.steps / self.slowness } else { 0.0 }
    }
}

impl Course {
    pub fn new(max_steps: Option<u64>) -> Course {
        Course { max_steps, ..Course::default() }
    }

    /// Takes in an event and returns the lines that are worth keeping on screen.
    pub fn follow(&mut self, record: &Record) -> Vec<String> {
        self.now = record.time;
        self.waiting.follow(record);
        match &record.event {
            Event::Listening { address } if !is_loopback(address) => {
                vec![format!("waiting for the other ranks at {}", printable(address))]
            }
            Event::Joined { hosts, .. } => meeting(hosts).into_iter().collect(),
            Event::Regrouped { .. } => regrouped(&record.event),
            Event::CaughtUp { ranks, step, steps, bytes, .. } => {
                let (size, steps) = (size(*bytes), counted(*steps, "step"));
                vec![format!(
                    "{} took the job's state ({size}) in {steps} and works from step {step} on",
                    named(ranks)
                )]
            }
            Event::Notice { level, message } => vec![notice(record.rank, *level, message)],
            Event::Stopping { ranks, hosts } if !std::mem::replace(&mut self.stopping, true) => {
                vec![stopping(record.rank, ranks, hosts)]
            }
            Event::Checkpoint { step, asked: true, .. } => {
                vec![format!("checkpoint of step {} written", count(*step))]
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
                self.pace.add((step + 1).saturating_sub(self.done), *samples_per_s);
                (self.epoch, self.done) = (*epoch, step + 1);
                (self.loss, self.samples_per_s) = (Some(*loss), *samples_per_s);
                let times = Spread { min: *fastest_ms, median: *median_ms, max: *slowest_ms };
                self.slowest = Some((*slowest, times));
                Vec::new()
            }
            Event::Epoch { epoch, step, loss, validation, .. } => {
                (self.epoch, self.done) = (*epoch, *step);
                self.metrics = Some(validation.clone());
                let (lines, when) = self.told;
                if lines >= EPOCHS_TOLD && record.time - when < BETWEEN_EPOCHS && self.done < self.total {
                    return Vec::new();
                }
                self.told = (lines + 1, record.time);
                let pace = std::mem::take(&mut self.pace);
                vec![self.epoch_line(*loss, pace)]
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
    fn epoch_line(&self, loss: f64, pace: Pace) -> String {
        let mut line = format!("{}  loss {}", self.epoch(), number(loss));
        if let Some(metric) = self.metric() {
            line += &format!("  {metric}");
        }
        if pace.samples_per_s() > 0.0 {
            line += &format!("  {}", rate(pace.samples_per_s()));
        }
        line
    }

    fn metric(&self) -> Option<String> {
        let (name, value) = headline(self.metrics.as_ref()?)?;
        let rows = if self.validates { "validation" } else { "training" };
        Some(format!("{rows} {name} {}", number(value)))
    }

    /// For whom the others wait, if they do; how it goes otherwise.
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

    /// How long it will take, judged by this run so far; nothing before there is anything to judge by, and while ranks
    /// wait for others.
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

/// `slowest: rank 1`, with the shortest, the middle and the longest time of all ranks where they are far apart.
fn slowest(rank: usize, times: &Spread) -> String {
    match is_uneven(times.min, times.max) {
        true => format!("slowest: rank {rank} ({})", milliseconds(times)),
        false => format!("slowest: rank {rank}"),
    }
}

/// Who was lost, came or left, and where the others go on: a line each.
fn regrouped(event: &Event) -> Vec<String> {
    let Event::Regrouped { step, members, lost, joined, left, recover_s, .. } = event else {
        return Vec::new();
    };
    let gone = |rank: usize| !members.contains(&rank);
    let mut lines: Vec<String> = lost
        .iter()
        .map(|Culprit { rank, host, step, operation, cause, .. }| {
            let on = host.as_ref().map_or(String::new(), |host| format!(" on {}", printable(host)));
            let at = step.map_or(String::new(), |step| format!(" at step {step}"));
            let waited = match operation {
                Some(operation) if gone(*rank) => format!("; the others were in {}", printable(operation)),
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

/// A notice as a line. Ranks other than 0 say who they are.
fn notice(rank: Option<usize>, level: Level, message: &str) -> String {
    let who = match rank {
        Some(rank) if rank > 0 => format!("rank {rank}: "),
        _ => String::new(),
    };
    let what = if level == Level::Warning { "warning: " } else { "" };
    format!("{what}{who}{}", printable(message))
}

/// That the job stops: at the wish of whoever sits here, or at that of others.
fn stopping(says: Option<usize>, ranks: &[usize], hosts: &[String]) -> String {
    match says {
        Some(rank) if !ranks.contains(&rank) => {
            format!(
                "warning: stopping after this step: {} on {} asked for it",
                named(ranks),
                printable(&hosts.join(", "))
            )
        }
        _ => "stopping after this step, with a checkpoint (once more to leave at once)".into(),
    }
}

/// Who has come from where, if there is more than one host.
fn meeting(hosts: &[String]) -> Option<String> {
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
pub(super) mod tests {
    use super::*;
    use thalweg_core::report::Audit;

    /// A record of rank 0.
    pub fn at(time: f64, event: Event) -> Record {
        Record { time, rank: Some(0), event }
    }

    /// The beginning of a small job of 20 epochs of 10 steps.
    pub fn started(first_step: u64) -> Event {
        Event::Started {
            rows: 1437,
            validation_rows: 360,
            width: 64,
            window: 0,
            classes: (0..10).map(|digit| digit.to_string()).collect(),
            parameters: 9610,
            model: "dense 128 relu, dense 10".into(),
            epochs: 20,
            steps_per_epoch: 10,
            first_step,
            algorithm: "ring".into(),
            buckets: Vec::new(),
        }
    }

    /// A step of that job.
    pub fn step(step: u64, samples_per_s: f64) -> Event {
        Event::Step {
            epoch: step / 10,
            step,
            steps_per_epoch: 10,
            loss: 0.5,
            samples_per_s,
            slowest: 1,
            slowest_ms: 2.0,
            median_ms: 1.9,
            fastest_ms: 1.8,
        }
    }

    /// The end of an epoch of that job.
    pub fn epoch(epoch: u64) -> Event {
        Event::Epoch {
            epoch,
            step: (epoch + 1) * 10,
            loss: 0.1234,
            validation: Metrics::from([("accuracy".into(), 0.961), ("loss".into(), 0.2)]),
            audit: Audit { epoch, expected: 1437, once: 1437, ..Audit::default() },
        }
    }

    #[test]
    fn without_validation_rows_nothing_is_called_validation() {
        let mut course = Course::new(None);
        let mut begin = started(0);
        if let Event::Started { validation_rows, .. } = &mut begin {
            *validation_rows = 0;
        }
        let lines = course.follow(&at(0.0, begin));
        assert_eq!(lines[0], "data   1,437 rows of 64 numbers and 10 classes; none kept for validation");
        let lines = course.follow(&at(1.0, epoch(0)));
        assert_eq!(lines, ["epoch  1/20  loss 0.1234  training accuracy 0.9610"]);
        assert!(course.status().contains("training accuracy") && !course.status().contains("validation"));
    }

    #[test]
    fn rows_of_a_text_are_windows() {
        let mut begin = started(0);
        if let Event::Started { rows, width, window, .. } = &mut begin {
            (*rows, *width, *window) = (1_109_689, 640, 64);
        }
        let lines = Course::new(None).follow(&at(0.0, begin));
        assert_eq!(lines[0], "data   1,109,689 windows of 64 characters, 10 different; 360 to validate on");
    }

    #[test]
    fn an_epoch_is_one_line_with_the_mean_rate_of_its_steps() {
        let mut course = Course::new(None);
        let opening = course.follow(&at(0.0, started(0)));
        assert_eq!(opening[0], "data   1,437 rows of 64 numbers and 10 classes; 360 to validate on");
        assert_eq!(opening[1], "model  dense 128 relu, dense 10 (9,610 parameters)");
        course.follow(&at(1.0, step(4, 20_000.0)));
        course.follow(&at(2.0, step(9, 60_000.0)));
        let lines = course.follow(&at(2.5, epoch(0)));
        assert_eq!(lines, ["epoch  1/20  loss 0.1234  validation accuracy 0.9610  30 k samples/s"]);
        assert_eq!(
            course.status(),
            "loss 0.5000  validation accuracy 0.9610  60 k samples/s  slowest: rank 1"
        );
        assert!(course.status().len() <= 80);
        let times = Spread { min: 19.6, median: 20.04, max: 61.0 };
        assert_eq!(slowest(2, &times), "slowest: rank 2 (20/20/61 ms)");
    }

    #[test]
    fn a_run_that_is_done_says_how_to_go_on() {
        let lines = Course::new(None).follow(&at(0.0, started(250)));
        let told = "warning: already trained for 25 epochs; continue with --set train.epochs=30";
        assert_eq!(lines.last().map(String::as_str), Some(told));
        let lines = Course::new(Some(100)).follow(&at(0.0, started(100)));
        let told = "warning: already trained for 100 steps; continue with --set train.max_steps=120";
        assert_eq!(lines.last().map(String::as_str), Some(told));
    }

    #[test]
    fn a_resumed_run_judges_its_remaining_time_by_its_own_steps() {
        let mut course = Course::new(Some(160));
        assert_eq!(course.follow(&at(100.0, started(100))).len(), 2, "data and model");
        assert_eq!(course.remaining(), None);
        course.follow(&at(120.0, step(119, 1000.0)));
        assert_eq!(course.step(), "step 120/160");
        assert_eq!(course.epoch(), "epoch 12/20");
        assert_eq!(course.remaining().as_deref(), Some("40 s"));
    }

    #[test]
    fn who_asked_for_a_stop_is_said_once() {
        let asked = |ranks: &[usize], host: &str| {
            let event = Event::Stopping { ranks: ranks.to_vec(), hosts: vec![host.into()] };
            Course::new(None).follow(&at(0.0, event))
        };
        let mine = "stopping after this step, with a checkpoint (once more to leave at once)";
        assert_eq!(asked(&[2, 3], "b"), ["warning: stopping after this step: ranks 2, 3 on b asked for it"]);
        assert_eq!(asked(&[0, 1], "a"), [mine], "the signal was for rank 0, which says this");
        let mut course = Course::new(None);
        let launcher = Event::Stopping { ranks: Vec::new(), hosts: Vec::new() };
        assert_eq!(course.follow(&Record { time: 0.0, rank: None, event: launcher }), [mine]);
        let rank = Event::Stopping { ranks: vec![1], hosts: vec!["a".into()] };
        assert!(course.follow(&at(0.1, rank)).is_empty(), "the launcher has said it");
    }

    #[test]
    fn only_several_hosts_are_worth_a_line() {
        let hosts = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(meeting(&hosts(&["a", "a"])), None);
        assert_eq!(meeting(&hosts(&["a", "b", "a"])).unwrap(), "3 workers on 2 hosts: a (2), b (1)");
        assert!(is_loopback("127.0.0.1:29500") && is_loopback("[::1]:5") && !is_loopback("10.0.0.1:29500"));
    }
}
