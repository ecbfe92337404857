//! The tables of a comparison: for a terminal, row by row while it goes on, and as Markdown.

use super::summary::Summary;
use crate::view::formatting::{bytes, headline, number, seconds};

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Aligned, for a terminal of that many columns.
    Terminal(usize),
    Markdown,
}

/// A column: its title, its width on a terminal, whether only a wide one has it, what it shows.
struct Column {
    title: &'static str,
    width: usize,
    wide: bool,
    show: fn(&Summary) -> String,
}

const fn column(title: &'static str, width: usize, show: fn(&Summary) -> String) -> Column {
    Column { title, width, wide: false, show }
}

const fn wide(title: &'static str, width: usize, show: fn(&Summary) -> String) -> Column {
    Column { title, width, wide: true, show }
}

/// From this width on a terminal shows all columns.
const WIDE: usize = 110;

/// How good and how fast.
const RESULTS: &[Column] = &[
    column("seeds", 5, |of| format!("{}/{}", of.reached, of.runs)),
    column("time", 8, |of| optional(of.time_to_target_s, time)),
    wide("from - to", 19, |of| spread(of, "time_to_target_s", time)),
    column("rows", 7, |of| optional(of.rows_to_target, thousands)),
    column("faster", 7, |of| optional(of.speedup, ratio)),
    column("= rows", 6, |of| optional(of.rows_ratio, ratio)),
    column("x rows/s", 8, |of| optional(of.rows_per_s_ratio, ratio)),
    column("final", 7, |of| headline(&of.last).map_or("-".into(), |(_, value)| number(value))),
    wide("from - to", 15, |of| spread(of, "final", number)),
];

/// What it took.
const EFFORT: &[Column] = &[
    column("steps", 6, |of| thousands(of.steps)),
    column("updates", 7, |of| thousands(of.updates)),
    column("stale", 6, |of| {
        of.staleness.as_ref().map_or("-".into(), |ages| format!("{}/{}", ages.median, ages.max))
    }),
    wide("in clocks", 9, |of| {
        let clocks = of.staleness.as_ref().map(|ages| &ages.clocks);
        clocks.map_or("-".into(), |ages| format!("{}/{}", ages.median, ages.max))
    }),
    column("sent", 9, |of| bytes(of.bytes_sent_per_worker as u64)),
    column("c/e/w %", 8, |of| {
        let shares = [of.compute_share, of.exchange_share, of.wait_share];
        shares.map(|share| format!("{:.0}", 100.0 * share)).join("/")
    }),
    wide("rows/s", 8, |of| thousands(of.samples_per_s)),
    column("dropped", 7, |of| thousands(of.dropped)),
    column("redone", 6, |of| thousands(of.steps_redone)),
];

/// A table that is written row by row.
pub(super) struct Table {
    style: Style,
    first: usize,
    columns: Vec<&'static Column>,
}

impl Table {
    /// Of results, for strategies with these labels.
    pub(super) fn of_results(style: Style, labels: &[String]) -> Table {
        Table::new(style, labels, RESULTS)
    }

    /// Of what it took.
    pub(super) fn of_effort(style: Style, labels: &[String]) -> Table {
        Table::new(style, labels, EFFORT)
    }

