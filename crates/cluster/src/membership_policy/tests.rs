//! Newcomers, processes outside of the group, and members with false reports.

use super::evidence::MAX_FAILURES;
use super::*;
use crate::membership::MemberPosition;

const T0: Duration = Duration::ZERO;

/// A working group of `world` members that rank `world` has joined.
fn joined(world: usize) -> MembershipPolicy {
    let limits = Limits { min: 1, max: 9, timeout: Duration::from_secs(30), unit: 1 };
    let deadline = Duration::from_secs(5);
    let config = MembershipConfig {
        elastic: true,
        limits,
        servers: 0..0,
        step_deadline: deadline,
        prepare_deadline: deadline,
        epoch: 0.0,
    };
    let expected: Vec<usize> = (0..world).collect();
    let mut policy = MembershipPolicy::new(config, &expected, 0, &[], world, T0);
    let report = |policy: &mut MembershipPolicy, id, after| {
        let message = Control::Report(after, MemberPosition::default(), Heartbeat::default());
        policy.on_message(id, message, T0)
    };
    (0..world).for_each(|id| drop(report(&mut policy, id, 0)));
    let added = policy.membership.add(world, T0);
    policy.complete(added, T0);
    (0..world).for_each(|id| drop(report(&mut policy, id, 1)));
    assert!(policy.membership.has(world) && policy.membership.is_working());
    policy
}

fn failed(message: &str) -> Control {
    Control::Failed(Box::new(Error::new(Kind::Io, message)), Heartbeat::default())
}

fn aborts(commands: &[MembershipCommand]) -> bool {
    commands.iter().any(|command| matches!(command, MembershipCommand::Abort(_)))
}

#[test]
fn the_failure_of_a_newcomer_does_not_end_the_job() {
    let mut policy = joined(2);
    let commands = policy.on_message(2, failed("disk full"), T0);
    assert!(
        commands.iter().any(|command| matches!(command, MembershipCommand::Interrupt(2, _))),
        "{commands:?}"
    );
    assert!(!aborts(&policy.tick(Duration::from_secs(2))));
    assert_eq!(policy.removal_reason(2), Some("failed: disk full"));
    // The failure of a member from the start would hit the others, too.
    let mut policy = joined(2);
    policy.on_message(1, failed("disk full"), T0);
    assert!(aborts(&policy.tick(Duration::from_secs(2))));
}

/// Whichever member notices it first.
#[test]
fn the_loss_of_a_server_ends_the_job_at_once() {
    let ends_at = |commands: &[MembershipCommand], id| {
        let culprit = commands.iter().find_map(|command| match command {
            MembershipCommand::Abort(error) => error.culprit.clone(),
            _ => None,
        });
        assert_eq!(culprit.expect("the job does not end").rank, id, "{commands:?}");
    };
    let mut policy = joined(2);
    policy.config.servers = 1..2;
    assert!(!aborts(&policy.on_close(0, T0, T0)));
    ends_at(&policy.on_close(1, T0, T0), 1);
    // The members that end for it are not lost.
    assert_eq!(policy.on_close(2, T0, T0), [MembershipCommand::Disconnect(2)]);
    assert_eq!((policy.tick(Duration::from_secs(9)), policy.removal_reason(2)), (Vec::new(), None));
    // Lost together with the coordinator: the next one ends the job.
    let config = policy.config.clone();
    let mut policy = MembershipPolicy::new(config, &[2], 2, &[0, 1], 2, T0);
    ends_at(&policy.tick(T0), 1);
    // One that has completed the job may go.
    let mut policy = joined(2);
    policy.config.servers = 1..2;
    policy.on_message(1, Control::Goodbye, T0);
    assert!(!aborts(&policy.on_close(1, T0, T0)) && !aborts(&policy.tick(T0)));
}

#[test]
fn messages_of_processes_outside_of_the_group_have_no_effect() {
    let mut policy = joined(2);
    let witness =
        Error::new(Kind::RankFailed, "rank 0 was lost").blame(Culprit { rank: 0, ..Culprit::default() });
    for message in
        [failed("boom"), Control::Witness(Box::new(witness), Heartbeat::default(), None), Control::Goodbye]
    {
        let commands = policy.on_message(7, message, T0);
        assert!(
            commands.iter().all(|command| matches!(command, MembershipCommand::Disconnect(7))),
            "{commands:?}"
        );
    }
    assert_eq!(policy.tick(Duration::from_secs(2)).len(), 0);
}

