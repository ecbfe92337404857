//! `[train] optimizer`: the update rule.

use super::layers::{JobLayers, Origin};
use super::section::{Section, section};
use super::setting::{Setting, choice};

choice! {
    /// Update rules.
    OptimizerKind {
        /// Plain stochastic gradient descent.
        Sgd = "sgd",
        /// SGD with momentum (Polyak).
        Momentum = "momentum",
        /// SGD with Nesterov momentum.
        Nesterov = "nesterov",
        /// The rate of each parameter falls with the sum of its squared gradients.
        Adagrad = "adagrad",
        /// The rate of each parameter follows the moving mean of its squared gradients.
        Rmsprop = "rmsprop",
        /// Moving first and second moments.
        Adam = "adam",
        /// Adam with decoupled weight decay.
        Adamw = "adamw",
        /// Momentum with a rate per tensor, for large batches.
        Lars = "lars",
        /// Adam with a rate per tensor, for large batches.
        Lamb = "lamb",
    }
}

section! {
    /// The optimizer.
    "train.optimizer" OptimizerSpec {
        /// The update rule.
        kind: OptimizerKind = OptimizerKind::Adam;
        /// The learning rate.
        lr: f64 = 1e-3;
        /// Momentum factor (momentum, nesterov, lars; 0.9). A negative one, of momentum, counters the momentum that comes from stale updates.
        momentum: Option<f64> = None;
        /// Decay of the first moment (adam, adamw, lamb; 0.9).
        beta1: Option<f64> = None;
        /// Decay of the second moment (adam, adamw, lamb; 0.999; and rmsprop, elsewhere called alpha; 0.99).
        beta2: Option<f64> = None;
        /// Added to the denominator (adam, adamw, rmsprop; 1e-8; lamb; 1e-6; adagrad; 1e-10).
        epsilon: Option<f64> = None;
        /// Weight decay: decoupled from the gradient (adamw and lamb; 0.01; lars; 0), or added to it after clipping (all others; 0).
        weight_decay: Option<f64> = None;
        /// Trust coefficient: the share of a tensor's norm that one step may change (lars; 0.001).
        trust: Option<f64> = None;
    }
}

/// An update rule with all hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// `w -= lr * g`.
    Sgd { lr: f32 },
    /// `v = momentum * v + g; w -= lr * v`.
    Momentum { lr: f32, momentum: f32 },
    /// `v = momentum * v + g; w -= lr * (g + momentum * v)`.
    Nesterov { lr: f32, momentum: f32 },
    /// Duchi, Hazan and Singer 2011.
    Adagrad { lr: f32, epsilon: f32 },
    /// Tieleman and Hinton 2012.
    Rmsprop { lr: f32, beta2: f32, epsilon: f32 },
    /// Kingma and Ba 2015, with bias correction.
    Adam { lr: f32, beta1: f32, beta2: f32, epsilon: f32 },
    /// Loshchilov and Hutter 2019.
    Adamw {
        lr: f32,
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        /// Subtracts `lr * weight_decay * w`.
        weight_decay: f32,
    },
    /// You, Gitman and Ginsburg 2017.
    Lars {
        lr: f32,
        momentum: f32,
        /// Adds `weight_decay * w` to the gradient.
        weight_decay: f32,
        trust: f32,
    },
    /// You et al. 2020.
    Lamb {
        lr: f32,
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        /// Adds `weight_decay * w` to the update direction.
        weight_decay: f32,
    },
}

impl UpdateRule {
    /// The learning rate, before any schedule.
    pub fn lr(&self) -> f32 {
        match *self {
            UpdateRule::Sgd { lr }
            | UpdateRule::Momentum { lr, .. }
            | UpdateRule::Nesterov { lr, .. }
            | UpdateRule::Adagrad { lr, .. }
            | UpdateRule::Rmsprop { lr, .. }
            | UpdateRule::Adam { lr, .. }
            | UpdateRule::Adamw { lr, .. }
            | UpdateRule::Lars { lr, .. }
            | UpdateRule::Lamb { lr, .. } => lr,
        }
    }

    pub fn kind(&self) -> OptimizerKind {
        match self {
            UpdateRule::Sgd { .. } => OptimizerKind::Sgd,
            UpdateRule::Momentum { .. } => OptimizerKind::Momentum,
            UpdateRule::Nesterov { .. } => OptimizerKind::Nesterov,
            UpdateRule::Adagrad { .. } => OptimizerKind::Adagrad,
            UpdateRule::Rmsprop { .. } => OptimizerKind::Rmsprop,
            UpdateRule::Adam { .. } => OptimizerKind::Adam,
            UpdateRule::Adamw { .. } => OptimizerKind::Adamw,
            UpdateRule::Lars { .. } => OptimizerKind::Lars,
            UpdateRule::Lamb { .. } => OptimizerKind::Lamb,
        }
    }

