use super::super::Jsonl;
use super::super::progress_state::tests::{at, epoch, started, step};
use super::*;

fn run(folder: &Path, resume: bool, events: Vec<Event>) -> Report {
    let (mut view, notice) = ReportView::open(folder, "digits-1", &Job::default(), resume);
    assert_eq!(notice, None);
    for (second, event) in events.into_iter().enumerate() {
        view.record(&at(second as f64, event)).unwrap();
    }
    let report = view.finish(Outcome::Completed, None, Duration::from_secs(9));
    write(&report, folder).unwrap();
    report
}

fn partial_epoch(number: u64, last_step: u64, rows: u64) -> Event {
    let Event::Epoch { epoch, loss, validation, audit, .. } = epoch(number) else { unreachable!() };
    let audit = Audit { expected: rows, once: rows, ..audit };
    Event::Epoch {
        epoch,
        step: last_step,
        loss,
        validation,
        audit,
        consensus: None,
        members: Vec::new(),
        merge_every: None,
    }
}

#[test]
fn the_report_is_built_from_events() {
    let folder = tempfile::tempdir().unwrap();
    let account = |rank| Event::Account { account: RankReport { rank, ..RankReport::default() } };
    let last = Metrics::from([("accuracy".into(), 0.97)]);
    let done =
        Event::Done { outcome: Outcome::Completed, last, steps: 20, units: 20, rows: 2874, train_s: 2.0 };
    let hosts = vec!["a".into(), "a".into()];
    let joined = Event::Joined { hosts, generation: 0 };
    let report =
        run(folder.path(), false, vec![joined, started(0), epoch(0), epoch(1), account(1), account(0), done]);
    assert_eq!(report.last["accuracy"], 0.97);
    assert_eq!((report.steps, report.samples_per_s, report.wall_s), (20, 1437.0, 9.0));
    assert_eq!(report.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(report.world, [WorldSize { step: 0, workers: 2 }]);
    assert_eq!((report.epochs.len(), report.audit.len()), (2, 2));
    assert_eq!(report.dials["strategy.exchange.kind"], "allreduce");
    assert_eq!(report.job["engine.workers"], 2);
    let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
    assert!(text.contains("\"final\": {") && text.contains("\"outcome\": \"completed\""));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn a_resumed_run_keeps_earlier_epochs_and_completes_a_divided_one() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), false, vec![started(0), epoch(0), partial_epoch(1, 15, 700)]);
    let report = run(folder.path(), true, vec![started(15), partial_epoch(1, 20, 1437), epoch(2)]);
    assert_eq!(report.epochs.iter().map(|epoch| epoch.step).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(report.audit.iter().map(|audit| audit.once).collect::<Vec<_>>(), [1437, 1437, 1437]);
    assert_eq!(report.world.len(), 2);
    assert_eq!(report.first_step, 15);

    // From an older checkpoint: the later epochs are repeated and counted once.
    let report = run(folder.path(), true, vec![started(10), epoch(1)]);
    assert_eq!(report.epochs.iter().map(|epoch| epoch.epoch).collect::<Vec<_>>(), [0, 1]);
    assert!(report.audit.iter().all(|audit| audit.once == 1437));
}

#[test]
fn a_killed_run_is_reconstructed_from_its_events() {
    let folder = tempfile::tempdir().unwrap();
    // A first run that completed, and a second one that was killed after writing its events.
    let first = vec![started(0), epoch(0), partial_epoch(1, 15, 700)];
    let second = vec![started(15), partial_epoch(1, 20, 1437), epoch(2), epoch(3), step(44, 1.0)];
    run(folder.path(), false, first.clone());
    let mut events = Jsonl::open(folder.path()).unwrap();
    for event in [first, second].concat() {
        events.record(&at(0.0, event)).unwrap();
    }
    events.close().unwrap();
    // Its last checkpoint is of step 30: the fourth epoch is repeated.
    let report = run(folder.path(), true, vec![started(30), epoch(3), epoch(4)]);
    assert_eq!(report.epochs.iter().map(|epoch| epoch.step).collect::<Vec<_>>(), [10, 20, 30, 40, 50]);
    assert_eq!(report.audit.iter().map(|audit| audit.once).collect::<Vec<_>>(), [1437; 5]);
    assert_eq!(report.world.iter().map(|world| world.step).collect::<Vec<_>>(), [0, 15, 30]);
    assert_eq!((report.first_step, report.checkpoint_step), (30, Some(30)));
}

