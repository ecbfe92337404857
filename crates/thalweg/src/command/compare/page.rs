//! The page of a comparison: the tables, and the metric over time and over rows. One file, without scripts.

use super::networks::Network;
use super::output::heading;
use super::planned::Compared;
use super::summary::Summary;
use super::table::{self, Style, Table};
use crate::view::formatting::{headline, number};
use std::fmt::Write as _;
use thalweg_core::report::Evaluation;

const STYLE: &str = "\
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
polyline { fill: none; stroke-width: 1.6; } polyline:hover { stroke-width: 4; }
.grid { stroke: var(--line); stroke-width: 0.5; } .target { stroke: currentColor; stroke-dasharray: 2 3; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; padding: 0; list-style: none; }
.legend svg { width: 2rem; height: 0.7rem; margin-right: 0.4rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td[colspan] { text-align: left; } td[colspan] { white-space: normal; }
p.note { color: color-mix(in srgb, currentColor 75%, transparent); margin: 0.3rem 0; }
";

/// Readable on light and dark ground; strategies beyond the last repeat them dashed.
const COLOURS: [&str; 10] = [
    "#888888", "#1f77b4", "#e08214", "#2ca02c", "#d62728", "#9467bd", "#8c6d31", "#e377c2", "#17a2b8",
    "#b5a100",
];
const DASHES: [&str; 3] = ["", "6 3", "2 2"];

/// Size of a chart, and the room for its labels.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 52.0;
const BOTTOM: f64 = 36.0;
const MARGIN: f64 = 10.0;

/// The page.
pub(super) fn page(name: &str, target: Option<&str>, all: &[(Network, Vec<Compared>)]) -> String {
    let title = format!("{}: strategies compared", escaped(name));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n"
    );
    for (network, compared) in all {
        if let Some(network) = network {
            let _ = writeln!(page, "<h2>{}</h2>", escaped(&heading(network)));
        }
        page += &charts(target, compared);
        let summaries: Vec<Summary> = compared.iter().map(|of| of.summary.clone()).collect();
        page += &html_table(&Table::of_results(Style::Markdown, &[]), &summaries);
        let ran: Vec<Summary> = summaries.iter().filter(|of| of.refused.is_none()).cloned().collect();
        page += &html_table(&Table::of_effort(Style::Markdown, &[]), &ran);
        for note in table::notes(&summaries, target) {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(&note));
        }
    }
    page + "</body></html>\n"
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn html_table(table: &Table, all: &[Summary]) -> String {
    let titles: Vec<String> = table.titles().map(|title| format!("<th>{}</th>", escaped(title))).collect();
    let mut text = format!("<div class=\"scroll\"><table><tr><th>strategy</th>{}</tr>\n", titles.concat());
    for of in all {
        let cells = match table.cells(of) {
            Ok(cells) => cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect(),
            Err(remark) => format!("<td colspan=\"{}\">{}</td>", titles.len(), escaped(&remark)),
        };
        let _ = writeln!(text, "<tr><td>{}</td>{cells}</tr>", escaped(&table::label(of)));
    }
    text + "</table></div>\n"
}

/// A line of a chart.
struct Curve {
    name: String,
    /// Of its strategy.
    index: usize,
    points: Vec<(f64, f64)>,
}

/// The metric over time and over rows, a line for each seed, with a legend.
fn charts(target: Option<&str>, compared: &[Compared]) -> String {
    let with_runs: Vec<&Compared> = compared.iter().filter(|of| !of.runs.is_empty()).collect();
    let metric = with_runs.iter().flat_map(|of| &of.runs).find_map(|run| headline(&run.last));
    let Some(metric) = metric.map(|(name, _)| name.to_string()) else { return String::new() };
    let curves = |of: fn(&Evaluation) -> f64| -> Vec<Curve> {
        let mut curves = Vec::new();
        for (index, compared) in with_runs.iter().enumerate() {
            for run in &compared.runs {
                let point = |at: &Evaluation| Some((of(at), *at.metrics.get(&metric)?));
                let points =
                    run.evaluations.iter().filter_map(point).filter(|(_, y)| y.is_finite()).collect();
                let name = format!("{}, seed {}", compared.summary.strategy, run.seed);
                curves.push(Curve { name, index, points });
            }
        }
        curves
    };
    let level = target.and_then(|target| target.strip_prefix(&metric)?.rsplit(' ').next()?.parse().ok());
    let legend: Vec<String> = with_runs
        .iter()
        .enumerate()
        .map(|(index, of)| {
            let line =
                format!("<line x1=\"0\" y1=\"5\" x2=\"32\" y2=\"5\" stroke-width=\"3\" {}/>", stroke(index));
            let label = escaped(&table::label(&of.summary));
            format!("<li><svg viewBox=\"0 0 32 10\">{line}</svg>{label}</li>")
        })
        .collect();
    let time = chart(&metric, "seconds of training", level, &curves(|at| at.train_s));
    let rows = chart(&metric, "rows", level, &curves(|at| at.rows as f64));
    format!("<div class=\"charts\">{time}{rows}</div>\n<ul class=\"legend\">{}</ul>\n", legend.concat())
}