#[test]
fn a_member_that_reports_a_false_generation_is_removed_and_the_others_go_on() {
    let mut policy = joined(2);
    policy.remove(0, join_validation::exited(0, 0.0), T0);
    policy.on_message(2, Control::Report(u32::MAX, MemberPosition::default(), Heartbeat::default()), T0);
    let commands =
        policy.on_message(1, Control::Report(2, MemberPosition::default(), Heartbeat::default()), T0);
    let Some(MembershipCommand::Form(view, lost)) = commands.last() else { panic!("{commands:?}") };
    assert_eq!(view.members.keys().copied().collect::<Vec<_>>(), [1]);
    assert!(lost.iter().any(|culprit| culprit.rank == 2 && culprit.cause.starts_with("broke the protocol")));
}

#[test]
fn a_newcomer_that_cannot_be_connected_is_removed_and_not_the_member_it_blames() {
    for (witness, accused) in [(2, 0), (0, 2)] {
        let mut policy = joined(2);
        let error =
            Error::new(Kind::Rendezvous, "no way").blame(Culprit { rank: accused, ..Culprit::default() });
        policy.on_message(witness, Control::Witness(Box::new(error), Heartbeat::default(), None), T0);
        policy.tick(Duration::from_secs(2));
        assert!(policy.membership.has(0) && policy.membership.has(1));
        assert!(policy.removal_reason(2).is_some_and(|cause| cause.starts_with("cannot be connected")));
    }
}

#[test]
fn second_hand_reports_count_as_one_report_of_the_newcomer_they_came_from() {
    for accused in [0, 1] {
        let mut policy = joined(3);
        let lost = Error::new(Kind::RankFailed, "it was reported lost by another rank").blame(Culprit {
            rank: accused,
            step: Some(7),
            ..Culprit::default()
        });
        for round in 0..=MAX_FAILURES {
            let now = Duration::from_secs(round.into());
            // Rank 0 got the report from the newcomer, rank 1 from rank 0, rank 2 from rank 1.
            for (witness, source) in [(2, 1), (1, 0), (0, 3)] {
                let message = Control::Witness(Box::new(lost.clone()), Heartbeat::default(), Some(source));
                policy.on_message(witness, message, now);
            }
            policy.tick(now + EVIDENCE_TIMEOUT);
            let generation = policy.membership.generation();
            for id in 0..4 {
                let message = Control::Report(generation, MemberPosition::default(), Heartbeat::default());
                policy.on_message(id, message, now + EVIDENCE_TIMEOUT);
            }
        }
        assert!(policy.membership.has(accused) && !policy.membership.has(3), "{accused}");
        assert!(policy.removal_reason(3).is_some_and(|cause| cause.starts_with("broke the protocol")));
    }
}

/// Rank 0 alone found a member in another operation, which was removed. Then a newcomer tells rank 0 again and again that
/// rank 0 is lost, and rank 0 passes it on.
#[test]
fn a_newcomer_cannot_remove_a_member_on_whose_report_another_was_removed() {
    let mut policy = joined(4);
    violation(&mut policy, 0, 3, T0);
    regroup(&mut policy, T0);
    let culprit =
        Culprit { rank: 0, step: Some(7), cause: "was reported lost by rank 4".into(), ..Culprit::default() };
    let lost = Error::new(Kind::RankFailed, "it was lost").blame(culprit);
    for round in 0..=MAX_FAILURES {
        let now = Duration::from_secs(2 + u64::from(round));
        for (witness, source) in [(0, 4), (1, 0), (2, 0)] {
            let message = Control::Witness(Box::new(lost.clone()), Heartbeat::default(), Some(source));
            policy.on_message(witness, message, now);
        }
        policy.tick(now + EVIDENCE_TIMEOUT);
        regroup(&mut policy, now);
    }
    assert_eq!(policy.membership.members().collect::<Vec<_>>(), [0, 1, 2]);
}

/// The group loses rank `accused` at step 7 again and again, by these reports of members and their sources; the members
/// that are left, and the reason of the removal.
fn after_second_hand_reports(
    accused: usize,
    reports: &[(usize, Option<usize>)],
    cause: &str,
) -> (Vec<usize>, Option<String>) {
    let mut policy = joined(3);
    // The newcomer left: the others are equal.
    policy.remove(3, join_validation::exited(3, 0.0), T0);
    regroup(&mut policy, T0);
    let culprit = Culprit { rank: accused, step: Some(7), cause: cause.into(), ..Culprit::default() };
    let lost = Error::new(Kind::RankFailed, "it was lost").blame(culprit);
    let mut removed = None;
    for round in 0..=MAX_FAILURES {
        let now = Duration::from_secs(2 + u64::from(round));
        for (witness, source) in reports {
            let message = Control::Witness(Box::new(lost.clone()), Heartbeat::default(), *source);
            policy.on_message(*witness, message, now);
        }
        assert_eq!(policy.membership.members().count(), 3, "round {round}");
        policy.tick(now + EVIDENCE_TIMEOUT);
        removed = (0..3).find_map(|id| policy.removal_reason(id)).map(str::to_string);
        regroup(&mut policy, now);
    }
    (policy.membership.members().collect(), removed)
}

