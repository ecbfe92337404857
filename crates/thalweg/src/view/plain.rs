//! Plain lines for logs and pipes: one per epoch, one per five seconds in between, and what is worth saying.

use super::View;
use super::course::Course;
use super::waiting::WaitLines;
use super::wording::counted;
use std::io::Write;
use thalweg_core::Result;
use thalweg_core::event::{Event, Record};

/// Seconds between two lines about steps.
const PATIENCE: f64 = 5.0;

/// Writes lines without control characters.
pub struct Plain<W> {
    output: W,
    course: Course,
    /// Only warnings.
    quiet: bool,
    /// When a step or an epoch was last spoken of.
    spoken: Option<f64>,
    waits: WaitLines,
}

impl Plain<std::io::Stderr> {
    /// Lines on stderr; with `quiet` only warnings.
    pub fn stderr(quiet: bool, max_steps: Option<u64>) -> Self {
        Plain::on(std::io::stderr(), quiet, max_steps)
    }
}

impl<W: Write + Send> Plain<W> {
    fn on(output: W, quiet: bool, max_steps: Option<u64>) -> Self {
        Plain { output, course: Course::new(max_steps), quiet, spoken: None, waits: WaitLines::default() }
    }

    /// Nobody may be listening any more; that is no reason to end a job.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.output, "{line}");
    }

    fn step_line(&self) -> String {
        let parts = [self.course.epoch(), self.course.step(), self.course.rates()].join("  ");
        match self.course.remaining() {
            Some(left) => format!("{parts}  {left} left"),
            None => parts,
        }
    }
}

impl<W: Write + Send> View for Plain<W> {
    fn record(&mut self, record: &Record) -> Result<()> {
        for line in self.course.follow(record) {
            if !self.quiet || line.starts_with("warning: ") {
                self.say(&line);
            }
        }
        if self.quiet {
            return Ok(());
        }
        if let Some(line) = self.waits.follow(record, self.course.waiting.status()) {
            self.say(&line);
        }
        match &record.event {
            Event::Launched { workers, .. } => {
                self.say(&format!("starting {}", counted(*workers as u64, "worker")));
            }
            Event::Started { .. } | Event::Epoch { .. } => self.spoken = Some(record.time),
            Event::Step { .. } if self.spoken.is_none_or(|spoken| record.time - spoken >= PATIENCE) => {
                self.spoken = Some(record.time);
                let line = self.step_line();
                self.say(&line);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::course::tests::{at, epoch, started, step};
    use super::*;
    use thalweg_core::event::Level;

    fn lines(quiet: bool) -> Vec<String> {
        let mut output = Vec::new();
        let mut view = Plain::on(&mut output, quiet, None);
        let notice = |level, message: &str| Event::Notice { level, message: format!("{message}\u{1b}[1m\r") };
        let launched = Event::Launched { name: "x-1".into(), workers: 2, strategy: "allreduce".into() };
        for (time, event) in [
            (0.0, launched),
            (0.0, started(0)),
            (1.0, step(1, 1000.0)),
            (5.0, step(5, 1000.0)),
            (6.0, step(6, 1000.0)),
            (9.0, step(9, 1000.0)),
            (9.5, epoch(0)),
            (9.6, notice(Level::Info, "saved")),
            (9.7, notice(Level::Warning, "slow disk")),
        ] {
            view.record(&at(time, event)).unwrap();
        }
        String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn steps_are_told_every_five_seconds_and_epochs_always() {
        assert_eq!(
            lines(false)[..],
            [
                "starting 2 workers",
                "data   1,437 rows of 64 numbers and 10 classes; 360 to validate on",
                "model  dense 128 relu, dense 10 (9,610 parameters)",
                "epoch  1/20  step   6/200  loss 0.5000  1.0 k samples/s  slowest: rank 1  2 m 42 s left",
                "epoch  1/20  loss 0.1234  validation accuracy 0.9610  1.0 k samples/s",
                "saved?[1m?",
                "warning: slow disk?[1m?",
            ]
        );
    }

    #[test]
    fn quiet_leaves_only_warnings() {
        assert_eq!(lines(true), ["warning: slow disk?[1m?"]);
    }
}
