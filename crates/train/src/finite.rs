//! Numbers that are not finite end the job where they appear, before they reach a checkpoint or a model.

use thalweg_core::{Culprit, Error, Kind, Layout, Result};
use thalweg_graph::first_not_finite;

/// Checks a rank's own loss and the part of its gradient that begins at the element `first`.
pub(crate) fn check_gradient(
    rank: usize,
    step: u64,
    loss: f64,
    gradient: &[f32],
    first: usize,
    layout: &Layout,
) -> Result<()> {
    check(rank, step, "back-propagation", "the gradient", "the loss", loss, gradient, first, layout)
}

/// Checks a share of the sums over all ranks, which begins at the element `first`.
pub(crate) fn check_share(
    rank: usize,
    step: u64,
    gradient: &[f32],
    first: usize,
    layout: &Layout,
) -> Result<()> {
    let Some(place) = first_not_finite(gradient) else { return Ok(()) };
    let tensor = layout.at(first + place).map_or("?", |tensor| tensor.name.as_str());
    Err(error(rank, step, SUMMING, format!("the summed gradient of `{tensor}` is {}", gradient[place])))
}

/// Checks the loss, summed over all ranks.
pub(crate) fn check_loss(rank: usize, step: u64, loss: f64, layout: &Layout) -> Result<()> {
    check(rank, step, SUMMING, "the summed gradient", "the summed loss", loss, &[], 0, layout)
}

/// The operation in which sums come about.
const SUMMING: &str = "all-reduce of gradients";

/// Checks parameters after the update of a step, and the loss on the validation rows.
pub(crate) fn check_model(
    rank: usize,
    step: u64,
    loss: f64,
    parameters: &[f32],
    layout: &Layout,
) -> Result<()> {
    check(rank, step, "update", "the parameter", "the validation loss", loss, parameters, 0, layout)
}

#[expect(clippy::too_many_arguments, reason = "the words differ, the check does not")]
fn check(
    rank: usize,
    step: u64,
    operation: &str,
    of_values: &str,
    of_loss: &str,
    loss: f64,
    values: &[f32],
    first: usize,
    layout: &Layout,
) -> Result<()> {
    let what = if let Some(place) = first_not_finite(values) {
        // Those of an ensemble are of one member after the other.
        let tensor =
            layout.at((first + place) % layout.len().max(1)).map_or("?", |tensor| tensor.name.as_str());
        format!("{of_values} of `{tensor}` is {}", values[place]).replace("parameter of", "parameter")
    } else if !loss.is_finite() {
        format!("{of_loss} is {loss}")
    } else {
        return Ok(());
    };
    Err(error(rank, step, operation, what))
}

fn error(rank: usize, step: u64, operation: &str, what: String) -> Error {
    let culprit = Culprit {
        rank,
        step: Some(step),
        operation: Some(operation.into()),
        cause: what.clone(),
        ..Culprit::default()
    };
    Error::new(Kind::NotFinite, format!("rank {rank}: {what} at step {step}"))
        .hint("lower the learning rate (train.optimizer.lr), scale the data (data.scale) or look for huge values in it")
        .blame(culprit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::model::{Density, TensorRole};

    #[test]
    fn the_tensor_is_named() {
        let mut layout = Layout::default();
        layout.push("a", &[2], TensorRole::Trainable, Density::Dense);
        layout.push("b", &[2], TensorRole::Trainable, Density::Dense);
        assert!(
            check_gradient(0, 3, 1.0, &[f32::MAX, -f32::MAX, 0.0, f32::MIN_POSITIVE], 0, &layout).is_ok()
        );
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let error = check_gradient(1, 3, 1.0, &[0.0, 0.0, bad], 1, &layout).unwrap_err();
            assert!(error.message.starts_with("rank 1: the gradient of `b` is "), "{error}");
            assert!(error.message.ends_with("at step 3"), "{error}");
        }
        assert!(
            check_model(0, 3, f64::NAN, &[0.0; 4], &layout)
                .unwrap_err()
                .message
                .contains("validation loss is NaN")
        );
    }
}
