//! The transport over MPI: its dependencies, the binary built with it, its conformance suite and clippy.
//!
//! It is built with the mpicc beside the mpirun that was found. Bindings are generated with the libclang of the
//! environment's packages, or of `LIBCLANG_PATH`.

use super::skipped;
use crate::command::{Outcome, build_thalweg_by, cargo, output, run as run_command, succeeds};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An MPI to build with and run on.
pub struct Mpi {
    launcher: String,
    /// Environment of a build.
    build: Vec<(&'static str, OsString)>,
    /// Library path of the built programs; empty if the system has it.
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

    /// Builds the binary with MPI and copies it into the folder, as the target folder also has the one without.
    pub fn binary(&self, folder: &Path) -> Outcome<PathBuf> {
        let built = build_thalweg_by(&mut self.cargo(&[]), &["--features", "mpi"])?;
        let kept = folder.join("thalweg-mpi");
        let copied = fs::copy(&built, &kept);
        copied.map_err(|error| format!("cannot copy {} to {}: {error}", built.display(), kept.display()))?;
        Ok(kept)
    }

    /// Runs the conformance suite of transports between processes, and clippy with the MPI feature.
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

    /// Passes the paths of binary and library to the tests.
    pub fn set_variables(&self, binary: &Path, tests: &mut Command) {
        tests.env("THALWEG_MPI_BINARY", binary).env("THALWEG_MPI_LIBRARIES", &self.libraries);
    }
}

/// The folder of libclang in the environment.
fn libclang(environment: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).ok()?;
    let folders = versions.flatten().map(|version| version.path().join("site-packages/clang/native"));
    folders.into_iter().find(|folder| folder.join("libclang.so").exists())
}

/// The libclang package lacks builtin headers such as stddef.h; those of `cc` are used.
fn builtin_headers() -> OsString {
    let headers = output(Command::new("cc").arg("-print-file-name=include")).unwrap_or_default();
    format!("-I{}", String::from_utf8_lossy(&headers).trim()).into()
}
