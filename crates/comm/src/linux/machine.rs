//! Cores, memory and shared memory of this machine, as far as the kernel reports them under `/proc` and `/sys`.
//!
//! Elsewhere the values are unknown; only advice and early checks depend on them.

use std::path::{Path, PathBuf};

/// Cores and memory of this machine, and the share of them this process may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Cores that are online.
    pub cores: usize,
    /// Cores this process may run on.
    pub affinity: usize,
    /// Cores' worth of time that its control group may use; `None` without a limit.
    pub quota: Option<f64>,
    /// In bytes, as all sizes here.
    pub memory_total: Option<u64>,
    pub memory_available: Option<u64>,
    /// Limit of its control group; `None` without a limit.
    pub memory_limit: Option<u64>,
    pub shm_total: Option<u64>,
    pub shm_available: Option<u64>,
    /// Equal for all processes until the kernel restarts.
    pub boot_id: Option<String>,
}

/// The core this thread runs on; a hint, as the thread may be moved at any time.
pub(crate) fn current_core() -> Option<u64> {
    nix::sched::sched_getcpu().ok().map(|core| core as u64)
}

impl Machine {
    pub fn read() -> Machine {
        let mut machine = Machine::read_under(Path::new("/"));
        if let Ok(shm) = nix::sys::statvfs::statvfs("/dev/shm") {
            let block = shm.fragment_size();
            machine.shm_total = Some(shm.blocks() * block);
            machine.shm_available = Some(shm.blocks_available() * block);
        }
        machine
    }

    /// Cores' worth of time that this process may use.
    pub fn usable_cores(&self) -> f64 {
        let allowed = self.affinity.max(1) as f64;
        self.quota.map_or(allowed, |quota| quota.min(allowed))
    }

    /// Reads the files under a root folder.
    fn read_under(root: &Path) -> Machine {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let portable = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let status = text("proc/self/status");
        let memory = text("proc/meminfo");
        let groups = ControlGroups { root: root.into(), membership: text("proc/self/cgroup") };
        Machine {
            cores: count_list(text("sys/devices/system/cpu/online").trim()).unwrap_or(portable),
            affinity: field(&status, "Cpus_allowed_list").and_then(count_list).unwrap_or(portable),
            quota: groups.quota(),
            memory_total: kibibytes(&memory, "MemTotal"),
            memory_available: kibibytes(&memory, "MemAvailable"),
            memory_limit: groups.memory_limit(),
            shm_total: None,
            shm_available: None,
            boot_id: Some(text("proc/sys/kernel/random/boot_id").trim().to_owned())
                .filter(|id| !id.is_empty()),
        }
    }
}

/// The value of `name: value` in a text of such lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// `16384 kB` in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// How many numbers there are in `0-3,8`.
fn count_list(list: &str) -> Option<usize> {
    list.split(',').try_fold(0usize, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// The control groups of this process: version 2 has one tree, version 1 one for each resource.
struct ControlGroups {
    root: PathBuf,
    membership: String,
}

impl ControlGroups {
    /// The folders for a resource, from the group's own up to the root of the tree: the limits of all of them hold.
    fn folders(&self, controller: &str) -> Vec<PathBuf> {
        let tree = self.root.join("sys/fs/cgroup");
        let lines = self.membership.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?.trim_start_matches('/')))
        });
        let mut folders = Vec::new();
        for (controllers, path) in lines {
            let base = match controllers {
                "" => tree.clone(),
                names if names.split(',').any(|name| name == controller) => tree.join(controller),
                _ => continue,
            };
            // A container may see a path that does not exist inside it; the root is always there.
            folders.extend(Path::new(path).ancestors().map(|folder| base.join(folder)));
        }
        folders
    }

    fn smallest<T: PartialOrd>(&self, controller: &str, read: impl Fn(&Path) -> Option<T>) -> Option<T> {
        let limits = self.folders(controller).into_iter().filter_map(|folder| read(&folder));
        limits.reduce(|smallest, limit| if limit < smallest { limit } else { smallest })
    }

    fn quota(&self) -> Option<f64> {
        self.smallest("cpu", |folder| {
            let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
            if let Some(limit) = text("cpu.max") {
                let (quota, period) = limit.trim().split_once(' ')?;
                return Some(number(quota)? / number(period)?);
            }
            Some(number(&text("cpu.cfs_quota_us")?)? / number(&text("cpu.cfs_period_us")?)?)
        })
    }

    fn memory_limit(&self) -> Option<u64> {
        // Version 1 writes "no limit" as a number near the largest there is.
        const NO_LIMIT: u64 = 1 << 60;
        self.smallest("memory", |folder| {
            ["memory.max", "memory.limit_in_bytes"]
                .iter()
                .find_map(|name| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok())
                .filter(|limit| *limit < NO_LIMIT)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a machine from these files.
    fn machine(files: &[(&str, &str)]) -> Machine {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Machine::read_under(root.path())
    }

    #[test]
    fn a_machine_without_control_groups() {
        let found = machine(&[
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-2,5\n"),
            ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n"),
            ("proc/sys/kernel/random/boot_id", "abc-def\n"),
        ]);
        let expected = Machine {
            cores: 8,
            affinity: 4,
            memory_total: Some(16 << 20),
            memory_available: Some(8 << 20),
            boot_id: Some("abc-def".into()),
            ..Machine::default()
        };
        assert_eq!(found, expected);
        assert_eq!(found.usable_cores(), 4.0);
    }

    #[test]
    fn limits_of_every_enclosing_group_hold_in_version_2() {
        let found = machine(&[
            ("proc/self/status", "Cpus_allowed_list:\t0-7\n"),
            ("proc/self/cgroup", "0::/jobs/mine\n"),
            ("sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/jobs/mine/memory.max", "1000\n"),
            ("sys/fs/cgroup/jobs/memory.max", "max\n"),
        ]);
        assert_eq!((found.quota, found.memory_limit), (Some(1.5), Some(1000)));
        assert_eq!(found.usable_cores(), 1.5);
    }

    #[test]
    fn version_1_has_a_tree_for_each_resource() {
        let found = machine(&[
            ("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/not/seen/here\n1:name=systemd:/\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!((found.quota, found.memory_limit), (Some(0.5), None));
    }

    #[test]
    fn unreadable_files_are_no_error() {
        let found = machine(&[
            ("proc/self/status", "Cpus_allowed_list:\t3-1\n"),
            ("proc/meminfo", "MemTotal: many kB"),
        ]);
        assert!(found.cores > 0 && found.affinity > 0);
        assert_eq!(found.memory_total, None);
        assert!(Machine::read().usable_cores() > 0.0);
    }
}
