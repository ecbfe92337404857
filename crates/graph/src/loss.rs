//! What a network is blamed for.

use thalweg_core::Task;

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
        assert!(Loss::of(Task::Regression).fits(Task::Regression));
    }
}
