//! Checks of cores, memory and shared memory against the needs of the job.

use super::check::Check;
use crate::view::formatting::{bytes, counted};
use thalweg_cluster::linux::Machine;
use thalweg_core::JobSpec;

/// Shared memory below which a warning is given: the default of containers is 64 MiB.
const MIN_SHARED: u64 = 256 << 20;

/// The checks; `here`: all workers of the job would run on this machine.
pub(super) fn checks(machine: &Machine, spec: &JobSpec, here: bool) -> Vec<Check> {
    let workers = if here { spec.engine.workers } else { 1 };
    vec![cores(machine, workers), memory(machine, spec, workers), shared_memory(machine)]
}

fn cores(machine: &Machine, workers: usize) -> Check {
    let mut found = counted(machine.cores as u64, "core");
    if machine.affinity < machine.cores {
        found += &format!(", {} allowed by affinity", machine.affinity);
    }
    if let Some(quota) = machine.quota {
        found += &format!(", {quota:.1} cores' worth of time by cgroup quota");
    }
    let usable = machine.usable_cores();
    if workers as f64 <= usable {
        return Check::ok("cores", found);
    }
    let fitting = (usable.floor() as usize).max(1);
    let found = format!("{found}; the job has {workers} workers");
    Check::warn("cores", found, format!("workers will take turns; --workers {fitting} fits"))
}

fn memory(machine: &Machine, spec: &JobSpec, workers: usize) -> Check {
    let (Some(total), Some(available)) = (machine.memory_total, machine.memory_available) else {
        return Check::ok("memory", "not reported by this system");
    };
    let mut found = format!("{} of {} available", bytes(available), bytes(total));
    if let Some(limit) = machine.memory_limit.filter(|limit| *limit < total) {
        found += &format!(", limited to {} by cgroup", bytes(limit));
    }
    let usable = machine.memory_limit.map_or(available, |limit| limit.min(available));
    let wanted = spec.data.memory.0.saturating_mul(workers as u64);
    if wanted <= usable {
        return Check::ok("memory", found);
    }
    let found = format!(
        "{found}; data.memory allows {} x {}",
        counted(workers as u64, "worker"),
        bytes(spec.data.memory.0)
    );
    Check::warn("memory", found, "lower data.memory if the data is that large; the rest streams from disk")
}

fn shared_memory(machine: &Machine) -> Check {
    const NAME: &str = "shared memory";
    let (Some(total), Some(available)) = (machine.shm_total, machine.shm_available) else {
        return Check::warn(NAME, "there is no /dev/shm", "mount a tmpfs there; tcp works without");
    };
    let found = format!("{} of {} available in /dev/shm", bytes(available), bytes(total));
    if available < MIN_SHARED {
        return Check::warn(NAME, found, "in a container, start it with --shm-size=1g; tcp works without");
    }
    Check::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn machine() -> Machine {
        Machine {
            cores: 8,
            affinity: 8,
            memory_total: Some(16 << 30),
            memory_available: Some(8 << 30),
            shm_total: Some(8 << 30),
            shm_available: Some(8 << 30),
            ..Machine::default()
        }
    }

    fn verdicts(machine: &Machine, workers: usize, here: bool) -> Vec<Verdict> {
        let mut spec = JobSpec::default();
        spec.engine.workers = workers;
        checks(machine, &spec, here).iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn sufficient_resources_pass() {
        assert_eq!(verdicts(&machine(), 4, true), [Verdict::Ok; 3]);
        assert_eq!(verdicts(&machine(), 400, false), [Verdict::Ok; 3], "the others run elsewhere");
    }

    #[test]
    fn cgroup_limits_are_warnings() {
        let tight = Machine {
            quota: Some(1.5),
            memory_limit: Some(1 << 30),
            shm_available: Some(64 << 20),
            ..machine()
        };
        assert_eq!(verdicts(&tight, 2, true), [Verdict::Warn; 3]);
        let found = cores(&tight, 2);
        assert_eq!(found.found, "8 cores, 1.5 cores' worth of time by cgroup quota; the job has 2 workers");
        assert!(found.advice.unwrap().contains("--workers 1"));
    }
}
