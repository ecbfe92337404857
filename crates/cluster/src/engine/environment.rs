//! Which rank this process is, as its launcher's variables say: torchrun, mpirun, srun, or our own launcher.
//!
//! Launchers nest, and each leaves its variables to what it starts; the innermost must win:
//!
//! - `RANK` comes first: torchrun, or our own launcher, which may itself run in an allocation of Slurm.
//! - Then Open MPI's variables, which nothing but its mpirun (or PRRTE) sets.
//! - `PMI_RANK` is set by the mpirun of MPICH and its relatives, and by `srun --mpi=pmi2`. The former also says in
//!   `MPI_LOCALNRANKS` how many ranks are on this host, and is then to be believed: within Slurm it starts one helper per
//!   host through srun, whose `SLURM_PROCID` all ranks of a host inherit. The latter does not say it, but then Slurm's own
//!   variables know rank and hosts: they win.
//! - `SLURM_PROCID` alone does not make a task of srun. Slurm sets it, and `SLURM_LOCALID`, to 0 for the script of an
//!   sbatch as well, beside the `SLURM_NTASKS` of the allocation: a plain `thalweg train` in such a script would wait for
//!   ranks that nobody starts. What Slurm's daemon really started has a `SLURM_TASK_PID`, and if it belongs to a step of
//!   srun a `SLURM_STEP_ID` (`SLURM_STEPID` in old versions) too. So: no task is what has the former without the latter,
//!   or a step number from the range that Slurm reserves for scripts and interactive shells. Without either variable
//!   somebody stands in for srun and means what it says.

use crate::uplink;
use thalweg_core::{Error, Result};

/// The port rank 0 listens on unless MASTER_PORT says otherwise.
pub const PORT: u16 = 29500;

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Known beforehand.
    At {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// Rank 0 takes any port of the loopback interface and the launcher passes it on.
    ByLauncher,
}

/// This process's place in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// Where rank 0 listens.
    pub meeting: Meeting,
    /// Whether all ranks are on this machine, as far as known.
    pub local: bool,
    /// Who started it.
    pub launcher: &'static str,
    /// Whether it comes to a group that works already.
    pub joins: bool,
}

/// A way to look up variables; tests bring their own.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The place this process was given, if any.
pub fn detect(variable: Lookup<'_>) -> Result<Option<Place>> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let number = |name: &str| -> Result<Option<usize>> {
        let Some(text) = set(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| Error::job(format!("{name}={text} is not a number")))
    };
    let slurm_task = is_slurm_task(&set);
    let local_size = number("MPI_LOCALNRANKS")?;
    let by_mpirun = local_size.is_some() || !slurm_task;
    let found = if let Some(rank) = number("RANK")? {
        let world = number("WORLD_SIZE")?.ok_or_else(|| {
            Error::job("RANK is set, but WORLD_SIZE is not")
                .hint("set both, or neither to start local workers")
        })?;
        let launcher = if set(uplink::VARIABLE).is_some() { "thalweg" } else { "torchrun" };
        let local = number("LOCAL_WORLD_SIZE")? == Some(world);
        let place = Place {
            rank,
            world,
            meeting: meeting(&set, "127.0.0.1")?,
            local,
            launcher,
            joins: set(uplink::JOINS).is_some(),
        };
        Some((place, ["RANK", "WORLD_SIZE"]))
    } else if let (Some(rank), Some(world)) =
        (number("OMPI_COMM_WORLD_RANK")?, number("OMPI_COMM_WORLD_SIZE")?)
    {
        let place = mpi(rank, world, number("OMPI_COMM_WORLD_LOCAL_SIZE")?, &set)?;
        Some((place, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]))
    } else if let (Some(rank), Some(world), true) = (number("PMI_RANK")?, number("PMI_SIZE")?, by_mpirun) {
        Some((mpi(rank, world, local_size, &set)?, ["PMI_RANK", "PMI_SIZE"]))
    } else if let (Some(rank), Some(world), true) =
        (number("SLURM_PROCID")?, number("SLURM_NTASKS")?, slurm_task)
    {
        Some((slurm(rank, world, &set)?, ["SLURM_PROCID", "SLURM_NTASKS"]))
    } else {
        None
    };
    let Some((place, [rank, world])) = found else { return Ok(None) };
    if place.world == 0 {
        return Err(Error::job(format!("{world}=0: a job has at least one rank")));
    }
    if place.rank >= place.world && !place.joins {
        let (Place { rank: number, world: count, .. }, last) = (&place, place.world - 1);
        return Err(Error::job(format!("{rank}={number}, but {world}={count}: ranks are 0 to {last}")));
    }
    Ok(Some(Place { local: place.local || is_loopback(&place.meeting), ..place }))
}

