//! What a job does not survive yet, by who started it: said where it starts, and by `doctor`.

/// How a job with `--nnodes` ends.
pub const SEVERAL_HOSTS: &str = "the loss of the first host ends the job: its launcher writes the results";

/// In words, if there is anything to say: nothing for a world of one, or for a job that ends with any rank.
pub fn limits(launcher: &str, world: usize, elastic: bool) -> Option<String> {
    if world < 2 || !elastic {
        return None;
    }
    let others = match launcher {
        "torchrun" => {
            "; torchrun ends all ranks when one is lost, and starts them again up to --max-restarts times (with --resume they go on)"
        }
        "mpirun" => {
            "; mpirun ends all ranks when one dies: Open MPI keeps the others with --enable-recovery, MPICH does not"
        }
        "srun" => "; other ranks may be lost, unless srun has -K (--kill-on-bad-exit)",
        "thalweg" => return None,
        _ => "; other ranks may be lost",
    };
    Some(format!("under {launcher} the loss of rank 0 ends the job{others}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_survived_is_said_by_launcher() {
        let of = |launcher: &str| limits(launcher, 4, true).unwrap_or_default();
        for launcher in ["torchrun", "mpirun", "srun", "an indexed Job of Kubernetes"] {
            assert!(of(launcher).starts_with(&format!("under {launcher} the loss of rank 0 ends the job")));
        }
        assert!(of("mpirun").contains("--enable-recovery") && of("torchrun").contains("--max-restarts"));
        assert!(of("srun").contains("-K"));
        assert_eq!(limits("thalweg", 4, true), None);
        assert_eq!(limits("srun", 1, true), None);
        assert_eq!(limits("srun", 4, false), None, "no loss is survived anyway");
    }
}
