//! The commands of the membership policy on ranks without progress, from heartbeats and reports alone; requests for a boundary.

use std::time::Duration;
use thalweg_cluster::membership::{Limits, MemberPosition, MembershipCommand, Position};
use thalweg_cluster::membership_policy::{MembershipConfig, MembershipPolicy};
use thalweg_cluster::rendezvous::message::Control;
use thalweg_core::Culprit;
use thalweg_core::event::{Heartbeat, Phase, WaitsFor};

const WORLD: usize = 4;

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A working group in its first generation.
fn working(elastic: bool) -> MembershipPolicy {
    let config = MembershipConfig {
        elastic,
        limits: Limits { min: 1, max: 9, timeout: at(30.0), unit: 1 },
        servers: 0..0,
        step_deadline: at(5.0),
        prepare_deadline: at(600.0),
        epoch: 0.0,
    };
    let expected: Vec<usize> = (0..WORLD).collect();
    let mut policy = MembershipPolicy::new(config, &expected, 0, &[], WORLD, at(0.0));
    for id in expected {
        let commands = policy.membership.report(id, 0, MemberPosition::default(), at(0.0));
        policy.complete(commands, at(0.0));
    }
    assert!(policy.membership.is_working());
    policy
}

fn heartbeat(phase: Phase, progress: u64) -> Control {
    let name = "all-reduce of gradients".into();
    Control::Heartbeat(Heartbeat { step: 40, phase, operation: 41, name, progress, ..Heartbeat::default() })
}

fn report(generation: u32) -> Control {
    let position = MemberPosition { position: Some(Position { step: 40, stage: 0 }), begun: true };
    Control::Report(
        generation,
        position,
        Heartbeat { step: 40, phase: Phase::Exchanging, ..Heartbeat::default() },
    )
}

/// Advances the time, with five heartbeats a second, until there is a command or the end is reached.
fn pass(
    policy: &mut MembershipPolicy,
    from: f64,
    to: f64,
    message: impl Fn(usize, f64) -> Option<Control>,
) -> (f64, Vec<MembershipCommand>) {
    let mut now = from;
    while now < to {
        for id in 0..WORLD {
            if let Some(message) = message(id, now).filter(|_| policy.membership.has(id)) {
                assert!(policy.on_message(id, message, at(now)).is_empty());
            }
        }
        let commands = policy.tick(at(now));
        if !commands.is_empty() {
            return (now, commands);
        }
        now += 0.2;
    }
    (to, Vec::new())
}

/// All ranks wait for each other without progress.
fn still(_: usize, _: f64) -> Option<Control> {
    Some(heartbeat(Phase::Exchanging, 7))
}

fn interrupted(commands: &[MembershipCommand]) -> Option<(u32, String)> {
    commands.iter().find_map(|command| match command {
        MembershipCommand::Interrupt(generation, reason) => {
            assert!(reason.culprit.is_none(), "there is no culprit yet: {reason}");
            Some((*generation, reason.message.clone()))
        }
        _ => None,
    })
}

#[test]
fn the_rank_without_a_report_after_a_stall_is_the_culprit() {
    let mut policy = working(true);
    let (when, commands) = pass(&mut policy, 0.0, 60.0, still);
    let (generation, reason) = interrupted(&commands).unwrap();
    assert!((4.5..5.5).contains(&when) && generation == 1, "{when}: {commands:?}");
    assert_eq!(reason, "no rank makes progress in all-reduce of gradients at step 40");
    for id in [0, 1, 3] {
        assert!(policy.on_message(id, report(1), at(when)).is_empty());
    }
    let (when, commands) = pass(&mut policy, when, 60.0, still);
    assert!((9.0..11.0).contains(&when), "within two deadlines and a second: {when}");
    let [MembershipCommand::Remove(2, culprit)] = &commands[..] else { panic!("{commands:?}") };
    assert!(
        culprit.cause.starts_with("has been without progress in all-reduce of gradients for "),
        "{culprit:?}"
    );
    assert_eq!((culprit.step, culprit.rank), (Some(40), 2));
    let commands = policy.remove(2, (**culprit).clone(), at(when));
    let view = commands.iter().find_map(|command| match command {
        MembershipCommand::Form(view, lost) => {
            Some((view.members.keys().copied().collect::<Vec<_>>(), lost.len()))
        }
        _ => None,
    });
    assert_eq!(view, Some((vec![0, 1, 3], 1)));
}

