//! The rank of this process, from the variables of its launcher: torchrun, mpirun, srun, Kubernetes, or our own.
//!
//! Launchers nest, and processes inherit the variables of all; the innermost launcher must win:
//!
//! - `RANK` comes first: torchrun, or our own launcher, which may itself run in an allocation of Slurm.
//! - Then Open MPI's variables, which only its mpirun (or PRRTE) sets.
//! - `PMI_RANK` is set by the mpirun of MPICH and its relatives, and by `srun --mpi=pmi2`. The former also sets
//!   `MPI_LOCALNRANKS`, and then has precedence: within Slurm it starts one helper per host through srun, whose
//!   `SLURM_PROCID` all ranks of a host inherit. The latter does not set it; then Slurm's own variables have precedence.
//! - `SLURM_PROCID` where srun started this process (`slurm.rs`).
//! - Last, the variables of Kubernetes pods (`pods.rs`).

mod pods;
mod slurm;

use crate::launcher_connection;
use std::net::IpAddr;
use std::path::PathBuf;
use thalweg_core::{Error, Result};

/// Rank 0's port unless MASTER_PORT is set.
pub const PORT: u16 = 29500;

/// Ports next to MASTER_PORT that rank 0 may use under a torchrun whose agent holds MASTER_PORT itself.
const AGENT_PORTS: u16 = 16;

/// Where rank 0 listens for the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousEndpoint {
    At {
        /// Name or address.
        host: String,
        /// First port to try; 0: any.
        port: u16,
        /// Last port to try; the first free one is used.
        last: u16,
    },
    /// Rank 0 uses any port and writes its address to this file.
    InFile(PathBuf),
    /// Rank 0 uses any loopback port, and the launcher passes its address on.
    ByLauncher,
}

impl RendezvousEndpoint {
    pub fn at(host: impl Into<String>, port: u16) -> RendezvousEndpoint {
        RendezvousEndpoint::At { host: host.into(), port, last: port }
    }
}

/// This process's rank and rendezvous, as its launcher set them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnvironment {
    pub rank: usize,
    pub world: usize,
    pub endpoint: RendezvousEndpoint,
    /// Whether all ranks are known to be on this host.
    pub local: bool,
    /// The launcher's name in messages.
    pub launcher: &'static str,
    /// Whether it joins a running group.
    pub joins: bool,
    /// Distinguishes this attempt from other jobs and earlier attempts on the same ports; empty if the launcher has no
    /// id for it.
    pub run: String,
}

/// Looks up an environment variable; tests pass their own.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The rank a launcher assigned to this process; None if it was started without one.
pub fn detect(variable: Lookup<'_>) -> Result<Option<RankEnvironment>> {
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
        let launcher = match (set(launcher_connection::VARIABLE), set(TORCHRUN)) {
            (Some(_), _) => "thalweg",
            (None, Some(_)) => "torchrun",
            (None, None) => "torchrun-style variables",
        };
        let local = number("LOCAL_WORLD_SIZE")? == Some(world);
        let environment = RankEnvironment {
            rank,
            world,
            endpoint: beside_agent(endpoint(&set)?, &set),
            local,
            launcher,
            joins: set(launcher_connection::JOINS).is_some(),
            run: attempt(&set),
        };
        Some((environment, ["RANK", "WORLD_SIZE"]))
    } else if let (Some(rank), Some(world)) =
        (number("OMPI_COMM_WORLD_RANK")?, number("OMPI_COMM_WORLD_SIZE")?)
    {
        let environment = mpi(rank, world, number("OMPI_COMM_WORLD_LOCAL_SIZE")?, &set)?;
        Some((environment, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]))
    } else if let (Some(rank), Some(world), true) = (number("PMI_RANK")?, number("PMI_SIZE")?, by_mpirun) {
        Some((mpi(rank, world, local_size, &set)?, ["PMI_RANK", "PMI_SIZE"]))
    } else if let (Some(rank), Some(world), true) =
        (number("SLURM_PROCID")?, number("SLURM_NTASKS")?, slurm_task)
    {
        Some((slurm::detect(rank, world, &set)?, ["SLURM_PROCID", "SLURM_NTASKS"]))
    } else {
        pods::detect(&number, &set)?
    };
    let Some((environment, [rank, world])) = found else { return Ok(None) };
    if environment.world == 0 {
        return Err(Error::job(format!("{world}=0: a job has at least one rank")));
    }
    if environment.rank >= environment.world && !environment.joins {
        let (RankEnvironment { rank: number, world: count, .. }, last) =
            (&environment, environment.world - 1);
        return Err(Error::job(format!("{rank}={number}, but {world}={count}: ranks are 0 to {last}")));
    }
    check_loopback(&environment, number("LOCAL_WORLD_SIZE")?)?;
    Ok(Some(RankEnvironment {
        local: environment.local || is_loopback(&environment.endpoint),
        ..environment
    }))
}

