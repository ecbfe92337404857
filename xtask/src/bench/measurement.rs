//! Times compared with a target: minimum, median, maximum, and whether the target was met.

use std::fmt::Write as _;
use std::time::Duration;

/// Tolerance of [`Target::At`] for scheduling on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
pub enum Target {
    /// At most this.
    Within(Duration),
    /// At this time, not earlier.
    At(Duration),
    None,
}

impl Target {
    fn is_met(self, time: Duration) -> bool {
        match self {
            Target::Within(limit) => time <= limit,
            Target::At(moment) => (moment..=moment + SLACK).contains(&time),
            Target::None => true,
        }
    }

    fn show(self) -> String {
        match self {
            Target::Within(limit) => format!("within {:.0} s", limit.as_secs_f64()),
            Target::At(moment) => format!("at {:.0} s", moment.as_secs_f64()),
            Target::None => "-".into(),
        }
    }
}

/// The times of a case, at least one.
pub struct Measurement {
    name: String,
    target: Target,
    times: Vec<Duration>,
}

impl Measurement {
    /// None without times.
    pub fn new(name: &str, target: Target, mut times: Vec<Duration>) -> Option<Measurement> {
        times.sort();
        (!times.is_empty()).then(|| Measurement { name: name.into(), target, times })
    }

    /// Whether every time meets the target.
    pub fn passed(&self) -> bool {
        self.times.iter().all(|&time| self.target.is_met(time))
    }

    /// Minimum, lower median and maximum in seconds.
    fn spread(&self) -> [f64; 3] {
        let last = self.times.len() - 1;
        [0, last / 2, last].map(|index| self.times[index].as_secs_f64())
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        let [min, median, max] = self.spread();
        let mut line = format!("{{\"case\":\"{}\",\"runs\":{}", self.name, self.times.len());
        if let Target::Within(target) | Target::At(target) = self.target {
            let _ = write!(line, ",\"promise_s\":{:.3}", target.as_secs_f64());
        }
        let _ = write!(line, ",\"min_s\":{min:.3},\"median_s\":{median:.3},\"max_s\":{max:.3}");
        let _ = write!(line, ",\"held\":{}}}", self.passed());
        line
    }
}

pub fn table(measurements: &[Measurement]) -> String {
    let header = "case                         runs  target        min s  median s   max s  met\n";
    measurements.iter().fold(header.to_string(), |mut table, measurement| {
        let [min, median, max] = measurement.spread();
        let (name, runs, target) = (&measurement.name, measurement.times.len(), measurement.target.show());
        let passed = if measurement.passed() { "yes" } else { "NO" };
        let _ = writeln!(
            table,
            "{name:<28} {runs:>4}  {target:<11} {min:>7.3} {median:>9.3} {max:>7.3}  {passed}"
        );
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(target: Target, milliseconds: &[u64]) -> Measurement {
        let times = milliseconds.iter().copied().map(Duration::from_millis).collect();
        Measurement::new("a case", target, times).expect("there are times")
    }

    #[test]
    fn the_spread_is_of_the_sorted_times() {
        let target = Target::Within(Duration::from_secs(2));
        let measurement = measured(target, &[300, 100, 200]);
        assert_eq!(measurement.spread(), [0.1, 0.2, 0.3]);
        let json = "{\"case\":\"a case\",\"runs\":3,\"promise_s\":2.000,\"min_s\":0.100,\"median_s\":0.200,\
                    \"max_s\":0.300,\"held\":true}";
        assert_eq!(measurement.json(), json);
    }

    #[test]
    fn one_late_time_misses_the_target() {
        assert!(!measured(Target::Within(Duration::from_secs(2)), &[100, 2001]).passed());
        assert!(!measured(Target::At(Duration::from_secs(2)), &[1900]).passed());
        assert!(measured(Target::At(Duration::from_secs(2)), &[2000, 2900]).passed());
        assert!(table(&[measured(Target::None, &[1])]).contains("yes"));
    }
}
