//! Ranks that make no progress, without a connection: what the coordinator rules, from their heartbeats and reports.

use std::time::Duration;
use thalweg_cluster::judgement::{Judgement, Rules, Ruling};
use thalweg_cluster::membership::{Limits, Position, Standing};
use thalweg_cluster::rendezvous::message::Control;
use thalweg_core::Culprit;
use thalweg_core::event::{Phase, Pulse};

const WORLD: usize = 4;

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A group that works since the beginning.
fn working(elastic: bool) -> Judgement {
    let rules = Rules {
        elastic,
        limits: Limits { least: 1, most: 9, patience: at(30.0) },
        step_deadline: at(5.0),
        prepare_deadline: at(600.0),
        epoch: 0.0,
    };
    let expected: Vec<usize> = (0..WORLD).collect();
    let mut judgement = Judgement::new(rules, &expected, 0, &[], WORLD, at(0.0));
    for number in expected {
        let orders = judgement.membership.report(number, 0, Standing::default(), at(0.0));
        judgement.rule(orders, at(0.0));
    }
    assert!(judgement.membership.is_working());
    judgement
}

fn pulse(phase: Phase, progress: u64) -> Control {
    let name = "all-reduce of gradients".into();
    Control::Pulse(Pulse { step: 40, phase, operation: 41, name, progress, ..Pulse::default() })
}

fn report(generation: u32) -> Control {
    let standing = Standing { position: Some(Position { step: 40, stage: 0 }), begun: true };
    Control::Report(generation, standing, Pulse { step: 40, phase: Phase::Exchanging, ..Pulse::default() })
}

/// Lets time pass, five heartbeats a second, until there is something to do or the time is up.
fn pass(
    judgement: &mut Judgement,
    from: f64,
    to: f64,
    said: impl Fn(usize, f64) -> Option<Control>,
) -> (f64, Vec<Ruling>) {
    let mut now = from;
    while now < to {
        for number in 0..WORLD {
            if let Some(said) = said(number, now).filter(|_| judgement.membership.has(number)) {
                assert!(judgement.hear(number, said, at(now)).is_empty());
            }
        }
        let rulings = judgement.look_after(at(now));
        if !rulings.is_empty() {
            return (now, rulings);
        }
        now += 0.2;
    }
    (to, Vec::new())
}

/// All wait for each other, and none moves.
fn still(_: usize, _: f64) -> Option<Control> {
    Some(pulse(Phase::Exchanging, 7))
}

fn interrupted(rulings: &[Ruling]) -> Option<(u32, String)> {
    rulings.iter().find_map(|ruling| match ruling {
        Ruling::Interrupt(generation, why) => {
            assert!(why.culprit.is_none(), "nobody is to blame yet: {why}");
            Some((*generation, why.message.clone()))
        }
        _ => None,
    })
}

#[test]
fn whoever_does_not_report_after_a_stall_is_the_culprit() {
    let mut judgement = working(true);
    let (when, rulings) = pass(&mut judgement, 0.0, 60.0, still);
    let (generation, why) = interrupted(&rulings).unwrap();
    assert!((4.5..5.5).contains(&when) && generation == 1, "{when}: {rulings:?}");
    assert_eq!(why, "no rank makes progress in all-reduce of gradients at step 40");
    for number in [0, 1, 3] {
        assert!(judgement.hear(number, report(1), at(when)).is_empty());
    }
    let (when, rulings) = pass(&mut judgement, when, 60.0, still);
    assert!((9.0..11.0).contains(&when), "within two deadlines and a second: {when}");
    let [Ruling::Expel(2, culprit)] = &rulings[..] else { panic!("{rulings:?}") };
    assert!(
        culprit.cause.starts_with("has been without progress in all-reduce of gradients for "),
        "{culprit:?}"
    );
    assert_eq!((culprit.step, culprit.rank), (Some(40), 2));
    let rulings = judgement.lose(2, (**culprit).clone(), at(when));
    let formed = rulings.iter().find_map(|ruling| match ruling {
        Ruling::Form(formed, lost) => Some((formed.members.keys().copied().collect::<Vec<_>>(), lost.len())),
        _ => None,
    });
    assert_eq!(formed, Some((vec![0, 1, 3], 1)));
}

#[test]
fn a_stall_for_which_no_rank_is_to_blame_is_interrupted_once_at_a_step() {
    let mut judgement = working(true);
    let (when, rulings) = pass(&mut judgement, 0.0, 60.0, still);
    assert!(interrupted(&rulings).is_some());
    let formed = (0..WORLD).flat_map(|number| judgement.hear(number, report(1), at(when))).last();
    assert!(matches!(formed, Some(Ruling::Form(..))), "{formed:?}");
    // The ranks themselves know more of it: which connection moves nothing.
    let (_, rulings) = pass(&mut judgement, when, 60.0, still);
    assert!(rulings.is_empty(), "{rulings:?}");
}

