//! The ranges of the flat buffers that a rule updates at once.

use std::ops::Range;
use thalweg_core::Layout;
use thalweg_core::model::{TensorInfo, TensorRole};
use thalweg_core::spec::optimizer::UpdateRule;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainableSpan {
    pub range: Range<usize>,
    /// Whether LARS and LAMB adapt its rate and decay it. Vectors (biases, gains of a normalisation) take plain steps,
    /// as in the authors' published code.
    pub adapted: bool,
}

/// The spans of a layout: one per trainable tensor; for element-wise rules, adjacent tensors are merged. Running
/// statistics are left out: no rule applies to them.
pub fn spans(rule: UpdateRule, layout: &Layout) -> Vec<TrainableSpan> {
    let mut spans: Vec<TrainableSpan> = Vec::new();
    for tensor in layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Trainable) {
        match spans.last_mut() {
            Some(last) if rule.is_elementwise() && last.range.end == tensor.offset => {
                last.range.end = tensor.range().end;
            }
            _ => spans.push(TrainableSpan { range: tensor.range(), adapted: is_adapted(tensor) }),
        }
    }
    spans
}

/// The ranges of the running statistics of a layout.
pub fn statistics(layout: &Layout) -> Vec<Range<usize>> {
    let statistics = layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Statistic);
    statistics.map(TensorInfo::range).collect()
}

fn is_adapted(tensor: &TensorInfo) -> bool {
    tensor.shape.len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::model::Density;

    #[test]
    fn statistics_are_left_out_and_adjacent_tensors_merged_if_the_rule_allows() {
        let mut layout = Layout::default();
        for (name, shape, role) in [
            ("bias", &[3][..], TensorRole::Trainable),
            ("weight", &[3, 2], TensorRole::Trainable),
            ("mean", &[2], TensorRole::Statistic),
            ("kernel", &[1, 1, 2, 2], TensorRole::Trainable),
        ] {
            layout.push(name, shape, role, Density::Dense);
        }
        let ranges = |spans: Vec<TrainableSpan>| spans.into_iter().map(|span| span.range).collect::<Vec<_>>();
        assert_eq!(ranges(spans(UpdateRule::Sgd { lr: 0.1 }, &layout)), [0..9, 11..15]);
        let lars = UpdateRule::Lars { lr: 0.1, momentum: 0.9, weight_decay: 0.0, trust: 1e-3 };
        let adapted: Vec<bool> = spans(lars, &layout).iter().map(|span| span.adapted).collect();
        assert_eq!(adapted, [false, true, true]);
        assert_eq!(ranges(spans(lars, &layout)), [0..3, 3..9, 11..15]);
        assert_eq!(statistics(&layout), vec![9..11]);
    }
}
