//! `[train] optimizer`: how gradients become steps.

use super::layers::Layers;
use super::section::{Section, section};
use super::setting::choice;

choice! {
    /// The update rules.
    OptimizerKind {
        /// Plain stochastic gradient descent.
        Sgd = "sgd",
        /// With a moving direction.
        Momentum = "momentum",
        /// With moving first and second moments.
        Adam = "adam",
    }
}

section! {
    /// How gradients become steps.
    "train.optimizer" OptimizerSpec {
        /// The update rule.
        kind: OptimizerKind = OptimizerKind::Adam;
        /// The learning rate.
        lr: f64 = 1e-3;
        /// How much of the last direction is kept (momentum only; 0.9).
        momentum: Option<f64> = None;
        /// Decay of the first moment (adam only; 0.9).
        beta1: Option<f64> = None;
        /// Decay of the second moment (adam only; 0.999).
        beta2: Option<f64> = None;
        /// Keeps the division finite (adam only; 1e-8).
        epsilon: Option<f64> = None;
    }
}

/// An update rule with all its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `w -= lr * g`.
    Sgd {
        /// Learning rate.
        lr: f32,
    },
    /// `v = momentum * v + g; w -= lr * v`.
    Momentum {
        /// Learning rate.
        lr: f32,
        /// How much of the last direction is kept.
        momentum: f32,
    },
    /// Kingma and Ba 2015, with bias correction.
    Adam {
        /// Learning rate.
        lr: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
    },
}

impl OptimizerSpec {
    /// The rule with every number filled in.
    pub fn rule(&self) -> Rule {
        let lr = self.lr as f32;
        let or = |value: Option<f64>, default: f64| value.unwrap_or(default) as f32;
        match self.kind {
            OptimizerKind::Sgd => Rule::Sgd { lr },
            OptimizerKind::Momentum => Rule::Momentum { lr, momentum: or(self.momentum, 0.9) },
            OptimizerKind::Adam => Rule::Adam {
                lr,
                beta1: or(self.beta1, 0.9),
                beta2: or(self.beta2, 0.999),
                epsilon: or(self.epsilon, 1e-8),
            },
        }
    }

    /// Complaints about numbers out of range and numbers the rule does not know.
    pub(super) fn check(&self, layers: &Layers, complaints: &mut Vec<String>) {
        let mut complain = |key: &str, reason: String| {
            let path = format!("{}.{key}", Self::NAME);
            complaints.push(format!("{}: {path}: {reason}", layers.origin(&path)));
        };
        if self.lr <= 0.0 {
            complain("lr", format!("must be above 0, is {}", self.lr));
        }
        let of_kind = [
            ("momentum", self.momentum, OptimizerKind::Momentum),
            ("beta1", self.beta1, OptimizerKind::Adam),
            ("beta2", self.beta2, OptimizerKind::Adam),
            ("epsilon", self.epsilon, OptimizerKind::Adam),
        ];
        for (key, value, kind) in of_kind {
            let Some(value) = value else { continue };
            if kind != self.kind {
                complain(
                    key,
                    format!("belongs to `{}`, but the kind is `{}`", kind.name(), self.kind.name()),
                );
            } else if key == "epsilon" && value <= 0.0 {
                complain(key, format!("must be above 0, is {value}"));
            } else if key != "epsilon" && !(0.0..1.0).contains(&value) {
                complain(key, format!("must be at least 0 and below 1, is {value}"));
            }
        }
    }
}
