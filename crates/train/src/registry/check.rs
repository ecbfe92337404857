//! Rules between the settings of a job and its strategy.

use super::{AllReduced, Dials, Registration, all, find, is_elastic, ranks, reproducible, served};
use crate::decentralized::mixing::MixingMatrix;
use crate::decentralized::push_graph::PushGraph;
use crate::decentralized::tree_easgd;
use thalweg_core::JobSpec;
use thalweg_core::spec::Refuse;
use thalweg_core::spec::bucket::BucketSize;
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::spec::neighbours::{Graph, Mix};
use thalweg_core::spec::optimizer::OptimizerKind;
use thalweg_core::spec::setting::Auto;
use thalweg_core::spec::strategy::{Algorithm, FAMILIES, Scheduling, Split};
use thalweg_graph::Loss;

/// Checks a job by the rules of all strategies and of its own.
pub(super) fn check(job: &JobSpec, refuse: &mut Refuse<'_>) {
    check_ranks(job, refuse);
    reproducible::check(job, refuse);
    match find(job) {
        Some(strategy) => {
            check_claims(job, strategy, refuse);
            check_families(job, strategy, refuse);
            served::updates(job, strategy, refuse);
            (strategy.check)(job, refuse);
        }
        None => refuse_dials(job, refuse),
    }
}

/// Refuses dials that no strategy has, at the last one that is not the default's, and names the strategies that have it.
fn refuse_dials(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let (dials, defaults) = (Dials::of(job).named(), Dials::of(&JobSpec::default()).named());
    let Some(index) = (0..dials.len()).rev().find(|&index| dials[index] != defaults[index]) else { return };
    let listed: Vec<String> = dials.iter().map(|(key, value)| format!("{key} = \"{value}\"")).collect();
    let mut reason = format!("no strategy is built for {}", listed.join(", "));
    for strategy in all().filter(|strategy| strategy.dials.named()[index] == dials[index]) {
        let needed = strategy.dials.named().into_iter().filter(|dial| !dials.contains(dial));
        let needed: Vec<String> = needed.map(|(key, value)| format!("{key} = \"{value}\"")).collect();
        reason += &format!("; `{}` needs {}", strategy.name, needed.join(" and "));
    }
    refuse(dials[index].0, reason);
}

/// Refuses settings of what the strategy cannot do.
fn check_claims(job: &JobSpec, strategy: &Registration, refuse: &mut Refuse<'_>) {
    let (claims, name) = (&strategy.claims, strategy.name);
    if !claims.buckets && job.exchange.bucket != BucketSize::Auto {
        let reason =
            format!("no gradient of all rows leaves a worker of `{name}`, so there are no buckets of it");
        refuse("strategy.exchange.bucket", reason);
    }
    if claims.all_reduced != AllReduced::Gradients && job.strategy.tune {
        refuse("strategy.tune", format!("only an all-reduce is tuned, `{name}` is not"));
    }
    let has_gradient_of_step = claims.proves_rows && claims.servers == 0 && !claims.rounds;
    if job.train.sample != 1.0 && !has_gradient_of_step {
        let reason = format!(
            "`{name}` has no gradient of all of a step's rows that could be divided by those sampled; drop this key, or use `allreduce`"
        );
        refuse("train.sample", reason);
    }
    if claims.all_reduced == AllReduced::Nothing && job.exchange.algorithm != Algorithm::Auto {
        refuse(
            "strategy.exchange.algorithm",
            format!("algorithms are those of an all-reduce, and `{name}` has none; drop this key"),
        );
    }
    if job.merge.adaptive_every && !(claims.rounds && claims.servers == 0) {
        let reason = format!(
            "adapts the rounds of workers that all merge together, and `{name}` has none; drop this key"
        );
        refuse("strategy.merge.adaptive_every", reason);
    }
    if job.strategy.split == Split::Speed && !claims.splits_by_speed {
        let reason = format!(
            "`speed` needs the step times that are appended to an all-reduce, and `{name}` is none; use `even`"
        );
        refuse("strategy.split", reason);
    }
    if job.engine.progress_thread && !claims.sends_messages {
        let reason = format!("`{name}` sends no messages while its workers compute; drop this key");
        refuse("engine.progress_thread", reason);
    }
    if job.engine.progress_thread && !job.exchange.transport.can_regroup() {
        let reason = "one thread makes all calls to MPI; drop this key, or strategy.exchange.transport";
        refuse("engine.progress_thread", reason.into());
    }
    if let Some(reason) = claims.irreproducible
        && job.train.reproducible
    {
        refuse(reproducible::KEY, reason.into());
    }
}