#[test]
fn a_run_without_steps_left_keeps_the_earlier_report() {
    let folder = tempfile::tempdir().unwrap();
    let done = |rows, train_s| Event::Done {
        outcome: Outcome::Completed,
        last: Metrics::from([("accuracy".into(), 0.97)]),
        steps: 20,
        units: 20,
        rows,
        train_s,
    };
    let account = Event::Account { account: RankReport { rows: 2874, ..RankReport::default() } };
    let first = run(folder.path(), false, vec![started(0), epoch(0), epoch(1), account, done(2874, 2.0)]);
    let json = |report: &Report| serde_json::to_string(report).unwrap();
    let idle = Event::Account { account: RankReport::default() };
    let again = run(folder.path(), true, vec![started(20), idle, done(0, 0.001)]);
    assert_eq!(json(&again), json(&first));
    // It completes a run that was stopped after its last step.
    write(&Report { outcome: Outcome::Interrupted, ..first.clone() }, folder.path()).unwrap();
    let again = run(folder.path(), true, vec![started(20), done(0, 0.001)]);
    assert_eq!(json(&again), json(&first));
}

#[test]
fn messages_of_all_ranks_are_added_up() {
    let folder = tempfile::tempdir().unwrap();
    let account =
        |rank, messages| Event::Account { account: RankReport { rank, messages, ..RankReport::default() } };
    let of = |sent, skipped, median_delay_s, longest_gap_s| {
        Some(MessageReport { sent, skipped, combined: 2 * skipped, median_delay_s, longest_gap_s })
    };
    let report = run(folder.path(), false, vec![started(0), account(0, None), epoch(0)]);
    assert_eq!(report.messages, None);
    let accounts = vec![
        account(0, of(10, 1, 0.3, 0.5)),
        account(1, of(3, 0, 0.1, 2.0)),
        account(2, None),
        account(3, of(8, 2, 0.2, 0.1)),
    ];
    let report = run(folder.path(), false, [vec![started(0), epoch(0)], accounts].concat());
    assert_eq!(report.messages, of(21, 3, 0.2, 2.0));
}

#[test]
fn an_invalid_report_is_a_warning_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "{ half").unwrap();
    let (view, notice) = ReportView::open(folder.path(), "x", &Job::default(), true);
    assert!(notice.unwrap().contains("report.json is not a report of format 1"));
    write(&view.finish(Outcome::Failed, None, Duration::ZERO), folder.path()).unwrap();
    assert!(read(folder.path()).unwrap().is_some());
}

#[test]
fn the_rank_blamed_by_the_error_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (mut view, _) = ReportView::open(folder.path(), "x", &Job::default(), false);
    view.record(&at(0.0, started(0))).unwrap();
    view.record(&at(2.0, step(3, 500.0))).unwrap();
    assert_eq!(view.outcome(), None);
    let culprit = Culprit {
        rank: 1,
        step: Some(4),
        operation: Some("all-reduce of gradients".into()),
        cause: "killed by SIGKILL".into(),
        detect_s: Some(0.1),
        ..Culprit::default()
    };
    let error = Error::new(Kind::RankFailed, "rank 1 died").blame(culprit);
    let report = view.finish(Outcome::Failed, Some(&error), Duration::from_secs(3));
    assert_eq!(report.failures[0].rank, Some(1));
    assert_eq!(report.failures[0].cause, "killed by SIGKILL");
    assert_eq!(report.failures[0].detect_s, Some(0.1));
    assert_eq!((report.steps, report.train_s, report.samples_per_s), (4, 2.0, 500.0));
    assert_eq!(report.error, Some(error));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (view, _) = ReportView::open(folder.path(), "x", &Job::default(), false);
    let report = view.finish(Outcome::Failed, None, Duration::ZERO);
    let error = write(&report, &folder.path().join("absent")).unwrap_err();
    assert!(error.message.contains("absent/report.json"), "{error}");
}
