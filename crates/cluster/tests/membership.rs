//! The membership state machine: its commands after each event, and its invariants over random histories.

use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_cluster::membership::{
    Limits, MemberPosition, Membership, MembershipCommand, MembershipView, Position,
};
use thalweg_core::Rng;

const TIMEOUT: Duration = Duration::from_secs(30);
const T0: Duration = Duration::ZERO;

fn limits(min: usize, max: usize) -> Limits {
    Limits { min, max, timeout: TIMEOUT, unit: 1 }
}

fn at(step: u64) -> MemberPosition {
    MemberPosition { position: Some(Position { step, stage: 0 }), begun: true }
}

fn formed(commands: Vec<MembershipCommand>) -> Option<MembershipView> {
    commands.into_iter().find_map(|command| match command {
        MembershipCommand::Form(view, _) => Some(view),
        _ => None,
    })
}

/// A working group of `world` members.
fn working(world: usize, limits: Limits) -> Membership {
    let mut group = Membership::new(0..world, 0, limits, T0);
    let first = (0..world).filter_map(|id| formed(group.report(id, 0, MemberPosition::default(), T0))).last();
    assert_eq!(first.unwrap().members.len(), world);
    assert!(group.is_working());
    group
}

#[test]
fn a_lost_member_interrupts_the_others_and_they_go_on_once_all_have_reported() {
    let mut group = working(3, limits(1, 9));
    assert!(matches!(&group.remove(1, T0)[..], [MembershipCommand::Interrupt(1, _)]));
    assert_eq!(group.report(0, 1, at(41), T0), []);
    assert_eq!(group.missing(), [2]);
    let next = formed(group.report(2, 1, at(40), T0)).unwrap();
    assert_eq!((next.generation, next.lost), (2, vec![1]));
    assert_eq!(next.members.into_iter().collect::<Vec<_>>(), [(0, at(41)), (2, at(40))]);
}

