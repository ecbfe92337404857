//! The progress bar on a terminal.
//!
//! ```text
//! epoch  2/20  loss 0.2311  validation accuracy 0.9444  41 k samples/s
//! epoch  3/20  step  65/460  ━━━━━━╸─────────────────────────────  3.1 s left
//! loss 0.1234  validation accuracy 0.9444  41 k samples/s  slowest: rank 1
//! ```

use super::progress_state::ProgressState;
use super::terminal::CursorHome;
use super::{View, colours};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thalweg_core::Result;
use thalweg_core::event::{Event, Record};

/// Limit of redraws per second.
const REDRAWS: u8 = 20;

/// Time between two frames of the spinner.
const SPINNER_TICK: Duration = Duration::from_millis(120);

/// A bar for the steps of the job, with one line per finished epoch above it.
pub struct ProgressView {
    bar: ProgressBar,
    state: ProgressState,
    coloured: bool,
    /// Text to the right of the bar.
    remaining: Arc<Mutex<String>>,
    /// Current number of columns of the terminal.
    width: Box<dyn Fn() -> u16 + Send>,
}

impl ProgressView {
    /// A bar on stderr; `max_steps` is that of the job.
    pub fn stderr(max_steps: Option<u64>) -> ProgressView {
        ProgressView::on(Term::buffered_stderr(), REDRAWS, colours(), max_steps)
    }

    fn on<T>(terminal: T, hz: u8, coloured: bool, max_steps: Option<u64>) -> ProgressView
    where
        T: TermLike + Clone + 'static,
    {
        let measured = terminal.clone();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(CursorHome(terminal)), hz);
        ProgressView {
            bar: ProgressBar::with_draw_target(None, target),
            state: ProgressState::new(max_steps),
            coloured,
            remaining: Arc::default(),
            width: Box::new(move || measured.width()),
        }
    }

    /// Before the first step: a spinner with a message.
    fn spin(&self, message: String) {
        let template = if self.coloured { "{spinner:.cyan} {wide_msg}" } else { "{spinner} {wide_msg}" };
        self.bar.set_style(style(template));
        self.bar.set_message(message);
        self.bar.enable_steady_tick(SPINNER_TICK);
    }

    fn begin_bar(&self) {
        self.bar.disable_steady_tick();
        let bar = if self.coloured { "{wide_bar:.cyan/dim}" } else { "{wide_bar}" };
        let remaining = self.remaining.clone();
        let write_remaining = move |_: &indicatif::ProgressState, text: &mut dyn std::fmt::Write| {
            if let Ok(remaining) = remaining.lock() {
                let _ = text.write_str(&remaining);
            }
        };
        let style = style(&format!("{{prefix}}  {bar}{{remaining}}\n{{wide_msg}}"))
            .with_key("remaining", write_remaining)
            .progress_chars("━╸─");
        self.bar.set_style(style);
        self.bar.set_length(self.state.total);
    }

    fn refresh(&self) {
        let (epoch, step) = (self.state.epoch(), self.state.step());
        let (prefix, remaining) =
            beside_the_bar((self.width)().into(), &epoch, &step, self.state.remaining());
        if let Ok(mut text) = self.remaining.lock() {
            *text = remaining;
        }
        self.bar.set_prefix(prefix);
        self.bar.set_message(self.state.status());
        self.bar.set_position(self.state.done);
    }

    fn paint(&self, line: String) -> String {
        match line.strip_prefix("warning: ") {
            Some(rest) if self.coloured => format!("\u{1b}[33mwarning:\u{1b}[0m {rest}"),
            _ => line,
        }
    }
}

/// Minimum width of the bar.
const MIN_BAR: usize = 6;

/// Texts left and right of the bar. On a narrow terminal parts are left out: a wrapped line would break the redraw.
fn beside_the_bar(width: usize, epoch: &str, step: &str, left: Option<String>) -> (String, String) {
    let right = left.map_or(String::new(), |left| format!("  {left} left"));
    let both = format!("{epoch}  {step}");
    let choices = [(both.as_str(), right.as_str()), (step, &right), (step, "")];
    let length = |text: &str| text.chars().count();
    let fitting =
        choices.into_iter().find(|(left, right)| length(left) + 2 + MIN_BAR + length(right) <= width);
    let cut = || (step.chars().take(width.saturating_sub(2)).collect(), String::new());
    fitting.map_or_else(cut, |(left, right)| (left.into(), right.into()))
}

/// Compiles a template of this file; they are all valid.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl View for ProgressView {
    fn record(&mut self, record: &Record) -> Result<()> {
        for line in self.state.update(record) {
            self.bar.println(self.paint(line));
        }
        match &record.event {
            Event::Launched { workers: 1, .. } => self.spin("starting 1 worker".into()),
            Event::Launched { workers, .. } => self.spin(format!("starting {workers} workers")),
            Event::Joined { .. } => self.spin("reading the data".into()),
            Event::Started { .. } => {
                self.begin_bar();
                self.refresh();
            }
            Event::Step { .. }
            | Event::Epoch { .. }
            | Event::Waiting { .. }
            | Event::WaitEnded { .. }
            | Event::Regrouped { .. }
                if self.state.total > 0 =>
            {
                self.refresh();
            }
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.bar.finish_and_clear();
        Ok(())
    }
}

impl Drop for ProgressView {
    /// Clears the bar, so that it does not overwrite the last output.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress_state::tests::{at, epoch, started, step};
    use super::*;
    use indicatif::InMemoryTerm;
    use thalweg_core::event::Level;

