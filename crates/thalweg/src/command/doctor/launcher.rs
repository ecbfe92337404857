//! Checks of the launcher's environment variables.

use super::check::Check;
use crate::fault_tolerance;
use thalweg_cluster::engine::environment::RankEnvironment;
use thalweg_cluster::rendezvous::{endpoint, local_token};
use thalweg_core::Result;

/// The environment variables that thalweg reads.
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

/// The rank that this process would be.
pub(super) fn assigned_rank(rank_env: &Result<Option<RankEnvironment>>) -> Check {
    const NAME: &str = "launcher";
    match rank_env {
        Ok(None) => Check::ok(NAME, "none: `thalweg train` starts the workers itself"),
        Ok(Some(rank_env)) => {
            let address = match endpoint::to_text(&rank_env.endpoint) {
                Some(endpoint) => format!("rank 0 listens at {endpoint}"),
                None => "the launcher provides the address of rank 0".into(),
            };
            Check::ok(
                NAME,
                format!("{}: rank {} of {}, {address}", rank_env.launcher, rank_env.rank, rank_env.world),
            )
        }
        Err(error) => {
            let advice = error.hint.clone().unwrap_or_else(|| "correct or unset the variable".into());
            Check::fail(NAME, error.message.clone(), advice)
        }
    }
}

/// The failures that would end an elastic job.
pub(super) fn survival(
    rank_env: Option<&RankEnvironment>,
    several_hosts: bool,
    elastic: bool,
) -> Option<Check> {
    let limits = rank_env
        .and_then(|rank_env| fault_tolerance::limitations(rank_env.launcher, rank_env.world, elastic));
    let limits = limits.or_else(|| (several_hosts && elastic).then(|| fault_tolerance::SEVERAL_HOSTS.into()));
    limits.map(|limits| Check::warn("survival", limits, "write checkpoints, and start the job with --resume"))
}

/// The variables that are set.
pub(super) fn variables(variable: &dyn Fn(&str) -> Option<String>) -> Check {
    let set: Vec<String> =
        VARIABLES.iter().filter_map(|name| Some(format!("{name}={}", variable(name)?))).collect();
    Check::ok("variables", if set.is_empty() { "none set".into() } else { set.join(" ") })
}

/// The shared secret; its value is not shown.
pub(super) fn token(token: Option<&str>, several_hosts: bool) -> Check {
    const NAME: &str = "token";
    const ADVICE: &str = "set THALWEG_TOKEN to one secret on every host, e.g. from `openssl rand -hex 16`";
    match token {
        None if several_hosts => Check::fail(NAME, "not set: ranks on other hosts will be refused", ADVICE),
        None => Check::ok(NAME, "not set: local jobs make one, ranks on other hosts are refused"),
        Some(token) if token.len() < local_token::MIN_LENGTH => {
            let found =
                format!("{} characters long, at least {} are needed", token.len(), local_token::MIN_LENGTH);
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
    fn the_rank_is_shown_and_invalid_variables_fail() {
        let torchrun = |world: &'static str| {
            assigned_rank(&detect(&move |name| match name {
                "RANK" => Some("1".into()),
                "WORLD_SIZE" => Some(world.into()),
                "MASTER_ADDR" => Some("n1".into()),
                _ => None,
            }))
        };
        assert_eq!(torchrun("4").found, "torchrun-style variables: rank 1 of 4, rank 0 listens at n1:29500");
        assert_eq!(torchrun("x").verdict, Verdict::Fail);
        assert_eq!(assigned_rank(&detect(&|_| None)).verdict, Verdict::Ok);
    }

    #[test]
    fn limits_of_fault_tolerance_are_warnings() {
        let found = detect(&|name| match name {
            "RANK" => Some("0".into()),
            "WORLD_SIZE" => Some("2".into()),
            _ => None,
        });
        let found = found.unwrap();
        let check = survival(found.as_ref(), false, true).unwrap();
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.contains("the loss of rank 0 ends the job"), "{}", check.found);
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