/// Whether the launcher reports ranks on several hosts, so that they need a token. The address of rank 0's name does
/// not show it: a host's own name often resolves to loopback.
pub fn is_spread(environment: &RankEnvironment) -> bool {
    matches!(environment.launcher, "srun" | "mpirun") && environment.world > 1 && !environment.local
}

/// Ranks that use a loopback endpoint are on one host.
fn is_loopback(endpoint: &RendezvousEndpoint) -> bool {
    match endpoint {
        RendezvousEndpoint::At { host, .. } => {
            host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        }
        RendezvousEndpoint::InFile(_) => false,
        RendezvousEndpoint::ByLauncher => true,
    }
}

/// Refuses a loopback MASTER_ADDR for several hosts. Debian resolves a host's own name to 127.0.1.1, which so gets into
/// MASTER_ADDR; 127.0.0.1 is accepted where only torchrun's variables distinguish hosts, as it may be intended.
fn check_loopback(environment: &RankEnvironment, local_world: Option<usize>) -> Result<()> {
    let RendezvousEndpoint::At { host, .. } = &environment.endpoint else { return Ok(()) };
    let usual = ["localhost", "127.0.0.1", "::1"].contains(&host.as_str());
    let spread = is_spread(environment);
    let several = spread || local_world.is_some_and(|local| local < environment.world);
    if !several || !is_loopback(&environment.endpoint) || (usual && !spread) {
        return Ok(());
    }
    Err(Error::job(format!("MASTER_ADDR={host} is a loopback address, but the ranks are on several hosts"))
        .hint("set it to a name or an address of the host of rank 0 that the others can reach (`hostname -i` may give 127.0.1.1)"))
}

type Set<'a> = &'a dyn Fn(&str) -> Option<String>;