/// The mean of all models has no rate and no momentum.
pub(super) fn plain_mean(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let unused = [("rate", job.merge.rate, 1.0), ("momentum", job.merge.momentum, 0.0)];
    for (key, value, default) in unused {
        if value != default {
            let key = format!("strategy.merge.{key}");
            refuse(
                &key,
                format!(
                    "is {value}, but a plain mean has none; drop this key or choose another strategy.merge.kind"
                ),
            );
        }
    }
}

/// The rates of elastic averaging at which workers and centre come closer to each other.
pub(super) fn elastic_force(job: &JobSpec, refuse: &mut Refuse<'_>) {
    plain_mean(job, refuse);
    let workers = job.engine.workers;
    let (alpha, beta) = (job.merge.alpha(workers), job.merge.beta(workers));
    let alpha_key = "strategy.merge.alpha";
    // Rates are used in single precision.
    if !(alpha as f32 > 0.0 && alpha <= 0.5) {
        refuse(
            alpha_key,
            format!("must be above 0 and at most 1/2, or worker and centre pass each other, is {alpha}"),
        );
    }
    match job.scheduling.kind {
        Scheduling::Bsp => {
            if job.merge.adaptive_alpha {
                let reason = "workers that merge together have one alpha; drop this key, or set strategy.scheduling.kind = \"async\"";
                refuse("strategy.merge.adaptive_alpha", reason.into());
            }
            if beta != alpha {
                refuse(
                    "strategy.merge.beta",
                    format!("is {beta}, and alpha {alpha}: synchronous merges are symmetric; drop this key"),
                );
            }
            if workers as f64 * alpha > 1.0 + f64::EPSILON {
                refuse(
                    alpha_key,
                    format!(
                        "{workers} workers at {alpha} move the centre beyond their mean; use at most 1/{workers}"
                    ),
                );
            }
        }
        _ if !(beta as f32 > 0.0 && beta <= alpha) => refuse(
            "strategy.merge.beta",
            format!(
                "must be above 0 and at most alpha, which is {alpha}, is {beta} (Langer et al., equation 1)"
            ),
        ),
        _ => {}
    }
}

/// Without gradients, plain descent under a penalty must bring workers together although the mean is a round old: with A, the
/// part of its distance from the extrapolated mean that a worker covers in a round, the roots of z^2 + A z - 2 gamma A are
/// within the unit circle if A < 1 / (1 + 2 gamma).
pub(super) fn penalty(job: &JobSpec, refuse: &mut Refuse<'_>) {
    plain_mean(job, refuse);
    let (penalty, gamma) = (job.merge.penalty, job.merge.extrapolation);
    let pull = 1.0 - (1.0 - job.optimizer.lr * penalty).powf(job.merge.every as f64);
    if job.optimizer.kind == OptimizerKind::Sgd && !(0.0..1.0 / (1.0 + 2.0 * gamma)).contains(&pull) {
        let limit = 1.0 / (1.0 + 2.0 * gamma);
        let reason = format!(
            "{penalty} pulls a worker by {pull:.2} of its distance from the mean in a round, which swings up above {limit:.2}; \
             lower it, strategy.merge.every or strategy.merge.extrapolation"
        );
        refuse("strategy.merge.penalty", reason);
    }
}

/// A tree of that depth must exist, and models that are merged must not pass each other.
pub(super) fn tree(job: &JobSpec, refuse: &mut Refuse<'_>) {
    plain_mean(job, refuse);
    if let Err(reason) = tree_easgd::check_depth(job) {
        refuse("strategy.tree.depth", reason);
    }
    let alpha = job.merge.alpha(job.tree.children + 1);
    if !(alpha > 0.0 && alpha <= 0.5) {
        let reason = format!("must be above 0 and at most 1/2, or two models pass each other, is {alpha}");
        refuse("strategy.merge.alpha", reason);
    }
    let beta = job.merge.beta.or(alpha);
    if !(beta > 0.0 && beta <= alpha) {
        let reason = format!(
            "the least rate of a merge must be above 0 and at most alpha, which is {alpha}, is {beta}"
        );
        refuse("strategy.merge.beta", reason);
    }
}

/// Refuses settings of a family of strategies to which the job's does not belong.
fn check_families(job: &JobSpec, strategy: &Registration, refuse: &mut Refuse<'_>) {
    let defaults = JobSpec::default().values();
    let others = FAMILIES.into_iter().filter(|section| !strategy.sections.contains(section));
    for family in others {
        let is_of_family = |key: &str| key.rsplit_once('.').is_some_and(|(section, _)| section == family);
        for (key, value) in job.values() {
            if is_of_family(&key) && !defaults.contains(&(key.clone(), value)) {
                refuse(
                    &key,
                    format!("the strategy `{}` does not use [{family}]; drop this key", strategy.name),
                );
            }
        }
    }
}

