//! Adam with bias correction (Kingma and Ba 2015), epsilon added after the root, as PyTorch does it; and AdamW, with a
//! weight decay that the moments do not see: `w = w * (1 - lr * decay) - adam` (Loshchilov and Hutter 2019).

use crate::kernel::tiny;

/// The decaying means of the gradient and of its square.
pub const SLOTS: [&str; 2] = ["first_moment", "second_moment"];

/// The numbers of one step, the same for every element. They are worked out in double precision.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// `lr / (1 - beta1^t)`.
    rate: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    root: f32,
    /// `1 - beta1`.
    first_share: f32,
    beta2: f32,
    /// `1 - beta2`.
    second_share: f32,
    epsilon: f32,
}

impl Step {
    /// The numbers of step `step`, counted from 1.
    pub fn new(lr: f32, beta1: f32, beta2: f32, epsilon: f32, step: u64) -> Step {
        let left_over = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
        Step {
            rate: (f64::from(lr) / left_over(beta1)) as f32,
            root: (1.0 / left_over(beta2).sqrt()) as f32,
            first_share: (1.0 - f64::from(beta1)) as f32,
            beta2,
            second_share: (1.0 - f64::from(beta2)) as f32,
            epsilon,
        }
    }

    /// Moves an element's moments towards its gradient.
    #[inline(always)]
    pub(super) fn remember(&self, gradient: f32, first: &mut f32, second: &mut f32) {
        *first = tiny::kept(*first + self.first_share * (gradient - *first));
        let gradient = tiny::squarable(gradient);
        *second = tiny::kept_square(self.beta2 * *second + self.second_share * (gradient * gradient));
    }

    /// What the moments say an element should go down by.
    #[inline(always)]
    pub(super) fn descent(&self, first: f32, second: f32) -> f32 {
        self.rate * (first / (second.sqrt() * self.root + self.epsilon))
    }
}

/// What AdamW leaves of a parameter in a step: `1 - lr * decay`, worked out in double precision.
pub fn keep(lr: f32, weight_decay: f32) -> f32 {
    (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32
}

/// One step over a share of the buffers, in one pass over memory; vector instructions, root and division included.
/// `keep` is what is left of a parameter before the step (1 for Adam), `correct` what is done to each gradient first.
#[inline(always)]
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
