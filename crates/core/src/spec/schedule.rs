//! `[train] schedule`: the learning rate by step.
//!
//! The rate is a pure function of the step, without state: a resumed job continues with the same rates, and every rank
//! computes them without communication.

use super::JobSpec;
use super::layers::JobLayers;
use super::section::{Section, section};
use super::setting::choice;

choice! {
    /// Curves of the learning rate.
    ScheduleKind {
        /// Constant rate.
        Constant = "constant",
        /// The rate is multiplied by gamma every step_every steps.
        Step = "step",
        /// The rate falls along half a cosine to final_lr.
        Cosine = "cosine",
        /// The rate is divided by the square root of the number of the step, counted from 1.
        InverseSqrt = "inverse_sqrt",
    }
}

section! {
    /// The learning rate by step. The curve starts after the warm-up.
    "train.schedule" ScheduleSpec {
        /// The curve.
        kind: ScheduleKind = ScheduleKind::Constant;
        /// Steps of linear warm-up from 0 to the full rate.
        warmup_steps: u64 = 0;
        /// Steps between two drops (step; required).
        step_every: Option<u64> = None;
        /// The factor of each drop (step; 0.1).
        gamma: Option<f64> = None;
        /// The rate of the last step, before scaling with the batch (cosine; 0).
        final_lr: Option<f64> = None;
        /// The step after which the rate stays at final_lr (cosine; the last step of the job). Set it if the length of the job may change on resume.
        steps: Option<u64> = None;
        /// The global batch for which lr was chosen: the rate is multiplied by global_batch / scale_with_batch (linear scaling).
        scale_with_batch: Option<usize> = None;
    }
}

