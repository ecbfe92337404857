//! Which strategies of a comparison run, which the job refuses, and what each comes to.

use super::Progress;
use super::candidate::{Candidate, Shared};
use super::entries::Entry;
use super::figures::Figures;
use super::networks::Network;
use super::summary::Summary;
use super::table;
use thalweg_core::spec::engine::EngineKind;
use thalweg_core::{Error, Result};

/// The preset that all others are compared with.
const SINGLE: &str = "single";

/// A strategy on a network: to be run, or refused by the job.
pub(super) enum Planned<'a> {
    Runs(Box<Candidate<'a>>),
    Refused(Box<Summary>),
}

/// A strategy with its runs at its best rate.
pub(super) struct Compared {
    pub(super) summary: Summary,
    pub(super) runs: Vec<Figures>,
}

/// One worker comes first, once.
pub(super) fn with_baseline(list: Vec<Entry>) -> Vec<Entry> {
    let single = Entry::preset(SINGLE, list.iter().any(|entry| entry.named && entry.label() == SINGLE));
    let others = list.into_iter().filter(|entry| entry.label() != SINGLE);
    std::iter::once(single).chain(others).collect()
}

/// All strategies on every network. One that the user has named and the job refuses is an error, before anything starts.
pub(super) fn plan<'a>(
    shared: &Shared,
    list: &'a [Entry],
    networks: &[Network],
) -> Result<Vec<Vec<Planned<'a>>>> {
    let mut errors: Vec<String> = Vec::new();
    let mut plan = |network: Network, entry: &'a Entry| match Candidate::new(shared, entry, network) {
        Ok(candidate) => Planned::Runs(Box::new(candidate)),
        Err(error) => {
            let strategy = entry.label();
            let message = match error.message.contains(&strategy) {
                true => error.message.clone(),
                false => format!("{strategy}: {}", error.message),
            };
            if entry.named && !errors.contains(&message) {
                errors.push(message);
            }
            let (network, refused) = (network.map(|network| network.name), Some(error.message));
            Planned::Refused(Box::new(Summary { strategy, network, refused, ..Summary::default() }))
        }
    };
    let planned: Vec<Vec<Planned<'a>>> =
        networks.iter().map(|network| list.iter().map(|entry| plan(*network, entry)).collect()).collect();
    let refusals = planned.iter().flatten().map(|planned| match planned {
        Planned::Runs(_) => None,
        Planned::Refused(summary) => summary.refused.clone(),
    });
    // If none can run, the job itself is wrong.
    let of_all: Option<Vec<String>> = refusals.collect();
    match (errors.is_empty(), of_all) {
        (_, Some(mut reasons)) => Err(Error::job(reasons.swap_remove(0))),
        (false, None) => Err(Error::job(errors.join("\n  "))),
        (true, None) => Ok(planned),
    }
}

impl Planned<'_> {
    pub(super) fn candidate(&self) -> Option<&Candidate<'_>> {
        match self {
            Planned::Runs(candidate) => Some(candidate),
            Planned::Refused(_) => None,
        }
    }

    pub(super) fn label(&self) -> String {
        match self {
            Planned::Runs(candidate) => table::label(&blank(candidate)),
            Planned::Refused(summary) => table::label(summary),
        }
    }

    /// Makes the runs that are not made. None if a signal ends the comparison before the first.
    pub(super) fn compare(&self, shared: &Shared, progress: &mut Progress<'_>) -> Result<Option<Compared>> {
        let candidate = match self {
            Planned::Runs(candidate) => candidate,
            Planned::Refused(summary) => {
                return Ok(Some(Compared { summary: Summary::clone(summary), runs: Vec::new() }));
            }
        };
        let mut tried: Vec<Compared> = Vec::new();
        for seeds in candidate.variants(shared) {
            let rate_factor = seeds.first().and_then(|variant| variant.rate);
            let mut runs = Vec::new();
            for variant in seeds {
                match progress.run(candidate, variant)? {
                    Some(figures) => runs.push(figures),
                    None => break,
                }
            }
            if !runs.is_empty() {
                let learning_rate = candidate.job.spec.optimizer.lr * rate_factor.unwrap_or(1.0);
                let rates_tuned = rate_factor.is_some();
                let blank = Summary { rate_factor, rates_tuned, learning_rate, ..blank(candidate) };
                tried.push(Compared { summary: blank.with(&runs), runs });
            }
            if progress.interrupted.is_some() {
                break;
            }
        }
        let summaries = tried.iter().map(|compared| compared.summary.clone()).collect();
        let Some(summary) = Summary::best(summaries) else { return Ok(None) };
        let of_best = |compared: &Compared| compared.summary.rate_factor == summary.rate_factor;
        let runs = tried.into_iter().find(of_best).map(|best| best.runs).unwrap_or_default();
        Ok(Some(Compared { summary, runs }))
    }
}

/// The summary of a candidate without figures.
fn blank(of: &Candidate<'_>) -> Summary {
    Summary {
        strategy: of.entry.label(),
        network: of.network.map(|network| network.name),
        simulated: of.job.spec.engine.kind == EngineKind::Sim,
        workers: of.job.spec.engine.workers,
        own_workers: of.own_workers,
        own_optimizer: of.own_optimizer,
        learning_rate: of.job.spec.optimizer.lr,
        ..Summary::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::parse;
    use super::*;
    use thalweg_core::spec::JobLayers;

    fn shared(settings: &[&str]) -> Shared {
        let mut layers = JobLayers::default();
        settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
        Shared { layers, rates: Vec::new(), seeds: 1, target: None }
    }

    fn refused(list: &str, settings: &[&str]) -> Result<Vec<String>> {
        let list = with_baseline(parse(list).unwrap());
        let planned = plan(&shared(settings), &list, &[None])?;
        let refused = planned.iter().flatten().filter(|planned| planned.candidate().is_none());
        Ok(refused.map(Planned::label).collect())
    }

    #[test]
    fn one_worker_comes_first_and_once() {
        let labels =
            |list: &str| with_baseline(parse(list).unwrap()).iter().map(Entry::label).collect::<Vec<_>>();
        assert_eq!(labels("allreduce,gosgd"), ["single", "allreduce", "gosgd"]);
        assert_eq!(labels("allreduce,single"), ["single", "allreduce"]);
        assert_eq!(labels("all").iter().filter(|label| *label == SINGLE).count(), 1);
    }

    #[test]
    fn of_all_strategies_those_that_the_job_refuses_are_shown() {
        assert_eq!(refused("all", &["engine.workers=4"]).unwrap(), [""; 0]);
        let without = refused("all", &["train.reproducible=true"]).unwrap();
        assert!(without.contains(&"gosgd".into()) && !without.contains(&"allreduce".into()), "{without:?}");
        // One that is named must run.
        let error = refused("all,gosgd", &["train.reproducible=true"]).unwrap_err();
        assert!(error.message.starts_with("gosgd: ") && error.message.contains("reproducible"), "{error}");
        let error = refused("all", &["train.epochs=0"]).unwrap_err();
        assert!(error.message.contains("train.epochs"), "{error}");
    }
}
