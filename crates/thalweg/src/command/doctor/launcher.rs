//! What a launcher left in the environment.

use super::check::Check;
use thalweg_cluster::engine::environment::{Meeting, Place};
use thalweg_core::Result;

/// The variables that are understood.
const VARIABLES: [&str; 19] = [
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
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "THALWEG_HOST",
];

/// A secret of fewer characters can be guessed.
const SHORT: usize = 16;

/// Which rank this process would be.
pub(super) fn place(place: &Result<Option<Place>>) -> Check {
    const NAME: &str = "launcher";
    match place {
        Ok(None) => Check::ok(NAME, "none: `thalweg train` starts the workers itself"),
        Ok(Some(place)) => {
            let meeting = match &place.meeting {
                Meeting::At { host, port } => format!("rank 0 listens at {host}:{port}"),
                Meeting::ByLauncher => "the launcher tells where rank 0 listens".into(),
            };
            Check::ok(NAME, format!("{}: rank {} of {}, {meeting}", place.launcher, place.rank, place.world))
        }
        Err(error) => {
            let advice = error.hint.clone().unwrap_or_else(|| "correct or unset the variable".into());
            Check::fail(NAME, error.message.clone(), advice)
        }
    }
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
        Some(token) if token.len() < SHORT => {
            Check::warn(NAME, format!("set, but only {} characters long", token.len()), ADVICE)
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
        assert_eq!(torchrun("4").found, "torchrun: rank 1 of 4, rank 0 listens at n1:29500");
        assert_eq!(torchrun("x").verdict, Verdict::Fail);
        assert_eq!(place(&detect(&|_| None)).verdict, Verdict::Ok);
    }

    #[test]
    fn several_hosts_need_a_token_and_it_stays_secret() {
        assert_eq!(token(None, true).verdict, Verdict::Fail);
        assert_eq!(token(None, false).verdict, Verdict::Ok);
        assert_eq!(token(Some("short"), true).verdict, Verdict::Warn);
        let good = token(Some("0123456789abcdef"), true);
        assert_eq!((good.verdict, good.found.as_str()), (Verdict::Ok, "set"));
    }
}
