use super::*;
use thalweg_core::report::Audit;

/// A record of rank 0.
pub fn at(time: f64, event: Event) -> Record {
    Record { time, rank: Some(0), event }
}

/// The beginning of a small job of 20 epochs of 10 steps.
pub fn started(first_step: u64) -> Event {
    Event::Started {
        rows: 1437,
        validation_rows: 360,
        width: 64,
        window: 0,
        classes: (0..10).map(|digit| digit.to_string()).collect(),
        parameters: 9610,
        model: "dense 128 relu, dense 10".into(),
        epochs: 20,
        steps_per_epoch: 10,
        first_step,
        algorithm: "ring".into(),
        buckets: Vec::new(),
    }
}

/// A step of that job.
pub fn step(step: u64, samples_per_s: f64) -> Event {
    Event::Step {
        epoch: step / 10,
        step,
        steps_per_epoch: 10,
        loss: 0.5,
        samples_per_s,
        slowest: 1,
        slowest_ms: 2.0,
        median_ms: 1.9,
        fastest_ms: 1.8,
    }
}

/// The end of an epoch of that job.
pub fn epoch(epoch: u64) -> Event {
    Event::Epoch {
        epoch,
        step: (epoch + 1) * 10,
        loss: 0.1234,
        validation: Metrics::from([("accuracy".into(), 0.961), ("loss".into(), 0.2)]),
        audit: Audit { epoch, expected: 1437, once: 1437, ..Audit::default() },
        consensus: None,
        members: Vec::new(),
        merge_every: None,
    }
}

#[test]
fn without_validation_rows_metrics_are_those_of_training() {
    let mut state = ProgressState::new(None);
    let mut begin = started(0);
    if let Event::Started { validation_rows, .. } = &mut begin {
        *validation_rows = 0;
    }
    let lines = state.update(&at(0.0, begin));
    assert_eq!(lines[0], "data   1,437 rows of 64 numbers and 10 classes; none kept for validation");
    let lines = state.update(&at(1.0, epoch(0)));
    assert_eq!(lines, ["epoch  1/20  loss 0.1234  training accuracy 0.9610"]);
    assert!(state.status().contains("training accuracy") && !state.status().contains("validation"));
}

#[test]
fn rows_of_a_text_are_windows() {
    let mut begin = started(0);
    if let Event::Started { rows, width, window, .. } = &mut begin {
        (*rows, *width, *window) = (1_109_689, 640, 64);
    }
    let lines = ProgressState::new(None).update(&at(0.0, begin));
    assert_eq!(lines[0], "data   1,109,689 windows of 64 characters, 10 different; 360 to validate on");
}

#[test]
fn an_epoch_is_one_line_with_the_mean_rate_of_its_steps() {
    let mut state = ProgressState::new(None);
    let opening = state.update(&at(0.0, started(0)));
    assert_eq!(opening[0], "data   1,437 rows of 64 numbers and 10 classes; 360 to validate on");
    assert_eq!(opening[1], "model  dense 128 relu, dense 10 (9,610 parameters)");
    state.update(&at(1.0, step(4, 20_000.0)));
    state.update(&at(2.0, step(9, 60_000.0)));
    let lines = state.update(&at(2.5, epoch(0)));
    assert_eq!(lines, ["epoch  1/20  loss 0.1234  validation accuracy 0.9610  30 k samples/s"]);
    assert_eq!(state.status(), "loss 0.5000  validation accuracy 0.9610  60 k samples/s  slowest: rank 1");
    assert!(state.status().len() <= 80);
    let times = Spread { min: 19.6, median: 20.04, max: 61.0 };
    assert_eq!(slowest(2, &times), "slowest: rank 2 (20/20/61 ms)");
}

#[test]
fn a_finished_run_prints_how_to_continue() {
    let lines = ProgressState::new(None).update(&at(0.0, started(250)));
    let expected = "warning: already trained for 25 epochs; continue with --set train.epochs=30";
    assert_eq!(lines.last().map(String::as_str), Some(expected));
    let lines = ProgressState::new(Some(100)).update(&at(0.0, started(100)));
    let expected = "warning: already trained for 100 steps; continue with --set train.max_steps=120";
    assert_eq!(lines.last().map(String::as_str), Some(expected));
}

#[test]
fn the_remaining_time_is_estimated_from_the_steps_of_this_run() {
    let mut state = ProgressState::new(Some(160));
    assert_eq!(state.update(&at(100.0, started(100))).len(), 2, "data and model");
    assert_eq!(state.remaining(), None);
    state.update(&at(120.0, step(119, 1000.0)));
    assert_eq!(state.step(), "step 120/160");
    assert_eq!(state.epoch(), "epoch 12/20");
    assert_eq!(state.remaining().as_deref(), Some("40 s"));
}

#[test]
fn the_source_of_a_stop_is_printed_once() {
    let stop = |ranks: &[usize], host: &str| {
        let event = Event::Stopping { ranks: ranks.to_vec(), hosts: vec![host.into()] };
        ProgressState::new(None).update(&at(0.0, event))
    };
    let own = "stopping after this step, with a checkpoint (once more to end at once)";
    assert_eq!(stop(&[2, 3], "b"), ["warning: stopping after this step: ranks 2, 3 on b received a signal"]);
    assert_eq!(stop(&[0, 1], "a"), [own], "rank 0, which reports it, received the signal");
    let mut state = ProgressState::new(None);
    let launcher = Event::Stopping { ranks: Vec::new(), hosts: Vec::new() };
    assert_eq!(state.update(&Record { time: 0.0, rank: None, event: launcher }), [own]);
    let rank = Event::Stopping { ranks: vec![1], hosts: vec!["a".into()] };
    assert!(state.update(&at(0.1, rank)).is_empty(), "the launcher has reported it");
}

#[test]
fn hosts_are_listed_only_if_there_are_several() {
    let hosts = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(joined(&hosts(&["a", "a"])), None);
    assert_eq!(joined(&hosts(&["a", "b", "a"])).unwrap(), "3 workers on 2 hosts: a (2), b (1)");
    assert!(is_loopback("127.0.0.1:29500") && is_loopback("[::1]:5") && !is_loopback("10.0.0.1:29500"));
}