impl ScheduleSpec {
    /// Checks ranges, and that the curve has the keys that are set.
    pub(super) fn check(&self, job: &JobSpec, layers: &JobLayers, errors: &mut Vec<String>) {
        let mut refuse = |key: &str, reason: String| {
            let path = format!("{}.{key}", Self::NAME);
            errors.push(format!("{}: {path}: {reason}", layers.origin(&path)));
        };
        let of_kind = [
            ("step_every", self.step_every.is_some(), ScheduleKind::Step),
            ("gamma", self.gamma.is_some(), ScheduleKind::Step),
            ("final_lr", self.final_lr.is_some(), ScheduleKind::Cosine),
            ("steps", self.steps.is_some(), ScheduleKind::Cosine),
        ];
        for (key, is_set, kind) in of_kind {
            if is_set && kind != self.kind {
                refuse(key, format!("belongs to `{}`, but the kind is `{}`", kind.name(), self.kind.name()));
            }
        }
        if self.kind == ScheduleKind::Step && self.step_every.is_none() {
            refuse("kind", "`step` needs train.schedule.step_every, the steps between two drops".into());
        }
        for (key, value) in [("step_every", self.step_every), ("steps", self.steps)] {
            if value == Some(0) {
                refuse(key, "must be at least 1".into());
            }
        }
        if let Some(steps) = self.steps
            && self.kind == ScheduleKind::Cosine
            && steps > 0
            && steps <= self.warmup_steps
        {
            refuse("steps", format!("must be above warmup_steps ({}), is {steps}", self.warmup_steps));
        }
        if self.scale_with_batch == Some(0) {
            refuse("scale_with_batch", "must be at least 1".into());
        }
        let usable = |rate: f64| rate as f32 > 0.0 && (rate as f32).is_finite();
        let full = LearningRateSchedule::new(job, 1).full;
        if usable(job.optimizer.lr) && !usable(full) {
            refuse("scale_with_batch", format!("makes the learning rate {full:e}"));
        }
        if let Some(gamma) = self.gamma
            && !(gamma > 0.0 && gamma <= 1.0)
        {
            refuse("gamma", format!("must be above 0 and at most 1, is {gamma}"));
        }
        if let Some(rate) = self.final_lr
            && !(rate >= 0.0 && (rate as f32).is_finite())
        {
            refuse("final_lr", format!("must be at least 0 and finite in single precision, is {rate}"));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRateSchedule {
    /// The rate after warm-up, scaled with the batch.
    full: f64,
    warmup_steps: u64,
    curve: Curve,
}

/// The rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Curve {
    Constant,
    Step { every: u64, gamma: f64 },
    Cosine { last: f64, length: u64 },
    InverseSqrt,
}

impl LearningRateSchedule {
    pub fn new(job: &JobSpec, total_steps: u64) -> LearningRateSchedule {
        let spec = &job.schedule;
        let scale =
            spec.scale_with_batch.map_or(1.0, |batch| job.train.global_batch as f64 / batch.max(1) as f64);
        let curve = match spec.kind {
            ScheduleKind::Constant => Curve::Constant,
            ScheduleKind::Step => {
                Curve::Step { every: spec.step_every.unwrap_or(1).max(1), gamma: spec.gamma.unwrap_or(0.1) }
            }
            ScheduleKind::Cosine => Curve::Cosine {
                last: spec.final_lr.unwrap_or(0.0) * scale,
                length: spec.steps.unwrap_or(total_steps).saturating_sub(spec.warmup_steps + 1),
            },
            ScheduleKind::InverseSqrt => Curve::InverseSqrt,
        };
        LearningRateSchedule { full: job.optimizer.lr * scale, warmup_steps: spec.warmup_steps, curve }
    }

    /// The rate of a step, counted from 0 over the whole job.
    pub fn rate(&self, step: u64) -> f32 {
        if step < self.warmup_steps {
            return (self.full * ((step + 1) as f64 / self.warmup_steps as f64)) as f32;
        }
        let step = step - self.warmup_steps;
        let rate = match self.curve {
            Curve::Constant => self.full,
            Curve::Step { every, gamma } => {
                self.full * gamma.powi(i32::try_from(step / every).unwrap_or(i32::MAX))
            }
            Curve::InverseSqrt => self.full / (step as f64 + 1.0).sqrt(),
            // The ends are exact, without the rounding of the cosine.
            Curve::Cosine { .. } if step == 0 => self.full,
            Curve::Cosine { last, length } if step >= length => last,
            Curve::Cosine { last, length } => {
                let angle = std::f64::consts::PI * (step as f64 / length as f64);
                last + (self.full - last) * 0.5 * (1.0 + angle.cos())
            }
        };
        rate as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(spec: ScheduleSpec, total_steps: u64) -> LearningRateSchedule {
        let mut job = JobSpec { schedule: spec, ..JobSpec::default() };
        (job.optimizer.lr, job.train.global_batch) = (0.4, 256);
        LearningRateSchedule::new(&job, total_steps)
    }

    fn rates(spec: ScheduleSpec, steps: &[u64]) -> Vec<f32> {
        let schedule = schedule(spec, 11);
        steps.iter().map(|step| schedule.rate(*step)).collect()
    }

    #[test]
    fn a_constant_rate_is_the_configured_one() {
        assert_eq!(rates(ScheduleSpec::default(), &[0, 1, 10, u64::MAX]), [0.4; 4]);
    }

    #[test]
    fn warm_up_is_linear_and_ends_with_the_full_rate() {
        let spec = ScheduleSpec { warmup_steps: 4, ..Default::default() };
        assert_eq!(rates(spec, &[0, 1, 2, 3, 4, 10]), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]);
        let spec = ScheduleSpec { warmup_steps: 1, ..Default::default() };
        assert_eq!(rates(spec, &[0, 1]), [0.4, 0.4]);
    }

    #[test]
    fn step_schedules_drop_every_step_every() {
        let spec = ScheduleSpec {
            kind: ScheduleKind::Step,
            warmup_steps: 2,
            step_every: Some(3),
            gamma: Some(0.5),
            ..Default::default()
        };
        let expected = [0.2, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1];
        assert_eq!(rates(spec.clone(), &[0, 1, 2, 3, 4, 5, 6, 7, 8]), expected);
        assert_eq!(rates(spec, &[u64::MAX]), [0.0]);
    }

    #[test]
    fn the_cosine_starts_at_the_full_rate_and_ends_with_the_last_step() {
        let spec =
            ScheduleSpec { kind: ScheduleKind::Cosine, final_lr: Some(0.02), ..ScheduleSpec::default() };
        assert_eq!(rates(spec.clone(), &[0, 5, 10, 11, 500]), [0.4, 0.21, 0.02, 0.02, 0.02]);

        let warm = ScheduleSpec { warmup_steps: 5, ..spec.clone() };
        assert_eq!(rates(warm, &[0, 4, 5, 10]), [0.08, 0.4, 0.4, 0.02]);

        let own_length = ScheduleSpec { steps: Some(5), ..spec };
        assert_eq!(rates(own_length, &[0, 2, 4, 10]), [0.4, 0.21, 0.02, 0.02]);
    }

    /// `crates/graph/tests/golden/optimizers.py` prints these.
    #[test]
    fn rates_match_pytorch() {
        let all: Vec<u64> = (0..11).collect();
        let spec = ScheduleSpec {
            kind: ScheduleKind::Step,
            step_every: Some(3),
            gamma: Some(0.5),
            ..ScheduleSpec::default()
        };
        assert_eq!(rates(spec, &all), [0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]);
        let spec =
            ScheduleSpec { kind: ScheduleKind::Cosine, final_lr: Some(0.02), ..ScheduleSpec::default() };
        let expected: [f64; 11] = [
            0.4,
            0.390700738,
            0.363713229,
            0.321679198,
            0.268713229,
            0.21,
            0.151286771,
            0.0983208021,
            0.0562867711,
            0.0292992619,
            0.02,
        ];
        assert_eq!(rates(spec, &all), expected.map(|rate| rate as f32));
    }

    #[test]
    fn the_inverse_square_root_counts_steps_from_one() {
        let spec = ScheduleSpec { kind: ScheduleKind::InverseSqrt, ..ScheduleSpec::default() };
        assert_eq!(rates(spec.clone(), &[0, 3, 15, 99]), [0.4, 0.2, 0.1, 0.04]);
        let warm = ScheduleSpec { warmup_steps: 2, ..spec };
        assert_eq!(rates(warm, &[0, 1, 2, 5]), [0.2, 0.4, 0.4, 0.2]);
    }

    #[test]
    fn a_cosine_of_one_step_has_the_full_rate() {
        for total_steps in [0, 1] {
            let spec = ScheduleSpec { kind: ScheduleKind::Cosine, ..Default::default() };
            assert_eq!(schedule(spec, total_steps).rate(0), 0.4);
        }
        let spec = ScheduleSpec { kind: ScheduleKind::Cosine, warmup_steps: 9, ..Default::default() };
        assert_eq!(schedule(spec, 3).rate(8), 0.4);
    }

    #[test]
    fn every_rate_scales_with_the_batch() {
        let spec = ScheduleSpec {
            kind: ScheduleKind::Cosine,
            scale_with_batch: Some(64),
            warmup_steps: 2,
            final_lr: Some(0.01),
            ..Default::default()
        };
        assert_eq!(rates(spec, &[0, 1, 2, 10]), [0.8, 1.6, 1.6, 0.04]);
        let spec = ScheduleSpec { scale_with_batch: Some(512), ..Default::default() };
        assert_eq!(rates(spec, &[0]), [0.2]);
    }

    #[test]
    fn rates_never_rise_after_the_warm_up() {
        for kind in
            [ScheduleKind::Constant, ScheduleKind::Step, ScheduleKind::Cosine, ScheduleKind::InverseSqrt]
        {
            let spec =
                ScheduleSpec { kind, warmup_steps: 7, step_every: Some(10), ..ScheduleSpec::default() };
            let schedule = schedule(spec, 100);
            let rates: Vec<f32> = (0..120).map(|step| schedule.rate(step)).collect();
            assert!(rates[..7].windows(2).all(|pair| pair[0] < pair[1]), "{kind:?}");
            assert!(rates[6..].windows(2).all(|pair| pair[0] >= pair[1]), "{kind:?}");
            assert!(rates.iter().all(|rate| (0.0..=0.4).contains(rate)), "{kind:?}");
        }
    }
}