#[test]
fn a_stall_without_a_culprit_is_interrupted_once_per_step() {
    let mut policy = working(true);
    let (when, commands) = pass(&mut policy, 0.0, 60.0, still);
    assert!(interrupted(&commands).is_some());
    let view = (0..WORLD).flat_map(|id| policy.on_message(id, report(1), at(when))).last();
    assert!(matches!(view, Some(MembershipCommand::Form(..))), "{view:?}");
    // The ranks report by themselves which connection is stuck.
    let (_, commands) = pass(&mut policy, when, 60.0, still);
    assert!(commands.is_empty(), "{commands:?}");
}

/// Interrupts the group once, with reports from all; returns the commands of the second stall.
fn stalled_again(
    policy: &mut MembershipPolicy,
    message: impl Fn(usize, f64) -> Option<Control>,
) -> (f64, Vec<MembershipCommand>) {
    let (when, commands) = pass(policy, 0.0, 60.0, &message);
    let (generation, _) = interrupted(&commands).unwrap();
    for id in 0..WORLD {
        policy.on_message(id, report(generation), at(when));
    }
    assert!(policy.membership.is_working());
    let (then, commands) = pass(policy, when, 60.0, &message);
    (then - when, commands)
}

#[test]
fn a_rank_that_reports_and_is_in_no_exchange_is_the_culprit_of_the_second_stall() {
    let mut policy = working(true);
    let starting = |id, _| Some(heartbeat(if id == 2 { Phase::Starting } else { Phase::Exchanging }, 7));
    let (after, commands) = stalled_again(&mut policy, starting);
    assert!(matches!(&commands[..], [MembershipCommand::Remove(2, _)]), "{commands:?}");
    assert!((9.0..11.0).contains(&after), "the ranks' own deadlines come first: {after}");
}

#[test]
fn a_newcomer_is_removed_at_the_second_stall_if_all_ranks_wait() {
    let mut policy = working(true);
    policy.remove(3, Culprit { rank: 3, ..Culprit::default() }, at(0.0));
    let added = policy.membership.add(3, at(0.0));
    policy.complete(added, at(0.0));
    (0..3).for_each(|id| drop(policy.on_message(id, report(1), at(0.0))));
    assert!(policy.membership.has(3) && policy.membership.is_working());
    let (_, commands) = stalled_again(&mut policy, still);
    assert!(matches!(&commands[..], [MembershipCommand::Remove(3, _)]), "{commands:?}");
}

#[test]
fn no_rank_is_removed_while_one_makes_progress() {
    for phase in [Phase::Computing, Phase::Exchanging, Phase::Preparing] {
        let mut policy = working(true);
        let slow = |id: usize, now: f64| {
            Some(if id == 2 { heartbeat(phase, (now / 4.0) as u64) } else { heartbeat(Phase::Exchanging, 7) })
        };
        let (_, commands) = pass(&mut policy, 0.0, 300.0, slow);
        assert!(commands.is_empty(), "{phase:?}: {commands:?}");
    }
}

#[test]
fn a_slow_rank_is_waited_for_when_a_group_is_formed() {
    let mut policy = working(true);
    policy.remove(0, Culprit::default(), at(1.0));
    for id in [1, 3] {
        policy.on_message(id, report(1), at(1.0));
    }
    let slow = |id: usize, now: f64| {
        Some(if id == 2 {
            heartbeat(Phase::Computing, (now / 4.0) as u64)
        } else {
            heartbeat(Phase::Exchanging, 7)
        })
    };
    let (_, commands) = pass(&mut policy, 1.0, 60.0, slow);
    assert!(commands.is_empty(), "{commands:?}");
    let (when, commands) = pass(&mut policy, 60.0, 120.0, still);
    assert!(
        matches!(&commands[..], [MembershipCommand::Remove(2, _)]) && when < 66.0,
        "{when}: {commands:?}"
    );
}

