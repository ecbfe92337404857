//! What is ruled about newcomers, outsiders and members that lie.

use super::*;
use crate::membership::Standing;

const T0: Duration = Duration::ZERO;

/// A group of so many that works, to which rank `world` has come.
fn joined(world: usize) -> Judgement {
    let limits = Limits { least: 1, most: 9, patience: Duration::from_secs(30) };
    let deadline = Duration::from_secs(5);
    let rules =
        Rules { elastic: true, limits, step_deadline: deadline, prepare_deadline: deadline, epoch: 0.0 };
    let expected: Vec<usize> = (0..world).collect();
    let mut judgement = Judgement::new(rules, &expected, 0, &[], world, T0);
    let report = |judgement: &mut Judgement, number, after| {
        let said = Control::Report(after, Standing::default(), Pulse::default());
        judgement.hear(number, said, T0)
    };
    (0..world).for_each(|number| drop(report(&mut judgement, number, 0)));
    let orders = judgement.membership.come(world, T0);
    judgement.rule(orders, T0);
    (0..world).for_each(|number| drop(report(&mut judgement, number, 1)));
    assert!(judgement.membership.has(world) && judgement.membership.is_working());
    judgement
}

fn failed(words: &str) -> Control {
    Control::Failed(Box::new(Error::new(Kind::Io, words)), Pulse::default())
}

fn aborts(rulings: &[Ruling]) -> bool {
    rulings.iter().any(|ruling| matches!(ruling, Ruling::Abort(_)))
}

#[test]
fn what_a_newcomer_says_of_its_own_failure_ends_the_job_for_nobody_else() {
    let mut judgement = joined(2);
    let rulings = judgement.hear(2, failed("disk full"), T0);
    assert!(rulings.iter().any(|ruling| matches!(ruling, Ruling::Interrupt(2, _))), "{rulings:?}");
    assert!(!aborts(&judgement.look_after(Duration::from_secs(2))));
    assert_eq!(judgement.fate(2), Some("failed: disk full"));
    // One of those who began is as before: it would fail the others, too.
    let mut judgement = joined(2);
    judgement.hear(1, failed("disk full"), T0);
    assert!(aborts(&judgement.look_after(Duration::from_secs(2))));
}

#[test]
fn processes_that_are_not_members_have_no_voice() {
    let mut judgement = joined(2);
    let witness =
        Error::new(Kind::RankFailed, "rank 0 was lost").blame(Culprit { rank: 0, ..Culprit::default() });
    for said in
        [failed("boom"), Control::Witness(Box::new(witness), Pulse::default(), None), Control::Goodbye]
    {
        let rulings = judgement.hear(7, said, T0);
        assert!(rulings.iter().all(|ruling| matches!(ruling, Ruling::Dismiss(7))), "{rulings:?}");
    }
    assert_eq!(judgement.look_after(Duration::from_secs(2)).len(), 0);
}

#[test]
fn a_member_that_lies_about_the_generation_is_named_and_the_others_go_on() {
    let mut judgement = joined(2);
    judgement.lose(0, welcome::ended(0), T0);
    judgement.hear(2, Control::Report(u32::MAX, Standing::default(), Pulse::default()), T0);
    let rulings = judgement.hear(1, Control::Report(2, Standing::default(), Pulse::default()), T0);
    let Some(Ruling::Form(formed, lost)) = rulings.last() else { panic!("{rulings:?}") };
    assert_eq!(formed.members.keys().copied().collect::<Vec<_>>(), [1]);
    assert!(lost.iter().any(|culprit| culprit.rank == 2 && culprit.cause.starts_with("broke the protocol")));
}

#[test]
fn a_newcomer_that_cannot_be_connected_goes_and_not_the_member_it_blames() {
    for (witness, accused) in [(2, 0), (0, 2)] {
        let mut judgement = joined(2);
        let error =
            Error::new(Kind::Rendezvous, "no way").blame(Culprit { rank: accused, ..Culprit::default() });
        judgement.hear(witness, Control::Witness(Box::new(error), Pulse::default(), None), T0);
        judgement.look_after(Duration::from_secs(2));
        assert!(judgement.membership.has(0) && judgement.membership.has(1));
        assert!(judgement.fate(2).is_some_and(|cause| cause.starts_with("cannot be connected")));
    }
}

#[test]
fn what_ranks_pass_on_stays_the_word_of_the_newcomer_that_said_it() {
    for accused in [0, 1] {
        let mut judgement = joined(3);
        let lost = Error::new(Kind::RankFailed, "it was lost, says another").blame(Culprit {
            rank: accused,
            step: Some(7),
            ..Culprit::default()
        });
        for round in 0..=STRIKES {
            let now = Duration::from_secs(round.into());
            // Rank 0 has it from the newcomer, rank 1 from rank 0, rank 2 from rank 1.
            for (witness, source) in [(2, 1), (1, 0), (0, 3)] {
                let said = Control::Witness(Box::new(lost.clone()), Pulse::default(), Some(source));
                judgement.hear(witness, said, now);
            }
            judgement.look_after(now + PATIENCE);
            let generation = judgement.membership.generation();
            for number in 0..4 {
                let said = Control::Report(generation, Standing::default(), Pulse::default());
                judgement.hear(number, said, now + PATIENCE);
            }
        }
        assert!(judgement.membership.has(accused) && !judgement.membership.has(3), "{accused}");
        assert!(judgement.fate(3).is_some_and(|cause| cause.starts_with("broke the protocol")));
    }
}

