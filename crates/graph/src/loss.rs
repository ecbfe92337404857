//! What a network is blamed for.

use thalweg_core::spec::model::LossChoice;
use thalweg_core::{Error, Result, Task};

/// The loss of a row. Where a row has several numbers to be right about, it is the mean over them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Of a softmax over the classes (classification, the default).
    CrossEntropy,
    /// Of a sigmoid per class (classification).
    BinaryCrossEntropy,
    /// How far each wrong class comes within 1 of the right one (classification).
    Hinge,
    /// The square of the distance (regression, the default).
    Squared,
    /// The distance (regression).
    Absolute,
    /// Half the square up to a distance of 1, then the distance less a half (regression).
    Huber,
    /// The squared distance from the features themselves (auto-encoders; targets are not looked at).
    Reconstruction,
}

impl Loss {
    /// The names that a job may use.
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

    /// The loss of that name.
    pub fn named(name: &str) -> Option<Loss> {
        Loss::ALL.into_iter().find(|loss| loss.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let place = Loss::ALL.iter().position(|loss| *loss == self).unwrap_or_default();
        Loss::NAMES[place]
    }

    /// What a job asks for; nothing if the task decides.
    pub fn asked(choice: LossChoice) -> Option<Loss> {
        Loss::named(choice.name())
    }

    /// What a task is blamed for if nobody says otherwise.
    pub fn of(task: Task) -> Loss {
        match task {
            Task::Classification => Loss::CrossEntropy,
            Task::Regression => Loss::Squared,
        }
    }

    /// Whether it can judge the answers of a task.
    pub fn fits(self, task: Task) -> bool {
        match self {
            Loss::Reconstruction => true,
            Loss::CrossEntropy | Loss::BinaryCrossEntropy | Loss::Hinge => task == Task::Classification,
            Loss::Squared | Loss::Absolute | Loss::Huber => task == Task::Regression,
        }
    }

    /// Refuses a loss that cannot judge the answers of a task, with those that can.
    pub(crate) fn check(self, task: Task) -> Result<()> {
        if self.fits(task) {
            return Ok(());
        }
        let (judges, is) = match task {
            Task::Classification => ("numbers", "a classification"),
            Task::Regression => ("classes", "a regression"),
        };
        let others: Vec<&str> =
            Loss::ALL.into_iter().filter(|loss| loss.fits(task)).map(Loss::name).collect();
        let reason = format!("model.loss: `{}` judges {judges}, but the data is {is}", self.name());
        Err(Error::job(reason).hint(format!("use auto, {}; or set data.task", others.join(", "))))
    }

    /// Refuses a loss that judges one answer per row, for a network that answers at every position.
    pub(crate) fn check_positions(self) -> Result<()> {
        match self {
            Loss::CrossEntropy | Loss::Reconstruction => Ok(()),
            _ => {
                let reason =
                    "judges one answer per row, but the network answers at every position of a sequence";
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
    fn every_name_gives_itself_back() {
        for name in Loss::NAMES {
            assert_eq!(Loss::named(name).map(Loss::name), Some(name));
        }
        assert!(Loss::named("l2").is_none());
        let choices = <LossChoice as thalweg_core::spec::setting::Setting>::choices();
        assert_eq!(choices.iter().skip(1).map(|(name, _)| *name).collect::<Vec<_>>(), Loss::NAMES);
        assert_eq!(
            (Loss::asked(LossChoice::Auto), Loss::asked(LossChoice::Huber)),
            (None, Some(Loss::Huber))
        );
        assert!(Loss::of(Task::Regression).fits(Task::Regression));
    }
}