fn stroke(index: usize) -> String {
    let (colour, dash) = (COLOURS[index % COLOURS.len()], DASHES[index / COLOURS.len() % DASHES.len()]);
    format!("stroke=\"{colour}\" stroke-dasharray=\"{dash}\"")
}

/// One chart as SVG.
fn chart(metric: &str, unit: &str, level: Option<f64>, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let right = points().map(|point| point.0).fold(0.0, f64::max).max(1e-9);
    let values = || points().map(|point| point.1).chain(level);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    if !low.is_finite() {
        return String::new();
    }
    let (low, high) = if high > low { (low, high) } else { (low - 0.5, high + 0.5) };
    let x = |value: f64| LEFT + value / right * (WIDTH - LEFT - MARGIN);
    let y = |value: f64| MARGIN + (high - value) / (high - low) * (HEIGHT - BOTTOM - MARGIN);
    let mut text =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{metric} over {unit}</title>\n");
    for at in ticks(low, high) {
        let (height, edge) = (y(at), WIDTH - MARGIN);
        let _ = writeln!(
            text,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{edge}\" y1=\"{height:.1}\" y2=\"{height:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            height + 4.0,
            tick_label(at)
        );
    }
    for at in ticks(0.0, right) {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(at),
            HEIGHT - BOTTOM + 14.0,
            tick_label(at)
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{unit}</text>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 4.0
    );
    if let Some(level) = level {
        let (height, edge) = (y(level), WIDTH - MARGIN);
        let _ = writeln!(
            text,
            "<line class=\"target\" x1=\"{LEFT}\" x2=\"{edge}\" y1=\"{height:.1}\" y2=\"{height:.1}\"><title>target</title></line>"
        );
    }
    for curve in curves {
        let points: Vec<String> =
            curve.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let last = curve.points.last().map_or(String::new(), |(_, value)| format!(": {}", number(*value)));
        let name = escaped(&curve.name);
        let _ = writeln!(
            text,
            "<polyline {} points=\"{}\"><title>{name}{last}</title></polyline>",
            stroke(curve.index),
            points.join(" ")
        );
    }
    text + "</svg>\n"
}

/// Round numbers between two values.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|number| number as f64 * step).collect()
}

fn tick_label(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        size if size >= 1e4 => format!("{} k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').into()
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::*;
    use thalweg_core::event::Metrics;

    fn compared(strategy: &str) -> Compared {
        let at = |rows: u64, accuracy: f64| Evaluation {
            step: rows,
            rows,
            train_s: rows as f64 / 100.0,
            metrics: Metrics::from([("accuracy".into(), accuracy)]),
        };
        let evaluations = vec![at(100, 0.5), at(200, 0.8)];
        let last = evaluations[1].metrics.clone();
        let run = Figures { evaluations, last, ..Figures::default() };
        let summary = Summary { strategy: strategy.into(), ..Summary::default() };
        Compared { summary: summary.with(std::slice::from_ref(&run)), runs: vec![run] }
    }

    #[test]
    fn the_page_has_two_curves_for_each_run_and_escapes_names() {
        let all = [(None, vec![compared("gosgd[x=\"<a>\"]"), compared("single")])];
        let page = page("a<b", Some("accuracy >= 0.9"), &all);
        assert_eq!(page.matches("<polyline").count(), 4);
        assert_eq!(page.matches("class=\"target\"").count(), 2);
        assert!(
            page.contains("a&lt;b")
                && page.contains("gosgd[x=&quot;&lt;a&gt;&quot;]")
                && !page.contains("<a>")
        );
        assert!(!page.contains("http") && !page.contains("<script"), "self-contained");
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn a_page_without_runs_has_no_charts() {
        let refused = Summary { refused: Some("no".into()), ..Summary::default() };
        let page = page("x", None, &[(None, vec![Compared { summary: refused, runs: Vec::new() }])]);
        assert!(!page.contains("<polyline") && page.contains("refused: no"));
    }

    #[test]
    fn ticks_are_round() {
        let labels = |low, high| ticks(low, high).into_iter().map(tick_label).collect::<Vec<_>>();
        assert_eq!(labels(0.0, 50_000.0), ["0", "10 k", "20 k", "30 k", "40 k", "50 k"]);
        assert_eq!(labels(0.81, 0.97), ["0.85", "0.9", "0.95"]);
        assert_eq!(labels(0.0, 3.0), ["0", "1", "2", "3"]);
    }
}
