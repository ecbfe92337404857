//! Ensembles: members with one layout and parameters of their own, whose predictions are combined.

use crate::op::softmax::arg_max;
use crate::{Loss, stacking};
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Batch, Error, Hooks, Layout, Model, Result, Tally, Task};

/// A model that predicts and evaluates at the parameters of several members, one set after the other, with those of a learned
/// combination behind them. At the parameters of one member it is the member.
pub struct Ensemble {
    member: Box<dyn Model>,
    combine: Combine,
    loss: Loss,
    /// Numbers that a member predicts for a row.
    outputs: usize,
    /// Predictions of all members, one member after the other.
    predictions: Vec<f32>,
}

impl Ensemble {
    /// `loss` is what an evaluation sums; not every loss is a function of predictions. `outputs` are the numbers that a member
    /// predicts for a row.
    pub fn new(member: Box<dyn Model>, combine: Combine, loss: Loss, outputs: usize) -> Ensemble {
        Ensemble { member, combine, loss, outputs, predictions: Vec::new() }
    }

    /// The parameters of all members, and those of their combination.
    fn parts<'a>(&self, parameters: &'a [f32]) -> Result<(&'a [f32], &'a [f32])> {
        let length = self.layout().len();
        let (members, combiner) = parts(self.combine, parameters, length, self.outputs);
        let fits = match self.combine {
            Combine::Stack => combiner.len() == members.len() / length.max(1) + self.outputs,
            _ => combiner.is_empty(),
        };
        if length > 0 && fits && !members.is_empty() && members.len().is_multiple_of(length) {
            return Ok((members, combiner));
        }
        let count = parameters.len();
        Err(Error::internal(format!("{count} numbers are not the parameters of members with {length} each")))
    }
}

/// The parameters of an ensemble: those of members with so many each, one after the other, and those of a combination that is
/// learned: a weight per member and a bias per output. Those of one member have no combination.
pub fn parts(combine: Combine, parameters: &[f32], length: usize, outputs: usize) -> (&[f32], &[f32]) {
    let members = match combine {
        Combine::Stack if parameters.len() != length => {
            parameters.len().saturating_sub(outputs) / (length + 1) * length
        }
        _ => parameters.len(),
    };
    parameters.split_at(members)
}

impl Model for Ensemble {
    fn layout(&self) -> &Layout {
        self.member.layout()
    }

    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        self.member.initialize(seed, parameters);
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.member.gradient(parameters, batch, scale, gradient, hooks)
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        if parameters.len() == self.layout().len() {
            return self.member.evaluate(parameters, batch);
        }
        let mut outputs = Vec::new();
        self.predict(parameters, batch, &mut outputs)?;
        self.loss.of_predictions(&outputs, batch)
    }

    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        if parameters.len() == self.layout().len() {
            return self.member.predict(parameters, batch, outputs);
        }
        let (members, combiner) = self.parts(parameters)?;
        let members = members.chunks_exact(self.layout().len());
        let count = members.len();
        self.predictions.clear();
        for own in members {
            self.member.predict(own, batch, &mut self.predictions)?;
        }
        let task = match self.loss.supports(Task::Regression) {
            true => Task::Regression,
            false => Task::Classification,
        };
        outputs.extend(match self.combine {
            Combine::Stack => stacking::combined(&self.predictions, self.outputs, task, combiner),
            combine => combined(combine, &self.predictions, count, self.outputs),
        });
        Ok(())
    }

    fn predicts_sequences(&self) -> bool {
        self.member.predicts_sequences()
    }

    fn synchronizes(&self) -> bool {
        self.member.synchronizes()
    }

    fn mixes_rows(&self) -> bool {
        self.member.mixes_rows()
    }

    fn pass_bytes(&self, rows: usize) -> u64 {
        self.member.pass_bytes(rows)
    }

    fn largest_value(&self) -> Option<String> {
        self.member.largest_value()
    }

    fn flops_per_row(&self) -> u64 {
        self.member.flops_per_row()
    }
}

