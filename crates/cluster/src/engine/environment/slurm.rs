//! The tasks of Slurm's `srun`.
//!
//! `SLURM_PROCID` alone does not identify a task of srun. Slurm also sets it, and `SLURM_LOCALID`, to 0 for the script
//! of an sbatch, next to the `SLURM_NTASKS` of the allocation: a plain `thalweg train` in such a script would wait for
//! ranks that are never started. Processes started by Slurm's daemon have a `SLURM_TASK_PID`, and those of an srun step
//! also a `SLURM_STEP_ID` (`SLURM_STEPID` in old versions). So a process with the former but not the latter, or with a
//! step id from the range reserved for scripts and interactive shells, is not a task. Without both, another program
//! imitates srun, and its variables are accepted.

use super::{RankEnvironment, RendezvousEndpoint, Set, port};
use thalweg_core::Result;

/// First of the step ids that Slurm reserves for batch scripts, interactive shells and the like.
const RESERVED_STEPS: u32 = 0xffff_fff0;

/// First default port, and number of default ports.
const PORTS: (u64, u64) = (20_000, 20_000);

/// Distance between the ports of two successive jobs; the steps of a job use those in between. Coprime to the number of
/// ports, so that all are used.
const STRIDE: u64 = 101;

/// Whether srun started this process, as opposed to the script or shell of an allocation.
pub(super) fn is_task(set: Set<'_>) -> bool {
    if set("SLURM_PROCID").is_none() || set("SLURM_NTASKS").is_none() {
        return false;
    }
    match step(set) {
        Some(step) => step.parse().is_ok_and(|step: u32| step < RESERVED_STEPS),
        None => set("SLURM_TASK_PID").is_none(),
    }
}

fn step(set: Set<'_>) -> Option<String> {
    set("SLURM_STEP_ID").or_else(|| set("SLURM_STEPID"))
}

/// The rank environment of such a task.
pub(super) fn detect(rank: usize, world: usize, set: Set<'_>) -> Result<RankEnvironment> {
    // A step may run on fewer hosts than its job has.
    let nodes = set("SLURM_STEP_NODELIST").or_else(|| set("SLURM_JOB_NODELIST")).unwrap_or_default();
    let first = first_host(&nodes);
    let local = world == 1 || !several_hosts(&nodes);
    let number = |text: Option<String>| text.and_then(|id| id.parse().ok()).unwrap_or(0u64);
    let (job, step) = (number(set("SLURM_JOB_ID")), number(step(set)));
    let host = set("MASTER_ADDR").unwrap_or_else(|| if local { "127.0.0.1".into() } else { first });
    let attempt = set("SLURM_RESTART_COUNT").unwrap_or_default();
    Ok(RankEnvironment {
        rank,
        world,
        endpoint: RendezvousEndpoint::at(host, port(set, default_port(job, step))?),
        local,
        launcher: "srun",
        joins: false,
        run: set("SLURM_JOB_ID").map_or_else(String::new, |job| format!("slurm {job} {step} {attempt}")),
    })
}

/// Different for two jobs on one node and for two steps of one job, equal for all tasks of a step.
fn default_port(job: u64, step: u64) -> u16 {
    let (first, count) = PORTS;
    (first + (job % count * STRIDE + step) % count) as u16
}

/// The first host of a list such as `node[03-07,9],login`.
fn first_host(list: &str) -> String {
    let Some((prefix, rest)) = list.split_once('[') else {
        return list.split(',').next().unwrap_or("").to_string();
    };
    if let Some((first, _)) = prefix.split_once(',') {
        return first.to_string();
    }
    let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
    let number = inside.split([',', '-']).next().unwrap_or("");
    let suffix = after.split(',').next().unwrap_or("");
    format!("{prefix}{number}{suffix}")
}

fn several_hosts(list: &str) -> bool {
    list.contains(',') || list.split_once('[').is_some_and(|(_, rest)| rest.contains('-'))
}

#[cfg(test)]
mod tests {
    use super::super::launcher_connection;
    use super::super::tests::{at, with};
    use super::*;

