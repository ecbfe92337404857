//! `[train] clip`: how large a gradient may be.

use super::layers::Layers;
use super::section::{Section, section};

section! {
    /// How large a gradient may be. It is the step's whole gradient, summed over all workers, that is clipped: by value first, then by norm.
    "train.clip" ClipSpec {
        /// Each element is held between minus this and this.
        value: Option<f64> = None;
        /// The length of the gradient over all tensors is at most this.
        norm: Option<f64> = None;
    }
}

impl ClipSpec {
    /// Complaints about bounds that leave nothing.
    pub(super) fn check(&self, layers: &Layers, complaints: &mut Vec<String>) {
        for (key, bound) in [("value", self.value), ("norm", self.norm)] {
            if let Some(bound) = bound
                && !(bound as f32 > 0.0 && (bound as f32).is_finite())
            {
                let path = format!("{}.{key}", Self::NAME);
                let origin = layers.origin(&path);
                complaints.push(format!(
                    "{origin}: {path}: must be above 0 and finite in single precision, is {bound}"
                ));
            }
        }
    }
}
