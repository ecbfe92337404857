//! Attention, as exporters write it out: products of queries and keys, scaled and masked, their shares, and what those
//! gather of the values.

use super::importer::Importer;
use super::item::{Item, Scores};
use super::tensor::{Constant, Data};
use super::view::{Piece, View};
use super::{fold, settings::Settings};
use crate::graph::NodeId;
use crate::onnx::proto::Node;
use crate::op::concatenate::{Columns, Concatenate};
use crate::op::elementwise::Step;
use crate::op::softmax::Softmax;
use crate::op::{Op, attention};

/// Below this, a score is hidden.
const HIDDEN: f32 = -1e4;

impl Importer<'_> {
    /// Products of two computed values: the beginning of an attention.
    pub fn scores(&mut self, queries: View, keys: View) -> Result<Item, String> {
        let rank = queries.axes.len();
        if rank < 3 || keys.axes.len() != rank {
            return Err("products of two computed values are only supported in an attention".into());
        }
        let factor = queries.factor * keys.factor;
        let (queries, keys) = (View { factor: 1.0, ..queries }, View { factor: 1.0, ..keys });
        Ok(Item::Scores(Scores { queries, keys, factor, causal: false, shares: false }))
    }

    /// Scores with a mask added to them.
    pub fn add_mask(&self, scores: Scores, mask: &Constant) -> Result<Item, String> {
        let Data::Floats(values) = &mask.data else { return Err("expected a mask of numbers".into()) };
        if let Some(odd) = values.iter().find(|value| **value != 0.0 && **value > HIDDEN) {
            return Err(format!("a mask may hide positions, not add {odd} to their scores"));
        }
        let hidden: Vec<bool> = values.iter().map(|value| *value <= HIDDEN).collect();
        hide(scores, &mask.sizes, &hidden)
    }

    /// `Where`: scores with some of them replaced.
    pub fn masked(&mut self, node: &Node) -> Result<Item, String> {
        let [condition, yes, no] = [0, 1, 2].map(|index| node.input.get(index).cloned().unwrap_or_default());
        let Item::Constant(condition) = self.item(&condition)? else {
            return Err("chooses by values that depend on the rows".into());
        };
        let (scores, other, hides) = match (self.item(&yes)?, self.item(&no)?) {
            (Item::Scores(scores), other) => (scores, other, 0),
            (other, Item::Scores(scores)) => (scores, other, 1),
            _ => return Err("chooses between values that depend on the rows".into()),
        };
        let other = match other {
            Item::Constant(constant) => constant.single(),
            Item::Weight(weight) => weight.tensor.single(),
            Item::Filled(value) => Some(value),
            _ => None,
        };
        if other.is_none_or(|value| value > HIDDEN) {
            return Err("a mask may hide positions, not replace their scores".into());
        }
        let hidden: Vec<bool> =
            condition.known()?.iter().map(|chosen| i64::from(*chosen != 0) == hides).collect();
        hide(scores, &condition.sizes, &hidden)
    }

    /// `Softmax`: of scores, or of any axis of a value.
    pub fn softmax(&mut self, name: &str, settings: Settings<'_>) -> Result<Item, String> {
        let axis = settings.int("axis", if self.version < 13 { 1 } else { -1 });
        if let Item::Scores(scores) = self.item(name)? {
            let rank = scores.queries.axes.len();
            return match super::view::place(axis, rank)? == rank - 1 {
                true => Ok(Item::Scores(Scores { shares: true, ..scores })),
                false => Err("is a softmax over queries instead of keys".into()),
            };
        }
        let view = self.view(name)?;
        let axis = view.place(axis)?;
        if self.version < 13 && axis + 1 != view.axes.len() {
            return Err("a softmax over several axes is not supported".into());
        }
        let (view, width) = self.ending_with(&view, &[axis])?;
        let lines = self.lines(&view, width)?;
        let node = self.assembly.add(Op::Softmax(Softmax), &[lines])?;
        Ok(Item::View(View { node, ..view }))
    }

    /// What the shares gather of the values.
    pub fn attention(&mut self, scores: &Scores, values: &View) -> Result<View, String> {
        let Scores { queries, keys, .. } = scores;
        let rank = queries.axes.len();
        if values.axes.len() != rank {
            return Err("queries and values differ in their number of axes".into());
        }
        let (head, positions) = (queries.size(rank - 1)?, queries.size(rank - 2)?);
        let lead: Vec<Piece> = queries.axes[..rank - 2].iter().flatten().copied().collect();
        if lead.first() != Some(&Piece::Rows) {
            return Err("the rows do not come before the heads".into());
        }
        let heads: usize =
            queries.atoms.iter().map(|(_, size)| size).product::<usize>() / (head * positions).max(1);
        let (key_axes, value_axes) = ([rank - 1, rank - 2], [rank - 2, rank - 1]);
        for (view, [place, number]) in [(keys, key_axes), (values, value_axes)] {
            let alike = view.sizes()[..rank - 2] == queries.sizes()[..rank - 2];
            if !alike || view.size(place)? != positions || view.size(number)? != head {
                return Err(
                    "only self-attention is supported: as many keys and values as queries, all of one width"
                        .into(),
                );
            }
        }
        let mut parts = Vec::new();
        for (view, [place, number]) in [(queries, value_axes), (keys, key_axes), (values, value_axes)] {
            let lead = (0..rank - 2).flat_map(|axis| view.atoms_of(axis));
            let order: Vec<usize> =
                view.atoms_of(place).into_iter().chain(lead).chain(view.atoms_of(number)).collect();
            let view = self.ordered(view, &order)?;
            parts.push(self.sized(view.node, &[positions, heads * head])?);
        }
        // The operator scales by the root of a head's width.
        let extra = scores.factor * (head as f32).sqrt();
        if (extra - 1.0).abs() > 1e-4 {
            parts[0] = self.assembly.add(Op::step(Step::Scale(extra)), &[parts[0]])?;
        }
        let read = match self.common_source(&parts, heads * head) {
            Some(source) => source,
            None => self.assembly.add(Op::Concatenate(Concatenate), &parts)?,
        };
        let op = attention::Attention { heads, causal: scores.causal };
        let node = self.assembly.add(Op::Attention(op), &[read])?;
        // The answer lies in memory as positions, heads and numbers.
        let mut result = View::new(node, &[positions]);
        let place = result.axes.pop().unwrap_or_default();
        let mut axes = Vec::new();
        for axis in &queries.axes[..rank - 2] {
            let mut own = Vec::new();
            for piece in axis {
                match piece {
                    Piece::Rows => own.push(Piece::Rows),
                    Piece::Atom(atom) => own.extend(result.add_atom(queries.size_of(*atom))),
                }
            }
            axes.push(own);
        }
        let number = result.add_atom(head);
        result.axes = axes.into_iter().chain([place, number]).collect();
        Ok(result)
    }

    /// The value that queries, keys and values are thirds of, if they are cut from one.
    fn common_source(&self, parts: &[NodeId], width: usize) -> Option<NodeId> {
        let cut = |index: usize| {
            let mut node = self.assembly.graph.node(parts[index]);
            while let Op::Reshape(_) = node.op {
                node = self.assembly.graph.node(node.inputs[0]);
            }
            match node.op {
                Op::Columns(Columns { begin, count }) if begin == index * width && count == width => {
                    Some(node.inputs[0])
                }
                _ => None,
            }
        };
        let source = cut(0)?;
        let whole = self.assembly.shape(source).sizes().len() == 2
            && self.assembly.shape(source).width() == 3 * width;
        (whole && cut(1)? == source && cut(2)? == source).then_some(source)
    }
}

/// Hides positions: none, or all later ones.
fn hide(scores: Scores, sizes: &[usize], hidden: &[bool]) -> Result<Item, String> {
    let positions = scores.queries.size(scores.queries.axes.len() - 2)?;
    let own = Constant { sizes: sizes.to_vec(), data: Data::Wholes(vec![]) };
    let square = Constant { sizes: vec![positions, positions], data: Data::Wholes(vec![]) };
    let spread = fold::broadcast(&[&own, &square])?;
    if spread.iter().product::<usize>() != positions * positions || hidden.len() != positions * positions {
        return if hidden.iter().any(|hidden| *hidden) {
            Err("a mask must hide the same positions for every row and head".into())
        } else {
            Ok(Item::Scores(scores))
        };
    }
    let later = |place: usize| place % positions > place / positions;
    if hidden.iter().all(|hidden| !hidden) {
        Ok(Item::Scores(scores))
    } else if hidden.iter().enumerate().all(|(place, hidden)| *hidden == later(place)) {
        Ok(Item::Scores(Scores { causal: true, ..scores }))
    } else {
        Err("of masks, only those that hide later positions are supported".into())
    }
}