    /// The variables of an srun task on two hosts.
    const TASK: [(&str, &str); 7] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_JOB_ID", "41"),
        ("SLURM_TASK_PID", "1234"),
        ("SLURM_STEP_ID", "0"),
    ];

    #[test]
    fn srun_takes_the_first_host_and_a_port_from_job_and_step() {
        let environment = with(&[
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_NODELIST", "node[03-07,9]"),
            ("SLURM_JOB_ID", "41"),
        ]);
        assert_eq!(environment.unwrap().unwrap().endpoint, at("node03", 24_141));
        let environment = with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", "n1")])
            .unwrap()
            .unwrap();
        assert_eq!(environment.endpoint, at("127.0.0.1", 20_000));
        let one_host = [&TASK[..], &[("SLURM_STEP_NODELIST", "n2")]].concat();
        let environment = with(&one_host).unwrap().unwrap();
        assert_eq!(
            (environment.local, environment.endpoint),
            (true, at("127.0.0.1", 24_141)),
            "the step's hosts count"
        );
    }

    #[test]
    fn concurrent_jobs_and_steps_get_different_ports() {
        let mut ports: Vec<u16> =
            (100_000..100_190).flat_map(|job| (0..100).map(move |step| default_port(job, step))).collect();
        assert!(ports.iter().all(|port| (20_000..40_000).contains(port)));
        ports.sort_unstable();
        let all = ports.len();
        ports.dedup();
        assert_eq!(ports.len(), all);
        let step = |step| with(&[&TASK[..6], &[("SLURM_STEP_ID", step)]].concat()).unwrap().unwrap();
        assert_ne!(step("1").endpoint, step("2").endpoint);
        assert_ne!(step("1").run, step("2").run, "so that they do not join each other");
    }

    #[test]
    fn slurm_precedes_its_own_pmi_but_not_an_mpirun_within_it() {
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
        let environment = with(&[&TASK[..], &pmi].concat()).unwrap().unwrap();
        assert_eq!((environment.launcher, environment.endpoint), ("srun", at("n1", 24_141)));
        // MPICH's helpers are the tasks of srun, one per host; its ranks inherit their numbers.
        let mpirun = [("PMI_RANK", "7"), ("PMI_SIZE", "8"), ("MPI_LOCALNRANKS", "4"), ("MASTER_ADDR", "n1")];
        let environment = with(&[&TASK[..], &mpirun].concat()).unwrap().unwrap();
        assert_eq!((environment.launcher, environment.rank, environment.world), ("mpirun", 7, 8));
        // An mpirun in a script of sbatch, without srun's help.
        let script = [&TASK[..6], &pmi].concat();
        assert_eq!(with(&script).unwrap().unwrap().launcher, "mpirun");
    }

    #[test]
    fn the_script_of_an_sbatch_is_not_a_task() {
        let script = &TASK[..6];
        assert_eq!(with(script).unwrap(), None);
        // An interactive shell, by its reserved step number.
        assert_eq!(with(&[script, &[("SLURM_STEP_ID", "4294967290")]].concat()).unwrap(), None);
        let old = [script, &[("SLURM_STEPID", "2")]].concat();
        assert_eq!(with(&old).unwrap().unwrap().rank, 3);
        assert_eq!(with(&TASK).unwrap().unwrap().rank, 3);
        // A program that imitates srun sets only what names a rank.
        assert_eq!(with(&TASK[..5]).unwrap().unwrap().rank, 3);
        // A worker of our own launcher in such a script is a rank all the same.
        let worker =
            [script, &[("RANK", "0"), ("WORLD_SIZE", "2"), (launcher_connection::VARIABLE, "stdin")]]
                .concat();
        assert_eq!(with(&worker).unwrap().unwrap().launcher, "thalweg");
    }

    #[test]
    fn several_hosts_cannot_use_a_loopback_address() {
        for host in ["127.0.1.1", "localhost", "127.0.0.1"] {
            let error = with(&[&TASK[..], &[("MASTER_ADDR", host)]].concat()).unwrap_err();
            assert!(
                error.message.starts_with(&format!("MASTER_ADDR={host} is a loopback address")),
                "{error}"
            );
        }
        let one_host = [&TASK[..], &[("MASTER_ADDR", "127.0.1.1"), ("SLURM_STEP_NODELIST", "n1")]].concat();
        assert!(with(&one_host).unwrap().unwrap().local);
    }

    #[test]
    fn host_lists() {
        for (list, first) in
            [("a", "a"), ("a,b", "a"), ("n[1,3]", "n1"), ("n[08-11]-ib", "n08-ib"), ("x,n[1-2]", "x")]
        {
            assert_eq!(first_host(list), first, "{list}");
        }
    }
}
