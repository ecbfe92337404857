//! Line charts in one SVG file, readable on light and dark ground.

use std::fmt::Write as _;

/// Curves over time.
pub struct Chart {
    pub title: String,
    pub is_logarithmic: bool,
    pub curves: Vec<Curve>,
}

/// Points from left to right; the index decides colour and dashes.
pub struct Curve {
    pub index: usize,
    pub points: Vec<(f64, f64)>,
}

const COLOURS: [&str; 8] =
    ["#1f77b4", "#e08214", "#2ca02c", "#d62728", "#9467bd", "#8c6d31", "#e377c2", "#17a2b8"];
const DASHES: [&str; 3] = ["", "6 3", "2 2"];

/// Size of a chart with its labels, and the room for them.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 38.0;
const RIGHT: f64 = 14.0;
/// Of the legend below the charts.
const LINE: f64 = 20.0;
const ENTRY: f64 = 170.0;

/// Columns of charts, with a legend below them.
pub fn svg(columns: &[Vec<Chart>], names: &[String], unit: &str) -> String {
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let width = WIDTH * columns.len().max(1) as f64;
    let per_line = (width / ENTRY) as usize;
    let legend = HEIGHT * rows as f64;
    let height = legend + LINE * (names.len().div_ceil(per_line.max(1)) as f64 + 0.5);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <style>text {{ font: 12px sans-serif; fill: #444; }} .title {{ font-weight: bold; }} \
         polyline {{ fill: none; stroke-width: 1.6; }} .grid {{ stroke: #8886; stroke-width: 0.5; }}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (column, charts) in columns.iter().enumerate() {
        for (row, chart) in charts.iter().enumerate() {
            let at = (WIDTH * column as f64, HEIGHT * row as f64);
            let _ =
                writeln!(text, "<g transform=\"translate({}, {})\">\n{}</g>", at.0, at.1, chart.draw(unit));
        }
    }
    for (index, name) in names.iter().enumerate() {
        let (x, y) = (
            LEFT / 2.0 + ENTRY * (index % per_line.max(1)) as f64,
            legend + LINE * (index / per_line.max(1)) as f64 + LINE / 2.0,
        );
        let _ = writeln!(
            text,
            "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke-width=\"3\" {}/><text x=\"{}\" y=\"{}\">{name}</text>",
            x + 30.0,
            stroke(index),
            x + 36.0,
            y + 4.0
        );
    }
    text + "</svg>\n"
}

fn stroke(index: usize) -> String {
    let (colour, dash) = (COLOURS[index % COLOURS.len()], DASHES[index / COLOURS.len() % DASHES.len()]);
    format!("stroke=\"{colour}\" stroke-dasharray=\"{dash}\"")
}

impl Chart {
    fn draw(&self, unit: &str) -> String {
        let scaled = |value: f64| if self.is_logarithmic { value.log10() } else { value };
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let right = points().map(|point| point.0).fold(1e-9, f64::max);
        let values = || points().map(|point| scaled(point.1));
        let (low, high) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = if high > low { (low, high) } else { (0.0, 1.0) };
        let x = |value: f64| LEFT + value / right * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| TOP + (high - value) / (high - low) * (HEIGHT - BOTTOM - TOP);
        let mut text = format!("<text class=\"title\" x=\"{LEFT}\" y=\"16\">{}</text>\n", self.title);
        for at in ticks(low, high) {
            let label = if self.is_logarithmic { 10f64.powf(at) } else { at };
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                y(at),
                y(at),
                LEFT - 5.0,
                y(at) + 4.0,
                short(label)
            );
        }
        for at in ticks(0.0, right) {
            let (x, y) = (x(at), HEIGHT - BOTTOM + 15.0);
            let _ =
                writeln!(text, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", short(at));
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{unit}</text>",
            HEIGHT - 6.0
        );
        for curve in &self.curves {
            let points =
                curve.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(scaled(*value))));
            let points: Vec<String> = points.collect();
            let _ = writeln!(text, "<polyline {} points=\"{}\"/>", stroke(curve.index), points.join(" "));
        }
        text
    }
}

/// Round numbers between two values.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|number| number as f64 * step).collect()
}

fn short(value: f64) -> String {
    let digits = if value.abs() >= 10.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_is_drawn_within_its_chart() {
        let curve = |index| Curve { index, points: vec![(0.0, 0.1), (2.0, 10.0)] };
        let chart = Chart { title: "one".into(), is_logarithmic: true, curves: vec![curve(0), curve(9)] };
        let text = svg(&[vec![chart]], &["a".into(), "b".into()], "seconds");
        assert_eq!(text.matches("<polyline").count(), 2);
        let (bottom, top) = (HEIGHT - BOTTOM, TOP);
        let ends = format!("points=\"{LEFT:.1},{bottom:.1} {:.1},{top:.1}\"", WIDTH - RIGHT);
        assert_eq!(text.matches(&ends).count(), 2, "{text}");
        assert!(text.contains(">0.1</text>") && text.contains(">10</text>"), "{text}");
        assert_eq!([short(0.0), short(20.0), short(0.25)], ["0", "20", "0.25"]);
    }
}
