//! Times against promises: smallest, median, largest, and whether the promise held.

use std::fmt::Write as _;
use std::time::Duration;

/// How much later than at its moment something may come: scheduling on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// What was promised.
#[derive(Clone, Copy)]
pub enum Promise {
    /// No later than this.
    Within(Duration),
    /// At this moment, not earlier.
    At(Duration),
    /// Nothing in particular.
    Open,
}

impl Promise {
    fn holds(self, time: Duration) -> bool {
        match self {
            Promise::Within(limit) => time <= limit,
            Promise::At(moment) => (moment..=moment + SLACK).contains(&time),
            Promise::Open => true,
        }
    }

    fn show(self) -> String {
        match self {
            Promise::Within(limit) => format!("within {:.0} s", limit.as_secs_f64()),
            Promise::At(moment) => format!("at {:.0} s", moment.as_secs_f64()),
            Promise::Open => "-".into(),
        }
    }
}

/// The times of one case. There is at least one.
pub struct Measurement {
    name: String,
    promise: Promise,
    times: Vec<Duration>,
}

impl Measurement {
    /// Sorts the times; nothing if there are none.
    pub fn new(name: &str, promise: Promise, mut times: Vec<Duration>) -> Option<Measurement> {
        times.sort();
        (!times.is_empty()).then(|| Measurement { name: name.into(), promise, times })
    }

    /// Whether every time keeps the promise.
    pub fn held(&self) -> bool {
        self.times.iter().all(|&time| self.promise.holds(time))
    }

    /// Smallest, median (the lower of two) and largest, in seconds.
    fn spread(&self) -> [f64; 3] {
        let last = self.times.len() - 1;
        [0, last / 2, last].map(|index| self.times[index].as_secs_f64())
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        let [min, median, max] = self.spread();
        let mut line = format!("{{\"case\":\"{}\",\"runs\":{}", self.name, self.times.len());
        if let Promise::Within(promise) | Promise::At(promise) = self.promise {
            let _ = write!(line, ",\"promise_s\":{:.3}", promise.as_secs_f64());
        }
        let _ = write!(line, ",\"min_s\":{min:.3},\"median_s\":{median:.3},\"max_s\":{max:.3}");
        let _ = write!(line, ",\"held\":{}}}", self.held());
        line
    }
}

/// The measurements as a table for a terminal.
pub fn table(measurements: &[Measurement]) -> String {
    let header = "case                         runs  promise       min s  median s   max s  held\n";
    measurements.iter().fold(header.to_string(), |mut table, measurement| {
        let [min, median, max] = measurement.spread();
        let (name, runs, promise) = (&measurement.name, measurement.times.len(), measurement.promise.show());
        let held = if measurement.held() { "yes" } else { "NO" };
        let _ = writeln!(
            table,
            "{name:<28} {runs:>4}  {promise:<11} {min:>7.3} {median:>9.3} {max:>7.3}  {held}"
        );
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(promise: Promise, milliseconds: &[u64]) -> Measurement {
        let times = milliseconds.iter().copied().map(Duration::from_millis).collect();
        Measurement::new("a case", promise, times).expect("there are times")
    }

    #[test]
    fn the_spread_is_of_the_sorted_times() {
        let promise = Promise::Within(Duration::from_secs(2));
        let measurement = measured(promise, &[300, 100, 200]);
        assert_eq!(measurement.spread(), [0.1, 0.2, 0.3]);
        let json = "{\"case\":\"a case\",\"runs\":3,\"promise_s\":2.000,\"min_s\":0.100,\"median_s\":0.200,\
                    \"max_s\":0.300,\"held\":true}";
        assert_eq!(measurement.json(), json);
    }

    #[test]
    fn one_late_time_breaks_the_promise() {
        assert!(!measured(Promise::Within(Duration::from_secs(2)), &[100, 2001]).held());
        assert!(!measured(Promise::At(Duration::from_secs(2)), &[1900]).held());
        assert!(measured(Promise::At(Duration::from_secs(2)), &[2000, 2900]).held());
        assert!(table(&[measured(Promise::Open, &[1])]).contains("yes"));
    }
}
