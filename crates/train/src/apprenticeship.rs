//! Newcomers that take the job's state from the others while these train.
//!
//! ```text
//! boundary T          the newcomer enters the group as an apprentice: it knows where the job stands, and has no rows
//! before each step    a lesson: the next stretch of parameters and optimizer state, as they are at that step, every
//!                     holder a share of it
//! in each step        it takes part in the exchange, and updates what it has as all others do
//! the last lesson     it has all of it, the same bits as the others, and from that very step on rows of its own
//! ```
//!
//! It works without copies and without memory for what was missed, as an element's update needs that element and the
//! summed gradient alone: what was taught at one step stays right from there on, and what was not is overwritten later.
//! Rules that look at whole tensors are taught whole tensors. How many lessons there are is arithmetic that all ranks do
//! alike, so that no message says it. If anybody is lost meanwhile the generation is over, and an apprentice starts anew.
//!
//! One lesson is the whole state at the boundary, while all wait: so it is where there is little state, where it passes
//! through memory, where the newcomer has the first place (which writes checkpoints), where no step of the epoch is left
//! (an apprentice cannot validate), and where clipping by the norm looks at penalties, and so at all parameters.

use crate::split::Split;
use crate::worker::{Parts, Worker, total_steps};
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::membership::{MemberPosition, Position};
use thalweg_core::event::Event;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Layout, Result};
use thalweg_data::even_range;
use thalweg_graph::optimizer::GradientTransform;

/// A lesson has this share of the parameters' bytes, and at least so many bytes.
const PART: usize = 4;
const LEAST: usize = 1 << 20;

/// Who teaches whom, and how far they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Apprenticeship {
    /// The places of those who have the state.
    pub(crate) holders: Vec<usize>,
    /// The places of those who get it.
    pub(crate) apprentices: Vec<usize>,
    /// The step before which the first lesson is.
    first: u64,
    /// How many there are.
    lessons: u64,
    /// When it began.
    since: Duration,
}

impl Apprenticeship {
    /// Which elements are taught before a step, and whether it is the last lesson.
    fn lesson(&self, step: u64, length: usize, align: impl Fn(usize) -> usize) -> (Range<usize>, bool) {
        let number = step.saturating_sub(self.first);
        let stretch = even_range(length, number as usize, self.lessons as usize);
        (align(stretch.start)..align(stretch.end), number + 1 >= self.lessons)
    }

    /// Whether somebody who has the state would stay if these places left.
    pub(crate) fn survives(&self, leaving: &[usize]) -> bool {
        self.holders.iter().any(|holder| !leaving.contains(holder))
    }
}

/// How many lessons there are for a state of so many bytes, a part of which are `parameters`, with that many steps left.
fn lessons(state: usize, parameters: usize, asked: Option<usize>, steps_left: u64) -> u64 {
    let piece = asked.unwrap_or((parameters / PART).max(LEAST)).max(1);
    (state.div_ceil(piece) as u64).min(steps_left)
}

/// Whether the update of an element can be right while others are not.
fn is_local(correction: &GradientTransform) -> bool {
    correction.clip_norm.is_none() || (correction.l1 == 0.0 && correction.l2 == 0.0)
}

/// The end of the tensor that an element is in the middle of.
fn tensor_end(layout: &Layout, element: usize) -> usize {
    match layout.at(element) {
        Some(tensor) if element > tensor.offset => tensor.range().end,
        _ => element,
    }
}