/// What `count` members predict together, given the predictions of one after the other, `width` numbers per row. Votes are
/// shares of `count + 1`: one of each member, and the mean of their probabilities. Members that are merged are one model.
fn combined(combine: Combine, predictions: &[f32], count: usize, width: usize) -> Vec<f32> {
    let each = predictions.len() / count.max(1);
    let mut sums = vec![0.0; each];
    for own in predictions.chunks_exact(each.max(1)) {
        sums.iter_mut().zip(own).for_each(|(sum, value)| *sum += value);
    }
    sums.iter_mut().for_each(|sum| *sum /= count as f32);
    if combine == Combine::Vote && count > 1 && width > 0 {
        for own in predictions.chunks_exact(each.max(1)) {
            for (shares, row) in sums.chunks_exact_mut(width).zip(own.chunks_exact(width)) {
                shares[arg_max(row)] += 1.0;
            }
        }
        sums.iter_mut().for_each(|share| *share /= (count + 1) as f32);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Network, Options};
    use thalweg_core::{Features, Targets, Task};

    fn batch(targets: Targets) -> Batch {
        let features = Features::Dense((0..4 * 5).map(|index| (index % 7) as f32 / 3.5 - 1.0).collect());
        Batch { epoch: 0, rows: (0..5).collect(), width: 4, features, targets }
    }

    fn network(loss: Loss, task: Task) -> Network {
        let outputs = if task == Task::Classification { 3 } else { 1 };
        let layers = ["dense 6 tanh".to_string(), "dense auto".to_string()];
        let options = Options { loss: Some(loss), ..Options::default() };
        Network::build_with(&layers, crate::Input::Flat(4), outputs, task, options).unwrap()
    }

    fn parameters(network: &Network, seeds: &[u64]) -> Vec<f32> {
        let mut all = Vec::new();
        for seed in seeds {
            let mut own = vec![0.0; network.layout().len()];
            network.initialize(*seed, &mut own);
            all.extend(own);
        }
        all
    }

    /// Members that are equal evaluate as one of them, by every loss that is a function of predictions.
    #[test]
    fn equal_members_evaluate_as_one_alone() {
        let classes = Targets::Classes(vec![0, 2, 1, 1, 0]);
        let values = Targets::Values(vec![0.5, -0.2, 3.0, 0.0, -1.0]);
        for (loss, task, targets) in [
            (Loss::CrossEntropy, Task::Classification, &classes),
            (Loss::BinaryCrossEntropy, Task::Classification, &classes),
            (Loss::Squared, Task::Regression, &values),
            (Loss::Absolute, Task::Regression, &values),
            (Loss::Huber, Task::Regression, &values),
        ] {
            let network = network(loss, task);
            let (one, three) = (parameters(&network, &[4]), parameters(&network, &[4, 4, 4]));
            let member = Box::new(network.clone());
            let mut ensemble = Ensemble::new(member, Combine::Average, loss, network.outputs());
            let batch = batch(targets.clone());
            let (alone, together) =
                (ensemble.evaluate(&one, &batch).unwrap(), ensemble.evaluate(&three, &batch).unwrap());
            assert_eq!((alone.rows, alone.correct), (together.rows, together.correct), "{loss:?}");
            for (alone, together) in [
                (alone.loss, together.loss),
                (alone.absolute, together.absolute),
                (alone.squared, together.squared),
            ] {
                assert!((alone - together).abs() < 1e-5, "{loss:?}: {alone} and {together}");
            }
        }
    }

    #[test]
    fn predictions_are_the_mean_of_those_of_the_members() {
        let mut network = network(Loss::CrossEntropy, Task::Classification);
        let (batch, all) = (batch(Targets::Classes(vec![0; 5])), parameters(&network, &[1, 2]));
        let length = network.layout().len();
        let (mut first, mut second, mut together) = (Vec::new(), Vec::new(), Vec::new());
        network.predict(&all[..length], &batch, &mut first).unwrap();
        network.predict(&all[length..], &batch, &mut second).unwrap();
        let mut ensemble = Ensemble::new(Box::new(network), Combine::Average, Loss::CrossEntropy, 3);
        ensemble.predict(&all, &batch, &mut together).unwrap();
        assert_ne!(first, second);
        for ((one, other), mean) in first.iter().zip(&second).zip(&together) {
            assert!(((one + other) / 2.0 - mean).abs() < 1e-6);
        }
        let error = ensemble.predict(&all[1..], &batch, &mut together).unwrap_err();
        assert!(error.message.contains("not the parameters of members"), "{error}");
    }

    #[test]
    fn most_votes_win_and_probabilities_decide_between_as_many() {
        let vote = |rows: &[[f32; 3]]| {
            let shares = combined(Combine::Vote, &rows.concat(), rows.len(), 3);
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{shares:?}");
            arg_max(&shares)
        };
        // One is sure, two are not.
        assert_eq!(vote(&[[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.4, 0.6, 0.0]]), 1);
        assert_eq!(arg_max(&combined(Combine::Average, &[1.0, 0.0, 0.4, 0.6, 0.4, 0.6], 3, 2)), 0);
        assert_eq!(vote(&[[0.6, 0.4, 0.0], [0.0, 0.1, 0.9]]), 2);
    }

    /// The combination is behind the members; a member that it gives all the weight is what all predict.
    #[test]
    fn a_learned_combination_is_part_of_the_parameters() {
        let mut network = network(Loss::CrossEntropy, Task::Classification);
        let (batch, members) = (batch(Targets::Classes(vec![0, 2, 1, 1, 0])), parameters(&network, &[1, 2]));
        let length = network.layout().len();
        let all = [&members[..], &[0.0, 1.0, 0.0, 0.0, 0.0]].concat();
        assert_eq!(parts(Combine::Stack, &all, length, 3), (&members[..], &all[2 * length..]));
        assert_eq!(parts(Combine::Stack, &members[..length], length, 3).1.len(), 0);
        assert_eq!(parts(Combine::Vote, &members, length, 3).1.len(), 0);
        let (mut second, mut together) = (Vec::new(), Vec::new());
        network.predict(&members[length..], &batch, &mut second).unwrap();
        let mut ensemble = Ensemble::new(Box::new(network), Combine::Stack, Loss::CrossEntropy, 3);
        ensemble.predict(&all, &batch, &mut together).unwrap();
        let worst = second.iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "{worst}");
        let error = ensemble.predict(&all[1..], &batch, &mut together).unwrap_err();
        assert!(error.message.contains("not the parameters of members"), "{error}");
    }

    #[test]
    fn a_loss_of_scores_is_refused() {
        let network = network(Loss::Hinge, Task::Classification);
        let all = parameters(&network, &[1, 2]);
        let mut ensemble = Ensemble::new(Box::new(network), Combine::Average, Loss::Hinge, 3);
        let error = ensemble.evaluate(&all, &batch(Targets::Classes(vec![0; 5]))).unwrap_err();
        assert!(error.message.contains("hinge"), "{error}");
    }
}
