//! What went wrong, where, whose fault it is and what to do about it.
//!
//! One type crosses every boundary of the system, processes included: a worker's error travels to the launcher as
//! data and is printed there. The kind decides the exit code; the culprit, where there is one, names a rank.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Shorthand used by the whole workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure this is; it decides the exit code and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The job file, an argument or an environment variable is wrong.
    Job,
    /// The data cannot be used: a bad row, an empty set, a label that makes no sense.
    Data,
    /// Reading or writing a file failed.
    Io,
    /// A bug in Thalweg.
    Internal,
    /// A rank died, went silent or broke the protocol.
    RankFailed,
    /// A loss or a gradient is not a number, or infinite.
    NotFinite,
    /// The ranks did not find each other.
    Rendezvous,
    /// The user asked the job to stop.
    Interrupted,
    /// The group changes: the program is to begin again where the job stands. It never leaves a worker.
    Regroup,
}

/// The rank a failure is blamed on, and what it was doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    /// Its number.
    pub rank: usize,
    /// The machine it ran on, if known.
    pub host: Option<String>,
    /// The step of the job at which it failed.
    pub step: Option<u64>,
    /// The operation in which it failed or in which the others waited for it.
    pub operation: Option<String>,
    /// Its own cause in few words: `killed by SIGKILL`, `silent for 2.0 s`.
    pub cause: String,
    /// Seconds from the first sign of it, or from the last sign of life, until it was clear.
    #[serde(default)]
    pub detect_s: Option<f64>,
    /// When that was, in seconds since 1970, if somebody looked at the clock.
    #[serde(default)]
    pub noticed: Option<f64>,
}

/// An error that says what, where and what to do.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// What kind of failure this is.
    pub kind: Kind,
    /// What happened, with file, row, key or rank, as one sentence without a final stop.
    pub message: String,
    /// What the user can do about it.
    pub hint: Option<String>,
    /// Whose fault it is.
    pub culprit: Option<Box<Culprit>>,
}

impl Error {
    /// An error of a given kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, culprit: None }
    }

    /// The job or an argument is wrong.
    pub fn job(message: impl Into<String>) -> Error {
        Error::new(Kind::Job, message)
    }

    /// The data cannot be used.
    pub fn data(message: impl Into<String>) -> Error {
        Error::new(Kind::Data, message)
    }

    /// A file could not be read or written; `what` says which and for what purpose.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Error {
        let plain = Error::new(Kind::Io, format!("{what}: {}", plain_words(error)));
        match error.kind() {
            std::io::ErrorKind::StorageFull => {
                plain.hint("free some space or choose another folder with --out")
            }
            std::io::ErrorKind::PermissionDenied => plain.hint("check the permissions of that path"),
            _ => plain,
        }
    }

    /// A bug.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Kind::Internal, message)
            .hint("this is a bug in thalweg; please report it with events.jsonl")
    }

    /// Adds what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// Names the culprit.
    pub fn blame(mut self, culprit: Culprit) -> Error {
        self.culprit = Some(Box::new(culprit));
        self
    }

    /// The exit code of the process that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Job | Kind::Data => 2,
            Kind::Io | Kind::Internal => 1,
            Kind::RankFailed | Kind::NotFinite | Kind::Regroup => 3,
            Kind::Rendezvous => 4,
            Kind::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  what to do: {hint}")?;
        }
        Ok(())
    }
}

/// A `main` that returns an error prints it this way: in words, as everywhere else.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Error {}

/// The operating system's own words, without the number behind them.
pub fn plain_words(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_the_contract() {
        let code = |kind| Error::new(kind, "x").exit_code();
        assert_eq!(code(Kind::Job), 2);
        assert_eq!(code(Kind::Io), 1);
        assert_eq!(code(Kind::NotFinite), 3);
        assert_eq!(code(Kind::Rendezvous), 4);
    }

    #[test]
    fn a_full_disk_says_what_to_do() {
        let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(Error::io("cannot write a", &error).to_string().contains("free some space"));
    }
}
