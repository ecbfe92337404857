//! The group over time, without a connection: what is ordered after each event, and what always holds.

use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_cluster::membership::{Formed, Limits, Membership, Order, Position, Standing};
use thalweg_core::Rng;

const PATIENCE: Duration = Duration::from_secs(30);
const T0: Duration = Duration::ZERO;

fn limits(least: usize, most: usize) -> Limits {
    Limits { least, most, patience: PATIENCE }
}

fn at(step: u64) -> Standing {
    Standing { position: Some(Position { step, stage: 0 }), begun: true }
}

fn formed(orders: Vec<Order>) -> Option<Formed> {
    orders.into_iter().find_map(|order| match order {
        Order::Form(formed) => Some(formed),
        _ => None,
    })
}

/// A group of so many that works.
fn working(world: usize, limits: Limits) -> Membership {
    let mut group = Membership::new(0..world, 0, limits, T0);
    let first =
        (0..world).filter_map(|number| formed(group.report(number, 0, Standing::default(), T0))).last();
    assert_eq!(first.unwrap().members.len(), world);
    assert!(group.is_working());
    group
}

#[test]
fn a_lost_member_interrupts_the_others_and_they_go_on_once_all_have_reported() {
    let mut group = working(3, limits(1, 9));
    assert_eq!(group.lose(1, T0), [Order::Interrupt(1)]);
    assert_eq!(group.report(0, 1, at(41), T0), []);
    assert_eq!(group.missing(), [2]);
    let next = formed(group.report(2, 1, at(40), T0)).unwrap();
    assert_eq!((next.generation, next.lost), (2, vec![1]));
    assert_eq!(next.members.into_iter().collect::<Vec<_>>(), [(0, at(41)), (2, at(40))]);
}