    /// Whether the update of an element depends on that element alone, so that any range of the buffers can be updated
    /// independently. Otherwise whole tensors are needed.
    pub fn is_elementwise(&self) -> bool {
        !matches!(self, UpdateRule::Lars { .. } | UpdateRule::Lamb { .. })
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
    /// The rule with defaults filled in.
    pub fn rule(&self) -> UpdateRule {
        let lr = self.lr as f32;
        let or = |value: Option<f64>, default: f64| value.unwrap_or(default) as f32;
        let momentum = or(self.momentum, 0.9);
        let (beta1, beta2) = (or(self.beta1, 0.9), or(self.beta2, 0.999));
        let epsilon = or(self.epsilon, 1e-8);
        match self.kind {
            OptimizerKind::Sgd => UpdateRule::Sgd { lr },
            OptimizerKind::Momentum => UpdateRule::Momentum { lr, momentum },
            OptimizerKind::Nesterov => UpdateRule::Nesterov { lr, momentum },
            OptimizerKind::Adagrad => UpdateRule::Adagrad { lr, epsilon: or(self.epsilon, 1e-10) },
            OptimizerKind::Rmsprop => UpdateRule::Rmsprop { lr, beta2: or(self.beta2, 0.99), epsilon },
            OptimizerKind::Adam => UpdateRule::Adam { lr, beta1, beta2, epsilon },
            OptimizerKind::Adamw => {
                UpdateRule::Adamw { lr, beta1, beta2, epsilon, weight_decay: or(self.weight_decay, 0.01) }
            }
            OptimizerKind::Lars => UpdateRule::Lars {
                lr,
                momentum,
                weight_decay: or(self.weight_decay, 0.0),
                trust: or(self.trust, 0.001),
            },
            OptimizerKind::Lamb => UpdateRule::Lamb {
                lr,
                beta1,
                beta2,
                epsilon: or(self.epsilon, 1e-6),
                weight_decay: or(self.weight_decay, 0.01),
            },
        }
    }

    /// The weight decay added to the gradient; 0 for rules with decoupled decay.
    pub fn coupled_decay(&self) -> f32 {
        match self.kind {
            OptimizerKind::Adamw | OptimizerKind::Lars | OptimizerKind::Lamb => 0.0,
            _ => self.weight_decay.unwrap_or(0.0) as f32,
        }
    }

    /// Checks ranges, and that the rule has the keys that are set. Rules compute in single precision, so ranges are checked
    /// in it.
    pub(super) fn check(&self, layers: &JobLayers, errors: &mut Vec<String>) {
        let mut refuse = |key: &str, reason: String| {
            let path = format!("{}.{key}", Self::NAME);
            errors.push(format!("{}: {path}: {reason}", layers.origin(&path)));
        };
        let positive = |value: f64| value as f32 > 0.0 && (value as f32).is_finite();
        if !positive(self.lr) {
            refuse("lr", format!("must be above 0 and finite in single precision, is {}", self.lr));
        }
        if let Some(value) = self.weight_decay
            && !(value >= 0.0 && (value as f32).is_finite())
        {
            refuse("weight_decay", format!("must be at least 0 and finite in single precision, is {value}"));
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
                refuse(
                    key,
                    format!("belongs to {}, but the kind is `{}`", kinds_with(key), self.kind.name()),
                );
            } else if matches!(key, "epsilon" | "trust") {
                if !positive(value) {
                    refuse(key, format!("must be above 0 and finite in single precision, is {value}"));
                }
            } else if self.kind == OptimizerKind::Momentum {
                // Explicit negative momentum (Mitliagkas et al. 2016).
                let momentum = value as f32;
                if momentum.is_nan() || momentum.abs() >= 1.0 {
                    refuse(key, format!("must be above -1 and below 1, is {value}"));
                }
            } else if !(0.0..1.0).contains(&(value as f32)) {
                refuse(key, format!("must be at least 0 and below 1, is {value}"));
            }
        }
    }
}

/// Removes keys of the file that the selected kind does not have: `--optimizer KIND` replaces the optimizer of the file by
/// that kind with its own defaults.
pub fn drop_keys_of_other_kinds(layers: &mut JobLayers) {
    let selected = layers.get("train.optimizer.kind").and_then(|(kind, _)| OptimizerKind::read(kind).ok());
    let Some(kind) = selected else { return };
    for key in OptimizerKind::ALL.into_iter().flat_map(OptimizerKind::keys) {
        let path = format!("{}.{key}", OptimizerSpec::NAME);
        if !kind.keys().contains(key) && matches!(layers.origin(&path), Origin::File { .. }) {
            layers.remove(&path);
        }
    }
}

/// The kinds that have a key: `` `momentum`, `nesterov` or `lars` ``.
fn kinds_with(key: &str) -> String {
    let kinds = OptimizerKind::ALL.into_iter().filter(|kind| kind.keys().contains(&key));
    let names: Vec<String> = kinds.map(|kind| format!("`{}`", kind.name())).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