fn endpoint(set: Set<'_>) -> Result<RendezvousEndpoint> {
    if set(launcher_connection::VARIABLE).is_some() && set("MASTER_ADDR").is_none() {
        return Ok(RendezvousEndpoint::ByLauncher);
    }
    Ok(RendezvousEndpoint::at(set("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into()), port(set, PORT)?))
}

fn port(set: Set<'_>, default: u16) -> Result<u16> {
    match set("MASTER_PORT") {
        Some(text) => text.parse().map_err(|_| Error::job(format!("MASTER_PORT={text} is not a port"))),
        None => Ok(default),
    }
}

/// Set only by torchrun.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// torchrun's agent often listens on MASTER_PORT itself: rank 0 then uses one of the ports next to it.
fn beside_agent(endpoint: RendezvousEndpoint, set: Set<'_>) -> RendezvousEndpoint {
    match endpoint {
        RendezvousEndpoint::At { host, port, .. }
            if set("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|used| used.eq_ignore_ascii_case("true")) =>
        {
            let before = port.min(u16::MAX - AGENT_PORTS);
            // At the end of the port range, those below it.
            let before = if before < port { port - AGENT_PORTS - 1 } else { port };
            RendezvousEndpoint::At { host, port: before + 1, last: before + AGENT_PORTS }
        }
        other => other,
    }
}

/// torchrun's run id and restart count.
fn attempt(set: Set<'_>) -> String {
    let more = || ["TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"].map(|name| set(name).unwrap_or_default());
    // Runs without a name all have the id `none`, so the port is included.
    set(TORCHRUN).map_or_else(String::new, |run| format!("torchrun {run} {}", more().join(" ")))
}

/// Without a local size and without MASTER_ADDR, all ranks of an mpirun are assumed to be on this host. If that is
/// wrong, the error names the loopback address that was tried.
fn mpi(rank: usize, world: usize, local_size: Option<usize>, set: Set<'_>) -> Result<RankEnvironment> {
    let local = local_size.map_or(set("MASTER_ADDR").is_none(), |size| size == world);
    if !local && set("MASTER_ADDR").is_none() {
        return Err(Error::job("the ranks are on several hosts, but MASTER_ADDR is not set").hint(
            "set MASTER_ADDR to the host of rank 0, e.g. mpirun -x MASTER_ADDR=node1 -x THALWEG_TOKEN",
        ));
    }
    let (endpoint, run) = (endpoint(set)?, String::new());
    let known_spread = local_size.is_some_and(|size| size < world);
    let local = local || (!known_spread && is_loopback(&endpoint));
    Ok(RankEnvironment { rank, world, endpoint, local, launcher: "mpirun", joins: false, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn with(pairs: &[(&str, &str)]) -> Result<Option<RankEnvironment>> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        detect(&|name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
    }

    pub(super) fn at(host: &str, port: u16) -> RendezvousEndpoint {
        RendezvousEndpoint::at(host, port)
    }

    #[test]
    fn without_variables_there_is_no_launcher() {
        assert_eq!(with(&[]).unwrap(), None);
        assert_eq!(with(&[("RANK", "")]).unwrap(), None);
    }

    #[test]
    fn torchrun_variables() {
        let environment =
            with(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "1234")])
                .unwrap()
                .unwrap();
        assert_eq!((environment.rank, environment.world, environment.endpoint), (1, 4, at("n1", 1234)));
        let environment = with(&[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap().unwrap();
        assert_eq!(environment.endpoint, at("127.0.0.1", PORT));
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
        let environment =
            with(&[("RANK", "0"), ("WORLD_SIZE", "2"), (launcher_connection::VARIABLE, "stdin")])
                .unwrap()
                .unwrap();
        assert_eq!((environment.endpoint, environment.launcher), (RendezvousEndpoint::ByLauncher, "thalweg"));
    }

    #[test]
    fn mpirun_is_loopback_only_if_all_are_local() {
        let ranks = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let local = [&ranks[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]].concat();
        assert_eq!(with(&local).unwrap().unwrap().endpoint, at("127.0.0.1", PORT));
        let spread = [&ranks[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
        assert!(with(&spread).unwrap_err().to_string().contains("MASTER_ADDR"));
        let spread = [&spread[..], &[("MASTER_ADDR", "n1")]].concat();
        assert_eq!(with(&spread).unwrap().unwrap().endpoint, at("n1", PORT));
        assert_eq!(with(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).unwrap().unwrap().rank, 1);
    }

    #[test]
    fn an_unknown_local_size_is_local_only_without_master_addr() {
        let ranks = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let environment = with(&ranks).unwrap().unwrap();
        assert_eq!((environment.local, environment.endpoint), (true, at("127.0.0.1", PORT)));
        let environment = with(&[&ranks[..], &[("MASTER_ADDR", "n1")]].concat()).unwrap().unwrap();
        assert_eq!((environment.local, environment.endpoint), (false, at("n1", PORT)));
        let environment = with(&[&ranks[..], &[("MASTER_ADDR", "n1"), ("MPI_LOCALNRANKS", "2")]].concat());
        assert!(environment.unwrap().unwrap().local);
    }

    #[test]
    fn under_a_torchrun_agent_rank_0_uses_the_ports_next_to_master_port() {
        let torchrun = |port: &'static str, store: &'static str| {
            let environment = with(&[
                ("RANK", "1"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "n1"),
                ("MASTER_PORT", port),
                ("TORCHELASTIC_USE_AGENT_STORE", store),
                ("TORCHELASTIC_RUN_ID", "abc"),
                ("TORCHELASTIC_RESTART_COUNT", "2"),
            ]);
            environment.unwrap().unwrap()
        };
        let host = || "n1".to_string();
        let environment = torchrun("29400", "True");
        assert_eq!(environment.endpoint, RendezvousEndpoint::At { host: host(), port: 29401, last: 29416 });
        assert_eq!((environment.launcher, environment.run.as_str()), ("torchrun", "torchrun abc 2 29400"));
        assert_eq!(torchrun("29400", "False").endpoint, at("n1", 29400));
        assert_eq!(
            torchrun("65519", "True").endpoint,
            RendezvousEndpoint::At { host: host(), port: 65520, last: 65535 }
        );
        assert_eq!(
            torchrun("65520", "True").endpoint,
            RendezvousEndpoint::At { host: host(), port: 65504, last: 65519 }
        );
    }

    #[test]
    fn several_hosts_cannot_use_debians_own_loopback_address() {
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
