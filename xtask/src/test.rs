//! `cargo xtask test`: the Rust tests; with `--external` those with further dependencies, with `--engines` those under other
//! launchers and engines, with `--seeds N` a sweep over the seeded tests, of which `cargo test` runs a few seeds.

use crate::command::{Outcome, cargo, run as run_command};
use crate::external;
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// The tests in tests-external: Python packages, MPI, network namespaces
    #[arg(long, conflicts_with = "seeds")]
    external: bool,
    /// The tests in tests-engines: torchrun, Slurm, MPI's launchers, Spark, Ray, Dask (several GB of Python packages)
    #[arg(long, conflicts_with_all = ["seeds", "external"])]
    engines: bool,
    /// Run N seeds of random faults, on the transports and in simulated training
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "seeds")]
    first_seed: u64,
    /// Passed on to `cargo test --workspace`, or to pytest
    #[arg(last = true)]
    rest: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.external {
        return external::run(&arguments.rest);
    }
    if arguments.engines {
        return external::run_engines(&arguments.rest);
    }
    if let Some(count) = arguments.seeds {
        // The whole workspace, so that features resolve as for `cargo test --workspace` and nothing is built again.
        let mut sweep = cargo(&["test", "--workspace", "--test", "faults", "--test", "chaos"]);
        sweep.env("THALWEG_SEEDS", count.to_string());
        sweep.env("THALWEG_FIRST_SEED", arguments.first_seed.to_string());
        sweep.args(["--", "--nocapture", "seeds_keep", "on_the_simulated_network", "on_threads"]);
        return run_command(sweep.args(&arguments.rest));
    }
    run_command(cargo(&["test", "--workspace"]).args(&arguments.rest))
}
