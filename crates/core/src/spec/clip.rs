//! `[train] clip`: gradient clipping.

use super::layers::JobLayers;
use super::section::{Section, section};

section! {
    /// Gradient clipping, applied to the gradient of the step summed over all workers: by value first, then by norm.
    "train.clip" ClipSpec {
        /// Clamps each element to plus or minus this.
        value: Option<f64> = None;
        /// The largest L2 norm of the gradient over all tensors.
        norm: Option<f64> = None;
    }
}

impl ClipSpec {
    pub(super) fn check(&self, layers: &JobLayers, errors: &mut Vec<String>) {
        for (key, bound) in [("value", self.value), ("norm", self.norm)] {
            if let Some(bound) = bound
                && !(bound as f32 > 0.0 && (bound as f32).is_finite())
            {
                let path = format!("{}.{key}", Self::NAME);
                let origin = layers.origin(&path);
                errors.push(format!(
                    "{origin}: {path}: must be above 0 and finite in single precision, is {bound}"
                ));
            }
        }
    }
}
