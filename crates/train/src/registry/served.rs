//! Rules between the settings of parameter servers.

use thalweg_core::JobSpec;
use thalweg_core::spec::Refuse;

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
