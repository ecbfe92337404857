//! Loss functions.

use crate::op::class_loss::binary_of_probabilities;
use crate::op::cross_entropy::loss_of_probabilities;
use crate::op::regression_loss::RegressionLossKind;
use crate::op::softmax::arg_max;
use thalweg_core::spec::model::LossChoice;
use thalweg_core::{Batch, Error, Result, Tally, Targets, Task};

/// The loss of a row: the mean over its targets where it has several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Cross-entropy of a softmax over the classes (default of classification).
    CrossEntropy,
    /// Cross-entropy of a sigmoid per class (classification).
    BinaryCrossEntropy,
    /// Multi-class hinge loss with margin 1 (classification).
    Hinge,
    /// Squared error (default of regression).
    Squared,
    /// Absolute error (regression).
    Absolute,
    /// Half the squared error up to 1, then the absolute error minus 1/2 (regression).
    Huber,
    /// Squared error against the features (auto-encoders; targets are ignored).
    Reconstruction,
}

impl Loss {
    /// The names in a job.
    pub const NAMES: [&'static str; 7] =
        ["cross-entropy", "binary-cross-entropy", "hinge", "squared", "absolute", "huber", "reconstruction"];

    const ALL: [Loss; 7] = [
        Loss::CrossEntropy,
        Loss::BinaryCrossEntropy,
        Loss::Hinge,
        Loss::Squared,
        Loss::Absolute,
        Loss::Huber,
        Loss::Reconstruction,
    ];

    pub fn from_name(name: &str) -> Option<Loss> {
        Loss::ALL.into_iter().find(|loss| loss.name() == name)
    }

    pub fn name(self) -> &'static str {
        let index = Loss::ALL.iter().position(|loss| *loss == self).unwrap_or_default();
        Loss::NAMES[index]
    }

    /// The loss of a job; `None` if the task decides.
    pub fn from_choice(choice: LossChoice) -> Option<Loss> {
        Loss::from_name(choice.name())
    }

    pub fn default_for(task: Task) -> Loss {
        match task {
            Task::Classification => Loss::CrossEntropy,
            Task::Regression => Loss::Squared,
        }
    }

    /// Whether it is defined for a task.
    pub fn supports(self, task: Task) -> bool {
        match self {
            Loss::Reconstruction => true,
            Loss::CrossEntropy | Loss::BinaryCrossEntropy | Loss::Hinge => task == Task::Classification,
            Loss::Squared | Loss::Absolute | Loss::Huber => task == Task::Regression,
        }
    }

    /// Refuses a loss that is not defined for a task, with a hint at those that are.
    pub(crate) fn check(self, task: Task) -> Result<()> {
        if self.supports(task) {
            return Ok(());
        }
        let (own, data) = match task {
            Task::Classification => ("regression", "classification"),
            Task::Regression => ("classification", "regression"),
        };
        let others: Vec<&str> =
            Loss::ALL.into_iter().filter(|loss| loss.supports(task)).map(Loss::name).collect();
        let reason = format!("model.loss: `{}` is a loss of {own}, but the task is {data}", self.name());
        Err(Error::job(reason).hint(format!("use auto, {}; or set data.task", others.join(", "))))
    }

    /// Whether a row's loss follows from its prediction: that of scores, or of the features, does not.
    pub fn is_of_predictions(self) -> bool {
        !matches!(self, Loss::Hinge | Loss::Reconstruction)
    }

    /// Loss and metrics of predictions, one per row: what an evaluation that predicts them sums.
    pub(crate) fn of_predictions(self, predictions: &[f32], batch: &Batch) -> Result<Tally> {
        let regression = match self {
            Loss::Squared => Some(RegressionLossKind::Squared),
            Loss::Absolute => Some(RegressionLossKind::Absolute),
            Loss::Huber => Some(RegressionLossKind::Huber),
            _ => None,
        };
        let mut tally = Tally { rows: batch.len() as u64, ..Tally::default() };
        let width = (predictions.len() / batch.len().max(1)).max(1);
        match (&batch.targets, regression) {
            (Targets::Values(values), Some(kind)) => {
                for (prediction, target) in predictions.iter().zip(values) {
                    let error = f64::from(*prediction) - f64::from(*target);
                    tally.loss += kind.evaluate(error).0;
                    tally.absolute += error.abs();
                    tally.squared += error * error;
                }
            }
            (Targets::Classes(classes), None) if self.is_of_predictions() => {
                for (row, class) in predictions.chunks_exact(width).zip(classes) {
                    let class = *class as usize;
                    tally.loss += match self {
                        Loss::BinaryCrossEntropy => binary_of_probabilities(row, class),
                        _ => loss_of_probabilities(row, class, 0.0, None),
                    };
                    tally.correct += u64::from(arg_max(row) == class);
                }
            }
            _ => {
                return Err(Error::internal(format!("the loss `{}` is none of predictions", self.name())));
            }
        }
        Ok(tally)
    }

    /// Refuses a loss of one prediction per row for a network that predicts at every position.
    pub(crate) fn check_positions(self) -> Result<()> {
        match self {
            Loss::CrossEntropy | Loss::Reconstruction => Ok(()),
            _ => {
                let reason =
                    "takes one prediction per row, but the network predicts at every position of a sequence";
                Err(Error::job(format!("model.loss: `{}` {reason}", self.name()))
                    .hint("use cross-entropy, or put \"last\" before the last layer"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in Loss::NAMES {
            assert_eq!(Loss::from_name(name).map(Loss::name), Some(name));
        }
        assert!(Loss::from_name("l2").is_none());
        let choices = <LossChoice as thalweg_core::spec::setting::Setting>::choices();
        assert_eq!(choices.iter().skip(1).map(|(name, _)| *name).collect::<Vec<_>>(), Loss::NAMES);
        assert_eq!(
            (Loss::from_choice(LossChoice::Auto), Loss::from_choice(LossChoice::Huber)),
            (None, Some(Loss::Huber))
        );
        assert!(Loss::default_for(Task::Regression).supports(Task::Regression));
    }
}
