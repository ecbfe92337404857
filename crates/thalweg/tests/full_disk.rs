//! A disk that fills up during training: the error names the file and advice, and no partial file is left.

mod harness;

use harness::{Process, Site, skip};
use std::process::Command;
use thalweg_cluster::tensorfile::TensorFile;

/// A small tmpfs, unmounted at the end.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// `None` if this user may not mount.
    fn mount(path: std::path::PathBuf, size: &str) -> Option<SmallDisk> {
        std::fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "thalweg-test"]).arg(&path);
        let done = mount.output().is_ok_and(|output| output.status.success());
        done.then_some(SmallDisk(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_reported_by_file_and_leaves_no_partial_file() {
    let site = Site::new();
    let Some(_disk) = SmallDisk::mount(site.path("disk"), "200k") else {
        return skip("this user may not mount a file system");
    };
    // The first checkpoint fits, the second does not.
    let ended = site.run(&["train", "--out", "disk/run", "--set", "fault.checkpoint_every=20"]);
    ended.assert_error(1, &["cannot write disk/run/", "no space left on device"]);
    ended.assert_advice("free some space or choose another folder with --out");
    site.assert_empty();
    let kept = thalweg_cluster::checkpoint::list(&site.path("disk/run/checkpoints"));
    assert_eq!(kept.len(), 1, "the checkpoint that fitted");
    assert!(TensorFile::read(&kept[0]).is_ok());
    assert!(!site.path("disk/run/model.safetensors").exists());
    let stray = |folder: &str| {
        let entries = std::fs::read_dir(site.path(folder)).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".tmp")).count()
    };
    assert_eq!((stray("disk/run"), stray("disk/run/checkpoints")), (0, 0));
}

#[test]
fn a_disk_that_is_full_from_the_start_is_refused() {
    let site = Site::new();
    let Some(_disk) = SmallDisk::mount(site.path("disk"), "64k") else {
        return skip("this user may not mount a file system");
    };
    // Fill it to the last byte.
    let filled = std::fs::write(site.path("disk/filler"), vec![0; 1 << 20]);
    assert!(filled.is_err());
    let ended = site.run(&["train", "--out", "disk/run"]);
    ended.assert_error(1, &["disk/run", "no space left on device"]);
    ended.assert_advice("--out");
    assert!(!site.path("disk/run").exists());
}

/// Runs `thalweg` with a file size limit in KiB.
fn limited(site: &Site, kib: u32, arguments: &[&str]) -> harness::Ended {
    let script = format!("ulimit -f {kib}; exec \"$@\"");
    let words = [&["-c", &script, "bash", env!("CARGO_BIN_EXE_thalweg")], arguments].concat();
    Process::start(site.program("bash", &words)).end(harness::TRAINING_LIMIT)
}

#[test]
fn with_a_file_size_limit_workers_exchange_over_tcp_with_a_notice() {
    let site = Site::new();
    // A ring takes 260 KiB; a checkpoint of this job less than 200.
    let ended = limited(&site, 200, &["train", "--out", "run", "--set", "train.epochs=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let notice = "that a file may have here (ulimit -f); they exchange over tcp";
    assert!(ended.stderr.contains(notice), "{}", ended.stderr);
    let report = site.report("run");
    assert!(report["ranks"].as_array().unwrap().iter().all(|rank| rank["transport"] == "tcp"), "{report}");
    site.assert_empty();
}

#[test]
fn the_file_size_limit_is_an_error_and_kills_no_process() {
    let site = Site::new();
    let ended = limited(&site, 16, &["train", "--out", "run", "--set", "train.epochs=1"]);
    ended.assert_error(1, &["cannot write run/", "ile too large"]);
    assert!(!ended.stderr.contains("killed"), "{}", ended.stderr);
    site.assert_empty();
}