#[test]
fn one_whose_word_alone_ended_the_others_wait_is_the_culprit() {
    let mut judgement = joined(3);
    let say = |judgement: &mut Judgement, number, accused, since| {
        let cause = "never came to it: nothing of this operation arrived in 0.0 s".to_string();
        let late = Error::new(Kind::RankFailed, "late").blame(Culprit {
            rank: accused,
            cause,
            ..Culprit::default()
        });
        let pulse = Pulse { since, ..Pulse::default() };
        judgement.hear(number, Control::Witness(Box::new(late), pulse, None), T0);
    };
    let hasty = |judgement: &Judgement| judgement.inquest.hasty(0..4, Duration::from_secs(5));
    [(0, 1), (1, 0)].into_iter().for_each(|(number, accused)| say(&mut judgement, number, accused, 0.1));
    assert_eq!(hasty(&judgement), None, "one of two");
    say(&mut judgement, 2, 0, 0.1);
    assert_eq!(hasty(&judgement), Some(3));
    let rulings = judgement.look_after(PATIENCE);
    assert!(matches!(&rulings[..], [Ruling::Interrupt(..)]), "{rulings:?}");
    assert_eq!(judgement.lost.last().map(|culprit| culprit.rank), Some(3));
    // One that had waited gave up for good reason.
    judgement.inquest.forget();
    (0..3).for_each(|number| say(&mut judgement, number, 3 - number, if number == 0 { 5.0 } else { 0.1 }));
    assert_eq!(hasty(&judgement), None);
}

/// Rank `witness` says that `accused` sent it a frame that does not belong to its operation.
fn breach(judgement: &mut Judgement, witness: usize, accused: usize, now: Duration) -> Vec<Ruling> {
    let cause = "is in another operation: expected 7; got 9".to_string();
    let culprit = Culprit { rank: accused, step: Some(7), cause, ..Culprit::default() };
    let error = Error::new(Kind::RankFailed, "it broke the protocol").blame(culprit);
    judgement.hear(witness, Control::Witness(Box::new(error), Pulse::default(), None), now);
    judgement.look_after(now + PATIENCE)
}

/// The members that are left report, and are the next group.
fn regroup(judgement: &mut Judgement, now: Duration) {
    let generation = judgement.membership.generation();
    for number in judgement.membership.members().collect::<Vec<_>>() {
        let said = Control::Report(generation, Standing::default(), Pulse::default());
        judgement.hear(number, said, now + PATIENCE);
    }
    assert!(judgement.membership.is_working());
}

#[test]
fn a_member_that_sends_a_frame_that_does_not_belong_is_named_and_the_others_go_on() {
    let mut judgement = joined(3);
    let rulings = breach(&mut judgement, 0, 1, T0);
    assert!(rulings.iter().any(|ruling| matches!(ruling, Ruling::Interrupt(..))), "{rulings:?}");
    assert!(judgement.fate(1).is_some_and(|cause| cause.starts_with("is in another operation")));
    regroup(&mut judgement, T0);
    assert_eq!(judgement.membership.members().collect::<Vec<_>>(), [0, 2, 3]);
}

#[test]
fn a_member_that_accuses_one_after_the_other_goes_itself() {
    let mut judgement = joined(4);
    breach(&mut judgement, 0, 1, T0);
    regroup(&mut judgement, T0);
    let later = Duration::from_secs(2);
    breach(&mut judgement, 0, 2, later);
    regroup(&mut judgement, later);
    assert_eq!(judgement.membership.members().collect::<Vec<_>>(), [2, 3, 4]);
    assert!(judgement.fate(0).is_some_and(|cause| cause.starts_with("broke the protocol")));
}

/// A link that stands still once is made again; the second time within a few steps its rank goes.
#[test]
fn a_rank_whose_links_stand_still_again_and_again_goes() {
    let mut judgement = joined(3);
    for (round, step) in [(0, 7), (1, 8)] {
        let now = Duration::from_secs(round * 2);
        let cause = "is slow: not done after 5.0 s, it last moved something 5.0 s ago".to_string();
        let culprit = Culprit { rank: 1, step: Some(step), cause, ..Culprit::default() };
        let error = Error::new(Kind::RankFailed, "late").blame(culprit);
        let pulse = Pulse { since: 5.0, ..Pulse::default() };
        judgement.hear(0, Control::Witness(Box::new(error), pulse, None), now);
        judgement.look_after(now + PATIENCE);
        assert_eq!(judgement.membership.has(1), round == 0, "{step}");
        regroup(&mut judgement, now);
    }
}
