//! `[train] optimizer`: how gradients become steps.

use super::layers::{Layers, Origin};
use super::section::{Section, section};
use super::setting::{Setting, choice};

choice! {
    /// The update rules.
    OptimizerKind {
        /// Plain stochastic gradient descent.
        Sgd = "sgd",
        /// With a moving direction (Polyak).
        Momentum = "momentum",
        /// With a moving direction, and a look ahead along it.
        Nesterov = "nesterov",
        /// Each parameter's rate shrinks with the sum of its squared gradients.
        Adagrad = "adagrad",
        /// Each parameter's rate follows the moving mean of its squared gradients.
        Rmsprop = "rmsprop",
        /// With moving first and second moments.
        Adam = "adam",
        /// Adam whose weight decay is apart from the gradient.
        Adamw = "adamw",
        /// Momentum with a rate for each tensor, for large batches.
        Lars = "lars",
        /// Adam with a rate for each tensor, for large batches.
        Lamb = "lamb",
    }
}

section! {
    /// How gradients become steps.
    "train.optimizer" OptimizerSpec {
        /// The update rule.
        kind: OptimizerKind = OptimizerKind::Adam;
        /// The learning rate.
        lr: f64 = 1e-3;
        /// How much of the last direction is kept (momentum, nesterov, lars; 0.9).
        momentum: Option<f64> = None;
        /// Decay of the first moment (adam, adamw, lamb; 0.9).
        beta1: Option<f64> = None;
        /// Decay of the second moment (adam, adamw, lamb; 0.999; and rmsprop, which others call alpha; 0.99).
        beta2: Option<f64> = None;
        /// Keeps the division finite (adam, adamw, rmsprop; 1e-8; lamb; 1e-6; adagrad; 1e-10).
        epsilon: Option<f64> = None;
        /// Pulls parameters towards 0: apart from the gradient (adamw and lamb; 0.01; lars; 0), or as a part of it, added after clipping (all others; 0).
        weight_decay: Option<f64> = None;
        /// The share of a tensor's length that one step may change (lars; 0.001).
        trust: Option<f64> = None;
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
    /// `v = momentum * v + g; w -= lr * (g + momentum * v)`.
    Nesterov {
        /// Learning rate.
        lr: f32,
        /// How much of the last direction is kept.
        momentum: f32,
    },
    /// Duchi, Hazan and Singer 2011.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Keeps the division finite.
        epsilon: f32,
    },
    /// Tieleman and Hinton 2012.
    Rmsprop {
        /// Learning rate.
        lr: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
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
    /// Loshchilov and Hutter 2019.
    Adamw {
        /// Learning rate.
        lr: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
        /// Share of a parameter that a step with rate 1 takes away.
        weight_decay: f32,
    },
    /// You, Gitman and Ginsburg 2017.
    Lars {
        /// Learning rate.
        lr: f32,
        /// How much of the last step is kept.
        momentum: f32,
        /// Added to the gradient, times the parameter.
        weight_decay: f32,
        /// The share of a tensor's length that one step may change.
        trust: f32,
    },
    /// You et al. 2020.
    Lamb {
        /// Learning rate.
        lr: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
        /// Added to the direction, times the parameter.
        weight_decay: f32,
    },
}

impl Rule {
    /// The learning rate, before any schedule.
    pub fn lr(&self) -> f32 {
        match *self {
            Rule::Sgd { lr }
            | Rule::Momentum { lr, .. }
            | Rule::Nesterov { lr, .. }
            | Rule::Adagrad { lr, .. }
            | Rule::Rmsprop { lr, .. }
            | Rule::Adam { lr, .. }
            | Rule::Adamw { lr, .. }
            | Rule::Lars { lr, .. }
            | Rule::Lamb { lr, .. } => lr,
        }
    }

    /// Which rule it is.
    pub fn kind(&self) -> OptimizerKind {
        match self {
            Rule::Sgd { .. } => OptimizerKind::Sgd,
            Rule::Momentum { .. } => OptimizerKind::Momentum,
            Rule::Nesterov { .. } => OptimizerKind::Nesterov,
            Rule::Adagrad { .. } => OptimizerKind::Adagrad,
            Rule::Rmsprop { .. } => OptimizerKind::Rmsprop,
            Rule::Adam { .. } => OptimizerKind::Adam,
            Rule::Adamw { .. } => OptimizerKind::Adamw,
            Rule::Lars { .. } => OptimizerKind::Lars,
            Rule::Lamb { .. } => OptimizerKind::Lamb,
        }
    }

    /// Whether an element's step depends on that element alone, so that any share of the buffers can be updated alone.
    /// The others need whole tensors.
    pub fn is_elementwise(&self) -> bool {
        !matches!(self, Rule::Lars { .. } | Rule::Lamb { .. })
    }
}

impl OptimizerKind {
    /// The keys a kind takes besides `kind`, `lr` and `weight_decay`.
    fn keys(self) -> &'static [&'static str] {
        match self {
            OptimizerKind::Sgd => &[],
            OptimizerKind::Momentum | OptimizerKind::Nesterov => &["momentum"],
            OptimizerKind::Adagrad => &["epsilon"],
            OptimizerKind::Rmsprop => &["beta2", "epsilon"],
            OptimizerKind::Adam | OptimizerKind::Adamw | OptimizerKind::Lamb => {
                &["beta1", "beta2", "epsilon"]
            }
            OptimizerKind::Lars => &["momentum", "trust"],
        }
    }

    const ALL: [OptimizerKind; 9] = [
        OptimizerKind::Sgd,
        OptimizerKind::Momentum,
        OptimizerKind::Nesterov,
        OptimizerKind::Adagrad,
        OptimizerKind::Rmsprop,
        OptimizerKind::Adam,
        OptimizerKind::Adamw,
        OptimizerKind::Lars,
        OptimizerKind::Lamb,
    ];
}

