//! Looks values up and brings them into the memory layout that an operator needs.

use super::constant::SymInt;
use super::importer::Importer;
use super::value::{NormStage, Value};
use super::view::{AxisPart, View};
use crate::graph::NodeId;
use crate::op::Op;
use crate::op::elementwise::ElementwiseStep;
use crate::op::transpose::Transpose;

impl Importer<'_> {
    /// The value of a name.
    pub fn value(&self, name: &str) -> Result<Value, String> {
        self.values.get(name).cloned().ok_or_else(|| format!("reads `{name}`, which is not defined"))
    }

    /// A value that depends on the rows, its factor applied.
    pub fn view(&mut self, name: &str) -> Result<View, String> {
        let view = self.lazy_view(name)?;
        self.apply_factor(view)
    }

    /// A value that depends on the rows, its factor pending.
    pub fn lazy_view(&mut self, name: &str) -> Result<View, String> {
        match self.value(name)? {
            Value::View(view) => Ok(view),
            Value::Norm(NormStage::Mean, view) => {
                let last = view.axes.len() - 1;
                self.mean_over(&view, &[last], true)
            }
            Value::Symbols => Err("symbols of a text can only be read by an embedding".into()),
            Value::Weight(_) | Value::Constant(_) | Value::Filled(_) => {
                Err(format!("expected `{name}` to depend on the rows, but it is constant"))
            }
            Value::Scores(_) | Value::Erf(..) | Value::Norm(..) => {
                Err("its input is part of an attention, GELU or normalisation that is not recognised".into())
            }
            Value::Untranslated => Err(String::new()),
        }
    }

    /// Multiplies the value by its pending factor.
    pub fn apply_factor(&mut self, mut view: View) -> Result<View, String> {
        if view.factor != 1.0 {
            view.node =
                self.builder.add(Op::elementwise(ElementwiseStep::Scale(view.factor)), &[view.node])?;
            view.factor = 1.0;
        }
        Ok(view)
    }

    pub fn reshape_node(&mut self, node: NodeId, sizes: &[usize]) -> Result<NodeId, String> {
        match self.builder.shape(node).sizes() == sizes {
            true => Ok(node),
            false => self.builder.reshape(node, sizes),
        }
    }

    /// The value with its memory dims in that order; one transposition per dim out of place.
    pub fn permute_dims(&mut self, view: &View, order: &[usize]) -> Result<View, String> {
        let mut view = view.clone();
        for (start, dim) in order.iter().enumerate() {
            let found = view.dims[start..].iter().position(|(id, _)| id == dim);
            let found = found.ok_or("an axis is used twice")?;
            if found == 0 {
                continue;
            }
            // Swaps the dims in front of the wanted one with the rest.
            let sizes = |dims: &[(usize, usize)]| dims.iter().map(|(_, size)| size).product::<usize>();
            let before = sizes(&view.dims[..start]);
            let [first, second] =
                [sizes(&view.dims[start..start + found]), sizes(&view.dims[start + found..])];
            let sizes = [before, first, second];
            let node = self.reshape_node(view.node, if before == 1 { &sizes[1..] } else { &sizes })?;
            view.node = self.builder.add(Op::Transpose(Transpose), &[node])?;
            view.dims[start..].rotate_left(found);
        }
        Ok(view)
    }

    /// The value with `axes` innermost in memory, in that order, and their total size.
    pub fn with_innermost(&mut self, view: &View, axes: &[usize]) -> Result<(View, usize), String> {
        let mut inner = Vec::new();
        let mut width = 1;
        for axis in axes {
            width *= view.size(*axis)?;
            inner.extend(view.dims_of(*axis));
        }
        let outer = view.dims.iter().map(|(dim, _)| *dim).filter(|dim| !inner.contains(dim));
        let order: Vec<usize> = outer.chain(inner.iter().copied()).collect();
        Ok((self.permute_dims(view, &order)?, width))
    }

    /// The value with a last dim of size `width`; its leading dims are unspecified.
    pub fn with_last_dim(&mut self, view: &View, width: usize) -> Result<NodeId, String> {
        match self.builder.shape(view.node).width() == width {
            true => Ok(view.node),
            false => self.as_matrix(view, width),
        }
    }

    /// The value as `outer x width`, or `width` if `outer` is 1.
    pub fn as_matrix(&mut self, view: &View, width: usize) -> Result<NodeId, String> {
        let outer = view.per_row() / width.max(1);
        let sizes = [outer, width];
        self.reshape_node(view.node, if outer == 1 { &sizes[1..] } else { &sizes })
    }

    /// The value with its memory in the order of the file's axes, rows first.
    pub fn contiguous(&mut self, view: &View) -> Result<NodeId, String> {
        if view.axes.first().map(Vec::as_slice) != Some(&[AxisPart::Rows]) {
            return Err("its first axis must be the rows of the batch".into());
        }
        let order: Vec<usize> = (1..view.axes.len()).flat_map(|axis| view.dims_of(axis)).collect();
        let view = self.permute_dims(view, &order)?;
        let sizes: Vec<usize> = (1..view.axes.len()).map(|axis| view.axis(axis).1).collect();
        self.reshape_node(view.node, &sizes)
    }

    /// An NCHW image, flat or with three axes, in NHWC.
    pub fn as_nhwc(&mut self, view: &View, [height, width, channels]: [usize; 3]) -> Result<NodeId, String> {
        let sizes = [channels, height, width].map(|size| SymInt::Known(size as i64));
        let image = view.reshaped(&[&[SymInt::TimesRows(1)], &sizes[..]].concat());
        let image = image.ok_or("expected the shape of the input images, to compare with them")?;
        let (image, _) = self.with_innermost(&image, &[2, 3, 1])?;
        self.reshape_node(image.node, &[height, width, channels])
    }

    /// Two values of the same shape, the second permuted into the memory order of the first.
    pub fn aligned(&mut self, left: &View, right: &View) -> Result<(View, View), String> {
        if left.sizes() != right.sizes() {
            let shape = |view: &View| {
                crate::graph::Shape::rows(&view.dims.iter().map(|dim| dim.1).collect::<Vec<_>>())
            };
            return Err(format!("its inputs differ in shape ({} and {})", shape(left), shape(right)));
        }
        let (left, right) = (self.merge_dims(left)?, self.merge_dims(right)?);
        let axis_of = |view: &View, dim: usize| {
            (0..view.axes.len()).find(|axis| view.axes[*axis].contains(&AxisPart::Dim(dim)))
        };
        let order = left.dims.iter().map(|(dim, _)| {
            let axis = axis_of(&left, *dim).ok_or("a memory dim has no axis")?;
            right.dims_of(axis).first().copied().ok_or("its inputs differ in shape")
        });
        let order = order.collect::<Result<Vec<usize>, &str>>()?;
        let right = self.permute_dims(&right, &order)?;
        Ok((left, right))
    }

    /// The value with at most one memory dim per axis.
    fn merge_dims(&mut self, view: &View) -> Result<View, String> {
        if view.axes.iter().any(|axis| axis.len() > 1 && axis.contains(&AxisPart::Rows)) {
            return Err("the rows are merged with another axis".into());
        }
        let mut order: Vec<usize> = Vec::new();
        for (dim, _) in &view.dims {
            let axis = (0..view.axes.len()).find(|axis| view.axes[*axis].contains(&AxisPart::Dim(*dim)));
            let dims = axis.map(|axis| view.dims_of(axis)).unwrap_or_default();
            order.extend(dims.into_iter().filter(|dim| !order.contains(dim)).collect::<Vec<_>>());
        }
        let ordered = self.permute_dims(view, &order)?;
        let mut merged = View { dims: Vec::new(), ..ordered.clone() };
        for (dim, _) in &ordered.dims {
            let axis =
                (0..view.axes.len()).find(|axis| view.axes[*axis].first() == Some(&AxisPart::Dim(*dim)));
            if let Some(axis) = axis {
                merged.dims.push((*dim, ordered.axis(axis).1));
                merged.axes[axis] = vec![AxisPart::Dim(*dim)];
            }
        }
        Ok(merged)
    }
}
