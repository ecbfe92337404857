//! Parsing and validation of jobs.

mod combinations;
mod hash;
mod parsing;
mod presets;
mod ranges;
mod round_trip;

use thalweg_core::spec::{Job, JobLayers, JobSpec};
use thalweg_core::{Kind, Result};

/// Resolves the text of a file and `--set` assignments.
fn resolve(file: &str, set: &[&str]) -> Result<Job> {
    let mut layers = JobLayers::default();
    layers.add_file("job.toml", file).map_err(thalweg_core::Error::job)?;
    for assignment in set {
        layers.add_assignment(assignment).map_err(thalweg_core::Error::job)?;
    }
    Job::parse(layers)
}

fn accepted(file: &str, set: &[&str]) -> JobSpec {
    resolve(file, set).unwrap_or_else(|error| panic!("{file} {set:?}: {error}")).spec
}

fn refused(file: &str, set: &[&str]) -> String {
    match resolve(file, set) {
        Ok(_) => panic!("accepted: {file} {set:?}"),
        Err(error) => {
            assert_eq!(error.kind, Kind::Job);
            error.message
        }
    }
}

/// Asserts that the job is refused with a message that contains all pieces.
fn refused_with(file: &str, set: &[&str], pieces: &[&str]) {
    let message = refused(file, set);
    for piece in pieces {
        assert!(message.contains(piece), "no {piece:?} in: {message}");
    }
}
