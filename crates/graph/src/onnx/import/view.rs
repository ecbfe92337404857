//! The memory layout of an ONNX value.
//!
//! ONNX orders the axes of a value freely; in memory the rows of the batch come first and images are NHWC. A [`View`]
//! maps one to the other: memory is a sequence of *dims*, and each ONNX axis is made of some of them. Permuting,
//! splitting and merging axes is then free; data moves only when an operator needs another order of dims.

use super::constant::SymInt;
use crate::graph::NodeId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisPart {
    /// The rows of the batch.
    Rows,
    /// The memory dim with that id.
    Dim(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub node: NodeId,
    /// Id and size of each dim in memory order, after the rows. No dim has size 1.
    pub dims: Vec<(usize, usize)>,
    /// The dims of each ONNX axis, outermost first; an axis of size 1 has none.
    pub axes: Vec<Vec<AxisPart>>,
    /// A pending factor: the value is `factor` times the node's. Attention and GELU patterns absorb it.
    pub factor: f32,
}

impl View {
    /// A contiguous value: rows first, then axes of these sizes.
    pub fn new(node: NodeId, sizes: &[usize]) -> View {
        let mut view = View { node, dims: Vec::new(), axes: vec![vec![AxisPart::Rows]], factor: 1.0 };
        for size in sizes {
            let dim = view.add_dim(*size);
            view.axes.push(dim);
        }
        view
    }

    /// Appends an innermost dim and returns the axis made of it alone.
    pub fn add_dim(&mut self, size: usize) -> Vec<AxisPart> {
        if size == 1 {
            return Vec::new();
        }
        let id = self.next_dim_id();
        self.dims.push((id, size));
        vec![AxisPart::Dim(id)]
    }

    fn next_dim_id(&self) -> usize {
        self.dims.iter().map(|(id, _)| id + 1).max().unwrap_or(0)
    }

    pub fn dim_size(&self, dim: usize) -> usize {
        self.dims.iter().find(|(id, _)| *id == dim).map_or(1, |(_, size)| *size)
    }

    /// Whether an axis contains the rows, and its size per row.
    pub fn axis(&self, axis: usize) -> (bool, usize) {
        let rows = self.axes[axis].contains(&AxisPart::Rows);
        (rows, self.dims_of(axis).iter().map(|dim| self.dim_size(*dim)).product())
    }

    /// The size of an axis; an error if it contains the rows.
    pub fn size(&self, axis: usize) -> Result<usize, String> {
        match self.axis(axis) {
            (false, size) => Ok(size),
            (true, _) => Err(format!("axis {axis} contains the rows of the batch")),
        }
    }

    pub fn dims_of(&self, axis: usize) -> Vec<usize> {
        let dim = |part: &AxisPart| match part {
            AxisPart::Rows => None,
            AxisPart::Dim(dim) => Some(*dim),
        };
        self.axes[axis].iter().filter_map(dim).collect()
    }

    /// The shape as ONNX sees it.
    pub fn sizes(&self) -> Vec<SymInt> {
        let size = |axis| match self.axis(axis) {
            (true, size) => SymInt::TimesRows(size as i64),
            (false, size) => SymInt::Known(size as i64),
        };
        (0..self.axes.len()).map(size).collect()
    }

    /// Elements per row.
    pub fn per_row(&self) -> usize {
        self.dims.iter().map(|(_, size)| size).product()
    }

    /// The index of an axis; negative ones count from the end.
    pub fn normalize_axis(&self, axis: i64) -> Result<usize, String> {
        normalize_axis(axis, self.axes.len())
    }

    /// Splits a dim in two, the outer of size `outer`, which keeps the id. Returns the inner one's id.
    fn split_dim(&mut self, dim: usize, outer: usize) -> usize {
        let inner = self.next_dim_id();
        if let Some(index) = self.dims.iter().position(|(id, _)| *id == dim) {
            let size = self.dims[index].1;
            self.dims[index].1 = outer;
            self.dims.insert(index + 1, (inner, size / outer));
        }
        inner
    }

    /// The same memory under other axes; `None` if their sizes do not divide the dims.
    pub fn reshaped(&self, target: &[SymInt]) -> Option<View> {
        let mut view = self.clone();
        let mut parts: std::collections::VecDeque<AxisPart> = self.axes.iter().flatten().copied().collect();
        view.axes.clear();
        for size in target {
            let (mut rows, need) = match size {
                SymInt::TimesRows(size) => (true, *size),
                SymInt::Known(size) => (false, *size),
            };
            let mut need = usize::try_from(need).ok().filter(|need| *need > 0)?;
            let mut axis = Vec::new();
            while rows || need > 1 {
                let part = parts.pop_front()?;
                match part {
                    AxisPart::Rows if rows => rows = false,
                    AxisPart::Rows => return None,
                    AxisPart::Dim(dim) => {
                        let size = view.dim_size(dim);
                        if need.is_multiple_of(size) {
                            need /= size;
                        } else if need > 1 && size.is_multiple_of(need) {
                            parts.push_front(AxisPart::Dim(view.split_dim(dim, need)));
                            need = 1;
                        } else {
                            return None;
                        }
                    }
                }
                axis.push(part);
            }
            view.axes.push(axis);
        }
        parts.is_empty().then_some(view)
    }
}

/// The index of an axis; negative ones count from the end.
pub fn normalize_axis(axis: i64, count: usize) -> Result<usize, String> {
    let index = if axis < 0 { axis.checked_add(count as i64) } else { Some(axis) };
    let index = index.and_then(|index| usize::try_from(index).ok()).filter(|index| *index < count);
    index.ok_or_else(|| format!("axis {axis} of a value with {count} axes"))
}

/// The target shape of a `Reshape`: 0 keeps a size, a single -1 is inferred. A file exported with a fixed batch size
/// has that number where the rows are meant.
pub fn reshape_target(
    view: &View,
    wanted: &[SymInt],
    zero_is_zero: bool,
    exported_rows: Option<i64>,
) -> Result<Vec<SymInt>, String> {
    let own = view.sizes();
    let mut sizes = wanted.to_vec();
    for (axis, size) in sizes.iter_mut().enumerate() {
        if *size == SymInt::Known(0) && !zero_is_zero {
            *size = *own.get(axis).ok_or("its shape keeps (0) the size of an axis that does not exist")?;
        }
    }
    if let (Some(SymInt::Known(first)), Some(SymInt::TimesRows(1)), Some(rows)) =
        (sizes.first(), own.first(), exported_rows)
        && *first == rows
    {
        sizes[0] = SymInt::TimesRows(1);
    }
    let has_rows = sizes.iter().any(|size| matches!(size, SymInt::TimesRows(_)));
    let known = sizes.iter().filter(|size| **size != SymInt::Known(-1)).try_fold(1i64, |product, size| {
        let (SymInt::Known(size) | SymInt::TimesRows(size)) = size;
        product.checked_mul(*size)
    });
    let known = known.filter(|known| *known > 0).ok_or("its shape has an invalid size")?;
    if let Some(inferred) = sizes.iter().position(|size| *size == SymInt::Known(-1)) {
        let rest = view.per_row() as i64 / known;
        sizes[inferred] = if has_rows { SymInt::Known(rest) } else { SymInt::TimesRows(rest) };
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> View {
        // NCHW axes over NHWC memory.
        let mut view = View::new(NodeId(0), &[4, 6, 8]);
        view.axes =
            vec![view.axes[0].clone(), view.axes[3].clone(), view.axes[1].clone(), view.axes[2].clone()];
        view
    }

    #[test]
    fn axes_are_merged_and_split_without_moving_memory() {
        let view = image();
        assert_eq!(
            view.sizes(),
            [SymInt::TimesRows(1), SymInt::Known(8), SymInt::Known(4), SymInt::Known(6)]
        );
        let flat = view.reshaped(&[SymInt::TimesRows(1), SymInt::Known(192)]).unwrap();
        assert_eq!(flat.dims, view.dims);
        let heads = view.reshaped(&[SymInt::TimesRows(2), SymInt::Known(4), SymInt::Known(24)]).unwrap();
        assert_eq!(heads.sizes(), [SymInt::TimesRows(2), SymInt::Known(4), SymInt::Known(24)]);
        assert_eq!(heads.per_row(), 192);
        assert!(view.reshaped(&[SymInt::TimesRows(1), SymInt::Known(5)]).is_none());
        assert!(view.reshaped(&[SymInt::TimesRows(3), SymInt::Known(64)]).is_none());
    }

    #[test]
    fn unknown_sizes_are_inferred() {
        let view = image();
        let sizes = |wanted: &[i64], exported: Option<i64>| {
            let wanted: Vec<SymInt> = wanted.iter().map(|size| SymInt::Known(*size)).collect();
            reshape_target(&view, &wanted, false, exported)
        };
        assert_eq!(sizes(&[-1, 192], None).unwrap(), [SymInt::TimesRows(1), SymInt::Known(192)]);
        assert_eq!(sizes(&[0, -1], None).unwrap(), [SymInt::TimesRows(1), SymInt::Known(192)]);
        assert_eq!(sizes(&[7, -1], Some(7)).unwrap(), [SymInt::TimesRows(1), SymInt::Known(192)]);
        assert_eq!(sizes(&[-1, 24], None).unwrap(), [SymInt::TimesRows(8), SymInt::Known(24)]);
        assert!(sizes(&[0, 0, 0, 0, 0], None).is_err());
        assert!(sizes(&[-1, -5], None).is_err());
    }
}
