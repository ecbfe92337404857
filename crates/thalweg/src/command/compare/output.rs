//! What a comparison writes: tables or JSON on standard output while it goes on, documents at the end.

use super::networks::{Network, SimulatedNetwork};
use super::planned::{Compared, Planned};
use super::summary::Summary;
use super::table::{self, Style, Table};
use super::{CompareArgs, page};
use crate::command::print;
use crate::view::formatting::wrapped;
use thalweg_cluster::durable::write_atomically;
use thalweg_core::{Error, Result};

/// What goes to standard output for one network: tables, or JSON.
pub(super) struct Output {
    json: bool,
    network: Network,
    labels: Vec<String>,
    target: Option<String>,
    style: Style,
}

impl Output {
    pub(super) fn new(args: &CompareArgs, network: Network, planned: &[Planned<'_>]) -> Output {
        let terminal = console::Term::stdout();
        let columns = if terminal.is_term() { usize::from(terminal.size().1) } else { 120 };
        let factors = args.rates.iter().map(|rate| format!(" x{rate}").len()).max().unwrap_or(0);
        let labels = planned.iter().map(|planned| planned.label() + &" ".repeat(factors)).collect();
        let target = shown_target(planned);
        Output { json: args.train.json, network, labels, target, style: Style::Terminal(columns) }
    }

    pub(super) fn begin(&self) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let network = self.network.map_or(String::new(), |network| heading(network) + "\n");
        print(&format!("\n{network}{}", Table::of_results(self.style, &self.labels).head()))
    }

    pub(super) fn row(&self, of: &Summary) -> Result<()> {
        if !self.json {
            return print(&Table::of_results(self.style, &self.labels).row(of));
        }
        let line = serde_json::to_string(of).map_err(|error| Error::internal(error.to_string()))?;
        print(&(line + "\n"))
    }

    pub(super) fn end(&self, all: &[Compared]) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let table = Table::of_effort(self.style, &self.labels);
        let ran = all.iter().filter(|of| of.summary.refused.is_none());
        let rows: String = ran.map(|of| table.row(&of.summary)).collect();
        let summaries: Vec<Summary> = all.iter().map(|of| of.summary.clone()).collect();
        let notes = table::notes(&summaries, self.target.as_deref());
        let notes: String = notes.iter().map(|note| wrapped(note, 0)).collect();
        print(&format!("\n{}{rows}\n{notes}", table.head()))
    }
}

/// A network's name over its table.
pub(super) fn heading(network: &SimulatedNetwork) -> String {
    format!("simulated network, in virtual time: {} ({})", network.name, network.about)
}

/// Writes the Markdown and the page, also of what is known after an interruption.
pub(super) fn write_documents(
    args: &CompareArgs,
    name: &str,
    planned: &[Vec<Planned<'_>>],
    all: &[(Network, Vec<Compared>)],
) -> Result<()> {
    let target = planned.first().and_then(|planned| shown_target(planned));
    let target = target.as_deref();
    if let Some(path) = &args.markdown {
        let parts: Vec<String> = all.iter().map(|(network, of)| markdown(*network, target, of)).collect();
        write_atomically(path, parts.join("\n").as_bytes())?;
    }
    match &args.html {
        Some(path) => write_atomically(path, page::page(name, target, all).as_bytes()),
        None => Ok(()),
    }
}

fn markdown(network: Network, target: Option<&str>, of: &[Compared]) -> String {
    let mut text = network.map_or(String::new(), |network| format!("**{}**\n\n", heading(network)));
    let (results, effort) = (Table::of_results(Style::Markdown, &[]), Table::of_effort(Style::Markdown, &[]));
    text += &results.head();
    of.iter().for_each(|of| text += &results.row(&of.summary));
    text += &format!("\n{}", effort.head());
    let ran = of.iter().filter(|of| of.summary.refused.is_none());
    ran.for_each(|of| text += &effort.row(&of.summary));
    let summaries: Vec<Summary> = of.iter().map(|of| of.summary.clone()).collect();
    for note in table::notes(&summaries, target) {
        // Stars at the start of a line make a list.
        text += &format!("\n{}\n", note.replace('*', "\\*"));
    }
    text
}

/// `accuracy >= 0.96`.
fn shown_target(planned: &[Planned<'_>]) -> Option<String> {
    let job = &planned.iter().find_map(Planned::candidate)?.job.spec;
    let accuracy = job.target.accuracy.map(|least| format!("accuracy >= {least}"));
    let loss = job.target.loss.map(|most| format!("loss <= {most}"));
    let both: Vec<String> = accuracy.into_iter().chain(loss).collect();
    (!both.is_empty()).then(|| both.join(" and "))
}
