//! The local launcher, with a script in the place of workers.

use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;
use std::time::Duration;
use thalweg_cluster::engine::local::{Ended, Plan, launch};
use thalweg_core::event::{Event, Level};

/// Rank 1 dies whenever it is started; rank 0 stays until it has heard of four deaths.
const SCRIPT: &str = r#"#!/bin/sh
if [ "$RANK" = 1 ]; then kill -9 $$; fi
for death in 1 2 3 4; do
    read wish
    [ "$wish" = '{"gone":1}' ] || exit 1
done
"#;

#[test]
fn replacements_that_die_at_once_come_to_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("worker");
    std::fs::write(&program, SCRIPT).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let patience = Duration::from_secs(60);
    let plan = Plan {
        command: vec![program.into_os_string()],
        variables: Vec::new(),
        ranks: 0..2,
        world: 2,
        master: None,
        step_deadline: patience,
        join_deadline: patience,
        prepare_deadline: patience,
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
    assert_eq!(ended.unwrap(), Ended::Done);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(
        warning.starts_with("no worker in the place of rank 1: the last of 3 was killed by signal 9"),
        "{warning}"
    );
}