impl Worker<'_> {
    /// Whether and how those who come without any state are taught it while the others train.
    pub(crate) fn plan_apprenticeship(
        &mut self,
        standings: &[MemberPosition],
        holders: &[usize],
        at: Position,
    ) -> Result<Option<Apprenticeship>> {
        let apprentices: Vec<usize> =
            (0..standings.len()).filter(|place| standings[*place].position.is_none()).collect();
        if apprentices.is_empty() || apprentices[0] == 0 || !is_local(&self.correction) {
            return Ok(None);
        }
        if self.rank.agree_on_shared_memory()? {
            return Ok(None);
        }
        let parameters = size_of_val(&self.parts.parameters[..]);
        let state = parameters * (1 + self.parts.optimizer.slots().len());
        let asked = match self.job.fault.join_piece {
            Auto::Auto => None,
            Auto::Is(bytes) => Some(bytes.0 as usize),
        };
        let lessons = lessons(state, parameters, asked, self.steps_left(at));
        let (holders, since) = (holders.to_vec(), self.rank.now());
        let course = Apprenticeship { holders, apprentices, first: at.step, lessons, since };
        Ok((lessons > 1).then_some(course))
    }

    /// Steps from there to the next validation, which needs all of the state.
    fn steps_left(&self, at: Position) -> u64 {
        let epoch = self.sampler.steps_per_epoch();
        let left = match at.step % epoch {
            0 if at.stage < at.step / epoch => 0,
            done => epoch - done,
        };
        left.min(total_steps(self.job, &self.sampler).saturating_sub(at.step))
    }

    /// The lesson before this step, if there are apprentices. After the last one they are workers like the others.
    pub(crate) fn teach(&mut self, step: u64) -> Result<()> {
        let Some(course) = self.apprenticeship.take() else { return Ok(()) };
        let (layout, whole) = (self.parts.model.layout(), !self.parts.optimizer.rule().is_elementwise());
        let align = |element| if whole { tensor_end(layout, element) } else { element };
        let (stretch, is_last) = course.lesson(step, self.parts.parameters.len(), align);
        self.share_state(&course.holders, &course.apprentices, stretch)?;
        if !is_last {
            self.apprenticeship = Some(course);
            return Ok(());
        }
        self.is_told = true;
        self.divide(Split::new(self.job, self.workers, &[]));
        self.buffer.resize(self.slots.elements(), 0.0);
        if self.rank.index() == 0 {
            let columns = 1 + self.parts.optimizer.slots().len();
            self.rank.emit(Event::CaughtUp {
                ranks: course.apprentices.iter().map(|place| self.rank.member_id_at(*place)).collect(),
                step,
                steps: step - course.first,
                bytes: (columns * size_of_val(&self.parts.parameters[..])) as u64,
                took_s: (self.rank.now() - course.since).as_secs_f64(),
            });
        }
        Ok(())
    }

    /// A stretch of parameters and optimizer state goes from those who have it to those who don't: each holder sends a
    /// share to each. All ranks take part.
    pub(crate) fn share_state(
        &mut self,
        holders: &[usize],
        stale: &[usize],
        stretch: Range<usize>,
    ) -> Result<()> {
        if stale.is_empty() {
            return Ok(());
        }
        let mine = self.rank.index();
        let Parts { parameters, optimizer, .. } = &mut self.parts;
        let mut columns: Vec<&mut [f32]> = vec![&mut parameters[stretch.clone()]];
        columns.extend(optimizer.slots_mut().into_iter().map(|(_, slot)| &mut slot[stretch.clone()]));
        let part = |number: usize| even_range(stretch.len(), number, holders.len());
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        if let Some(number) = holders.iter().position(|holder| *holder == mine) {
            let columns = &columns;
            sends.extend(
                stale
                    .iter()
                    .flat_map(|place| columns.iter().map(move |values| (*place, &values[part(number)]))),
            );
        } else if stale.contains(&mine) {
            // Until all of it is here it is nobody's state.
            self.is_told = false;
            for (number, holder) in holders.iter().enumerate() {
                for rest in &mut columns {
                    let (front, back) = std::mem::take(rest).split_at_mut(part(number).len());
                    *rest = back;
                    receives.push((*holder, front));
                }
            }
        }
        self.rank.exchange("transfer", "parameters and optimizer state", &sends, &mut receives)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_core::model::{Density, TensorRole};

    #[test]
    fn much_state_takes_some_lessons_and_little_one() {
        const MIB: usize = 1 << 20;
        assert_eq!(lessons(3 * 40 * MIB, 40 * MIB, None, 1000), 12);
        assert_eq!(lessons(3 * 40 * MIB, 40 * MIB, None, 5), 5, "few steps are left");
        assert_eq!(lessons(3 * 40 * MIB, 40 * MIB, None, 0), 0);
        assert_eq!(lessons(MIB, MIB / 2, None, 1000), 1);
        assert_eq!(lessons(MIB, MIB / 2, Some(MIB / 8), 1000), 8);
    }

    #[test]
    fn penalties_under_a_bound_of_the_norm_look_at_all_parameters() {
        let clipped = GradientTransform { clip_norm: Some(1.0), ..GradientTransform::default() };
        assert!(
            is_local(&clipped) && is_local(&GradientTransform { l2: 0.1, ..GradientTransform::default() })
        );
        assert!(!is_local(&GradientTransform { l1: 0.1, ..clipped }));
    }

    proptest! {
        #[test]
        fn lessons_follow_each_other_to_the_end(
            sizes in prop::collection::vec(0usize..50, 1..8), lessons in 1u64..20, whole: bool,
        ) {
            let mut layout = Layout::default();
            for (index, size) in sizes.iter().enumerate() {
                layout.push(format!("{index}"), &[*size], TensorRole::Trainable, Density::Dense);
            }
            let course = Apprenticeship {
                holders: vec![0], apprentices: vec![1], first: 7, lessons, since: Duration::ZERO,
            };
            let align = |element| if whole { tensor_end(&layout, element) } else { element };
            let mut end = 0;
            for number in 0..lessons {
                let (stretch, is_last) = course.lesson(7 + number, layout.len(), align);
                prop_assert!(stretch.start == end && stretch.end >= end && is_last == (number + 1 == lessons));
                end = stretch.end;
                let starts = layout.tensors().iter().any(|tensor| tensor.offset == end);
                prop_assert!(!whole || starts || end == layout.len());
            }
            prop_assert_eq!(end, layout.len());
        }
    }
}
