//! Runs hostile files through everything that reads them, many in one process: `cargo xtask fuzz` starts it, watches it
//! and starts it again where a file has ended it.
//!
//! A case is a number: seed and number decide its kind and its bytes. Before each case its number is written into the
//! status file, so that the one that watches knows which it was. Findings are lines on standard output:
//! `finding CASE KIND WHAT`.

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

/// Hostile files, run in one process.
#[derive(Parser)]
struct Arguments {
    /// What all choices are drawn from
    #[arg(long)]
    seed: u64,
    /// The first case
    #[arg(long)]
    first: u64,
    /// How many cases
    #[arg(long)]
    count: u64,
    /// Only files of this kind
    #[arg(long)]
    kind: Option<FileKind>,
    /// Where the number of the present case is written
    #[arg(long)]
    status: PathBuf,
    /// Write the files of the cases here, in a folder each, instead of running them
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Address space of the process: an allocation by claim ends it.
const ADDRESS_SPACE: u64 = 2 << 30;

/// The words of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let home = tempfile::tempdir()?;
    let corpus = Corpus::make(home.path())?;
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
    // What commands print is of no interest; findings go where standard output went.
    let mut findings = File::from(quiet()?);
    std::panic::set_hook(Box::new(|panic| {
        let place =
            panic.location().map_or(String::new(), |place| format!(" at {}:{}", place.file(), place.line()));
        let words = panic.payload_as_str().unwrap_or("no reason given");
        *PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = format!("{words}{place}");
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
            Ok(Err((error, word))) => {
                refused += 1;
                complaint(&error, word, &written.path)
            }
            Err(_) => {
                let words = PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                Some(format!("panic: {words}"))
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

/// What is wrong with an error: it is no fault of the file, or does not say which file it is about. `word` is what it must
/// contain; `@` stands for the name of the file or of its folder.
fn complaint(error: &Error, word: &str, path: &Path) -> Option<String> {
    if !matches!(error.kind, Kind::Job | Kind::Data) {
        return Some(format!("error of kind {:?}: {error}", error.kind));
    }
    let names =
        |part: Option<&Path>| part.is_some_and(|part| error.message.contains(&*part.display().to_string()));
    let named = match word {
        "@" => names(Some(path)) || names(path.parent()),
        word => error.message.contains(word),
    };
    (!named).then(|| format!("the file is not named: {error}"))
}

/// Sends standard output and error nowhere; the answer is what standard output was.
fn quiet() -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let before = std::io::stdout().as_fd().try_clone_to_owned()?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&nowhere)?;
    nix::unistd::dup2_stderr(&nowhere)?;
    Ok(before)
}
