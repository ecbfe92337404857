//! The programs that time other systems: a C program for MPI and a Python script for Gloo, which print the same keys as
//! ours. Systems that this machine cannot run are left out with a notice.

use super::Arguments;
use super::table::MPI;
use crate::bench::peer::Script;
use crate::command::{Outcome, run as run_command, succeeds};
use std::path::PathBuf;
use std::process::Command;

/// The programs that are available; the compiled one is removed on drop.
pub struct Runners {
    mpi: Option<PathBuf>,
    gloo: Option<Script>,
}

impl Runners {
    pub fn find(arguments: &Arguments) -> Runners {
        Runners {
            mpi: available("Open MPI", compile_mpi(arguments)),
            gloo: available("Gloo", arguments.peers.script("gloo_allreduce.py")),
        }
    }

    /// A command per system for that number of ranks.
    pub fn commands(&self, arguments: &Arguments, ranks: usize) -> Vec<Command> {
        let (ranks, seconds) = (ranks.to_string(), arguments.seconds.to_string());
        let mpi = self.mpi.iter().map(|program| {
            let mut mpi = Command::new(&arguments.mpirun);
            mpi.args(["--oversubscribe", "-n", &ranks]);
            if arguments.transport == "tcp" {
                mpi.args(["--mca", "btl", "tcp,self"]);
            }
            mpi.arg(program).args([MPI, &seconds]);
            mpi.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            mpi
        });
        mpi.chain(self.gloo.iter().map(|script| script.with(&[&ranks, &seconds]))).collect()
    }
}

impl Drop for Runners {
    fn drop(&mut self) {
        if let Some(program) = &self.mpi {
            let _ = std::fs::remove_file(program);
        }
    }
}

fn available<T>(system: &str, found: Outcome<T>) -> Option<T> {
    found.map_err(|reason| println!("notice: without {system}: {reason}")).ok()
}

/// Compiles the MPI program into a temporary file.
fn compile_mpi(arguments: &Arguments) -> Outcome<PathBuf> {
    let source = arguments.peers.file("mpi_allreduce.c")?;
    let compiler = arguments.mpirun.with_file_name("mpicc");
    if !succeeds(Command::new(&compiler).arg("--version")) {
        return Err(format!(
            "{} is missing: pass --mpirun with a launcher beside an mpicc",
            compiler.display()
        ));
    }
    let program = std::env::temp_dir().join(format!("thalweg-mpi-allreduce-{}", std::process::id()));
    run_command(Command::new(compiler).arg("-O3").arg("-o").arg(&program).arg(source))?;
    Ok(program)
}
