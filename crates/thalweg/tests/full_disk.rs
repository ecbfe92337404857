//! A disk that fills up in the middle: which file it was, what to do, and no half of a file.

mod harness;

use harness::{Process, Site, skip};
use std::process::Command;
use thalweg_cluster::tensorfile::TensorFile;

/// A file system of its own, taken away at the end.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// Nothing if this user may not do that.
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
fn a_full_disk_is_told_by_file_and_leaves_no_half_of_one() {
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
fn a_disk_that_is_full_from_the_start_stops_nothing_half_way() {
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

/// `thalweg` where no file may have more than so many KiB.
fn limited(site: &Site, kib: u32, arguments: &[&str]) -> harness::Ended {
    let script = format!("ulimit -f {kib}; exec \"$@\"");
    let words = [&["-c", &script, "bash", env!("CARGO_BIN_EXE_thalweg")], arguments].concat();
    Process::start(site.program("bash", &words)).end(harness::PATIENCE)
}

#[test]
fn where_files_must_be_short_workers_exchange_over_tcp_and_say_so() {
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
fn a_file_that_may_not_grow_is_told_and_kills_nobody() {
    let site = Site::new();
    let ended = limited(&site, 16, &["train", "--out", "run", "--set", "train.epochs=1"]);
    ended.assert_error(1, &["cannot write run/", "ile too large"]);
    assert!(!ended.stderr.contains("killed"), "{}", ended.stderr);
    site.assert_empty();
}