/// Ranks that meet on the loopback interface are on one machine.
fn is_loopback(meeting: &Meeting) -> bool {
    match meeting {
        Meeting::At { host, .. } => {
            host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        Meeting::ByLauncher => true,
    }
}

type Set<'a> = &'a dyn Fn(&str) -> Option<String>;

fn meeting(set: Set<'_>, default_host: &str) -> Result<Meeting> {
    if set(uplink::VARIABLE).is_some() && set("MASTER_ADDR").is_none() {
        return Ok(Meeting::ByLauncher);
    }
    Ok(Meeting::At {
        host: set("MASTER_ADDR").unwrap_or_else(|| default_host.into()),
        port: port(set, PORT)?,
    })
}

fn port(set: Set<'_>, default: u16) -> Result<u16> {
    match set("MASTER_PORT") {
        Some(text) => text.parse().map_err(|_| Error::job(format!("MASTER_PORT={text} is not a port"))),
        None => Ok(default),
    }
}

/// Ranks of an mpirun that does not say how many are on this host are taken to be all here, unless MASTER_ADDR says
/// that they have somewhere to meet. If that is wrong, the error names the loopback address that was tried.
fn mpi(rank: usize, world: usize, local_size: Option<usize>, set: Set<'_>) -> Result<Place> {
    let local = local_size.map_or(set("MASTER_ADDR").is_none(), |size| size == world);
    if !local && set("MASTER_ADDR").is_none() {
        return Err(Error::job("the ranks are on several hosts, but MASTER_ADDR is not set").hint(
            "set MASTER_ADDR to the host of rank 0, e.g. mpirun -x MASTER_ADDR=node1 -x THALWEG_TOKEN=...",
        ));
    }
    Ok(Place { rank, world, meeting: meeting(set, "127.0.0.1")?, local, launcher: "mpirun", joins: false })
}

/// The first of the step numbers that Slurm keeps for itself: batch scripts, interactive shells and the like.
const RESERVED_STEPS: u32 = 0xffff_fff0;

/// Whether this process is a task that srun started, and not the script or shell of an allocation.
fn is_slurm_task(set: Set<'_>) -> bool {
    if set("SLURM_PROCID").is_none() || set("SLURM_NTASKS").is_none() {
        return false;
    }
    match set("SLURM_STEP_ID").or_else(|| set("SLURM_STEPID")) {
        Some(step) => step.parse().is_ok_and(|step: u32| step < RESERVED_STEPS),
        None => set("SLURM_TASK_PID").is_none(),
    }
}

fn slurm(rank: usize, world: usize, set: Set<'_>) -> Result<Place> {
    let nodes = set("SLURM_JOB_NODELIST").unwrap_or_default();
    let first = first_host(&nodes);
    let local = world == 1 || !several_hosts(&nodes);
    // Two jobs on one node get different ports, every task of one job the same.
    let job: u64 = set("SLURM_JOB_ID").and_then(|id| id.parse().ok()).unwrap_or(0);
    let default = 20_000 + (job % 20_000) as u16;
    let host = set("MASTER_ADDR").unwrap_or_else(|| if local { "127.0.0.1".into() } else { first });
    Ok(Place {
        rank,
        world,
        meeting: Meeting::At { host, port: port(set, default)? },
        local,
        launcher: "srun",
        joins: false,
    })
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
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Option<Place>> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        detect(&|name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
    }

    fn at(host: &str, port: u16) -> Meeting {
        Meeting::At { host: host.into(), port }
    }

    #[test]
    fn nothing_set_means_nobody_started_us() {
        assert_eq!(with(&[]).unwrap(), None);
        assert_eq!(with(&[("RANK", "")]).unwrap(), None);
    }

    #[test]
    fn torchrun_variables() {
        let place =
            with(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "1234")])
                .unwrap()
                .unwrap();
        assert_eq!((place.rank, place.world, place.meeting), (1, 4, at("n1", 1234)));
        let place = with(&[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap().unwrap();
        assert_eq!(place.meeting, at("127.0.0.1", PORT));
        assert!(with(&[("RANK", "0")]).is_err());
        let error = with(&[("RANK", "5"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert_eq!(error.message, "RANK=5, but WORLD_SIZE=2: ranks are 0 to 1");
        let error = with(&[("SLURM_PROCID", "2"), ("SLURM_NTASKS", "2")]).unwrap_err();
        assert_eq!(error.message, "SLURM_PROCID=2, but SLURM_NTASKS=2: ranks are 0 to 1");
        let error = with(&[("RANK", "0"), ("WORLD_SIZE", "0")]).unwrap_err();
        assert_eq!(error.message, "WORLD_SIZE=0: a job has at least one rank");
        assert!(with(&[("RANK", "x"), ("WORLD_SIZE", "2")]).is_err());
    }

    #[test]
    fn our_own_launcher_passes_the_address_on() {
        let place =
            with(&[("RANK", "0"), ("WORLD_SIZE", "2"), (uplink::VARIABLE, "stdin")]).unwrap().unwrap();
        assert_eq!((place.meeting, place.launcher), (Meeting::ByLauncher, "thalweg"));
    }

    #[test]
    fn mpirun_is_loopback_only_if_all_are_local() {
        let ranks = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let local = [&ranks[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]].concat();
        assert_eq!(with(&local).unwrap().unwrap().meeting, at("127.0.0.1", PORT));
        let spread = [&ranks[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
        assert!(with(&spread).unwrap_err().to_string().contains("MASTER_ADDR"));
        let spread = [&spread[..], &[("MASTER_ADDR", "n1")]].concat();
        assert_eq!(with(&spread).unwrap().unwrap().meeting, at("n1", PORT));
        assert_eq!(with(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).unwrap().unwrap().rank, 1);
    }

    #[test]
    fn srun_takes_the_first_host_and_a_port_from_the_job() {
        let place = with(&[
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_NODELIST", "node[03-07,9]"),
            ("SLURM_JOB_ID", "41"),
        ]);
        assert_eq!(place.unwrap().unwrap().meeting, at("node03", 20_041));
        let place = with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", "n1")])
            .unwrap()
            .unwrap();
        assert_eq!(place.meeting, at("127.0.0.1", 20_000));
    }

    #[test]
    fn an_unknown_local_size_is_local_only_without_a_meeting_place() {
        let ranks = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let place = with(&ranks).unwrap().unwrap();
        assert_eq!((place.local, place.meeting), (true, at("127.0.0.1", PORT)));
        let place = with(&[&ranks[..], &[("MASTER_ADDR", "n1")]].concat()).unwrap().unwrap();
        assert_eq!((place.local, place.meeting), (false, at("n1", PORT)));
        let place = with(&[&ranks[..], &[("MASTER_ADDR", "n1"), ("MPI_LOCALNRANKS", "2")]].concat());
        assert!(place.unwrap().unwrap().local);
    }

    /// What a task of srun has on two hosts.
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
    fn slurm_knows_better_than_its_own_pmi_but_not_than_an_mpirun_within_it() {
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
        let place = with(&[&TASK[..], &pmi].concat()).unwrap().unwrap();
        assert_eq!((place.launcher, place.meeting), ("srun", at("n1", 20_041)));
        // MPICH's helpers are the tasks of srun, one per host; its ranks inherit their numbers.
        let mpirun = [("PMI_RANK", "7"), ("PMI_SIZE", "8"), ("MPI_LOCALNRANKS", "4"), ("MASTER_ADDR", "n1")];
        let place = with(&[&TASK[..], &mpirun].concat()).unwrap().unwrap();
        assert_eq!((place.launcher, place.rank, place.world), ("mpirun", 7, 8));
        // An mpirun in a script of sbatch, without srun's help.
        let script = [&TASK[..6], &pmi].concat();
        assert_eq!(with(&script).unwrap().unwrap().launcher, "mpirun");
    }

    #[test]
    fn the_script_of_an_sbatch_is_no_task() {
        let script = &TASK[..6];
        assert_eq!(with(script).unwrap(), None);
        // An interactive shell, by its reserved step number.
        assert_eq!(with(&[script, &[("SLURM_STEP_ID", "4294967290")]].concat()).unwrap(), None);
        let old = [script, &[("SLURM_STEPID", "2")]].concat();
        assert_eq!(with(&old).unwrap().unwrap().rank, 3);
        assert_eq!(with(&TASK).unwrap().unwrap().rank, 3);
        // Somebody who stands in for srun sets what names a rank, and no more.
        assert_eq!(with(&TASK[..5]).unwrap().unwrap().rank, 3);
        // What our launcher starts in such a script is a rank all the same.
        let worker = [script, &[("RANK", "0"), ("WORLD_SIZE", "2"), (uplink::VARIABLE, "stdin")]].concat();
        assert_eq!(with(&worker).unwrap().unwrap().launcher, "thalweg");
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
