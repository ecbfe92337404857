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
//! - `SLURM_PROCID` where srun started this process (`slurm.rs`).
//! - Last, what the pods of Kubernetes have (`pods.rs`).

mod pods;
mod slurm;

use crate::uplink;
use std::net::IpAddr;
use std::path::PathBuf;
use thalweg_core::{Error, Result};

/// The port rank 0 listens on unless MASTER_PORT says otherwise.
pub const PORT: u16 = 29500;

/// Ports beside its own that rank 0 may take under a torchrun whose agent holds the one it tells.
const AGENT_PORTS: u16 = 16;

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Known beforehand.
    At {
        /// Name or address.
        host: String,
        /// Port; 0: any.
        port: u16,
        /// The last of the ports of which it takes the first that is free.
        last: u16,
    },
    /// Rank 0 takes any port and writes its address to this file.
    InFile(PathBuf),
    /// Rank 0 takes any port of the loopback interface and the launcher passes it on.
    ByLauncher,
}

impl Meeting {
    /// At this port and no other.
    pub fn at(host: impl Into<String>, port: u16) -> Meeting {
        Meeting::At { host: host.into(), port, last: port }
    }
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
    /// Tells this attempt at the job from other jobs and earlier attempts that may listen on the same ports; empty if the
    /// launcher has no name for it.
    pub run: String,
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
    let slurm_task = slurm::is_task(&set);
    let local_size = number("MPI_LOCALNRANKS")?;
    let by_mpirun = local_size.is_some() || !slurm_task;
    let found = if let Some(rank) = number("RANK")? {
        let world = number("WORLD_SIZE")?.ok_or_else(|| {
            Error::job("RANK is set, but WORLD_SIZE is not")
                .hint("set both, or neither to start local workers")
        })?;
        let launcher = match (set(uplink::VARIABLE), set(TORCHRUN)) {
            (Some(_), _) => "thalweg",
            (None, Some(_)) => "torchrun",
            (None, None) => "torchrun-style variables",
        };
        let local = number("LOCAL_WORLD_SIZE")? == Some(world);
        let place = Place {
            rank,
            world,
            meeting: beside_agent(meeting(&set)?, &set),
            local,
            launcher,
            joins: set(uplink::JOINS).is_some(),
            run: attempt(&set),
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
        Some((slurm::place(rank, world, &set)?, ["SLURM_PROCID", "SLURM_NTASKS"]))
    } else {
        pods::place(&number, &set)?
    };
    let Some((place, [rank, world])) = found else { return Ok(None) };
    if place.world == 0 {
        return Err(Error::job(format!("{world}=0: a job has at least one rank")));
    }
    if place.rank >= place.world && !place.joins {
        let (Place { rank: number, world: count, .. }, last) = (&place, place.world - 1);
        return Err(Error::job(format!("{rank}={number}, but {world}={count}: ranks are 0 to {last}")));
    }
    check_loopback(&place, number("LOCAL_WORLD_SIZE")?)?;
    Ok(Some(Place { local: place.local || is_loopback(&place.meeting), ..place }))
}

/// Whether the launcher knows that ranks come from other machines, so that they need a token: where rank 0's name leads
/// does not tell, as a host's own often leads to itself.
pub fn is_spread(place: &Place) -> bool {
    matches!(place.launcher, "srun" | "mpirun") && place.world > 1 && !place.local
}

/// Ranks that meet on the loopback interface are on one machine.
fn is_loopback(meeting: &Meeting) -> bool {
    match meeting {
        Meeting::At { host, .. } => {
            host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        }
        Meeting::InFile(_) => false,
        Meeting::ByLauncher => true,
    }
}

/// On several hosts a loopback address leads each to itself. Debian's own name for a host leads to 127.0.1.1, which so
/// gets into MASTER_ADDR; the usual 127.0.0.1 may be meant where only variables of torchrun tell the hosts apart.
fn check_loopback(place: &Place, local_world: Option<usize>) -> Result<()> {
    let Meeting::At { host, .. } = &place.meeting else { return Ok(()) };
    let usual = ["localhost", "127.0.0.1", "::1"].contains(&host.as_str());
    let spread = is_spread(place);
    let several = spread || local_world.is_some_and(|local| local < place.world);
    if !several || !is_loopback(&place.meeting) || (usual && !spread) {
        return Ok(());
    }
    Err(Error::job(format!("MASTER_ADDR={host} is a loopback address, but the ranks are on several hosts"))
        .hint("set it to a name or an address of the host of rank 0 that the others can reach (`hostname -i` may give 127.0.1.1)"))
}

type Set<'a> = &'a dyn Fn(&str) -> Option<String>;

fn meeting(set: Set<'_>) -> Result<Meeting> {
    if set(uplink::VARIABLE).is_some() && set("MASTER_ADDR").is_none() {
        return Ok(Meeting::ByLauncher);
    }
    Ok(Meeting::at(set("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into()), port(set, PORT)?))
}

fn port(set: Set<'_>, default: u16) -> Result<u16> {
    match set("MASTER_PORT") {
        Some(text) => text.parse().map_err(|_| Error::job(format!("MASTER_PORT={text} is not a port"))),
        None => Ok(default),
    }
}

/// What only torchrun sets.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// The agent of a torchrun often listens on MASTER_PORT itself: rank 0 takes one of the ports beside it.
fn beside_agent(meeting: Meeting, set: Set<'_>) -> Meeting {
    match meeting {
        Meeting::At { host, port, .. }
            if set("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|used| used.eq_ignore_ascii_case("true")) =>
        {
            let before = port.min(u16::MAX - AGENT_PORTS);
            // At the end of the range, those below it.
            let before = if before < port { port - AGENT_PORTS - 1 } else { port };
            Meeting::At { host, port: before + 1, last: before + AGENT_PORTS }
        }
        other => other,
    }
}

/// The run of torchrun, and which attempt at it this is.
fn attempt(set: Set<'_>) -> String {
    let more = || ["TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"].map(|name| set(name).unwrap_or_default());
    // Runs that their user gave no name are all called `none`.
    set(TORCHRUN).map_or_else(String::new, |run| format!("torchrun {run} {}", more().join(" ")))
}

/// Ranks of an mpirun that does not say how many are on this host are taken to be all here, unless MASTER_ADDR says
/// that they have somewhere to meet. If that is wrong, the error names the loopback address that was tried.
fn mpi(rank: usize, world: usize, local_size: Option<usize>, set: Set<'_>) -> Result<Place> {
    let local = local_size.map_or(set("MASTER_ADDR").is_none(), |size| size == world);
    if !local && set("MASTER_ADDR").is_none() {
        return Err(Error::job("the ranks are on several hosts, but MASTER_ADDR is not set").hint(
            "set MASTER_ADDR to the host of rank 0, e.g. mpirun -x MASTER_ADDR=node1 -x THALWEG_TOKEN",
        ));
    }
    let (meeting, run) = (meeting(set)?, String::new());
    let known_spread = local_size.is_some_and(|size| size < world);
    let local = local || (!known_spread && is_loopback(&meeting));
    Ok(Place { rank, world, meeting, local, launcher: "mpirun", joins: false, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn with(pairs: &[(&str, &str)]) -> Result<Option<Place>> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        detect(&|name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
    }

    pub(super) fn at(host: &str, port: u16) -> Meeting {
        Meeting::at(host, port)
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
    fn an_unknown_local_size_is_local_only_without_a_meeting_place() {
        let ranks = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let place = with(&ranks).unwrap().unwrap();
        assert_eq!((place.local, place.meeting), (true, at("127.0.0.1", PORT)));
        let place = with(&[&ranks[..], &[("MASTER_ADDR", "n1")]].concat()).unwrap().unwrap();
        assert_eq!((place.local, place.meeting), (false, at("n1", PORT)));
        let place = with(&[&ranks[..], &[("MASTER_ADDR", "n1"), ("MPI_LOCALNRANKS", "2")]].concat());
        assert!(place.unwrap().unwrap().local);
    }

    #[test]
    fn a_torchrun_whose_agent_holds_the_port_leaves_those_beside_it() {
        let torchrun = |port: &'static str, store: &'static str| {
            let place = with(&[
                ("RANK", "1"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "n1"),
                ("MASTER_PORT", port),
                ("TORCHELASTIC_USE_AGENT_STORE", store),
                ("TORCHELASTIC_RUN_ID", "abc"),
                ("TORCHELASTIC_RESTART_COUNT", "2"),
            ]);
            place.unwrap().unwrap()
        };
        let host = || "n1".to_string();
        let place = torchrun("29400", "True");
        assert_eq!(place.meeting, Meeting::At { host: host(), port: 29401, last: 29416 });
        assert_eq!((place.launcher, place.run.as_str()), ("torchrun", "torchrun abc 2 29400"));
        assert_eq!(torchrun("29400", "False").meeting, at("n1", 29400));
        assert_eq!(torchrun("65519", "True").meeting, Meeting::At { host: host(), port: 65520, last: 65535 });
        assert_eq!(torchrun("65520", "True").meeting, Meeting::At { host: host(), port: 65504, last: 65519 });
    }

    #[test]
    fn what_debian_calls_itself_is_no_place_for_several_hosts_to_meet() {
        let ranks = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")];
        let error = with(&[&ranks[..], &[("MASTER_ADDR", "127.0.1.1")]].concat()).unwrap_err();
        assert!(error.message.contains("MASTER_ADDR=127.0.1.1 is a loopback address"), "{error}");
        let usual = with(&[&ranks[..], &[("MASTER_ADDR", "127.0.0.1")]].concat()).unwrap().unwrap();
        assert!(usual.local, "two groups of ranks on one machine");
        let alone = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.1.1")];
        assert!(with(&alone).unwrap().unwrap().local);
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("MASTER_ADDR", "127.0.1.1"),
        ];
        assert!(with(&mpirun).unwrap_err().message.contains("loopback"));
    }
}
