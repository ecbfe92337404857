//! Recognises self-attention as exporters decompose it: scaled and masked products of queries and keys, a softmax, and
//! the product with the values.

use super::constant::{ConstantTensor, TensorData};
use super::importer::Importer;
use super::value::{AttentionScores, Value};
use super::view::{AxisPart, View};
use super::{attributes::Attributes, fold};
use crate::graph::NodeId;
use crate::onnx::proto::NodeProto;
use crate::op::concatenate::{Columns, Concatenate};
use crate::op::elementwise::ElementwiseStep;
use crate::op::softmax::Softmax;
use crate::op::{Op, attention};

/// A score at or below this is masked.
const MASKED: f32 = -1e4;

impl Importer<'_> {
    /// The product of two values that depend on the rows: the start of an attention pattern.
    pub fn attention_scores(&mut self, queries: View, keys: View) -> Result<Value, String> {
        let rank = queries.axes.len();
        if rank < 3 || keys.axes.len() != rank {
            return Err(
                "a product of two values that depend on the rows is supported only in self-attention".into(),
            );
        }
        let factor = queries.factor * keys.factor;
        let (queries, keys) = (View { factor: 1.0, ..queries }, View { factor: 1.0, ..keys });
        Ok(Value::Scores(AttentionScores { queries, keys, factor, causal: false, is_normalized: false }))
    }

    /// `Add` of a mask to scores.
    pub fn add_mask(&self, scores: AttentionScores, mask: &ConstantTensor) -> Result<Value, String> {
        let TensorData::Floats(values) = &mask.data else { return Err("expected a mask of floats".into()) };
        if let Some(bias) = values.iter().find(|value| **value != 0.0 && **value > MASKED) {
            return Err(format!("adding {bias} to attention scores is not supported, only masking"));
        }
        let masked: Vec<bool> = values.iter().map(|value| *value <= MASKED).collect();
        apply_mask(scores, &mask.sizes, &masked)
    }

    /// `Where` that masks scores.
    pub fn where_mask(&mut self, node: &NodeProto) -> Result<Value, String> {
        let [condition, yes, no] = [0, 1, 2].map(|index| node.input.get(index).cloned().unwrap_or_default());
        let Value::Constant(condition) = self.value(&condition)? else {
            return Err("its condition depends on the rows".into());
        };
        let (scores, other, masks) = match (self.value(&yes)?, self.value(&no)?) {
            (Value::Scores(scores), other) => (scores, other, 0),
            (other, Value::Scores(scores)) => (scores, other, 1),
            _ => return Err("supported only as an attention mask".into()),
        };
        let other = match other {
            Value::Constant(constant) => constant.scalar(),
            Value::Weight(weight) => weight.tensor.scalar(),
            Value::Filled(value) => Some(value),
            _ => None,
        };
        if other.is_none_or(|value| value > MASKED) {
            return Err("replacing attention scores is not supported, only masking".into());
        }
        let masked: Vec<bool> =
            condition.known_ints()?.iter().map(|chosen| i64::from(*chosen != 0) == masks).collect();
        apply_mask(scores, &condition.sizes, &masked)
    }

    /// `Softmax` of attention scores, or over an axis of a value.
    pub fn softmax(&mut self, name: &str, attributes: Attributes<'_>) -> Result<Value, String> {
        let axis = attributes.int("axis", if self.version < 13 { 1 } else { -1 });
        if let Value::Scores(scores) = self.value(name)? {
            let rank = scores.queries.axes.len();
            return match super::view::normalize_axis(axis, rank)? == rank - 1 {
                true => Ok(Value::Scores(AttentionScores { is_normalized: true, ..scores })),
                false => Err("its axis is that of the queries; attention needs that of the keys".into()),
            };
        }
        let view = self.view(name)?;
        let axis = view.normalize_axis(axis)?;
        if self.version < 13 && axis + 1 != view.axes.len() {
            return Err("a softmax over several axes is not supported".into());
        }
        let (view, width) = self.with_innermost(&view, &[axis])?;
        let input = self.with_last_dim(&view, width)?;
        let node = self.builder.add(Op::Softmax(Softmax), &[input])?;
        Ok(Value::View(View { node, ..view }))
    }

    /// The product of softmaxed scores and values: the end of an attention pattern, one operator here.
    pub fn attention(&mut self, scores: &AttentionScores, values: &View) -> Result<View, String> {
        let AttentionScores { queries, keys, .. } = scores;
        let rank = queries.axes.len();
        if values.axes.len() != rank {
            return Err("queries and values differ in rank".into());
        }
        let (head, positions) = (queries.size(rank - 1)?, queries.size(rank - 2)?);
        let lead: Vec<AxisPart> = queries.axes[..rank - 2].iter().flatten().copied().collect();
        if lead.first() != Some(&AxisPart::Rows) {
            return Err("the axis of the rows must come before that of the heads".into());
        }
        let heads: usize =
            queries.dims.iter().map(|(_, size)| size).product::<usize>() / (head * positions).max(1);
        let (key_axes, value_axes) = ([rank - 1, rank - 2], [rank - 2, rank - 1]);
        for (view, [position_axis, feature_axis]) in [(keys, key_axes), (values, value_axes)] {
            let alike = view.sizes()[..rank - 2] == queries.sizes()[..rank - 2];
            if !alike || view.size(position_axis)? != positions || view.size(feature_axis)? != head {
                return Err(
                    "only self-attention is supported: queries, keys and values of the same shape".into()
                );
            }
        }
        let mut parts = Vec::new();
        for (view, [position_axis, feature_axis]) in
            [(queries, value_axes), (keys, key_axes), (values, value_axes)]
        {
            let lead = (0..rank - 2).flat_map(|axis| view.dims_of(axis));
            let order: Vec<usize> = view
                .dims_of(position_axis)
                .into_iter()
                .chain(lead)
                .chain(view.dims_of(feature_axis))
                .collect();
            let view = self.permute_dims(view, &order)?;
            parts.push(self.reshape_node(view.node, &[positions, heads * head])?);
        }
        // The attention operator divides by the root of the head size itself.
        let extra = scores.factor * (head as f32).sqrt();
        if (extra - 1.0).abs() > 1e-4 {
            parts[0] = self.builder.add(Op::elementwise(ElementwiseStep::Scale(extra)), &[parts[0]])?;
        }
        let read = match self.common_source(&parts, heads * head) {
            Some(source) => source,
            None => self.builder.add(Op::Concatenate(Concatenate), &parts)?,
        };
        let op = attention::Attention { heads, causal: scores.causal };
        let node = self.builder.add(Op::Attention(op), &[read])?;
        // The result's memory order is positions, heads, head size.
        let mut result = View::new(node, &[positions]);
        let position = result.axes.pop().unwrap_or_default();
        let mut axes = Vec::new();
        for axis in &queries.axes[..rank - 2] {
            let mut own = Vec::new();
            for part in axis {
                match part {
                    AxisPart::Rows => own.push(AxisPart::Rows),
                    AxisPart::Dim(dim) => own.extend(result.add_dim(queries.dim_size(*dim))),
                }
            }
            axes.push(own);
        }
        let feature = result.add_dim(head);
        result.axes = axes.into_iter().chain([position, feature]).collect();
        Ok(result)
    }

    /// The common projection that queries, keys and values are slices of, if there is one; saves a concatenation.
    fn common_source(&self, parts: &[NodeId], width: usize) -> Option<NodeId> {
        let cut = |index: usize| {
            let mut node = self.builder.graph.node(parts[index]);
            while let Op::Reshape(_) = node.op {
                node = self.builder.graph.node(node.inputs[0]);
            }
            match node.op {
                Op::Columns(Columns { begin, count }) if begin == index * width && count == width => {
                    Some(node.inputs[0])
                }
                _ => None,
            }
        };
        let source = cut(0)?;
        let is_projection =
            self.builder.shape(source).sizes().len() == 2 && self.builder.shape(source).width() == 3 * width;
        (is_projection && cut(1)? == source && cut(2)? == source).then_some(source)
    }
}

/// Applies a mask of no positions, or of all later ones.
fn apply_mask(scores: AttentionScores, sizes: &[usize], masked: &[bool]) -> Result<Value, String> {
    let positions = scores.queries.size(scores.queries.axes.len() - 2)?;
    let own = ConstantTensor { sizes: sizes.to_vec(), data: TensorData::Ints(vec![]) };
    let square = ConstantTensor { sizes: vec![positions, positions], data: TensorData::Ints(vec![]) };
    let common = fold::broadcast_shape(&[&own, &square])?;
    if common.iter().product::<usize>() != positions * positions || masked.len() != positions * positions {
        return if masked.iter().any(|masked| *masked) {
            Err("an attention mask must be the same for every row and head".into())
        } else {
            Ok(Value::Scores(scores))
        };
    }
    let is_later = |index: usize| index % positions > index / positions;
    if masked.iter().all(|masked| !masked) {
        Ok(Value::Scores(scores))
    } else if masked.iter().enumerate().all(|(index, masked)| *masked == is_later(index)) {
        Ok(Value::Scores(AttentionScores { causal: true, ..scores }))
    } else {
        Err("only causal attention masks are supported".into())
    }
}
