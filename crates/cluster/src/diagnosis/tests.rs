use super::*;
use thalweg_core::event::Phase;

fn exchanging() -> Heartbeat {
    Heartbeat {
        step: 40,
        phase: Phase::Exchanging,
        operation: 41,
        name: "all-reduce of gradients".into(),
        since: 0.1,
        ..Heartbeat::default()
    }
}

fn blames(rank: usize) -> Error {
    Error::new(Kind::RankFailed, format!("lost rank {rank}")).blame(Culprit { rank, ..Culprit::default() })
}

const T0: Duration = Duration::from_secs(1);

#[test]
fn a_kill_names_rank_signal_step_and_what_the_others_waited_in() {
    let mut diagnosis = Diagnosis::new(3, EVIDENCE_TIMEOUT);
    diagnosis.set_location(1, "box (pid 17)".into());
    diagnosis.add(T0, Evidence::Failed { rank: 0, error: blames(1), heartbeat: exchanging() });
    assert_eq!(diagnosis.conclude(T0), None, "a report of another rank waits for the exit status");
    let how = "was killed by signal 9 (SIGKILL)".to_string();
    diagnosis.add(
        T0,
        Evidence::Exited { rank: 1, how, heartbeat: Heartbeat { phase: Phase::Computing, ..exchanging() } },
    );
    let error = diagnosis.conclude(T0).unwrap();
    assert_eq!(
        error.message,
        "rank 1 on box (pid 17) was killed by signal 9 (SIGKILL) at step 40; rank 0 waited for it in all-reduce of gradients"
    );
    assert_eq!(error.exit_code(), 3);
    assert_eq!(error.culprit.unwrap().rank, 1);
}

#[test]
fn the_end_of_a_chain_of_waiting_is_named() {
    let mut diagnosis = Diagnosis::new(4, EVIDENCE_TIMEOUT);
    for rank in 0..3 {
        diagnosis.add(T0, Evidence::Lost { rank, error: blames(rank + 1), heartbeat: exchanging() });
    }
    assert_eq!(diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap().culprit.unwrap().rank, 3);
}

#[test]
fn an_operation_by_another_name_is_part_of_the_message() {
    let mut diagnosis = Diagnosis::new(2, EVIDENCE_TIMEOUT);
    let elsewhere = Heartbeat { name: "all-reduce of means".into(), ..exchanging() };
    diagnosis.add(T0, Evidence::Lost { rank: 0, error: blames(1), heartbeat: exchanging() });
    diagnosis.add(T0, Evidence::Lost { rank: 1, error: blames(0), heartbeat: elsewhere.clone() });
    let message = diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap().message;
    assert_eq!(message, "lost rank 1; rank 1 was in all-reduce of means");
    diagnosis.clear();
    diagnosis.on_heartbeat(1, Heartbeat { operation: 7, ..elsewhere });
    diagnosis.add(T0, Evidence::Lost { rank: 0, error: blames(1), heartbeat: exchanging() });
    assert_eq!(
        diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap().message,
        "lost rank 1",
        "its last heartbeat is of an earlier operation"
    );
}

#[test]
fn a_rank_alone_in_another_operation_is_named_and_not_the_lowest_of_the_others() {
    let mut diagnosis = Diagnosis::new(3, EVIDENCE_TIMEOUT);
    for (rank, accused) in [(0, 1), (1, 0), (2, 0)] {
        diagnosis.add(T0, Evidence::Lost { rank, error: blames(accused), heartbeat: exchanging() });
    }
    let concluded = diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).expect("all have reported");
    assert_eq!(concluded.culprit.map(|culprit| culprit.rank), Some(0));
}

#[test]
fn a_ranks_report_of_its_own_failure_is_the_strongest_evidence() {
    let mut diagnosis = Diagnosis::new(2, EVIDENCE_TIMEOUT);
    diagnosis.add(T0, Evidence::Vanished { rank: 1, heartbeat: exchanging() });
    diagnosis.add(T0, Evidence::Failed { rank: 0, error: blames(1), heartbeat: exchanging() });
    let own =
        blame_self(Error::data("people.csv line 17: `abc` is not a number"), 1, 2, "box", &exchanging());
    // Ranks that receive it forward it, and are not taken for its origin.
    diagnosis.add(T0, Evidence::Failed { rank: 0, error: own.clone(), heartbeat: exchanging() });
    diagnosis.add(T0, Evidence::Failed { rank: 1, error: own, heartbeat: exchanging() });
    let error = diagnosis.conclude(T0).unwrap();
    assert_eq!(error.message, "rank 1: people.csv line 17: `abc` is not a number");
    assert_eq!(error.culprit.unwrap().rank, 1);
}

#[test]
fn reports_of_other_ranks_count_after_the_timeout() {
    let mut diagnosis = Diagnosis::new(2, EVIDENCE_TIMEOUT);
    diagnosis.add(T0, Evidence::Failed { rank: 0, error: blames(1), heartbeat: exchanging() });
    assert_eq!(diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap().culprit.unwrap().rank, 1);
}

#[test]
fn a_diagnosis_of_the_coordinator_outweighs_a_report_of_a_rank() {
    let mut diagnosis = Diagnosis::new(4, COORDINATOR_TIMEOUT);
    diagnosis.add(T0, Evidence::Lost { rank: 0, error: blames(2), heartbeat: exchanging() });
    assert_eq!(diagnosis.conclude(T0 + EVIDENCE_TIMEOUT), None, "the coordinator needs that long");
    let concluded = blames(3);
    diagnosis
        .add(T0 + EVIDENCE_TIMEOUT, Evidence::Failed { rank: 1, error: concluded, heartbeat: exchanging() });
    assert_eq!(diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap().culprit.unwrap().rank, 3);
}

#[test]
fn the_first_to_vanish_is_named_and_not_the_later_ones() {
    let vanished = |rank| Evidence::Vanished { rank, heartbeat: exchanging() };
    let lost = Evidence::Lost { rank: 2, error: blames(3), heartbeat: exchanging() };
    let blamed = |evidence: [Evidence; 3]| {
        let mut diagnosis = Diagnosis::new(4, EVIDENCE_TIMEOUT);
        evidence.into_iter().for_each(|evidence| diagnosis.add(T0, evidence));
        diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap().culprit.unwrap().rank
    };
    assert_eq!(blamed([vanished(3), vanished(2), vanished(1)]), 3);
    assert_eq!(blamed([lost, vanished(2), vanished(3)]), 3, "2 was alive when 3 was gone");
}

#[test]
fn the_silent_rank_is_named() {
    let mut diagnosis = Diagnosis::new(3, EVIDENCE_TIMEOUT);
    diagnosis.add(T0, Evidence::Silent { rank: 2, seconds: 2.0, heartbeat: exchanging() });
    diagnosis.on_heartbeat(0, exchanging());
    let error = diagnosis.conclude(T0 + EVIDENCE_TIMEOUT).unwrap();
    assert!(error.message.starts_with("rank 2 has been silent for 2.0 s"), "{}", error.message);
    assert!(error.message.ends_with("rank 0 waited for it in all-reduce of gradients"), "{}", error.message);
}
