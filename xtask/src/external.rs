//! `cargo xtask test --external`: the tests in tests-external, with their dependencies in a separate folder; and
//! `--engines`: the tests in tests-engines.
//!
//! Python packages and an MPI are installed into a virtual environment in `.external` (or `THALWEG_EXTERNAL`, which can be
//! shared between clones), and nowhere else. A missing program is reported in a line that begins with `skipped:`, and the
//! tests that need it are left out. The last line has the counts: `external: 12 passed, 0 failed, 3 skipped`. `.ci/run`
//! reads both.

mod mpi;

use self::mpi::Mpi;
use crate::command::{Outcome, build_thalweg, root, run as run_command, succeeds};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prepares the environment, builds the binary and runs pytest with further arguments.
pub fn run(arguments: &[String]) -> Outcome {
    let folder = std::env::var_os("THALWEG_EXTERNAL").map_or_else(|| root().join(".external"), PathBuf::from);
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let Some(environment) = environment(&folder, "tests-external/requirements.txt") else {
        println!("external: 0 passed, 0 failed, all skipped");
        return Ok(());
    };
    let launcher = mpi_launcher(&environment);
    if !succeeds(Command::new("ip").arg("-V")) {
        skipped("the command `ip` (Debian: iproute2)", "the tests with several hosts");
    }
    let mpi = launcher.as_ref().and_then(|launcher| Mpi::find(&environment, launcher));
    let with_mpi = mpi.as_ref().map(|mpi| mpi.binary(&folder)).transpose()?;
    let suite = mpi.as_ref().map_or(Ok(()), Mpi::check);
    let binary = build_thalweg(&[])?;
    let mut tests = Command::new(environment.join("bin/python"));
    tests.args(["-m", "pytest", "-rs", "--tb=short", "-p", "no:cacheprovider", "tests-external"]);
    tests.args(arguments).current_dir(root());
    tests.env("THALWEG_BINARY", binary).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.env("THALWEG_MPIRUN", launcher.unwrap_or_default().join(" "));
    if let (Some(mpi), Some(binary)) = (&mpi, &with_mpi) {
        mpi.set_variables(binary, &mut tests);
    }
    run_command(&mut tests).and(suite)
}

/// Programs that tests-engines needs besides Python packages: command, Debian package, user.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("slurmctld", "slurmctld, slurmd, slurm-client, munge", "the tests with Slurm"),
    ("mpirun.openmpi", "openmpi-bin", "the tests with the mpirun of Open MPI"),
    ("mpiexec.hydra", "mpich", "the tests with the mpiexec of MPICH"),
    ("java", "default-jre-headless", "the tests with Spark"),
    ("ip", "iproute2", "the tests with several hosts"),
];

/// The tests in tests-engines, with a separate virtual environment.
pub fn run_engines(arguments: &[String]) -> Outcome {
    let folder = std::env::var_os("THALWEG_EXTERNAL").map_or_else(|| root().join(".external"), PathBuf::from);
    let folder = folder.join("engines");
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let Some(environment) = environment(&folder, "tests-engines/requirements.txt") else {
        println!("external: 0 passed, 0 failed, all skipped");
        return Ok(());
    };
    let paths = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    for (program, package, user) in PROGRAMS {
        if !paths.split(':').any(|folder| Path::new(folder).join(program).exists()) {
            skipped(&format!("the command `{program}` (Debian: {package})"), user);
        }
    }
    let binary = build_thalweg(&[])?;
    let mut tests = Command::new(environment.join("bin/python"));
    tests.args(["-m", "pytest", "-rs", "--tb=short", "-p", "no:cacheprovider", "tests-engines"]);
    tests.args(arguments).current_dir(root());
    tests.env("THALWEG_BINARY", binary).env("PYTHONDONTWRITEBYTECODE", "1");
    run_command(&mut tests)
}

/// Creates or updates the virtual environment with the packages of that list.
fn environment(folder: &Path, list: &str) -> Option<PathBuf> {
    let environment = folder.join("venv");
    let python = environment.join("bin/python");
    if !succeeds(Command::new(&python).args(["-m", "pip", "--version"])) {
        println!("creating a Python environment in {}", environment.display());
        if !succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment)) {
            skipped("python3 with venv and pip (Debian: python3-venv)", "all external tests");
            return None;
        }
    }
    let wanted = root().join(list);
    install_packages(&python, &wanted, &environment.join("installed.txt"));
    if !succeeds(Command::new(&python).args(["-m", "pytest", "--version"])) {
        skipped("the Python package pytest", "all external tests");
        return None;
    }
    Some(environment)
}

/// Installs the packages unless the stamp has the same list; a package that cannot be installed is left out.
fn install_packages(python: &Path, wanted: &Path, stamp: &Path) {
    let Ok(list) = fs::read_to_string(wanted) else {
        return skipped(&wanted.display().to_string(), "the Python packages");
    };
    if fs::read_to_string(stamp).is_ok_and(|installed| installed == list) {
        return;
    }
    let pip = |packages: &[&str]| {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        run_command(command.args(packages)).is_ok()
    };
    let packages = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut missing: Vec<&str> = packages.collect();
    if pip(&missing) {
        missing.clear();
    } else {
        missing.retain(|package| !pip(&[package]));
    }
    for package in &missing {
        skipped(&format!("the Python package {package}"), "the tests that import it");
    }
    if missing.is_empty() && fs::write(stamp, &list).is_err() {
        println!("notice: cannot write {}; the packages are checked again next time", stamp.display());
    }
}

/// An MPI launcher with its flags: Open MPI or MPICH of the environment, else of the system.
fn mpi_launcher(environment: &Path) -> Option<Vec<String>> {
    let inside = |name: &str| environment.join("bin").join(name).display().to_string();
    let candidates = [inside("mpirun"), inside("mpiexec"), "mpirun".to_string(), "mpiexec".to_string()];
    let found = candidates.iter().find_map(|program| working_launcher(program));
    if found.is_none() {
        skipped("an mpirun that can start two processes (Debian: openmpi-bin)", "the test with mpirun");
    }
    found
}

/// Open MPI needs flags to run as root and with more ranks than cores; MPICH does not have them.
fn working_launcher(program: &str) -> Option<Vec<String>> {
    let open_mpi: &[&str] = &["--oversubscribe", "--allow-run-as-root"];
    [open_mpi, &[]].into_iter().find_map(|flags| {
        let works = succeeds(Command::new(program).args(flags).args(["-n", "2", "hostname"]));
        works.then(|| std::iter::once(program).chain(flags.iter().copied()).map(str::to_string).collect())
    })
}

fn skipped(what: &str, user: &str) {
    println!("skipped: {user}: cannot get {what}");
}
