//! What leaves the cache folder, so that it stays within its bound.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long a half-written file may be worked on.
const LONGEST_WRITE: Duration = Duration::from_secs(86400);

/// Removes what was not used for longest until no more than so many bytes are left, and what killed processes left
/// half-written. Processes that read such a file go on reading it.
pub(crate) fn make_room(folder: &Path, limit: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut kept = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(about) = fs::metadata(&path) else { continue };
        let since = |time: io::Result<SystemTime>| time.ok()?.elapsed().ok();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("unpacked" | "index") => {
                kept.push((since(about.accessed()).unwrap_or_default(), about.len(), path));
            }
            Some("partial") if since(about.modified()).is_some_and(|age| age > LONGEST_WRITE) => {
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
    fn what_was_not_used_for_longest_makes_room() {
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
        age("somebody-elses.csv", 99);
        age("begun.1-0.partial", 60);
        age("left.2-0.partial", 2 * 86400);
        make_room(folder.path(), 250);
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["begun.1-0.partial", "middle.index", "new.unpacked", "somebody-elses.csv"]);
    }
}