#[test]
fn a_second_loss_does_not_hold_up_the_others() {
    let mut group = working(3, limits(1, 9));
    group.remove(1, T0);
    group.report(0, 1, at(5), T0);
    let next = formed(group.remove(2, T0)).unwrap();
    assert_eq!(next.members.keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!(next.lost, [1, 2]);
}

#[test]
fn a_newcomer_pauses_the_group_and_is_added_at_the_boundary() {
    let mut group = working(2, limits(1, 3));
    assert_eq!(group.add(7, T0), [MembershipCommand::Pause]);
    assert!(!group.has_room(0));
    assert_eq!(group.report(0, 1, at(9), T0), [], "the boundary is no failure: no member is interrupted");
    let next = formed(group.report(1, 1, at(9), T0)).unwrap();
    assert_eq!(next.joined, [7]);
    assert_eq!(next.members[&7], MemberPosition::default());
}

#[test]
fn a_member_that_leaves_is_not_lost() {
    let mut group = working(3, limits(1, 9));
    group.report(0, 1, at(9), T0);
    group.leave(1, false, T0);
    let next = formed(group.report(2, 1, at(9), T0)).unwrap();
    assert_eq!((next.left, next.lost), (vec![1], vec![]));
}

#[test]
fn too_few_wait_for_others_and_give_up_at_the_deadline() {
    let mut group = working(2, limits(2, 9));
    group.remove(0, T0);
    assert_eq!(group.report(1, 1, at(3), T0), []);
    assert_eq!(group.wanted(), 1);
    assert_eq!(group.try_form(TIMEOUT - Duration::from_secs(1)), []);
    let mut late = group.clone();
    let commands = late.try_form(TIMEOUT);
    let [MembershipCommand::Abort(error)] = &commands[..] else { panic!("{commands:?}") };
    assert!(error.message.starts_with("1 workers are left"), "{error}");
    assert_eq!(formed(group.add(5, T0)).unwrap().members.len(), 2);
}

#[test]
fn remaining_members_do_not_wait_for_more_once_others_are_done() {
    let mut group = working(3, limits(3, 9));
    group.leave(0, true, T0);
    group.remove(1, T0);
    assert_eq!(formed(group.report(2, 1, at(100), T0)).unwrap().members.len(), 1);
}

#[test]
fn another_coordinator_continues_from_the_latest_generation_that_any_member_reports() {
    let mut group = Membership::new([1, 2], 1, limits(1, 9), T0);
    group.report(2, 4, at(7), T0);
    assert_eq!(formed(group.report(1, 5, at(8), T0)).unwrap().generation, 6);
}

#[test]
fn a_report_about_a_group_that_is_over_changes_nothing() {
    let mut group = working(2, limits(1, 9));
    group.remove(1, T0);
    group.report(0, 1, at(3), T0);
    assert!(group.is_working());
    assert_eq!(group.report(0, 1, at(3), T0), []);
    assert!(group.is_working());
}

#[test]
fn an_impossible_generation_removes_the_member_that_reports_it_and_has_no_other_effect() {
    let mut group = working(3, limits(1, 9));
    group.remove(1, T0);
    for after in [2, 77, u32::MAX] {
        let commands = group.clone().report(2, after, at(40), T0);
        assert!(
            matches!(&commands[..], [MembershipCommand::Remove(2, culprit)] if culprit.cause.contains(&after.to_string()))
        );
    }
    group.report(2, u32::MAX, at(40), T0);
    group.remove(2, T0);
    let next = formed(group.report(0, 1, at(41), T0)).unwrap();
    assert_eq!((next.generation, next.lost), (2, vec![1, 2]));
    // A coordinator that took over the role has a limit, too.
    let mut taken_over = Membership::new([1, 2], 1, limits(1, 9), T0);
    assert!(matches!(&taken_over.report(2, u32::MAX, at(7), T0)[..], [MembershipCommand::Remove(2, _)]));
}

#[test]
fn a_report_of_a_process_that_is_no_member_has_no_effect() {
    let mut group = working(2, limits(1, 9));
    assert_eq!(group.report(9, 500, at(1), T0), []);
    assert_eq!(group.generation(), 1);
}

#[test]
fn a_step_far_from_all_others_removes_the_member_that_reports_it() {
    let mut group = working(3, limits(1, 9));
    group.interrupt(T0);
    group.report(0, 1, at(41), T0);
    group.report(1, 1, at(40), T0);
    let commands = group.report(2, 1, at(9_000_000), T0);
    assert!(matches!(&commands[..], [MembershipCommand::Remove(2, _)]), "{commands:?}");
    let next = formed(group.remove(2, T0)).unwrap();
    assert_eq!(next.members.keys().copied().collect::<Vec<_>>(), [0, 1]);
    // That group went on from step 41: no member can be far behind it.
    group.interrupt(T0);
    assert_eq!(group.report(0, 2, at(40), T0), [], "it had not got the state yet");
    assert!(matches!(&group.report(1, 2, at(7), T0)[..], [MembershipCommand::Remove(1, _)]));
}

/// A commit unit of several steps: a member that had not received the state its group went on from is a unit behind.
#[test]
fn a_member_may_be_one_commit_unit_behind() {
    let mut group = working(3, Limits { unit: 4, ..limits(1, 9) });
    group.interrupt(T0);
    (0..3).for_each(|id| drop(group.report(id, 1, at(if id == 2 { 12 } else { 8 }), T0)));
    group.remove(2, T0);
    assert_eq!(group.report(0, 2, at(8), T0), []);
    assert!(matches!(&group.report(1, 2, at(7), T0)[..], [MembershipCommand::Remove(1, _)]));
}

/// For any order of events: generations grow, a group consists of exactly the members that are present and have reported
/// since the last one, and without further events a group works or is empty.
#[test]
fn ten_thousand_random_histories_keep_the_invariants() {
    for seed in 0..10_000 {
        let mut random = Rng::keyed(seed, "membership", &[]);
        let world = 1 + random.below(5) as usize;
        let mut group = Membership::new(0..world, 0, limits(1, 8), T0);
        let mut present: BTreeSet<usize> = (0..world).collect();
        let (mut waiting, mut reported): (BTreeSet<usize>, BTreeSet<usize>) = Default::default();
        let (mut generation, mut next_id) = (0, world);
        let mut step = |group: &mut Membership, present: &mut BTreeSet<usize>, event: u64, index: usize| {
            let id = *present.iter().nth(index % present.len().max(1)).unwrap_or(&0);
            let commands = match event {
                0 if present.len() > 1 => {
                    present.remove(&id);
                    reported.remove(&id);
                    group.remove(id, T0)
                }
                1 if group.is_working() => {
                    waiting.insert(next_id);
                    next_id += 1;
                    group.add(next_id - 1, T0)
                }
                2 => group.interrupt(T0),
                3 if present.len() > 1 => {
                    present.remove(&id);
                    reported.remove(&id);
                    group.leave(id, false, T0)
                }
                _ => {
                    reported.insert(id);
                    group.report(id, generation, at(1), T0)
                }
            };
            for command in commands {
                if let MembershipCommand::Form(view, _) = command {
                    assert!(view.generation > generation, "seed {seed}");
                    generation = view.generation;
                    present.append(&mut waiting);
                    let members: BTreeSet<usize> = view.members.keys().copied().collect();
                    assert_eq!(members, *present, "seed {seed}");
                    reported.clear();
                }
            }
        };
        for _ in 0..40 {
            let (event, index) = (random.below(8), random.below(8) as usize);
            step(&mut group, &mut present, event, index);
        }
        for index in 0..64 {
            if !group.is_working() {
                step(&mut group, &mut present, 7, index);
            }
        }
        assert!(group.is_working(), "seed {seed}: a group of {present:?} waits for {:?}", group.missing());
    }
}