impl OptimizerSpec {
    /// The rule with every number filled in.
    pub fn rule(&self) -> Rule {
        let lr = self.lr as f32;
        let or = |value: Option<f64>, default: f64| value.unwrap_or(default) as f32;
        let momentum = or(self.momentum, 0.9);
        let (beta1, beta2) = (or(self.beta1, 0.9), or(self.beta2, 0.999));
        let epsilon = or(self.epsilon, 1e-8);
        match self.kind {
            OptimizerKind::Sgd => Rule::Sgd { lr },
            OptimizerKind::Momentum => Rule::Momentum { lr, momentum },
            OptimizerKind::Nesterov => Rule::Nesterov { lr, momentum },
            OptimizerKind::Adagrad => Rule::Adagrad { lr, epsilon: or(self.epsilon, 1e-10) },
            OptimizerKind::Rmsprop => Rule::Rmsprop { lr, beta2: or(self.beta2, 0.99), epsilon },
            OptimizerKind::Adam => Rule::Adam { lr, beta1, beta2, epsilon },
            OptimizerKind::Adamw => {
                Rule::Adamw { lr, beta1, beta2, epsilon, weight_decay: or(self.weight_decay, 0.01) }
            }
            OptimizerKind::Lars => Rule::Lars {
                lr,
                momentum,
                weight_decay: or(self.weight_decay, 0.0),
                trust: or(self.trust, 0.001),
            },
            OptimizerKind::Lamb => Rule::Lamb {
                lr,
                beta1,
                beta2,
                epsilon: or(self.epsilon, 1e-6),
                weight_decay: or(self.weight_decay, 0.01),
            },
        }
    }

    /// The weight decay that is a part of the gradient; 0 for rules that treat it apart.
    pub fn coupled_decay(&self) -> f32 {
        match self.kind {
            OptimizerKind::Adamw | OptimizerKind::Lars | OptimizerKind::Lamb => 0.0,
            _ => self.weight_decay.unwrap_or(0.0) as f32,
        }
    }

    /// Complaints about numbers out of range and numbers the rule does not know. Rules compute in single precision, so
    /// ranges are checked there.
    pub(super) fn check(&self, layers: &Layers, complaints: &mut Vec<String>) {
        let mut complain = |key: &str, reason: String| {
            let path = format!("{}.{key}", Self::NAME);
            complaints.push(format!("{}: {path}: {reason}", layers.origin(&path)));
        };
        let positive = |value: f64| value as f32 > 0.0 && (value as f32).is_finite();
        if !positive(self.lr) {
            complain("lr", format!("must be above 0 and finite in single precision, is {}", self.lr));
        }
        if let Some(value) = self.weight_decay
            && !(value >= 0.0 && (value as f32).is_finite())
        {
            complain(
                "weight_decay",
                format!("must be at least 0 and finite in single precision, is {value}"),
            );
        }
        let own = [
            ("momentum", self.momentum),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("epsilon", self.epsilon),
            ("trust", self.trust),
        ];
        for (key, value) in own {
            let Some(value) = value else { continue };
            if !self.kind.keys().contains(&key) {
                complain(key, format!("belongs to {}, but the kind is `{}`", takers(key), self.kind.name()));
            } else if matches!(key, "epsilon" | "trust") {
                if !positive(value) {
                    complain(key, format!("must be above 0 and finite in single precision, is {value}"));
                }
            } else if !(0.0..1.0).contains(&(value as f32)) {
                complain(key, format!("must be at least 0 and below 1, is {value}"));
            }
        }
    }
}

/// Takes back what a file says of another kind of optimizer than the one asked for: a flag that names a kind stands for
/// that optimizer with its own defaults.
pub fn make_way(layers: &mut Layers) {
    let asked = layers.get("train.optimizer.kind").and_then(|(kind, _)| OptimizerKind::read(kind).ok());
    let Some(kind) = asked else { return };
    for key in OptimizerKind::ALL.into_iter().flat_map(OptimizerKind::keys) {
        let path = format!("{}.{key}", OptimizerSpec::NAME);
        if !kind.keys().contains(key) && matches!(layers.origin(&path), Origin::File { .. }) {
            layers.forget(&path);
        }
    }
}

/// The kinds that take a key: `` `momentum`, `nesterov` or `lars` ``.
fn takers(key: &str) -> String {
    let kinds = OptimizerKind::ALL.into_iter().filter(|kind| kind.keys().contains(&key));
    let names: Vec<String> = kinds.map(|kind| format!("`{}`", kind.name())).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
