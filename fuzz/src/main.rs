//! Runs mutated files through every file reader, many in one process: `cargo xtask fuzz` starts it, supervises it and
//! restarts it after a file that killed it.
//!
//! A case is a number: seed and number decide its kind and its bytes. Before each case its number is written into the
//! status file, for the supervisor. Findings are lines on standard output: `finding CASE KIND WHAT`.

mod corpus;
mod mutate;
mod protobuf;
mod random;
mod target;

use clap::{Parser, ValueEnum};
use corpus::Corpus;
use random::Random;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use target::FileKind;
use thalweg_core::{Error, Kind};

/// Run mutated files in one process
#[derive(Parser)]
struct Arguments {
    /// Seed of all random choices
    #[arg(long)]
    seed: u64,
    /// The first case
    #[arg(long)]
    first: u64,
    /// Number of cases
    #[arg(long)]
    count: u64,
    /// Only files of this kind
    #[arg(long)]
    kind: Option<FileKind>,
    /// The status file, which holds the number of the current case
    #[arg(long)]
    status: PathBuf,
    /// Write the files of the cases into this folder instead of running them
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Limit of the address space: an allocation of a size claimed by a file aborts the process.
const ADDRESS_SPACE: u64 = 2 << 30;

/// The message of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let home = tempfile::tempdir()?;
    let corpus = Corpus::generate(home.path())?;
    let status = File::create(&arguments.status)?;
    if let Some(folder) = &arguments.keep {
        for case in arguments.first..arguments.first.saturating_add(arguments.count) {
            let folder = folder.join(case.to_string());
            fs::create_dir_all(&folder)?;
            let case = write(&corpus, &arguments, case, &folder)?;
            println!("{} {}", name(case.kind), case.path.display());
        }
        return Ok(());
    }
    // Output of the commands is discarded; findings go to the original standard output.
    let mut findings = File::from(silence()?);
    std::panic::set_hook(Box::new(|panic| {
        let location =
            panic.location().map_or(String::new(), |at| format!(" at {}:{}", at.file(), at.line()));
        let message = panic.payload_as_str().unwrap_or("no reason given");
        *PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = format!("{message}{location}");
    }));
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_AS, ADDRESS_SPACE, ADDRESS_SPACE)?;
    let folder = home.path().join("case");
    let mut refused = 0u64;
    for case in arguments.first..arguments.first.saturating_add(arguments.count) {
        status.write_all_at(&case.to_le_bytes(), 0)?;
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let written = write(&corpus, &arguments, case, &folder)?;
        let ran = catch_unwind(AssertUnwindSafe(|| target::run(&corpus, &written, &folder)));
        let finding = match ran {
            Ok(Ok(())) => None,
            Ok(Err((error, required))) => {
                refused += 1;
                check_error(&error, required, &written.path)
            }
            Err(_) => {
                let message = PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                Some(format!("panic: {message}"))
            }
        };
        if let Some(finding) = finding {
            writeln!(findings, "finding {case} {} {}", name(written.kind), finding.replace('\n', " | "))?;
        }
    }
    writeln!(findings, "done {} {refused}", arguments.count)?;
    Ok(())
}

fn write(corpus: &Corpus, arguments: &Arguments, case: u64, folder: &Path) -> std::io::Result<target::Case> {
    let mut random = Random::of(arguments.seed, case);
    let kind = *random.pick(FileKind::value_variants());
    target::write(corpus, arguments.kind.unwrap_or(kind), random, folder)
}

fn name(kind: FileKind) -> String {
    kind.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

/// A finding if the error is not of kind job or data, or does not contain `required`; `@` stands for the name of the file
/// or of its folder.
fn check_error(error: &Error, required: &str, path: &Path) -> Option<String> {
    if !matches!(error.kind, Kind::Job | Kind::Data) {
        return Some(format!("error of kind {:?}: {error}", error.kind));
    }
    let names =
        |part: Option<&Path>| part.is_some_and(|part| error.message.contains(&*part.display().to_string()));
    let named = match required {
        "@" => names(Some(path)) || names(path.parent()),
        text => error.message.contains(text),
    };
    (!named).then(|| format!("the file is not named: {error}"))
}

/// Redirects standard output and error to /dev/null and returns the original standard output.
fn silence() -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let original = std::io::stdout().as_fd().try_clone_to_owned()?;
    let null = File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(original)
}
