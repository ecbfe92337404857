//! The error type of the workspace: message, hint, exit code and the rank at fault.
//!
//! It is serialized across process boundaries: a worker sends its error to the launcher, which prints it. The kind
//! decides the exit code; the culprit, if present, is the rank that caused the failure.

use serde::{Deserialize, Serialize};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of a failure. It decides the exit code and the words of messages. What happens next is asked of the group,
/// or returned as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The job file, an argument or an environment variable is wrong.
    Job,
    /// The data cannot be used: an invalid row, an empty set, an invalid label.
    Data,
    /// Reading or writing a file failed.
    Io,
    /// A bug in Thalweg.
    Internal,
    /// A rank died, stopped sending heartbeats or violated the protocol.
    RankFailed,
    /// A loss or a gradient is NaN or infinite.
    NotFinite,
    /// Rendezvous failed: the ranks could not connect to each other.
    Rendezvous,
    /// The user asked the job to stop.
    Interrupted,
}

/// The rank that caused a failure, and its operation at that time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    pub rank: usize,
    /// Its host name, if known.
    pub host: Option<String>,
    /// The step of the job at which it failed.
    pub step: Option<u64>,
    /// The operation in which it failed or in which other ranks waited for it.
    pub operation: Option<String>,
    /// A short cause: `killed by SIGKILL`, `silent for 2.0 s`.
    pub cause: String,
    /// Seconds from the first symptom, or from the last heartbeat, until the failure was established.
    #[serde(default)]
    pub detect_s: Option<f64>,
    /// Time of detection in seconds since 1970, where it was recorded.
    #[serde(default)]
    pub noticed: Option<f64>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Error {
    pub kind: Kind,
    /// What happened, with file, row, key or rank: one sentence without a full stop.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
    pub culprit: Option<Box<Culprit>>,
}

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, culprit: None }
    }

    pub fn job(message: impl Into<String>) -> Error {
        Error::new(Kind::Job, message)
    }

    pub fn data(message: impl Into<String>) -> Error {
        Error::new(Kind::Data, message)
    }

    /// A failed file operation; `what` names the file and the purpose.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Error {
        let plain = Error::new(Kind::Io, format!("{what}: {}", os_message(error)));
        match error.kind() {
            std::io::ErrorKind::StorageFull => {
                plain.hint("free some space or choose another folder with --out")
            }
            std::io::ErrorKind::PermissionDenied => plain.hint("check the permissions of that path"),
            _ => plain,
        }
    }

    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Kind::Internal, message)
            .hint("this is a bug in thalweg; please report it with events.jsonl")
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    pub fn blame(mut self, culprit: Culprit) -> Error {
        self.culprit = Some(Box::new(culprit));
        self
    }

    /// The exit code of the process that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Job | Kind::Data => 2,
            Kind::Io | Kind::Internal => 1,
            Kind::RankFailed | Kind::NotFinite => 3,
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

/// Same as `Display`: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Error {}

/// The message of an IO error in lower case, without the trailing ` (os error N)`.
pub fn os_message(error: &std::io::Error) -> String {
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
    fn exit_codes_are_stable() {
        let code = |kind| Error::new(kind, "x").exit_code();
        assert_eq!(code(Kind::Job), 2);
        assert_eq!(code(Kind::Io), 1);
        assert_eq!(code(Kind::NotFinite), 3);
        assert_eq!(code(Kind::Rendezvous), 4);
    }

    #[test]
    fn a_full_disk_has_a_hint() {
        let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(Error::io("cannot write a", &error).to_string().contains("free some space"));
    }
}
