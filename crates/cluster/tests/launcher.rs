//! The local launcher, with a script as the worker program.

use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;
use std::time::Duration;
use thalweg_cluster::engine::local::{LaunchOutcome, LaunchPlan, launch};
use thalweg_core::event::{Event, Level};

/// Rank 1 dies whenever it is started; rank 0 stays until it was told of four exits.
const SCRIPT: &str = r#"#!/bin/sh
if [ "$RANK" = 1 ]; then kill -9 $$; fi
for exit in 1 2 3 4; do
    read command
    [ "$command" = '{"rank_exited":1}' ] || exit 1
done
"#;

#[test]
fn the_launcher_stops_replacing_workers_that_die_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("worker");
    std::fs::write(&program, SCRIPT).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let deadline = Duration::from_secs(60);
    let plan = LaunchPlan {
        command: vec![program.into_os_string()],
        variables: Vec::new(),
        ranks: vec![0, 1],
        world: 2,
        master: None,
        step_deadline: deadline,
        join_deadline: deadline,
        prepare_deadline: deadline,
        elastic: true,
        respawn: true,
    };
    let (_sender, signals) = channel();
    let mut warnings = Vec::new();
    let ended = launch(&plan, &signals, None, &mut |record| {
        if let Event::Notice { level: Level::Warning, message } = &record.event {
            warnings.push(message.clone());
        }
        Ok(())
    });
    assert_eq!(ended.unwrap(), LaunchOutcome::Done);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(
        warning.starts_with("no replacement of rank 1: the last of 3 was killed by signal 9"),
        "{warning}"
    );
}