#[test]
fn a_source_that_one_member_names_is_not_responsible() {
    let reported = "was reported lost by rank 1";
    // Rank 0 names a source that reported nothing, about a third member or about itself.
    for (accused, cause) in [(2, "broke the protocol, or reports so of others"), (0, reported)] {
        let (left, reason) = after_second_hand_reports(accused, &[(0, Some(1))], reported);
        assert_eq!(left, [1, 2], "{reason:?}");
        assert!(reason.as_ref().is_some_and(|reason| reason.starts_with(cause)), "{reason:?}");
    }
    // Not at the first time either, whatever it reports.
    let violation = "broke the protocol: a frame of another group";
    assert_eq!(after_second_hand_reports(2, &[(0, Some(1))], violation).0, [1, 2]);
}

#[test]
fn a_source_that_reports_itself_or_that_several_members_name_is_responsible() {
    let reported = "was reported lost by rank 1";
    // It found rank 2 lost: their connection fails again and again.
    assert_eq!(after_second_hand_reports(2, &[(0, Some(1)), (1, None)], reported).0, [0, 1]);
    // It sent others a report, but not the coordinator.
    let (left, reason) = after_second_hand_reports(2, &[(0, Some(1)), (2, Some(1))], reported);
    assert_eq!(left, [0, 2], "{reason:?}");
}

/// Rank 0 reports a violation of rank 2 in the name of rank 1, once: a later report of rank 1 about another is not its
/// second.
#[test]
fn a_named_source_does_not_become_a_sole_witness() {
    let mut policy = joined(4);
    let culprit =
        Culprit { rank: 2, step: Some(7), cause: "is in another operation: 9".into(), ..Culprit::default() };
    let error = Error::new(Kind::RankFailed, "lost").blame(culprit);
    policy.on_message(0, Control::Witness(Box::new(error), Heartbeat::default(), Some(1)), T0);
    policy.tick(EVIDENCE_TIMEOUT);
    regroup(&mut policy, T0);
    assert_eq!(policy.membership.members().count(), 5);
    let later = Duration::from_secs(2);
    violation(&mut policy, 1, 3, later);
    regroup(&mut policy, later);
    assert_eq!(policy.membership.members().collect::<Vec<_>>(), [0, 1, 2, 4]);
}

#[test]
fn a_member_whose_report_alone_ended_the_wait_of_the_others_is_the_culprit() {
    let mut policy = joined(3);
    let report = |policy: &mut MembershipPolicy, id, accused, since| {
        let cause = "never entered the operation: no frame of it arrived in 0.0 s".to_string();
        let late = Error::new(Kind::RankFailed, "late").blame(Culprit {
            rank: accused,
            cause,
            ..Culprit::default()
        });
        let heartbeat = Heartbeat { since, ..Heartbeat::default() };
        policy.on_message(id, Control::Witness(Box::new(late), heartbeat, None), T0);
    };
    let source =
        |policy: &MembershipPolicy| policy.diagnosis.premature_timeout_source(0..4, Duration::from_secs(5));
    [(0, 1), (1, 0)].into_iter().for_each(|(id, accused)| report(&mut policy, id, accused, 0.1));
    assert_eq!(source(&policy), None, "one of two");
    report(&mut policy, 2, 0, 0.1);
    assert_eq!(source(&policy), Some(3));
    let commands = policy.tick(EVIDENCE_TIMEOUT);
    assert!(matches!(&commands[..], [MembershipCommand::Interrupt(..)]), "{commands:?}");
    assert_eq!(policy.lost.last().map(|culprit| culprit.rank), Some(3));
    // A rank that had waited timed out rightly.
    policy.diagnosis.clear();
    (0..3).for_each(|id| report(&mut policy, id, 3 - id, if id == 0 { 5.0 } else { 0.1 }));
    assert_eq!(source(&policy), None);
}

/// Rank `witness` reports that `accused` sent it a frame of another operation.
fn violation(
    policy: &mut MembershipPolicy,
    witness: usize,
    accused: usize,
    now: Duration,
) -> Vec<MembershipCommand> {
    let cause = "is in another operation: expected 7; got 9".to_string();
    let culprit = Culprit { rank: accused, step: Some(7), cause, ..Culprit::default() };
    let error = Error::new(Kind::RankFailed, "it broke the protocol").blame(culprit);
    policy.on_message(witness, Control::Witness(Box::new(error), Heartbeat::default(), None), now);
    policy.tick(now + EVIDENCE_TIMEOUT)
}

