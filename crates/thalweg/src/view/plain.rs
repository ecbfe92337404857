//! Plain lines for logs and pipes: one per epoch, one per five seconds of steps, and notices.

use super::View;
use super::formatting::counted;
use super::progress_state::ProgressState;
use super::waiting::WaitLines;
use std::io::Write;
use thalweg_core::Result;
use thalweg_core::event::{Event, Record};

/// Seconds between two lines about steps.
const STEP_INTERVAL: f64 = 5.0;

/// Writes lines without control characters.
pub struct Plain<W> {
    output: W,
    state: ProgressState,
    /// Print warnings only.
    quiet: bool,
    /// Time of the last line about a step or an epoch.
    last_line: Option<f64>,
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
        Plain {
            output,
            state: ProgressState::new(max_steps),
            quiet,
            last_line: None,
            waits: WaitLines::default(),
        }
    }

    /// Ignores errors: a closed stderr does not end the job.
    fn print(&mut self, line: &str) {
        let _ = writeln!(self.output, "{line}");
    }

    fn step_line(&self) -> String {
        let parts = [self.state.epoch(), self.state.step(), self.state.rates()].join("  ");
        match self.state.remaining() {
            Some(left) => format!("{parts}  {left} left"),
            None => parts,
        }
    }
}

impl<W: Write + Send> View for Plain<W> {
    fn record(&mut self, record: &Record) -> Result<()> {
        for line in self.state.update(record) {
            if !self.quiet || line.starts_with("warning: ") {
                self.print(&line);
            }
        }
        if self.quiet {
            return Ok(());
        }
        if let Some(line) = self.waits.update(record, self.state.waiting.status()) {
            self.print(&line);
        }
        match &record.event {
            Event::Launched { workers, .. } => {
                self.print(&format!("starting {}", counted(*workers as u64, "worker")));
            }
            Event::Started { .. } | Event::Epoch { .. } => self.last_line = Some(record.time),
            Event::Step { .. } if self.last_line.is_none_or(|last| record.time - last >= STEP_INTERVAL) => {
                self.last_line = Some(record.time);
                let line = self.step_line();
                self.print(&line);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress_state::tests::{at, epoch, started, step};
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
    fn steps_are_printed_every_five_seconds_and_epochs_always() {
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
