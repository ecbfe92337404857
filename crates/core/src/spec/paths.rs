//! Values of a job that are paths: which they are, and what they count from.
//!
//! In a job file they count from its folder, everywhere else from the working folder. A job in memory has them as seen
//! from the working folder, and so has the model it trained; copies that are kept in the run folder (job.toml, checkpoints)
//! have them absolute.

use super::JobSpec;
use super::setting::Held;
use std::path::{Component, Path, PathBuf};
use toml::Value;

/// The keys whose texts are paths of files or folders.
pub const KEYS: [&str; 4] = ["data.source", "data.validation", "data.cache", "model.onnx"];

/// What data sets that need no file begin with.
const BUILTIN: &str = "builtin:";

/// What makes a pattern of a path.
const WILD: [char; 3] = ['*', '?', '['];

/// Whether a value is a path: not a share of the rows, and not the name of a built-in data set.
pub fn is_path(key: &str, value: &Value) -> bool {
    KEYS.contains(&key) && value.as_str().is_some_and(|text| !text.starts_with(BUILTIN))
}

/// A path, or a pattern of paths, that counts from `folder`.
pub fn within(folder: &Path, path: &str) -> String {
    let unchanged = folder.as_os_str().is_empty() || path.is_empty() || Path::new(path).is_absolute();
    let Some(folder) = folder.to_str().filter(|_| !unchanged) else { return path.into() };
    // What is special in a pattern is not special in the name of the folder before it.
    let folder = if path.contains(WILD) { literal(folder) } else { folder.into() };
    let joined = Path::new(&folder).join(path);
    let parts = joined.components().filter(|part| *part != Component::CurDir);
    parts.collect::<PathBuf>().to_string_lossy().into_owned()
}

/// A pattern that only this very text matches.
fn literal(text: &str) -> String {
    text.chars().map(|c| if WILD.contains(&c) { format!("[{c}]") } else { c.into() }).collect()
}

impl JobSpec {
    /// The same job with its paths counted from `folder`.
    pub fn with_paths_from(&self, folder: &Path) -> JobSpec {
        let mut job = self.clone();
        let validation = match &mut job.data.validation {
            Some(Held::Source(path)) => Some(path),
            _ => None,
        };
        let optional = [validation, job.data.cache.as_mut(), job.model.onnx.as_mut()];
        for path in optional.into_iter().flatten().chain([&mut job.data.source]) {
            if !path.starts_with(BUILTIN) {
                *path = within(folder, path);
            }
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Job, Layers};

    #[test]
    fn paths_count_from_a_folder_unless_they_are_absolute() {
        let from = |folder: &str, path: &str| within(Path::new(folder), path);
        assert_eq!(from("jobs", "rows.csv"), "jobs/rows.csv");
        assert_eq!(from("./jobs", "./rows.csv"), "jobs/rows.csv");
        assert_eq!(from("jobs", "../rows.csv"), "jobs/../rows.csv");
        assert_eq!(from("", "./rows.csv"), "./rows.csv");
        assert_eq!(from("jobs", "/data/rows.csv"), "/data/rows.csv");
        assert_eq!(from("jobs", ""), "");
        assert_eq!(from("a[1]", "part-*.csv"), "a[[]1]/part-*.csv");
        assert_eq!(from("a[1]", "rows.csv"), "a[1]/rows.csv");
    }

    const JOB: &str = "[data]\nsource = \"rows-*.csv\"\nvalidation = \"held.csv\"\ncache = \"cache\"\n\
                       [model]\nonnx = \"net.onnx\"\n";

    fn job(file: &str, text: &str, set: &[&str]) -> JobSpec {
        let mut layers = Layers::default();
        layers.add_file(file, text).unwrap();
        set.iter().for_each(|assignment| layers.add_assignment(assignment).unwrap());
        Job::resolve(layers).unwrap().spec
    }

    fn listed(job: &JobSpec) -> Vec<String> {
        let values = job.values().into_iter().filter(|(key, _)| KEYS.contains(&key.as_str()));
        values.map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), String::from)).collect()
    }

    #[test]
    fn every_path_of_a_file_counts_from_its_folder_and_those_of_flags_do_not() {
        let spec = job("jobs/a.toml", JOB, &[]);
        assert_eq!(listed(&spec), ["jobs/rows-*.csv", "jobs/held.csv", "jobs/cache", "jobs/net.onnx"]);
        let spec = job("jobs/a.toml", JOB, &["data.source=other.csv"]);
        assert_eq!(listed(&spec)[..2], ["other.csv", "jobs/held.csv"]);
        let spec = job("jobs/a.toml", "[data]\nvalidation = 0.3\n", &[]);
        assert_eq!(listed(&spec), ["builtin:digits", "0.3"]);
    }

    #[test]
    fn kept_copies_have_absolute_paths_and_do_not_change_when_read_again() {
        let spec = job("jobs/a.toml", JOB, &[]).with_paths_from(Path::new("/srv/me"));
        assert_eq!(listed(&spec)[0], "/srv/me/jobs/rows-*.csv");
        assert_eq!(job("runs/a-1/job.toml", &spec.to_toml(), &[]), spec);
        assert_eq!(JobSpec::default().with_paths_from(Path::new("/srv")), JobSpec::default());
    }

    #[test]
    fn ranks_with_the_same_job_in_other_folders_agree() {
        let hash = |file: &str, text: &str| job(file, text, &[]).hash();
        assert_eq!(hash("jobs/a.toml", JOB), hash("/else/where/a.toml", JOB));
        let kept = job("jobs/a.toml", JOB, &[]).with_paths_from(Path::new("/srv/me"));
        assert_eq!(kept.hash(), hash("a.toml", JOB));
        assert_ne!(hash("a.toml", "[data]\nsource = \"rows.csv\"\n"), JobSpec::default().hash());
        assert_ne!(
            hash("a.toml", "[data]\nvalidation = \"a.csv\"\n"),
            hash("a.toml", "[data]\nvalidation = 0.3\n")
        );
    }
}