    fn on_80_columns() -> (InMemoryTerm, ProgressView) {
        let terminal = InMemoryTerm::new(20, 80);
        (terminal.clone(), ProgressView::on(terminal, 255, false, None))
    }

    fn notice() -> Event {
        Event::Notice { level: Level::Warning, message: "the disk is nearly full".into() }
    }

    #[test]
    fn finished_epochs_stay_above_a_bar_of_two_lines() {
        let (terminal, mut view) = on_80_columns();
        for (second, event) in
            [started(0), step(4, 20_000.0), step(9, 20_000.0), epoch(0), step(12, 20_000.0), notice()]
                .into_iter()
                .enumerate()
        {
            view.record(&at(second as f64, event)).unwrap();
        }
        let contents = terminal.contents();
        let lines: Vec<&str> = contents.lines().map(str::trim_end).collect();
        assert_eq!(lines.len(), 6, "{contents}");
        assert_eq!(lines[2], "epoch  1/20  loss 0.1234  validation accuracy 0.9610  20 k samples/s");
        assert_eq!(lines[3], "warning: the disk is nearly full");
        assert!(lines[4].starts_with("epoch  2/20  step  13/200  ━"), "{}", lines[4]);
        assert!(lines[4].ends_with("─  58 s left"), "{}", lines[4]);
        assert!(lines[4].chars().count() <= 80, "{}", lines[4]);
        assert_eq!(lines[5], "loss 0.5000  validation accuracy 0.9610  20 k samples/s  slowest: rank 1");

        view.close().unwrap();
        assert_eq!(terminal.contents().lines().count(), 4, "the bar goes, the lines stay");
    }

    #[test]
    fn a_wait_replaces_outdated_rates() {
        let (terminal, mut view) = on_80_columns();
        view.record(&at(0.0, started(0))).unwrap();
        view.record(&at(1.0, step(4, 20_000.0))).unwrap();
        let operation = "all-reduce of gradients".to_string();
        let waiting = Event::Waiting { ranks: vec![2], operation, step: 5, waited_s: 3.2 };
        view.record(&at(4.2, waiting)).unwrap();
        let last =
            |terminal: &InMemoryTerm| terminal.contents().lines().last().unwrap().trim_end().to_string();
        assert_eq!(last(&terminal), "waiting for rank 2 for 3 s: all-reduce of gradients, step 5");
        assert!(
            !terminal.contents().contains(" left"),
            "no estimate during a wait:\n{}",
            terminal.contents()
        );
        view.record(&at(5.0, Event::WaitEnded { ranks: vec![2], waited_s: 3.2 })).unwrap();
        assert_eq!(last(&terminal), "loss 0.5000  20 k samples/s  slowest: rank 1");
        assert!(terminal.contents().contains(" left"), "{}", terminal.contents());
    }

    #[test]
    fn a_narrow_terminal_gets_a_bar_that_fits_on_its_line() {
        for width in [20, 30, 40, 60, 80] {
            let terminal = InMemoryTerm::new(20, width);
            let mut view = ProgressView::on(terminal.clone(), 255, false, None);
            view.record(&at(0.0, started(0))).unwrap();
            let before = terminal.contents().lines().count(); // the status below the bar is still empty
            for second in 1..5u32 {
                view.record(&at(f64::from(second), step(second.into(), 20_000.0))).unwrap();
            }
            let contents = terminal.contents();
            assert_eq!(contents.lines().count(), before + 1, "{width} columns:\n{contents}");
            let bars: Vec<&str> = contents.lines().filter(|line| line.contains("step ")).collect();
            assert_eq!(bars.len(), 1, "{width} columns:\n{contents}");
            assert!(width < 40 || bars[0].ends_with(" left"), "{width} columns:\n{contents}");
            assert_eq!(width >= 60, bars[0].starts_with("epoch"), "{width} columns:\n{contents}");
        }
    }

    #[test]
    fn what_does_not_fit_beside_the_bar_is_left_out() {
        let beside = |width| beside_the_bar(width, "epoch  2/20", "step  13/200", Some("58 s".into()));
        assert_eq!(beside(44), ("epoch  2/20  step  13/200".into(), "  58 s left".into()));
        assert_eq!(beside(43), ("step  13/200".into(), "  58 s left".into()));
        assert_eq!(beside(30), ("step  13/200".into(), String::new()));
        assert_eq!(beside(10), ("step  13".into(), String::new()));
        assert_eq!(beside(0), (String::new(), String::new()));
    }

    #[test]
    fn an_echoed_interrupt_leaves_no_line_of_the_bar_behind() {
        let (terminal, mut view) = on_80_columns();
        view.record(&at(0.0, started(0))).unwrap();
        view.record(&at(1.0, step(4, 20_000.0))).unwrap();
        terminal.write_str("^C").unwrap();
        let stopping = Event::Stopping { ranks: Vec::new(), hosts: Vec::new() };
        view.record(&Record { time: 2.0, rank: None, event: stopping }).unwrap();
        let contents = terminal.contents();
        let lines: Vec<&str> = contents.lines().collect();
        assert_eq!(lines.len(), 5, "{contents}");
        assert!(lines[2].starts_with("stopping after this step"), "{contents}");
        assert_eq!(contents.matches("epoch").count(), 1, "{contents}");
    }

    #[test]
    fn before_the_first_step_the_spinner_shows_the_phase() {
        let (terminal, mut view) = on_80_columns();
        let launched = Event::Launched { name: "digits-1".into(), workers: 2, strategy: "allreduce".into() };
        view.record(&at(0.0, launched)).unwrap();
        view.record(&at(0.1, notice())).unwrap();
        assert!(terminal.contents().contains("starting 2 workers"), "{}", terminal.contents());
    }
}
