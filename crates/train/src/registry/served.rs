//! Rules between the settings of parameter servers, and what other strategies refuse of them.

use super::Registration;
use thalweg_core::JobSpec;
use thalweg_core::spec::Refuse;
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::spec::scheduling::{Apply, Push};
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
    if job.scheduling.epoch_fraction != 1.0 && !(is_served && strategy.claims.at_own_speed()) {
        let reason = format!(
            "`{name}` computes all rows of an epoch; only a parameter server with async, ssp, essp or quorum leaves some out"
        );
        refuse("strategy.scheduling.epoch_fraction", reason);
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
    if job.strategy.push(kind) == Push::Delta && matches!(kind, Scheduling::Bsp | Scheduling::Async) {
        refuse("strategy.push", format!("workers of `{name}` push gradients; use ssp, essp or quorum"));
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
    whole_norm(job, refuse);
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
