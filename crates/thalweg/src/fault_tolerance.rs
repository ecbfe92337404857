//! Failures that end an elastic job, by launcher: reported when the job starts, and by `doctor`.

/// The failure that ends a job with `--nnodes`.
pub const SEVERAL_HOSTS: &str = "the loss of the first host ends the job: its launcher writes the results";

/// A sentence about those failures; `None` for one rank, and for a job that is not elastic: any loss ends it.
pub fn limitations(launcher: &str, world: usize, elastic: bool) -> Option<String> {
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
    fn limitations_are_listed_by_launcher() {
        let of = |launcher: &str| limitations(launcher, 4, true).unwrap_or_default();
        for launcher in ["torchrun", "mpirun", "srun", "an indexed Job of Kubernetes"] {
            assert!(of(launcher).starts_with(&format!("under {launcher} the loss of rank 0 ends the job")));
        }
        assert!(of("mpirun").contains("--enable-recovery") && of("torchrun").contains("--max-restarts"));
        assert!(of("srun").contains("-K"));
        assert_eq!(limitations("thalweg", 4, true), None);
        assert_eq!(limitations("srun", 1, true), None);
        assert_eq!(limitations("srun", 4, false), None, "any loss ends the job");
    }
}
