//! AdamW: Adam, with a weight decay that the moments do not see: `w = w * (1 - lr * decay) - adam`
//! (Loshchilov and Hutter 2019).

pub use super::adam::SLOTS;
use super::adam::Step;

/// One step over a share of the buffers; `keep` is what the decay leaves of a parameter, `correct` what is done to
/// each gradient first.
pub fn update(
    step: &Step,
    keep: f32,
    parameters: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    correct: impl Fn(f32, f32) -> f32,
) {
    let len = parameters.len();
    assert!([gradient.len(), first.len(), second.len()] == [len; 3], "slices differ in length");
    let step = *step;
    let moments = first.iter_mut().zip(second);
    for ((parameter, &gradient), (first, second)) in parameters.iter_mut().zip(gradient).zip(moments) {
        step.remember(correct(gradient, *parameter), first, second);
        *parameter = *parameter * keep - step.descent(*first, *second);
    }
}

/// What a step leaves of a parameter: `1 - lr * decay`, worked out in double precision.
pub fn keep(lr: f32, weight_decay: f32) -> f32 {
    (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32
}