#[test]
fn one_more_that_is_lost_meanwhile_does_not_hold_up_the_rest() {
    let mut group = working(3, limits(1, 9));
    group.lose(1, T0);
    group.report(0, 1, at(5), T0);
    let next = formed(group.lose(2, T0)).unwrap();
    assert_eq!(next.members.keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!(next.lost, [1, 2]);
}

#[test]
fn a_newcomer_is_announced_and_let_in_at_the_boundary() {
    let mut group = working(2, limits(1, 3));
    assert_eq!(group.come(7, T0), [Order::Pause]);
    assert!(!group.has_room(0));
    assert_eq!(group.report(0, 1, at(9), T0), [], "the boundary is no failure: nobody is interrupted");
    let next = formed(group.report(1, 1, at(9), T0)).unwrap();
    assert_eq!(next.joined, [7]);
    assert_eq!(next.members[&7], Standing::default());
}

#[test]
fn who_leaves_is_not_lost() {
    let mut group = working(3, limits(1, 9));
    group.report(0, 1, at(9), T0);
    group.leave(1, false, T0);
    let next = formed(group.report(2, 1, at(9), T0)).unwrap();
    assert_eq!((next.left, next.lost), (vec![1], vec![]));
}

#[test]
fn too_few_wait_for_others_and_give_up_at_the_deadline() {
    let mut group = working(2, limits(2, 9));
    group.lose(0, T0);
    assert_eq!(group.report(1, 1, at(3), T0), []);
    assert_eq!(group.wanted(), 1);
    assert_eq!(group.settle(PATIENCE - Duration::from_secs(1)), []);
    let mut late = group.clone();
    assert_eq!(late.settle(PATIENCE), [Order::GiveUp { present: 1 }]);
    assert_eq!(formed(group.come(5, T0)).unwrap().members.len(), 2);
}

#[test]
fn whoever_is_left_when_others_are_done_need_not_wait_for_more() {
    let mut group = working(3, limits(3, 9));
    group.leave(0, true, T0);
    group.lose(1, T0);
    assert_eq!(formed(group.report(2, 1, at(100), T0)).unwrap().members.len(), 1);
}

#[test]
fn another_coordinator_counts_on_from_the_latest_generation_anybody_has_heard_of() {
    let mut group = Membership::new([1, 2], 1, limits(1, 9), T0);
    group.report(2, 4, at(7), T0);
    assert_eq!(formed(group.report(1, 5, at(8), T0)).unwrap().generation, 6);
}

#[test]
fn a_report_about_a_group_that_is_over_changes_nothing() {
    let mut group = working(2, limits(1, 9));
    group.lose(1, T0);
    group.report(0, 1, at(3), T0);
    assert!(group.is_working());
    assert_eq!(group.report(0, 1, at(3), T0), []);
    assert!(group.is_working());
}

#[test]
fn an_impossible_generation_expels_the_member_that_reports_it_and_changes_nothing_else() {
    let mut group = working(3, limits(1, 9));
    group.lose(1, T0);
    for after in [2, 77, u32::MAX] {
        let orders = group.clone().report(2, after, at(40), T0);
        assert!(matches!(&orders[..], [Order::Expel { number: 2, why }] if why.contains(&after.to_string())));
    }
    group.report(2, u32::MAX, at(40), T0);
    group.lose(2, T0);
    let next = formed(group.report(0, 1, at(41), T0)).unwrap();
    assert_eq!((next.generation, next.lost), (2, vec![1, 2]));
    // Nor does a coordinator that has just taken the role believe everything.
    let mut taken_over = Membership::new([1, 2], 1, limits(1, 9), T0);
    assert!(matches!(&taken_over.report(2, u32::MAX, at(7), T0)[..], [Order::Expel { number: 2, .. }]));
}

#[test]
fn a_process_that_is_no_member_has_no_say_in_the_generation() {
    let mut group = working(2, limits(1, 9));
    assert_eq!(group.report(9, 500, at(1), T0), []);
    assert_eq!(group.generation(), 1);
}

#[test]
fn a_step_that_nobody_else_can_be_near_expels_the_member_that_reports_it() {
    let mut group = working(3, limits(1, 9));
    group.break_up(T0);
    group.report(0, 1, at(41), T0);
    group.report(1, 1, at(40), T0);
    let orders = group.report(2, 1, at(9_000_000), T0);
    assert!(matches!(&orders[..], [Order::Expel { number: 2, .. }]), "{orders:?}");
    let next = formed(group.lose(2, T0)).unwrap();
    assert_eq!(next.members.keys().copied().collect::<Vec<_>>(), [0, 1]);
    // That group went on from step 41: nobody can stand long before it.
    group.break_up(T0);
    assert_eq!(group.report(0, 2, at(40), T0), [], "it had not got the state yet");
    assert!(matches!(&group.report(1, 2, at(7), T0)[..], [Order::Expel { number: 1, .. }]));
}

/// Any order of events: generations grow, a group holds exactly those who are there and have reported since the last
/// one, and when nothing more happens, a group works or nobody is left.
#[test]
fn ten_thousand_histories_keep_their_promises() {
    for seed in 0..10_000 {
        let mut random = Rng::keyed(seed, "membership", &[]);
        let world = 1 + random.below(5) as usize;
        let mut group = Membership::new(0..world, 0, limits(1, 8), T0);
        let mut present: BTreeSet<usize> = (0..world).collect();
        let (mut waiting, mut reported): (BTreeSet<usize>, BTreeSet<usize>) = Default::default();
        let (mut generation, mut next_number) = (0, world);
        let mut step = |group: &mut Membership, present: &mut BTreeSet<usize>, what: u64, who: usize| {
            let number = *present.iter().nth(who % present.len().max(1)).unwrap_or(&0);
            let orders = match what {
                0 if present.len() > 1 => {
                    present.remove(&number);
                    reported.remove(&number);
                    group.lose(number, T0)
                }
                1 if group.is_working() => {
                    waiting.insert(next_number);
                    next_number += 1;
                    group.come(next_number - 1, T0)
                }
                2 => group.break_up(T0),
                3 if present.len() > 1 => {
                    present.remove(&number);
                    reported.remove(&number);
                    group.leave(number, false, T0)
                }
                _ => {
                    reported.insert(number);
                    group.report(number, generation, at(1), T0)
                }
            };
            for order in orders {
                if let Order::Form(formed) = order {
                    assert!(formed.generation > generation, "seed {seed}");
                    generation = formed.generation;
                    present.append(&mut waiting);
                    let members: BTreeSet<usize> = formed.members.keys().copied().collect();
                    assert_eq!(members, *present, "seed {seed}");
                    reported.clear();
                }
            }
        };
        for _ in 0..40 {
            let (what, who) = (random.below(8), random.below(8) as usize);
            step(&mut group, &mut present, what, who);
        }
        for who in 0..64 {
            if !group.is_working() {
                step(&mut group, &mut present, 7, who);
            }
        }
        assert!(group.is_working(), "seed {seed}: a group of {present:?} waits for {:?}", group.missing());
    }
}
