//! Which parts of the flat buffers a rule updates, and which of them belong together.

use std::ops::Range;
use thalweg_core::Layout;
use thalweg_core::model::{Role, Tensor};
use thalweg_core::spec::optimizer::Rule;

/// A part of the buffers that is updated in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it is.
    pub range: Range<usize>,
    /// Whether LARS and LAMB adapt its rate and decay it. Vectors (biases, scales of a normalisation) take plain
    /// steps, as in the code that their authors published.
    pub adapted: bool,
}

/// The spans of a layout: one per tensor that is learned; for element-wise rules, neighbours are one. Running
/// statistics are nobody's to update but the model's.
pub fn spans(rule: Rule, layout: &Layout) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Trainable) {
        match spans.last_mut() {
            Some(last) if rule.is_elementwise() && last.range.end == tensor.offset => {
                last.range.end = tensor.range().end;
            }
            _ => spans.push(Span { range: tensor.range(), adapted: is_adapted(tensor) }),
        }
    }
    spans
}

fn is_adapted(tensor: &Tensor) -> bool {
    tensor.shape.len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::model::Density;

    #[test]
    fn statistics_are_left_out_and_neighbours_joined_where_the_rule_allows() {
        let mut layout = Layout::default();
        for (name, shape, role) in [
            ("bias", &[3][..], Role::Trainable),
            ("weight", &[3, 2], Role::Trainable),
            ("mean", &[2], Role::Statistic),
            ("kernel", &[1, 1, 2, 2], Role::Trainable),
        ] {
            layout.push(name, shape, role, Density::Dense);
        }
        let ranges = |spans: Vec<Span>| spans.into_iter().map(|span| span.range).collect::<Vec<_>>();
        assert_eq!(ranges(spans(Rule::Sgd { lr: 0.1 }, &layout)), [0..9, 11..15]);
        let lars = Rule::Lars { lr: 0.1, momentum: 0.9, weight_decay: 0.0, trust: 1e-3 };
        let adapted: Vec<bool> = spans(lars, &layout).iter().map(|span| span.adapted).collect();
        assert_eq!(adapted, [false, true, true]);
        assert_eq!(ranges(spans(lars, &layout)), [0..3, 3..9, 11..15]);
    }
}
