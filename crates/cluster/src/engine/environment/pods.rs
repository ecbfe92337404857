//! Ranks in Kubernetes pods: the variables of an indexed Job, or of an operator that expects `torchrun` in every pod.
//!
//! An indexed Job numbers its pods with `JOB_COMPLETION_INDEX`, but does not set their number. Operators for PyTorch
//! set the flags of torchrun as variables: `PET_NNODES`, `PET_NODE_RANK`, `PET_NPROC_PER_NODE`, `PET_MASTER_ADDR`. A
//! pod with incomplete variables is refused: otherwise each pod would train a whole job of its own.

use super::{Lookup, PORT, RankEnvironment, RendezvousEndpoint, Set, port};
use thalweg_core::{Error, Result};

/// Hint for a pod that is to train by itself.
const ALONE: &str = "to train by itself, RANK=0 and WORLD_SIZE=1";

/// The rank environment of such a pod, with the names of the variables of rank and world.
pub(super) fn detect(
    number: &dyn Fn(&str) -> Result<Option<usize>>,
    set: Set<'_>,
) -> Result<Option<(RankEnvironment, [&'static str; 2])>> {
    if set("PET_NNODES").is_some() || set("PET_NODE_RANK").is_some() {
        return of_operator(set).map(|environment| Some((environment, ["PET_NODE_RANK", "PET_NNODES"])));
    }
    let Some(rank) = number("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let world = number("WORLD_SIZE")?.ok_or_else(|| {
        Error::job(format!(
            "JOB_COMPLETION_INDEX={rank}: this is a pod of an indexed Job, but WORLD_SIZE is not set"
        ))
        .hint(format!(
            "set WORLD_SIZE to the Job's completions and MASTER_ADDR to the host name of its pod 0; or, {ALONE}"
        ))
    })?;
    if world > 1 && set("MASTER_ADDR").is_none() {
        return Err(Error::job(format!(
            "JOB_COMPLETION_INDEX={rank}, WORLD_SIZE={world}: MASTER_ADDR, the address of the rendezvous, is not set"
        ))
        .hint("set MASTER_ADDR to the host name of pod 0 in the Job's headless service, such as JOB-0.SERVICE"));
    }
    let endpoint =
        RendezvousEndpoint::at(set("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into()), port(set, PORT)?);
    let (launcher, run) = ("an indexed Job of Kubernetes", String::new());
    let environment =
        RankEnvironment { rank, world, endpoint, local: world == 1, launcher, joins: false, run };
    Ok(Some((environment, ["JOB_COMPLETION_INDEX", "WORLD_SIZE"])))
}

/// Supports one process per pod; torchrun would start several.
fn of_operator(set: Set<'_>) -> Result<RankEnvironment> {
    let whole = |name: &str| set(name).and_then(|text| text.trim().parse::<usize>().ok());
    let processes = set("PET_NPROC_PER_NODE").unwrap_or_else(|| "1".into());
    let endpoint = set("PET_RDZV_ENDPOINT");
    let (host, given) = match endpoint.as_deref().and_then(|endpoint| endpoint.rsplit_once(':')) {
        Some((host, port)) => (host.to_string(), port.parse().ok()),
        None => (endpoint.unwrap_or_default(), None),
    };
    let host = set("PET_MASTER_ADDR").or_else(|| set("MASTER_ADDR")).unwrap_or(host);
    let given = whole("PET_MASTER_PORT").and_then(|port| u16::try_from(port).ok()).or(given);
    match (whole("PET_NODE_RANK"), whole("PET_NNODES"), processes.as_str()) {
        (Some(rank), Some(world), "1") if world == 1 || !host.is_empty() => Ok(RankEnvironment {
            rank,
            world,
            endpoint: RendezvousEndpoint::at(host, given.map_or_else(|| port(set, PORT), Ok)?),
            local: world == 1,
            launcher: "variables of torchrun (PET_*)",
            joins: false,
            run: set("PET_RDZV_ID").unwrap_or_default(),
        }),
        _ => Err(Error::job(format!("{} are variables of torchrun, but torchrun did not start this", set_variables(set)))
            .hint(format!(
                "start it in every pod as `torchrun --no-python thalweg train ...`, or without torchrun as `thalweg train ... \
                 --nnodes N --node-rank R --master HOST`; {ALONE}"
            ))),
    }
}

/// The variables of torchrun that are set.
fn set_variables(set: Lookup<'_>) -> String {
    let names = ["PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"];
    let variables: Vec<String> =
        names.iter().filter_map(|name| Some(format!("{name}={}", set(name)?))).collect();
    variables.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, with};

    #[test]
    fn a_pod_of_an_indexed_job_needs_world_size_and_master_addr() {
        let index = ("JOB_COMPLETION_INDEX", "1");
        let error = with(&[index]).unwrap_err();
        assert!(
            error.message.contains("JOB_COMPLETION_INDEX=1") && error.message.contains("WORLD_SIZE"),
            "{error}"
        );
        assert!(error.hint.unwrap().contains("RANK=0 and WORLD_SIZE=1"));
        let error = with(&[index, ("WORLD_SIZE", "3")]).unwrap_err();
        assert!(error.message.contains("MASTER_ADDR, the address of the rendezvous, is not set"), "{error}");
        let environment = with(&[index, ("WORLD_SIZE", "3"), ("MASTER_ADDR", "job-0.svc")]).unwrap().unwrap();
        assert_eq!(
            (environment.rank, environment.world, environment.endpoint),
            (1, 3, at("job-0.svc", 29500))
        );
        let error =
            with(&[("JOB_COMPLETION_INDEX", "3"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "j")]).unwrap_err();
        assert_eq!(error.message, "JOB_COMPLETION_INDEX=3, but WORLD_SIZE=3: ranks are 0 to 2");
        let alone = with(&[index, ("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().unwrap();
        assert_eq!((alone.rank, alone.world), (0, 1));
    }

    #[test]
    fn variables_for_torchrun_are_supported_for_one_process_per_pod() {
        let pod = [("PET_NNODES", "2"), ("PET_NODE_RANK", "1"), ("PET_MASTER_ADDR", "m-0")];
        let environment =
            with(&[&pod[..], &[("PET_MASTER_PORT", "23456"), ("JOB_COMPLETION_INDEX", "1")]].concat());
        let environment = environment.unwrap().unwrap();
        assert_eq!((environment.rank, environment.world, environment.endpoint), (1, 2, at("m-0", 23456)));
        let endpoint = [("PET_NNODES", "2"), ("PET_NODE_RANK", "0"), ("PET_RDZV_ENDPOINT", "m-0:29400")];
        assert_eq!(with(&endpoint).unwrap().unwrap().endpoint, at("m-0", 29400));
        for refused in [
            &[&pod[..], &[("PET_NPROC_PER_NODE", "2")]].concat()[..],
            &[&pod[..], &[("PET_NPROC_PER_NODE", "auto")]].concat(),
            &[("PET_NNODES", "1:4"), ("PET_RDZV_ENDPOINT", "m-0:29400")],
            &pod[..2],
        ] {
            let error = with(refused).unwrap_err();
            assert!(
                error.message.contains("PET_NNODES=") && error.hint.unwrap().contains("torchrun --no-python")
            );
        }
    }
}