/// Interrupted once, and all reported; what is done about the second time.
fn stalled_again(
    judgement: &mut Judgement,
    said: impl Fn(usize, f64) -> Option<Control>,
) -> (f64, Vec<Ruling>) {
    let (when, rulings) = pass(judgement, 0.0, 60.0, &said);
    let (generation, _) = interrupted(&rulings).unwrap();
    for number in 0..WORLD {
        judgement.hear(number, report(generation), at(when));
    }
    assert!(judgement.membership.is_working());
    let (then, rulings) = pass(judgement, when, 60.0, &said);
    (then - when, rulings)
}

#[test]
fn one_that_reports_and_is_in_no_exchange_is_the_culprit_of_the_second_stall() {
    let mut judgement = working(true);
    let starting = |number, _| Some(pulse(if number == 2 { Phase::Starting } else { Phase::Exchanging }, 7));
    let (after, rulings) = stalled_again(&mut judgement, starting);
    assert!(matches!(&rulings[..], [Ruling::Expel(2, _)]), "{rulings:?}");
    assert!((9.0..11.0).contains(&after), "the ranks' own deadlines come first: {after}");
}

#[test]
fn a_newcomer_goes_at_the_second_stall_if_all_say_that_they_wait() {
    let mut judgement = working(true);
    judgement.lose(3, Culprit { rank: 3, ..Culprit::default() }, at(0.0));
    let orders = judgement.membership.come(3, at(0.0));
    judgement.rule(orders, at(0.0));
    (0..3).for_each(|number| drop(judgement.hear(number, report(1), at(0.0))));
    assert!(judgement.membership.has(3) && judgement.membership.is_working());
    let (_, rulings) = stalled_again(&mut judgement, still);
    assert!(matches!(&rulings[..], [Ruling::Expel(3, _)]), "{rulings:?}");
}

#[test]
fn nobody_is_given_up_while_one_of_them_moves() {
    for phase in [Phase::Computing, Phase::Exchanging, Phase::Preparing] {
        let mut judgement = working(true);
        let slow = |number: usize, now: f64| {
            Some(if number == 2 { pulse(phase, (now / 4.0) as u64) } else { pulse(Phase::Exchanging, 7) })
        };
        let (_, rulings) = pass(&mut judgement, 0.0, 300.0, slow);
        assert!(rulings.is_empty(), "{phase:?}: {rulings:?}");
    }
}

#[test]
fn a_slow_rank_is_waited_for_when_a_group_is_formed() {
    let mut judgement = working(true);
    judgement.lose(0, Culprit::default(), at(1.0));
    for number in [1, 3] {
        judgement.hear(number, report(1), at(1.0));
    }
    let slow = |number: usize, now: f64| {
        Some(if number == 2 {
            pulse(Phase::Computing, (now / 4.0) as u64)
        } else {
            pulse(Phase::Exchanging, 7)
        })
    };
    let (_, rulings) = pass(&mut judgement, 1.0, 60.0, slow);
    assert!(rulings.is_empty(), "{rulings:?}");
    let (when, rulings) = pass(&mut judgement, 60.0, 120.0, still);
    assert!(matches!(&rulings[..], [Ruling::Expel(2, _)]) && when < 66.0, "{when}: {rulings:?}");
}

#[test]
fn where_no_rank_reports_they_have_twice_as_long() {
    let mut judgement = working(true);
    let (told, rulings) = pass(&mut judgement, 0.0, 60.0, still);
    assert!(interrupted(&rulings).is_some());
    let (when, rulings) = pass(&mut judgement, told, 60.0, still);
    assert!(rulings.iter().all(|ruling| matches!(ruling, Ruling::Expel(..))), "{rulings:?}");
    assert_eq!((rulings.len(), (8.5..10.5).contains(&(when - told))), (WORLD, true), "{when}");
}

/// Some have come to a boundary where a newcomer is to be let in; the others wait in an exchange for one that hangs.
#[test]
fn those_who_wait_for_a_hanging_rank_are_told_to_report_before_any_is_given_up() {
    let mut judgement = working(true);
    assert!(judgement.hear(0, report(1), at(0.0)).is_empty());
    let (told, rulings) = pass(&mut judgement, 0.0, 60.0, still);
    assert!(interrupted(&rulings).is_some() && rulings.len() == 1, "{rulings:?}");
    for number in [1, 3] {
        assert!(judgement.hear(number, report(1), at(told)).is_empty());
    }
    let (when, rulings) = pass(&mut judgement, told, 60.0, still);
    assert!(matches!(&rulings[..], [Ruling::Expel(2, _)]) && when < told + 5.0, "{when}: {rulings:?}");
}

#[test]
fn a_job_that_is_to_stop_does_not_wait_for_the_deadline_of_steps() {
    let mut judgement = working(true);
    judgement.watch.hurry(at(2.0));
    let (when, rulings) = pass(&mut judgement, 0.0, 60.0, still);
    assert!(interrupted(&rulings).is_some() && when < 2.5, "{when}");
}

#[test]
fn a_job_that_cannot_lose_a_rank_leaves_the_stall_to_those_who_wait() {
    let mut judgement = working(false);
    let (_, rulings) = pass(&mut judgement, 0.0, 60.0, still);
    assert!(rulings.is_empty(), "{rulings:?}");
}
