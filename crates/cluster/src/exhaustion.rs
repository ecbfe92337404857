//! When the system has no more files, memory or threads for this process: the reason, in words, and what to do.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use thalweg_core::{Error, Kind};

/// What has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    /// Files of this process.
    Files,
    /// Files of the whole machine.
    AllFiles,
    Memory,
    Threads,
}

/// The error of a process in which `what` failed because a resource has run out; nothing if the reason is another one.
pub fn explain(what: &str, error: &io::Error) -> Option<Error> {
    Some(describe(what, shortage(error)?, open_files()))
}

/// The error of a process in which `what` failed, whatever the reason.
pub fn io(what: &str, error: &io::Error) -> Error {
    explain(what, error).unwrap_or_else(|| Error::io(what, error))
}

/// The same for a thread that could not be started.
pub fn explain_thread(what: &str) -> Error {
    describe(what, Shortage::Threads, None)
}

fn shortage(error: &io::Error) -> Option<Shortage> {
    match Errno::from_raw(error.raw_os_error()?) {
        Errno::EMFILE => Some(Shortage::Files),
        Errno::ENFILE => Some(Shortage::AllFiles),
        Errno::ENOMEM | Errno::ENOBUFS => Some(Shortage::Memory),
        _ => None,
    }
}

fn describe(what: &str, shortage: Shortage, limit: Option<u64>) -> Error {
    let limit = limit.map_or_else(String::new, |limit| format!(" ({limit}, as `ulimit -n` says)"));
    let (why, hint) = match shortage {
        Shortage::Files => {
            (format!("this process may open no more files{limit}"), "raise the limit: `ulimit -n 4096`")
        }
        Shortage::AllFiles => {
            ("the machine has no open files left".into(), "raise fs.file-max, or end other programs")
        }
        Shortage::Memory => (
            "there is no memory left".into(),
            "raise the memory limit (`ulimit -v`, the container's), or use fewer workers",
        ),
        Shortage::Threads => (
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
    fn what_ran_out_is_named_with_its_limit() {
        let error = io::Error::from_raw_os_error(Errno::EMFILE as i32);
        assert_eq!(shortage(&error), Some(Shortage::Files));
        let told = describe("cannot accept connections", Shortage::Files, Some(20));
        assert_eq!(
            told.message,
            "cannot accept connections: this process may open no more files (20, as `ulimit -n` says)"
        );
        assert!(told.hint.unwrap().contains("ulimit -n"));
        assert_eq!(
            explain("cannot connect", &io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32)),
            None
        );
        assert_eq!(explain("cannot connect", &io::ErrorKind::TimedOut.into()), None);
        assert_eq!(shortage(&io::Error::from_raw_os_error(Errno::ENOMEM as i32)), Some(Shortage::Memory));
    }
}