/// Refuses settings of ranks that do not exist.
fn check_ranks(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let (ranks, workers) = (ranks(job), job.engine.workers);
    let linked = job.network.links.ranks().map(|rank| ("engine.network.links", rank));
    for (key, rank) in linked.filter(|(_, rank)| *rank >= ranks) {
        refuse(key, format!("there is no rank {rank}: there are {ranks} ranks"));
    }
    for (rank, _) in job.engine.slow.iter().filter(|(rank, _)| *rank >= workers) {
        refuse("engine.slow", format!("there is no worker {rank}: there are {workers} workers"));
    }
    let last = last_rank(job);
    if let Some(fault) = job.fault.inject.0.iter().find(|fault| fault.rank > last) {
        let reason =
            format!("there is no rank {}: ranks are 0 to {last}; correct it, or unset it with", fault.rank);
        refuse("fault.inject", format!("{reason} --set fault.inject="));
    }
}

/// The highest possible rank: joining workers have ranks below `fault.max_workers`, if that is set.
fn last_rank(job: &JobSpec) -> usize {
    let max = match job.fault.max_workers {
        Auto::Is(max) if is_elastic(job) => max,
        _ => 0,
    };
    ranks(job).max(max).saturating_sub(1)
}

/// Workers that no path joins would never agree.
pub(super) fn connected_graph(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let workers = job.engine.workers;
    // Named graphs are connected; edges of workers that do not exist are refused by the section.
    let Graph::Edges(edges) = &job.neighbours.graph else { return };
    if edges.iter().any(|(one, other)| *one.max(other) >= workers) {
        return;
    }
    if let Err(reason) = MixingMatrix::metropolis(workers, edges).check() {
        refuse("strategy.neighbours.graph", format!("{reason}; add an edge between them"));
    }
}

/// Pairs are averaged between even and odd workers; the gradient is always computed before.
pub(super) fn two_sides(job: &JobSpec, refuse: &mut Refuse<'_>) {
    if !matches!(job.neighbours.graph, Graph::Ring | Graph::Exponential | Graph::Complete) {
        let reason = "workers at their own speed average with those of the other parity; use `ring`, `exponential` or `complete`";
        refuse("strategy.neighbours.graph", reason.into());
    }
    if job.neighbours.mix != Mix::Before {
        let reason = "workers at their own speed average between the gradient and its update; drop this key";
        refuse("strategy.neighbours.mix", reason.into());
    }
}

/// In a directed graph what each worker pushes must reach all others.
pub(super) fn reaches_all(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let (workers, graph) = (job.engine.workers, &job.neighbours.graph);
    let Graph::Edges(edges) = graph else { return };
    if edges.iter().any(|(one, other)| *one.max(other) >= workers) {
        return;
    }
    let all: Vec<usize> = (0..workers).collect();
    if let Err(reason) = PushGraph::of_members(graph, workers, &all).check() {
        refuse(
            "strategy.neighbours.graph",
            format!("{reason}; add edges, which lead from the first to the second"),
        );
    }
}

/// Models that are merged when they arrive are not kept.
pub(super) fn no_cache(job: &JobSpec, refuse: &mut Refuse<'_>) {
    if job.gossip.cache != JobSpec::default().gossip.cache {
        let reason =
            "workers keep no models of others; drop this key, or set strategy.exchange.kind = \"walks\"";
        refuse("strategy.gossip.cache", reason.into());
    }
}

/// Models that were never merged are far from each other.
pub(super) fn independent(job: &JobSpec, refuse: &mut Refuse<'_>) {
    if job.ensemble.combine == Combine::Merge {
        let reason = "the mean of models from different starts is no model; use `average`, `vote` or `stack`";
        refuse("strategy.ensemble.combine", reason.into());
    }
    answers_together(job, refuse);
}

/// The predictions of several models are combined, and evaluated by a loss that follows from them.
pub(super) fn answers_together(job: &JobSpec, refuse: &mut Refuse<'_>) {
    if job.ensemble.combine != Combine::Stack
        && job.ensemble.stack_share != JobSpec::default().ensemble.stack_share
    {
        let reason = "no rows are held out where nothing is learned; drop this key, or set strategy.ensemble.combine = \"stack\"";
        refuse("strategy.ensemble.stack_share", reason.into());
    }
    if let Some(loss) = Loss::from_choice(job.model.loss)
        && !loss.is_of_predictions()
        && job.ensemble.combine != Combine::Merge
    {
        let reason = format!(
            "models that answer together have predictions and no scores, so `{}` cannot be evaluated; choose another loss",
            loss.name()
        );
        refuse("model.loss", reason);
    }
}

/// A strategy without an exchange.
pub(super) fn one_worker(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let workers = job.engine.workers;
    if workers > 1 {
        refuse(
            "strategy.exchange.kind",
            format!("`none` is for one worker, but there are {workers}; use `allreduce` or --workers 1"),
        );
    }
}
