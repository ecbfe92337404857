//! The transport over MPI: what its tests need, the binary with it, its conformance suite and clippy.
//!
//! The MPI is the one whose mpirun was found, the headers are those of the mpicc beside it. Bindings are made with libclang
//! from the environment's packages, or from where `LIBCLANG_PATH` says. Nothing is installed anywhere else.

use super::skipped;
use crate::command::{Outcome, build_thalweg_by, cargo, output, run as run_command, succeeds};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An MPI to build with and run on.
pub struct Mpi {
    launcher: String,
    /// What a build has to be told.
    build: Vec<(&'static str, OsString)>,
    /// Where what was built finds the library, if the system does not know.
    libraries: OsString,
}

impl Mpi {
    /// The MPI of this launcher, if programs can be built with it.
    pub fn find(environment: &Path, launcher: &[String]) -> Option<Mpi> {
        let user = "the tests of the transport over MPI";
        let program = Path::new(launcher.first()?);
        let compiler = program.with_file_name("mpicc");
        if !succeeds(Command::new(&compiler).arg("-show")) {
            skipped("an mpicc beside mpirun (Debian: libopenmpi-dev)", user);
            return None;
        }
        let mut build = vec![("MPICC", compiler.into_os_string())];
        if std::env::var_os("LIBCLANG_PATH").is_none() {
            let Some(folder) = libclang(environment) else {
                skipped(
                    "libclang (the Python package of that name, Debian: libclang-dev and LIBCLANG_PATH)",
                    user,
                );
                return None;
            };
            build.push(("LIBCLANG_PATH", folder.into_os_string()));
            build.push(("BINDGEN_EXTRA_CLANG_ARGS", builtin_headers()));
        }
        let inside = program.starts_with(environment);
        let libraries = if inside { environment.join("lib").into_os_string() } else { OsString::new() };
        Some(Mpi { launcher: launcher.join(" "), build, libraries })
    }

    /// Builds the binary with MPI and puts it into the folder: the target folder's is the one without.
    pub fn binary(&self, folder: &Path) -> Outcome<PathBuf> {
        let built = build_thalweg_by(&mut self.cargo(&[]), &["--features", "mpi"])?;
        let kept = folder.join("thalweg-mpi");
        let copied = fs::copy(&built, &kept);
        copied.map_err(|error| format!("cannot copy {} to {}: {error}", built.display(), kept.display()))?;
        Ok(kept)
    }

    /// Runs the conformance suite of transports between processes, and clippy over what only this build has.
    pub fn check(&self) -> Outcome {
        let mut suite = self.cargo(&["test", "-p", "thalweg-comm", "--features", "mpi", "--test", "mpi"]);
        suite.env("THALWEG_MPIRUN", &self.launcher);
        if !self.libraries.is_empty() {
            suite.env("LD_LIBRARY_PATH", &self.libraries);
        }
        run_command(&mut suite)?;
        let mut clippy =
            self.cargo(&["clippy", "-p", "thalweg-comm", "-p", "thalweg-cluster", "--all-targets"]);
        clippy.args(["--features", "thalweg-comm/mpi,thalweg-cluster/mpi", "--", "-D", "warnings"]);
        run_command(&mut clippy)
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        command.envs(self.build.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Tells a test where the binary and its library are.
    pub fn announce(&self, binary: &Path, tests: &mut Command) {
        tests.env("THALWEG_MPI_BINARY", binary).env("THALWEG_MPI_LIBRARIES", &self.libraries);
    }
}

/// The folder of the environment's libclang.
fn libclang(environment: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).ok()?;
    let folders = versions.flatten().map(|version| version.path().join("site-packages/clang/native"));
    folders.into_iter().find(|folder| folder.join("libclang.so").exists())
}

/// The package has no headers of the compiler's own, such as stddef.h: another compiler's will do.
fn builtin_headers() -> OsString {
    let headers = output(Command::new("cc").arg("-print-file-name=include")).unwrap_or_default();
    format!("-I{}", String::from_utf8_lossy(&headers).trim()).into()
}
