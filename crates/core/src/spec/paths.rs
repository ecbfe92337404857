//! Values of a job that are paths.
//!
//! In a job file they are relative to its folder, elsewhere to the working folder. A job in memory, and the model it
//! trained, has them relative to the working folder; copies in the run folder (job.toml, checkpoints) have absolute paths.

use super::JobSpec;
use super::setting::HeldOut;
use std::path::{Component, Path, PathBuf};
use toml::Value;

/// The keys whose strings are paths.
pub const KEYS: [&str; 4] = ["data.source", "data.validation", "data.cache", "model.onnx"];

/// A location that does not influence the result.
pub(super) const CACHE: &str = "data.cache";

/// Prefix of built-in data sets.
const BUILTIN: &str = "builtin:";

/// Wildcards of a glob pattern.
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// Whether a value is a path, and not a share of the rows or a built-in data set.
pub fn is_path(key: &str, value: &Value) -> bool {
    KEYS.contains(&key) && value.as_str().is_some_and(|text| !text.starts_with(BUILTIN))
}

/// Whether a text is a URL, such as `s3://bucket/rows.csv`; as a path it would name a folder `s3:`.
pub fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
}

/// Hint for a URL where a path is expected.
pub const NO_URLS: &str =
    "thalweg reads and writes files of this host: copy it here or mount it first, and name the path";

pub(super) fn check(spec: &JobSpec, refuse: &mut dyn FnMut(&str, String)) {
    for (key, value) in spec.values().iter().filter(|(key, value)| is_path(key, value)) {
        if let Some(url) = value.as_str().filter(|text| is_url(text)) {
            refuse(key, format!("`{url}` is a URL; {NO_URLS}"));
        }
    }
}

/// A path or glob pattern relative to `folder`.
pub fn within(folder: &Path, path: &str) -> String {
    let unchanged =
        folder.as_os_str().is_empty() || path.is_empty() || Path::new(path).is_absolute() || is_url(path);
    let Some(folder) = folder.to_str().filter(|_| !unchanged) else { return path.into() };
    // Wildcards in the name of the folder are literal.
    let folder = if path.contains(WILDCARDS) { escape(folder) } else { folder.into() };
    let joined = Path::new(&folder).join(path);
    let parts = joined.components().filter(|part| *part != Component::CurDir);
    parts.collect::<PathBuf>().to_string_lossy().into_owned()
}

/// Escapes wildcards.
fn escape(text: &str) -> String {
    text.chars().map(|c| if WILDCARDS.contains(&c) { format!("[{c}]") } else { c.into() }).collect()
}

impl JobSpec {
    /// The same job with paths relative to `folder`.
    pub fn with_paths_from(&self, folder: &Path) -> JobSpec {
        let mut job = self.clone();
        let validation = match &mut job.data.validation {
            Some(HeldOut::Source(path)) => Some(path),
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
    use crate::spec::{Job, JobLayers};

    #[test]
    fn paths_are_relative_to_a_folder_unless_absolute() {
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

    #[test]
    fn urls_are_refused() {
        for url in ["s3://bucket/rows.csv", "hdfs://a/b", "file:///rows.csv", "https://x/y"] {
            assert!(is_url(url), "{url}");
            assert_eq!(within(Path::new("jobs"), url), url);
            let mut layers = JobLayers::default();
            layers.add_assignment(&format!("data.source={url}")).unwrap();
            let refused = Job::parse(layers).unwrap_err().message;
            assert!(refused.contains("is a URL") && refused.contains("data.source"), "{refused}");
        }
        for path in ["rows.csv", "/a/b://c", "C:/rows.csv", "://x", "a b://c", "builtin:digits"] {
            assert!(!is_url(path), "{path}");
        }
    }

    const JOB: &str = "[data]\nsource = \"rows-*.csv\"\nvalidation = \"held.csv\"\ncache = \"cache\"\n\
                       [model]\nonnx = \"net.onnx\"\n";

    fn job(file: &str, text: &str, set: &[&str]) -> JobSpec {
        let mut layers = JobLayers::default();
        layers.add_file(file, text).unwrap();
        set.iter().for_each(|assignment| layers.add_assignment(assignment).unwrap());
        Job::parse(layers).unwrap().spec
    }

    fn listed(job: &JobSpec) -> Vec<String> {
        let values = job.values().into_iter().filter(|(key, _)| KEYS.contains(&key.as_str()));
        values.map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), String::from)).collect()
    }

    #[test]
    fn paths_of_a_file_are_relative_to_its_folder_and_those_of_flags_are_not() {
        let spec = job("jobs/a.toml", JOB, &[]);
        assert_eq!(listed(&spec), ["jobs/rows-*.csv", "jobs/held.csv", "jobs/cache", "jobs/net.onnx"]);
        let spec = job("jobs/a.toml", JOB, &["data.source=other.csv"]);
        assert_eq!(listed(&spec)[..2], ["other.csv", "jobs/held.csv"]);
        let spec = job("jobs/a.toml", "[data]\nvalidation = 0.3\n", &[]);
        assert_eq!(listed(&spec), ["builtin:digits", "0.3"]);
    }

    #[test]
    fn stored_copies_have_absolute_paths_and_are_read_back() {
        let spec = job("jobs/a.toml", JOB, &[]).with_paths_from(Path::new("/srv/me"));
        assert_eq!(listed(&spec)[0], "/srv/me/jobs/rows-*.csv");
        assert_eq!(job("runs/a-1/job.toml", &spec.to_toml(), &[]), spec);
        assert_eq!(JobSpec::default().with_paths_from(Path::new("/srv")), JobSpec::default());
    }

    #[test]
    fn the_hash_ignores_paths() {
        let hash = |file: &str, text: &str| job(file, text, &[]).hash();
        assert_eq!(hash("jobs/a.toml", JOB), hash("/else/where/a.toml", JOB));
        let kept = job("jobs/a.toml", JOB, &[]).with_paths_from(Path::new("/srv/me"));
        assert_eq!(kept.hash(), hash("a.toml", JOB));
        let elsewhere = job("a.toml", JOB, &["data.source=/data/all.csv", "model.onnx=/m/n.onnx"]);
        assert_eq!(elsewhere.hash(), hash("a.toml", JOB));
        let no_cache = JOB.replace("cache = \"cache\"\n", "");
        assert_eq!(hash("a.toml", &no_cache), hash("a.toml", JOB), "the cache folder is not hashed");
        assert_ne!(hash("a.toml", "[data]\nsource = \"rows.csv\"\n"), JobSpec::default().hash());
        assert_ne!(
            hash("a.toml", "[data]\nvalidation = \"a.csv\"\n"),
            hash("a.toml", "[data]\nvalidation = 0.3\n")
        );
    }
}