    fn new(style: Style, labels: &[String], columns: &'static [Column]) -> Table {
        let is_shown = |column: &&Column| match style {
            Style::Terminal(columns) => !column.wide || columns >= WIDE,
            Style::Markdown => true,
        };
        let columns: Vec<&Column> = columns.iter().filter(is_shown).collect();
        let taken: usize = columns.iter().map(|column| column.width + 2).sum();
        let longest =
            labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).max("strategy".len());
        let first = match style {
            Style::Terminal(width) => longest.min(width.saturating_sub(taken).max(16)),
            Style::Markdown => longest,
        };
        Table { style, first, columns }
    }

    pub(super) fn head(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|column| column.title.into()).collect();
        let head = self.line("strategy", &titles);
        match self.style {
            Style::Terminal(_) => head,
            Style::Markdown => format!("{head}|---|{}\n", "---:|".repeat(titles.len())),
        }
    }

    pub(super) fn row(&self, of: &Summary) -> String {
        match self.cells(of) {
            Ok(cells) => self.line(&label(of), &cells),
            Err(remark) => self.remark(&label(of), &remark),
        }
    }

    pub(super) fn titles(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().map(|column| column.title)
    }

    /// The cells of a strategy, or why it has none.
    pub(super) fn cells(&self, of: &Summary) -> Result<Vec<String>, String> {
        let in_one_line =
            |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("; ").replace(":; ", ": ");
        match (&of.refused, &of.failure) {
            (Some(reason), _) => Err(format!("refused: {}", in_one_line(reason))),
            (None, Some(reason)) if of.failed == of.runs => Err(format!("failed: {}", in_one_line(reason))),
            _ => Ok(self.columns.iter().map(|column| (column.show)(of)).collect()),
        }
    }

    fn line(&self, label: &str, cells: &[String]) -> String {
        match self.style {
            Style::Markdown => format!("| {label} | {} |\n", cells.join(" | ")),
            Style::Terminal(_) => {
                let mut line = self.first_cell(label);
                for (cell, column) in cells.iter().zip(&self.columns) {
                    line += &format!("  {cell:>width$}", width = column.width);
                }
                line + "\n"
            }
        }
    }

    /// A row without figures.
    fn remark(&self, label: &str, text: &str) -> String {
        match self.style {
            Style::Markdown => format!("| {label} | {text} |{}\n", " |".repeat(self.columns.len() - 1)),
            Style::Terminal(width) => {
                let room = width.saturating_sub(self.first + 2).max(20);
                let (mut lines, indent) = (vec![String::new()], " ".repeat(self.first));
                for word in text.split_whitespace() {
                    if let Some(line) = lines.last_mut()
                        && (line.is_empty() || line.chars().count() + word.chars().count() < room)
                    {
                        *line += if line.is_empty() { "" } else { " " };
                        *line += word;
                    } else {
                        lines.push(word.into());
                    }
                }
                let first = self.first_cell(label);
                let before = std::iter::once(first.as_str()).chain(std::iter::repeat(indent.as_str()));
                before.zip(&lines).map(|(before, line)| format!("{before}  {line}\n")).collect()
            }
        }
    }

    /// A label that is too long has a line of its own.
    fn first_cell(&self, label: &str) -> String {
        let width = self.first;
        match label.chars().count() <= width {
            true => format!("{label:<width$}"),
            false => format!("{label}\n{:<width$}", ""),
        }
    }
}

/// The strategy with its marks.
pub(super) fn label(of: &Summary) -> String {
    let mut label = of.strategy.clone();
    if let Some(rate) = of.rate_factor.filter(|_| of.rates_tuned) {
        label += &format!(" x{rate}");
    }
    match (of.own_workers, of.own_optimizer) {
        (false, false) => label,
        (true, false) => label + " *",
        (false, true) => label + " +",
        (true, true) => label + " *+",
    }
}

/// What the table does not say by itself, one line each.
pub(super) fn notes(all: &[Summary], target: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    let metric = all.iter().find_map(|of| headline(&of.last)).map_or("loss", |(name, _)| name);
    match target {
        Some(target) => notes.push(format!(
            "seeds: how many reached {target}; time and rows to it: medians, of all seeds; faster: than one worker, which is the \
             product of rows (fewer) and rows/s (more)"
        )),
        None => notes.push("no target is set (--target accuracy=0.96): the runs are compared by what they end with".into()),
    }
    notes.push(format!(
        "final: {metric} at the end; stale: updates of others between reading and updating, median/largest; sent: by a worker; \
         c/e/w: computing, exchanging and waiting, of the workers' time; dropped: rows left out by design; redone: steps"
    ));
    if all.iter().any(|of| of.own_workers) {
        notes.push("*: the preset fixes the number of workers".into());
    }
    if all.iter().any(|of| of.own_optimizer) {
        notes.push("+: the preset sets the optimizer and its rate; that of the job is not used".into());
    }
    match all.iter().any(|of| of.rates_tuned) {
        true => {
            notes.push("x: the best factor of the learning rate, of the same grid for every strategy".into())
        }
        false => notes
            .push("learning rates were not tuned: --rates 0.25,0.5,1,2 gives every strategy its best".into()),
    }
    notes
}

