//! Errors for exhausted files, memory or threads, with the limit to raise.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use thalweg_core::{Error, Kind};

/// An exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exhausted {
    /// Files of this process.
    Files,
    /// Files of the whole machine.
    AllFiles,
    Memory,
    Threads,
}

/// The error of `what` if it failed because a resource is exhausted; None for any other reason.
pub fn explain(what: &str, error: &io::Error) -> Option<Error> {
    Some(describe(what, exhausted(error)?, open_files()))
}

/// The error of `what`, whatever the reason.
pub fn io(what: &str, error: &io::Error) -> Error {
    explain(what, error).unwrap_or_else(|| Error::io(what, error))
}

/// The error of `what` when no thread could be started.
pub fn explain_thread(what: &str) -> Error {
    describe(what, Exhausted::Threads, None)
}

fn exhausted(error: &io::Error) -> Option<Exhausted> {
    match Errno::from_raw(error.raw_os_error()?) {
        Errno::EMFILE => Some(Exhausted::Files),
        Errno::ENFILE => Some(Exhausted::AllFiles),
        Errno::ENOMEM | Errno::ENOBUFS => Some(Exhausted::Memory),
        _ => None,
    }
}

fn describe(what: &str, exhausted: Exhausted, limit: Option<u64>) -> Error {
    let limit = limit.map_or_else(String::new, |limit| format!(" ({limit}, as `ulimit -n` says)"));
    let (why, hint) = match exhausted {
        Exhausted::Files => {
            (format!("this process may open no more files{limit}"), "raise the limit: `ulimit -n 4096`")
        }
        Exhausted::AllFiles => {
            ("the machine has no open files left".into(), "raise fs.file-max, or end other programs")
        }
        Exhausted::Memory => (
            "there is no memory left".into(),
            "raise the memory limit (`ulimit -v`, the container's), or use fewer workers",
        ),
        Exhausted::Threads => (
            "no thread can be started: memory or processes have run out".into(),
            "raise the limits (`ulimit -v`, `ulimit -u`, the container's memory and pids), or use fewer workers",
        ),
    };
    Error::new(Kind::Io, format!("{what}: {why}")).hint(hint)
}

fn open_files() -> Option<u64> {
    getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(now, _)| now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exhausted_resource_is_named_with_its_limit() {
        let error = io::Error::from_raw_os_error(Errno::EMFILE as i32);
        assert_eq!(exhausted(&error), Some(Exhausted::Files));
        let error = describe("cannot accept connections", Exhausted::Files, Some(20));
        assert_eq!(
            error.message,
            "cannot accept connections: this process may open no more files (20, as `ulimit -n` says)"
        );
        assert!(error.hint.unwrap().contains("ulimit -n"));
        assert_eq!(
            explain("cannot connect", &io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32)),
            None
        );
        assert_eq!(explain("cannot connect", &io::ErrorKind::TimedOut.into()), None);
        assert_eq!(exhausted(&io::Error::from_raw_os_error(Errno::ENOMEM as i32)), Some(Exhausted::Memory));
    }
}