/// The remaining members report and form the next group.
fn regroup(policy: &mut MembershipPolicy, now: Duration) {
    let generation = policy.membership.generation();
    for id in policy.membership.members().collect::<Vec<_>>() {
        let message = Control::Report(generation, MemberPosition::default(), Heartbeat::default());
        policy.on_message(id, message, now + EVIDENCE_TIMEOUT);
    }
    assert!(policy.membership.is_working());
}

#[test]
fn a_member_that_sends_an_unexpected_frame_is_removed_and_the_others_go_on() {
    let mut policy = joined(3);
    let commands = violation(&mut policy, 0, 1, T0);
    assert!(
        commands.iter().any(|command| matches!(command, MembershipCommand::Interrupt(..))),
        "{commands:?}"
    );
    assert!(policy.removal_reason(1).is_some_and(|cause| cause.starts_with("is in another operation")));
    regroup(&mut policy, T0);
    assert_eq!(policy.membership.members().collect::<Vec<_>>(), [0, 2, 3]);
}

#[test]
fn a_member_that_accuses_several_others_in_turn_is_removed_itself() {
    let mut policy = joined(4);
    violation(&mut policy, 0, 1, T0);
    regroup(&mut policy, T0);
    let later = Duration::from_secs(2);
    violation(&mut policy, 0, 2, later);
    regroup(&mut policy, later);
    assert_eq!(policy.membership.members().collect::<Vec<_>>(), [2, 3, 4]);
    assert!(policy.removal_reason(0).is_some_and(|cause| cause.starts_with("broke the protocol")));
}

/// A link that stands still once is made again; the second time within a few steps its rank is removed.
#[test]
fn a_rank_whose_links_stand_still_repeatedly_is_removed() {
    let mut policy = joined(3);
    for (round, step) in [(0, 7), (1, 8)] {
        let now = Duration::from_secs(round * 2);
        let cause = "is slow: not done after 5.0 s, last progress 5.0 s ago".to_string();
        let culprit = Culprit { rank: 1, step: Some(step), cause, ..Culprit::default() };
        let error = Error::new(Kind::RankFailed, "late").blame(culprit);
        let heartbeat = Heartbeat { since: 5.0, ..Heartbeat::default() };
        policy.on_message(0, Control::Witness(Box::new(error), heartbeat, None), now);
        policy.tick(now + EVIDENCE_TIMEOUT);
        assert_eq!(policy.membership.has(1), round == 0, "{step}");
        regroup(&mut policy, now);
    }
}

/// A rank takes the role over, its coordinator runs, and its program never connects to it.
#[test]
fn a_successor_of_the_coordinator_that_hangs_is_ended_like_any_absent_member() {
    let mut policy = MembershipPolicy::new(joined(2).config, &[1, 2, 3], 1, &[0], 4, T0);
    for id in [2, 3] {
        policy.on_message(id, Control::Report(4, MemberPosition::default(), Heartbeat::default()), T0);
    }
    let connected = |id| id != 1;
    let deadline = policy.monitor.deadline();
    assert!(policy.absent(connected, deadline - Duration::from_millis(1)).is_empty());
    let absent = policy.absent(connected, deadline);
    assert_eq!(absent, [1]);
    let commands = policy.remove_absent(&absent, deadline);
    let [MembershipCommand::Remove(1, culprit)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((culprit.rank, &*culprit.cause), (1, "did not connect again within 4.8 s"));
    // The next coordinator knows that its process has ended.
    let mut policy = MembershipPolicy::new(joined(2).config, &[2, 3], 1, &[1], 4, T0);
    policy.on_message(2, Control::Report(4, MemberPosition::default(), Heartbeat::default()), T0);
    let commands =
        policy.on_message(3, Control::Report(4, MemberPosition::default(), Heartbeat::default()), T0);
    let Some(MembershipCommand::Form(view, lost)) = commands.last() else { panic!("{commands:?}") };
    assert_eq!((view.generation, view.members.len(), lost[0].rank), (5, 2, 1));
}

#[test]
fn before_the_first_group_members_have_the_time_of_the_rendezvous() {
    let policy = MembershipPolicy::new(joined(2).config, &[0, 1, 2], 0, &[], 3, T0);
    assert!(policy.absent(|id| id == 0, Duration::from_secs(29)).is_empty());
    assert_eq!(policy.absent(|id| id == 0, Duration::from_secs(30)), [1, 2]);
}