fn optional(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or("-".into(), show)
}

fn time(value: f64) -> String {
    if value < 9.995 { format!("{value:.2} s") } else { seconds(value) }
}

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

fn thousands(value: f64) -> String {
    match value {
        value if value < 9_999.5 => format!("{value:.0}"),
        value if value < 99_950.0 => format!("{:.1} k", value / 1e3),
        value if value < 999_500.0 => format!("{:.0} k", value / 1e3),
        value => format!("{:.2} M", value / 1e6),
    }
}

fn spread(of: &Summary, name: &str, show: fn(f64) -> String) -> String {
    match of.spread.get(name) {
        Some([least, most]) if of.runs > 1 => format!("{} - {}", show(*least), show(*most)),
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::event::Metrics;

    fn summary(strategy: &str) -> Summary {
        Summary {
            strategy: strategy.into(),
            runs: 3,
            reached: 2,
            time_to_target_s: Some(12.34),
            rows_to_target: Some(51_234.0),
            speedup: Some(2.5),
            rows_ratio: Some(0.9),
            rows_per_s_ratio: Some(2.78),
            last: Metrics::from([("accuracy".into(), 0.9612)]),
            ..Summary::default()
        }
    }

    fn labels() -> Vec<String> {
        vec!["single *".into(), "parameter-server[scheduling.kind=async]".into()]
    }

    #[test]
    fn rows_fit_the_terminal() {
        for width in [80, 120] {
            for table in [Table::of_results, Table::of_effort].map(|of| of(Style::Terminal(width), &labels()))
            {
                let (head, row) = (table.head(), table.row(&summary("single")));
                assert_eq!(head.len(), row.len());
                assert!(head.trim_end().len() <= width, "{width}: {head}");
            }
        }
        let table = Table::of_results(Style::Terminal(80), &["single".into()]);
        assert_eq!(
            table.head() + &table.row(&summary("single")),
            "strategy  seeds      time     rows   faster  = rows  x rows/s    final\n\
             single      2/3      12 s   51.2 k     2.50    0.90      2.78   0.9612\n"
        );
    }

    #[test]
    fn refused_and_failed_strategies_have_their_reason() {
        let refused = Summary { refused: Some("two errors:\n  one\n  two words".into()), ..summary("easgd") };
        let table = Table::of_results(Style::Terminal(80), &["easgd".into()]);
        assert_eq!(table.row(&refused), "easgd     refused: two errors: one; two words\n");
        let long = Summary { refused: Some("word ".repeat(40)), ..summary("easgd") };
        assert!(table.row(&long).lines().all(|line| line.len() <= 80));
        let failure = Some("the loss is not finite".into());
        let failed = Summary { runs: 1, failed: 1, failure, ..summary("easgd") };
        assert!(
            Table::of_effort(Style::Markdown, &[])
                .row(&failed)
                .contains("| failed: the loss is not finite | |")
        );
    }

    #[test]
    fn markdown_has_a_rule_below_its_head_and_marks_are_explained() {
        let of = Summary { own_workers: true, own_optimizer: true, ..summary("easgd") };
        let table = Table::of_results(Style::Markdown, &[]);
        let text = table.head() + &table.row(&of);
        let bars: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(bars, [11, 11, 11]);
        assert!(text.contains("| easgd *+ | 2/3 |"), "{text}");
        let notes = notes(&[of], Some("accuracy >= 0.96")).join("\n");
        for part in ["accuracy >= 0.96", "*: the preset", "+: the preset", "not tuned"] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
    }
}
