//! What a launcher left in the environment.

use super::check::Check;
use crate::survival;
use thalweg_cluster::engine::environment::Place;
use thalweg_cluster::rendezvous::{endpoint, local_token};
use thalweg_core::Result;

/// The variables that are understood.
const VARIABLES: [&str; 29] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NODELIST",
    "JOB_COMPLETION_INDEX",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "THALWEG_HOST",
];

/// Which rank this process would be.
pub(super) fn place(place: &Result<Option<Place>>) -> Check {
    const NAME: &str = "launcher";
    match place {
        Ok(None) => Check::ok(NAME, "none: `thalweg train` starts the workers itself"),
        Ok(Some(place)) => {
            let meeting = match endpoint::of(&place.meeting) {
                Some(endpoint) => format!("rank 0 listens at {endpoint}"),
                None => "the launcher tells where rank 0 listens".into(),
            };
            Check::ok(NAME, format!("{}: rank {} of {}, {meeting}", place.launcher, place.rank, place.world))
        }
        Err(error) => {
            let advice = error.hint.clone().unwrap_or_else(|| "correct or unset the variable".into());
            Check::fail(NAME, error.message.clone(), advice)
        }
    }
}

/// What the job would not survive.
pub(super) fn survival(place: Option<&Place>, several_hosts: bool, elastic: bool) -> Option<Check> {
    let limits = place.and_then(|place| survival::limits(place.launcher, place.world, elastic));
    let limits = limits.or_else(|| (several_hosts && elastic).then(|| survival::SEVERAL_HOSTS.into()));
    limits.map(|limits| Check::warn("survival", limits, "write checkpoints, and start the job with --resume"))
}

/// The variables that are set.
pub(super) fn variables(variable: &dyn Fn(&str) -> Option<String>) -> Check {
    let set: Vec<String> =
        VARIABLES.iter().filter_map(|name| Some(format!("{name}={}", variable(name)?))).collect();
    Check::ok("variables", if set.is_empty() { "none set".into() } else { set.join(" ") })
}

/// The secret by which ranks recognise each other; it is not shown.
pub(super) fn token(token: Option<&str>, several_hosts: bool) -> Check {
    const NAME: &str = "token";
    const ADVICE: &str = "set THALWEG_TOKEN to one secret on every host, e.g. from `openssl rand -hex 16`";
    match token {
        None if several_hosts => Check::fail(NAME, "not set: other hosts will not be let in", ADVICE),
        None => Check::ok(NAME, "not set: one is made for local jobs, other hosts are not let in"),
        Some(token) if token.len() < local_token::LEAST => {
            let found =
                format!("{} characters long, at least {} are needed", token.len(), local_token::LEAST);
            Check::fail(NAME, found, ADVICE)
        }
        Some(_) => Check::ok(NAME, "set"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;
    use thalweg_cluster::engine::environment::detect;

    #[test]
    fn the_place_is_told_and_nonsense_fails() {
        let torchrun = |world: &'static str| {
            place(&detect(&move |name| match name {
                "RANK" => Some("1".into()),
                "WORLD_SIZE" => Some(world.into()),
                "MASTER_ADDR" => Some("n1".into()),
                _ => None,
            }))
        };
        assert_eq!(torchrun("4").found, "torchrun-style variables: rank 1 of 4, rank 0 listens at n1:29500");
        assert_eq!(torchrun("x").verdict, Verdict::Fail);
        assert_eq!(place(&detect(&|_| None)).verdict, Verdict::Ok);
    }

    #[test]
    fn what_is_not_survived_is_a_warning() {
        let found = detect(&|name| match name {
            "RANK" => Some("0".into()),
            "WORLD_SIZE" => Some("2".into()),
            _ => None,
        });
        let found = found.unwrap();
        let told = survival(found.as_ref(), false, true).unwrap();
        assert_eq!(told.verdict, Verdict::Warn);
        assert!(told.found.contains("the loss of rank 0 ends the job"), "{}", told.found);
        assert!(survival(None, false, true).is_none() && survival(found.as_ref(), false, false).is_none());
        assert!(survival(None, true, true).unwrap().found.contains("first host"));
    }

    #[test]
    fn several_hosts_need_a_token_and_it_stays_secret() {
        assert_eq!(token(None, true).verdict, Verdict::Fail);
        assert_eq!(token(None, false).verdict, Verdict::Ok);
        assert_eq!(token(Some("short"), true).verdict, Verdict::Fail);
        let good = token(Some("0123456789abcdef"), true);
        assert_eq!((good.verdict, good.found.as_str()), (Verdict::Ok, "set"));
    }
}
