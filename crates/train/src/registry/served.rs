//! Rules between the settings of parameter servers, and what other strategies refuse of them.

use super::Registration;
use thalweg_core::JobSpec;
use thalweg_core::spec::Refuse;
use thalweg_core::spec::mitigation::UpdateRate;
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::spec::scheduling::{Apply, Late, Push, QueueOrder};
use thalweg_core::spec::setting::Auto;
use thalweg_core::spec::strategy::Scheduling;
use thalweg_graph::optimizer::GradientTransform;

/// Refuses settings of updates by a server where there is none, or none that has them.
pub(super) fn updates(job: &JobSpec, strategy: &Registration, refuse: &mut Refuse<'_>) {
    let (kind, name) = (job.scheduling.kind, strategy.name);
    let is_served = strategy.claims.servers > 0 && !strategy.claims.local_updates;
    for (key, is_set) in [
        ("strategy.apply", job.strategy.apply != Auto::Auto),
        ("strategy.push", job.strategy.push != Auto::Auto),
    ] {
        if is_set && !is_served {
            refuse(key, format!("is a setting of parameter servers, and `{name}` is none; drop this key"));
        }
    }
    let own = &job.scheduling;
    if own.late == Late::Abandon && job.engine.progress_thread {
        let reason = "is for models that call no hook during the pass, and such a pass cannot be abandoned; use strategy.scheduling.late = \"finish\"";
        refuse("engine.progress_thread", reason.into());
    }
    for (key, is_set) in [
        ("n_push", own.n_push != 1),
        ("n_fetch", own.n_fetch != 1),
        ("queue", own.queue != QueueOrder::Arrival),
    ] {
        if is_set && !is_served {
            let reason = format!(
                "is a setting of asynchronous parameter servers, and `{name}` is none; drop this key"
            );
            refuse(&format!("strategy.scheduling.{key}"), reason);
        }
    }
    if job.scheduling.epoch_fraction != 1.0 && !(is_served && strategy.claims.at_own_speed()) {
        let reason = format!(
            "`{name}` computes all rows of an epoch; only a parameter server with async, ssp, essp or quorum leaves some out"
        );
        refuse("strategy.scheduling.epoch_fraction", reason);
    }
    let applies_each = is_served && job.strategy.apply(kind) == Apply::PerPush;
    if job.scheduling.max_age.is_some() && !applies_each {
        let reason = format!("`{name}` waits for all updates of a clock, so none is too old; drop this key");
        refuse("strategy.scheduling.max_age", reason);
    }
    if !is_served {
        return;
    }
    match (kind, job.strategy.apply(kind)) {
        (Scheduling::Bsp | Scheduling::Quorum, Apply::PerPush) => {
            let reason = format!("`{}` waits for the gradients of a clock to add them up; use per_clock", kind.name());
            refuse("strategy.apply", reason);
        }
        (Scheduling::Async, Apply::PerClock) => refuse(
            "strategy.apply",
            "`async` has no clocks that updates could wait for; use per_push, or strategy.scheduling.kind = \"ssp\"".into(),
        ),
        _ => {}
    }
    if job.strategy.push(kind) == Push::Delta && kind == Scheduling::Bsp {
        refuse(
            "strategy.push",
            format!("workers of `{name}` push gradients; use async, ssp, essp or quorum"),
        );
    }
    let transform = GradientTransform::of(job);
    let changes_gradients = transform != GradientTransform::default();
    if job.strategy.push(kind) == Push::Delta && changes_gradients {
        let reason = "every worker would add the whole penalty or decay, and clip its part of a step as if it were all of it; push gradients, or drop train.l1, train.l2, train.clip and weight_decay";
        refuse("strategy.push", reason.into());
    }
    if job.strategy.push(kind) == Push::Delta && !matches!(job.optimizer.rule(), UpdateRule::Sgd { .. }) {
        let optimizer = job.optimizer.kind.name();
        refuse(
            "strategy.push",
            format!("each worker would have state of `{optimizer}` of its own; use sgd, or push gradients"),
        );
    }
}

/// Sending parameters ahead needs copies that workers read.
pub(super) fn eager(job: &JobSpec, refuse: &mut Refuse<'_>) {
    if job.strategy.push(job.scheduling.kind) == Push::Gradient {
        let reason = "with gradients every answer has the parameters, so there is nothing to send ahead; use delta, or strategy.scheduling.kind = \"ssp\"";
        refuse("strategy.push", reason.into());
    }
    mitigation(job, refuse);
}

/// Mitigation changes single gradients as they are applied.
pub(super) fn mitigation(job: &JobSpec, refuse: &mut Refuse<'_>) {
    whole_norm(job, refuse);
    let (kind, own) = (job.scheduling.kind, &job.mitigation);
    let is_single = job.strategy.apply(kind) == Apply::PerPush && job.strategy.push(kind) == Push::Gradient;
    for (key, is_set) in [
        ("mitigation.learning_rate", own.learning_rate != UpdateRate::Constant),
        ("mitigation.delay_compensation", own.delay_compensation != 0.0),
        (
            "scheduling.max_age",
            job.scheduling.max_age.is_some() && job.strategy.apply(kind) == Apply::PerPush,
        ),
    ] {
        if is_set && job.scheduling.n_fetch > job.scheduling.n_push {
            let reason = "needs the age of gradients, which counts a worker's own pushes between two fetches, too; fetch as often as you push";
            refuse(&format!("strategy.{key}"), reason.into());
        }
        if is_set && !is_single {
            let reason = "needs gradients that the server applies one by one; use strategy.apply = \"per_push\" and strategy.push = \"gradient\"";
            refuse(&format!("strategy.{key}"), reason.into());
        }
    }
    if job.scheduling.max_age.is_some() && kind == Scheduling::Async && job.servers.count > 1 {
        let reason = "asynchronous servers do not ask each other, so one would drop its part of an update and another would not; use one server, or strategy.scheduling.kind = \"ssp\"";
        refuse("strategy.scheduling.max_age", reason.into());
    }
}

/// Each of several servers has a part of the gradient.
pub(super) fn whole_norm(job: &JobSpec, refuse: &mut Refuse<'_>) {
    let count = job.servers.count;
    if count > 1 && job.clip.norm.is_some() {
        let reason = format!(
            "is {count}, but train.clip.norm is the norm of the whole gradient, of which each server has a part; use one server, or train.clip.value"
        );
        refuse("strategy.servers.count", reason);
    }
}
