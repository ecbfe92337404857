//! Formatting of numbers and names, the same in every view.

use thalweg_core::event::{Event, Metrics};
use thalweg_core::times::Spread;

/// A loss or a metric in about four digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0.0000".into(),
        size if !size.is_finite() => value.to_string(),
        size if size < 1e-3 => format!("{value:.2e}"),
        size if size < 1e3 => format!("{value:.4}"),
        size if size < 1e7 => format!("{value:.1}"),
        _ => format!("{value:.3e}"),
    }
}

/// `41 k samples/s`.
pub fn rate(samples_per_s: f64) -> String {
    match samples_per_s {
        rate if rate < 1e3 => format!("{rate:.0} samples/s"),
        rate if rate < 1e4 => format!("{:.1} k samples/s", rate / 1e3),
        rate if rate < 1e6 => format!("{:.0} k samples/s", rate / 1e3),
        rate => format!("{:.1} M samples/s", rate / 1e6),
    }
}

/// `4.2 s`, `3 m 12 s`, `2 h 05 m`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        _ if seconds < 9.95 => format!("{:.1} s", seconds.max(0.0)),
        0..=59 => format!("{whole} s"),
        60..=3599 => format!("{} m {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} m", whole / 3600, whole % 3600 / 60),
    }
}

/// Whether step times in milliseconds differ enough to report: by a quarter, and by a millisecond.
pub fn is_uneven(shortest: f64, longest: f64) -> bool {
    longest > 1.25 * shortest && longest > shortest + 1.0
}

/// `19/20/61 ms`: minimum, median and maximum.
pub fn milliseconds(times: &Spread) -> String {
    let digits = if times.max < 9.95 { 1 } else { 0 };
    format!("{:.digits$}/{:.digits$}/{:.digits$} ms", times.min, times.median, times.max)
}

/// `9,610`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 row`, `2 rows`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// The main metric of a task: accuracy for classification, root mean square error for regression.
pub fn headline(metrics: &Metrics) -> Option<(&str, f64)> {
    ["accuracy", "rmse", "loss"]
        .into_iter()
        .find_map(|name| metrics.get_key_value(name))
        .or_else(|| metrics.iter().next())
        .map(|(name, value)| (name.as_str(), *value))
}

/// Untrusted text with control characters replaced; line breaks stay.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

/// Text wrapped at 80 columns and indented; continuation lines are indented by two more.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = vec![" ".repeat(indent)];
    for word in text.split_whitespace() {
        let line = lines.last().map_or("", String::as_str);
        let blank = line.trim_start().is_empty();
        if !blank && line.chars().count() + 1 + word.chars().count() > 80 {
            lines.push(" ".repeat(indent + 2) + word);
        } else if let Some(line) = lines.last_mut() {
            *line += if blank { "" } else { " " };
            *line += word;
        }
    }
    lines.join("\n") + "\n"
}

/// `1,437 rows of 64 numbers and 10 classes`, or `1,109,689 windows of 64 characters, 65 different`.
pub fn data_rows(started: &Event) -> String {
    let Event::Started { rows, width, window, classes, .. } = started else { return String::new() };
    let different = count(classes.len() as u64);
    match (window, classes.len()) {
        (0, 0) => format!(
            "{} of {} and a number to predict",
            counted(*rows, "row"),
            counted(*width as u64, "number")
        ),
        (0, _) => format!(
            "{} of {} and {different} classes",
            counted(*rows, "row"),
            counted(*width as u64, "number")
        ),
        _ => format!(
            "{} of {}, {different} different",
            counted(*rows, "window"),
            counted(*window as u64, "character")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_abbreviated() {
        assert_eq!(number(0.12345), "0.1235");
        assert_eq!(number(2.5e-7), "2.50e-7");
        assert_eq!(number(51234.5678), "51234.6");
        assert_eq!(number(f64::NAN), "NaN");
        assert_eq!(rate(41_234.0), "41 k samples/s");
        assert_eq!(rate(5_234.0), "5.2 k samples/s");
        assert_eq!(seconds(9.74), "9.7 s");
        assert_eq!(seconds(9.97), "10 s");
        assert_eq!(seconds(192.2), "3 m 12 s");
        assert_eq!(seconds(7500.0), "2 h 05 m");
        assert_eq!([count(1), count(961), count(9610), count(1_234_567)], ["1", "961", "9,610", "1,234,567"]);
        assert_eq!(bytes(1536), "1.5 KiB");
    }

    #[test]
    fn the_headline_is_the_main_metric_of_the_task() {
        let metrics = Metrics::from([("loss".into(), 1.0), ("accuracy".into(), 0.5)]);
        assert_eq!(headline(&metrics), Some(("accuracy", 0.5)));
        assert_eq!(headline(&Metrics::new()), None);
    }

    #[test]
    fn long_text_is_broken_between_words() {
        let text = wrapped(&"word ".repeat(30), 4);
        assert!(text.lines().all(|line| line.len() <= 80));
        assert!(text.starts_with("    word word") && text.contains("\n      word"));
        assert_eq!(text.split_whitespace().count(), 30);
        assert_eq!(wrapped("one", 0), "one\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\nc\t"), "a?[31mb\nc?");
    }
}
