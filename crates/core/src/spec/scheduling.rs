//! `[strategy.scheduling]`: how far workers of a server may be apart, and what becomes of their updates.

use super::section::section;
use super::setting::{Auto, choice};
use super::strategy::Scheduling;
use super::{JobSpec, Refuse};

choice! {
    /// When the updates of workers have their effect.
    Apply {
        /// The updates of all workers for the same clock together, when they have arrived.
        PerClock = "per_clock",
        /// Each as it arrives.
        PerPush = "per_push",
    }
}

choice! {
    /// What a worker pushes.
    Push {
        /// The gradient: the server updates the parameters, and every answer has them.
        Gradient = "gradient",
        /// The change that its own update makes in its copy of the parameters: the server adds it, and the worker reads its copy for as long as the bound allows.
        Delta = "delta",
    }
}

choice! {
    /// Which of the updates that wait for a server it applies first.
    QueueOrder {
        /// The one that arrived first.
        Arrival = "arrival",
        /// The one that most others have overtaken.
        Staleness = "staleness",
    }
}

choice! {
    /// What becomes of a gradient that a quorum has not waited for.
    Late {
        /// The worker completes it, and it is dropped.
        Finish = "finish",
        /// The worker is told, and begins the current clock without completing it.
        Abandon = "abandon",
    }
}

section! {
    /// Synchronization between steps.
    "strategy.scheduling" SchedulingSpec {
        /// The kind of synchronization.
        kind: Scheduling = Scheduling::Bsp;
        /// With ssp and essp: the clocks that a worker may be ahead of the slowest one.
        staleness: u64 = 3;
        /// With quorum: the workers that a clock waits for. auto: all but one.
        quorum: Auto<usize> = Auto::Auto;
        /// With quorum: what a worker does whose clock is closed without its gradient.
        late: Late = Late::Finish;
        /// With a server and workers at different clocks: the share of its rows with which an epoch ends; the others are dropped.
        epoch_fraction: f64 = 1.0;
        /// With async: gradients that a worker adds up for a push.
        n_push: usize = 1;
        /// With async: gradients that a worker computes until it fetches the parameters, a multiple of n_push. If it is more than one, the worker updates its copy by each of them, as plain SGD does.
        n_fetch: usize = 1;
        /// With async: which of the updates that wait for the server it applies first.
        queue: QueueOrder = QueueOrder::Arrival;
        /// With a server that applies each push as it arrives: gradients that more than so many updates have overtaken are dropped.
        max_age: Option<u64> = None;
    }
}

impl SchedulingSpec {
    /// The workers of so many that a clock does not wait for.
    pub fn backups(&self, workers: usize) -> usize {
        workers.saturating_sub(self.quorum.or(workers.saturating_sub(1).max(1)))
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let (workers, SchedulingSpec { kind, epoch_fraction, .. }) = (spec.engine.workers, &spec.scheduling);
    if let Auto::Is(quorum) = spec.scheduling.quorum
        && !(1..=workers).contains(&quorum)
    {
        let reason = format!("must be between 1 and the number of workers, {workers}, is {quorum}");
        refuse("strategy.scheduling.quorum", reason);
    }
    if !(*epoch_fraction > 0.0 && *epoch_fraction <= 1.0) {
        let reason = format!("must be above 0 and at most 1, is {epoch_fraction}");
        refuse("strategy.scheduling.epoch_fraction", reason);
    }
    let SchedulingSpec { n_push, n_fetch, .. } = spec.scheduling;
    if n_push == 0 {
        refuse("strategy.scheduling.n_push", "must be at least 1, is 0".into());
    } else if n_fetch == 0 || !n_fetch.is_multiple_of(n_push) {
        let reason = format!(
            "must be a multiple of n_push, {n_push}, is {n_fetch}: parameters are fetched with a push"
        );
        refuse("strategy.scheduling.n_fetch", reason);
    }
    let defaults = SchedulingSpec::default();
    let bounded = matches!(kind, Scheduling::Ssp | Scheduling::Essp);
    for (key, is_set, is_used, of) in [
        ("staleness", spec.scheduling.staleness != defaults.staleness, bounded, "ssp and essp"),
        ("quorum", spec.scheduling.quorum != defaults.quorum, *kind == Scheduling::Quorum, "quorum"),
        ("late", spec.scheduling.late != defaults.late, *kind == Scheduling::Quorum, "quorum"),
        ("n_push", spec.scheduling.n_push != 1, *kind == Scheduling::Async, "async"),
        ("n_fetch", spec.scheduling.n_fetch != 1, *kind == Scheduling::Async, "async"),
        ("queue", spec.scheduling.queue != defaults.queue, *kind == Scheduling::Async, "async"),
        ("epoch_fraction", *epoch_fraction != 1.0, *kind != Scheduling::Bsp, "async, ssp, essp and quorum"),
    ] {
        if is_set && !is_used {
            let reason = format!(
                "is a setting of {of}, but strategy.scheduling.kind is `{}`; drop one of the two",
                kind.name()
            );
            refuse(&format!("strategy.scheduling.{key}"), reason);
        }
    }
}