#[test]
fn without_any_report_ranks_have_twice_the_time() {
    let mut policy = working(true);
    let (interrupted_at, commands) = pass(&mut policy, 0.0, 60.0, still);
    assert!(interrupted(&commands).is_some());
    let (when, commands) = pass(&mut policy, interrupted_at, 60.0, still);
    assert!(commands.iter().all(|command| matches!(command, MembershipCommand::Remove(..))), "{commands:?}");
    assert_eq!((commands.len(), (8.5..10.5).contains(&(when - interrupted_at))), (WORLD, true), "{when}");
}

/// Some ranks are at the boundary where a newcomer is admitted; the others wait in an exchange for a rank that hangs.
#[test]
fn ranks_that_wait_for_a_hanging_rank_are_interrupted_before_any_is_removed() {
    let mut policy = working(true);
    assert!(policy.on_message(0, report(1), at(0.0)).is_empty());
    let (interrupted_at, commands) = pass(&mut policy, 0.0, 60.0, still);
    assert!(interrupted(&commands).is_some() && commands.len() == 1, "{commands:?}");
    for id in [1, 3] {
        assert!(policy.on_message(id, report(1), at(interrupted_at)).is_empty());
    }
    let (when, commands) = pass(&mut policy, interrupted_at, 60.0, still);
    assert!(
        matches!(&commands[..], [MembershipCommand::Remove(2, _)]) && when < interrupted_at + 5.0,
        "{when}: {commands:?}"
    );
}

#[test]
fn a_job_that_stops_does_not_wait_for_the_step_deadline() {
    let mut policy = working(true);
    policy.monitor.shorten_deadline(at(2.0));
    let (when, commands) = pass(&mut policy, 0.0, 60.0, still);
    assert!(interrupted(&commands).is_some() && when < 2.5, "{when}");
}

#[test]
fn a_job_that_is_not_elastic_leaves_the_stall_to_the_waiting_ranks() {
    let mut policy = working(false);
    let (_, commands) = pass(&mut policy, 0.0, 60.0, still);
    assert!(commands.is_empty(), "{commands:?}");
}

/// Ranks 0 and 2 wait for each other, the others for rank 0.
fn deadlocked(id: usize, now: f64) -> Option<Control> {
    let Control::Heartbeat(heartbeat) = heartbeat(Phase::Exchanging, 7) else { return None };
    let waits_for = Some(WaitsFor::All(vec![if id == 0 { 2 } else { 0 }]));
    Some(Control::Heartbeat(Heartbeat { waits_for, polls: (now * 10.0) as u64, ..heartbeat }))
}

#[test]
fn a_deadlock_ends_the_generation_or_the_job_with_its_members() {
    let message = "ranks 0 and 2 wait for each other: rank 0 for rank 2 in all-reduce of gradients at step 40, \
                   rank 2 for rank 0 in all-reduce of gradients at step 40";
    let (when, commands) = pass(&mut working(true), 0.0, 60.0, deadlocked);
    assert!((4.5..5.5).contains(&when), "{when}");
    assert_eq!(interrupted(&commands), Some((1, message.to_string())));
    let (when, commands) = pass(&mut working(false), 0.0, 60.0, deadlocked);
    assert!((4.5..5.5).contains(&when), "{when}");
    let [MembershipCommand::Abort(error)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((error.message.as_str(), error.hint.is_some()), (message, true));
}

#[test]
fn a_request_for_a_boundary_is_withdrawn_by_its_member_or_with_it() {
    let mut policy = working(true);
    for withdrawal in [Control::BoundaryRequested(false), Control::Leave] {
        assert!(!policy.boundary_requested());
        policy.on_message(1, Control::BoundaryRequested(true), at(1.0));
        assert!(policy.boundary_requested());
        policy.on_message(2, Control::BoundaryRequested(false), at(1.0));
        assert!(policy.boundary_requested());
        policy.on_message(1, withdrawal, at(1.0));
    }
    assert!(!policy.boundary_requested());
    policy.on_message(7, Control::BoundaryRequested(true), at(1.0));
    assert!(!policy.boundary_requested(), "7 is no member");
}
