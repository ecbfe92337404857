//! Eviction from the cache folder.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Age at which a partial file counts as abandoned.
const MAX_PARTIAL_AGE: Duration = Duration::from_secs(86400);

/// Removes the least recently used files until at most `limit` bytes are left, and partial files of killed
/// processes. Processes that have a removed file open can still read it.
pub(crate) fn evict_to(folder: &Path, limit: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut kept = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(about) = fs::metadata(&path) else { continue };
        let since = |time: io::Result<SystemTime>| time.ok()?.elapsed().ok();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("unpacked" | "index") => {
                kept.push((since(about.accessed()).unwrap_or_default(), about.len(), path));
            }
            Some("partial") if since(about.modified()).is_some_and(|age| age > MAX_PARTIAL_AGE) => {
                let _ = fs::remove_file(path);
            }
            _ => {}
        }
    }
    kept.sort_unstable();
    let mut total = 0u64;
    for (_, length, path) in kept {
        total = total.saturating_add(length);
        if total > limit {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn least_recently_used_files_are_evicted() {
        let folder = tempfile::tempdir().unwrap();
        let age = |name: &str, seconds: u64| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(100).unwrap();
            let then = SystemTime::now() - Duration::from_secs(seconds);
            file.set_times(fs::FileTimes::new().set_accessed(then).set_modified(then)).unwrap();
        };
        age("new.unpacked", 10);
        age("old.unpacked", 30);
        age("middle.index", 20);
        age("foreign.csv", 99);
        age("begun.1-0.partial", 60);
        age("left.2-0.partial", 2 * 86400);
        evict_to(folder.path(), 250);
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["begun.1-0.partial", "foreign.csv", "middle.index", "new.unpacked"]);
    }
}
