//! A rank's account: time spent computing, exchanging and waiting, rows and bytes.

use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::transport::Transport;
use thalweg_core::report::RankReport;

impl Rank {
    /// The account so far.
    pub fn account(&self) -> RankReport {
        let traffic = self.parts.transport.traffic();
        let windows = || self.window_traffic.iter().map(|window| window.total());
        let sent: u64 = windows().map(|window| window.payload_sent).sum();
        let received: u64 = windows().map(|window| window.payload_received).sum();
        RankReport {
            bytes_sent: traffic.total_sent + self.shared.payload_sent + sent,
            bytes_received: traffic.total_received + self.shared.payload_received + received,
            step_ms: self.times.spread(),
            messages: self.message_report(),
            ..self.account.clone()
        }
    }

    /// Adds a step: its rows on this rank, and their computation time.
    pub fn book_step(&mut self, rows: usize, took: Duration) {
        self.account.rows += rows as u64;
        self.times.add(took.as_secs_f32() * 1e3);
    }

    /// Moves a part of the last operation from exchange to waiting for a slower rank.
    pub fn book_wait(&mut self, seconds: f64) {
        let seconds = seconds.clamp(0.0, self.account.exchange_s);
        self.account.exchange_s -= seconds;
        self.account.wait_s += seconds;
    }

    /// Books time of the current computation as exchange.
    pub fn book_exchange(&mut self, took: Duration) {
        if self.training {
            self.account.exchange_s += took.as_secs_f64();
        }
    }

    /// Adds exchange that overlapped with computation.
    pub fn book_hidden(&mut self, seconds: f64) {
        if self.training {
            self.account.hidden_s += seconds.max(0.0);
        }
    }

    /// Moves a part of the last operation from exchange to computation.
    pub(crate) fn book_work(&mut self, worked: Duration) {
        if self.training {
            self.account.exchange_s -= worked.as_secs_f64();
            self.account.compute_s += worked.as_secs_f64();
        }
    }
}
