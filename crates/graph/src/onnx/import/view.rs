//! How a value of the file lies in memory here.
//!
//! ONNX speaks of axes in an order; here the rows of the batch come first and images keep their channels last. So a
//! value is seen as *pieces*: its memory is a row of atoms, and each axis is made of some of them. Turning axes around,
//! cutting them or joining them then costs nothing: memory only moves when an operator asks for another order.

use super::tensor::Whole;
use crate::graph::NodeId;

/// A part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The rows of the batch.
    Rows,
    /// The atom of that number.
    Atom(usize),
}

/// A value of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// What computes it.
    pub node: NodeId,
    /// Number and size of each atom in the order of memory, behind the rows. None has size 1.
    pub atoms: Vec<(usize, usize)>,
    /// What each axis is made of, outermost first; an axis of size 1 is made of nothing.
    pub axes: Vec<Vec<Piece>>,
    /// What it is still to be multiplied by.
    pub factor: f32,
}

impl View {
    /// A value with the rows in front and these axes behind them, in the order of memory.
    pub fn new(node: NodeId, sizes: &[usize]) -> View {
        let mut view = View { node, atoms: Vec::new(), axes: vec![vec![Piece::Rows]], factor: 1.0 };
        for size in sizes {
            let atom = view.add_atom(*size);
            view.axes.push(atom);
        }
        view
    }

    /// Appends an atom to the memory; the axis that is made of it alone.
    pub fn add_atom(&mut self, size: usize) -> Vec<Piece> {
        if size == 1 {
            return Vec::new();
        }
        let number = self.fresh();
        self.atoms.push((number, size));
        vec![Piece::Atom(number)]
    }

    fn fresh(&self) -> usize {
        self.atoms.iter().map(|(number, _)| number + 1).max().unwrap_or(0)
    }

    /// The size of an atom.
    pub fn size_of(&self, atom: usize) -> usize {
        self.atoms.iter().find(|(number, _)| *number == atom).map_or(1, |(_, size)| *size)
    }

    /// The size of an axis, and whether the rows are part of it.
    pub fn axis(&self, axis: usize) -> (bool, usize) {
        let rows = self.axes[axis].contains(&Piece::Rows);
        (rows, self.atoms_of(axis).iter().map(|atom| self.size_of(*atom)).product())
    }

    /// The size of an axis without the rows in it.
    pub fn size(&self, axis: usize) -> Result<usize, String> {
        match self.axis(axis) {
            (false, size) => Ok(size),
            (true, _) => Err(format!("axis {axis} holds the rows of the batch")),
        }
    }

    /// The atoms of an axis.
    pub fn atoms_of(&self, axis: usize) -> Vec<usize> {
        let atom = |piece: &Piece| match piece {
            Piece::Rows => None,
            Piece::Atom(atom) => Some(*atom),
        };
        self.axes[axis].iter().filter_map(atom).collect()
    }

    /// The sizes of all axes.
    pub fn sizes(&self) -> Vec<Whole> {
        let whole = |axis| match self.axis(axis) {
            (true, size) => Whole::Rows(size as i64),
            (false, size) => Whole::Known(size as i64),
        };
        (0..self.axes.len()).map(whole).collect()
    }

    /// Numbers per row.
    pub fn per_row(&self) -> usize {
        self.atoms.iter().map(|(_, size)| size).product()
    }

    /// An axis counted from the front, or from the back where it is below 0.
    pub fn place(&self, axis: i64) -> Result<usize, String> {
        place(axis, self.axes.len())
    }

    /// Cuts an atom in two; the first keeps the number.
    fn cut(&mut self, atom: usize, outer: usize) -> usize {
        let inner = self.fresh();
        if let Some(place) = self.atoms.iter().position(|(number, _)| *number == atom) {
            let size = self.atoms[place].1;
            self.atoms[place].1 = outer;
            self.atoms.insert(place + 1, (inner, size / outer));
        }
        inner
    }

    /// The same memory under other axes; nothing if they cut across atoms.
    pub fn reshaped(&self, target: &[Whole]) -> Option<View> {
        let mut view = self.clone();
        let mut pieces: std::collections::VecDeque<Piece> = self.axes.iter().flatten().copied().collect();
        view.axes.clear();
        for size in target {
            let (mut rows, need) = match size {
                Whole::Rows(size) => (true, *size),
                Whole::Known(size) => (false, *size),
            };
            let mut need = usize::try_from(need).ok().filter(|need| *need > 0)?;
            let mut axis = Vec::new();
            while rows || need > 1 {
                let piece = pieces.pop_front()?;
                match piece {
                    Piece::Rows if rows => rows = false,
                    Piece::Rows => return None,
                    Piece::Atom(atom) => {
                        let size = view.size_of(atom);
                        if need.is_multiple_of(size) {
                            need /= size;
                        } else if need > 1 && size.is_multiple_of(need) {
                            pieces.push_front(Piece::Atom(view.cut(atom, need)));
                            need = 1;
                        } else {
                            return None;
                        }
                    }
                }
                axis.push(piece);
            }
            view.axes.push(axis);
        }
        pieces.is_empty().then_some(view)
    }
}

/// An axis counted from the front, or from the back where it is below 0.
pub fn place(axis: i64, count: usize) -> Result<usize, String> {
    let place = if axis < 0 { axis.checked_add(count as i64) } else { Some(axis) };
    let place = place.and_then(|place| usize::try_from(place).ok()).filter(|place| *place < count);
    place.ok_or_else(|| format!("axis {axis} of a value with {count} axes"))
}

/// What `Reshape` means: 0 keeps a size, one -1 is what remains. A file that was written for a fixed number of rows has
/// that number in front where the rows are meant.
pub fn target(
    view: &View,
    wanted: &[Whole],
    zero_is_zero: bool,
    written_for: Option<i64>,
) -> Result<Vec<Whole>, String> {
    let own = view.sizes();
    let mut sizes = wanted.to_vec();
    for (place, size) in sizes.iter_mut().enumerate() {
        if *size == Whole::Known(0) && !zero_is_zero {
            *size = *own.get(place).ok_or("keeps a size that is not there")?;
        }
    }
    if let (Some(Whole::Known(first)), Some(Whole::Rows(1)), Some(rows)) =
        (sizes.first(), own.first(), written_for)
        && *first == rows
    {
        sizes[0] = Whole::Rows(1);
    }
    let has_rows = sizes.iter().any(|size| matches!(size, Whole::Rows(_)));
    let known = sizes.iter().filter(|size| **size != Whole::Known(-1)).try_fold(1i64, |product, size| {
        let (Whole::Known(size) | Whole::Rows(size)) = size;
        product.checked_mul(*size)
    });
    let known = known.filter(|known| *known > 0).ok_or("a size makes no sense")?;
    if let Some(open) = sizes.iter().position(|size| *size == Whole::Known(-1)) {
        let rest = view.per_row() as i64 / known;
        sizes[open] = if has_rows { Whole::Known(rest) } else { Whole::Rows(rest) };
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> View {
        // Channels x height x width as ONNX has it, channels last in memory.
        let mut view = View::new(NodeId(0), &[4, 6, 8]);
        view.axes =
            vec![view.axes[0].clone(), view.axes[3].clone(), view.axes[1].clone(), view.axes[2].clone()];
        view
    }

    #[test]
    fn axes_are_joined_and_cut_without_moving_memory() {
        let view = image();
        assert_eq!(view.sizes(), [Whole::Rows(1), Whole::Known(8), Whole::Known(4), Whole::Known(6)]);
        let flat = view.reshaped(&[Whole::Rows(1), Whole::Known(192)]).unwrap();
        assert_eq!(flat.atoms, view.atoms);
        let heads = view.reshaped(&[Whole::Rows(2), Whole::Known(4), Whole::Known(24)]).unwrap();
        assert_eq!(heads.sizes(), [Whole::Rows(2), Whole::Known(4), Whole::Known(24)]);
        assert_eq!(heads.per_row(), 192);
        assert!(view.reshaped(&[Whole::Rows(1), Whole::Known(5)]).is_none());
        assert!(view.reshaped(&[Whole::Rows(3), Whole::Known(64)]).is_none());
    }

    #[test]
    fn open_sizes_are_found() {
        let view = image();
        let sizes = |wanted: &[i64], written: Option<i64>| {
            let wanted: Vec<Whole> = wanted.iter().map(|size| Whole::Known(*size)).collect();
            target(&view, &wanted, false, written)
        };
        assert_eq!(sizes(&[-1, 192], None).unwrap(), [Whole::Rows(1), Whole::Known(192)]);
        assert_eq!(sizes(&[0, -1], None).unwrap(), [Whole::Rows(1), Whole::Known(192)]);
        assert_eq!(sizes(&[7, -1], Some(7)).unwrap(), [Whole::Rows(1), Whole::Known(192)]);
        assert_eq!(sizes(&[-1, 24], None).unwrap(), [Whole::Rows(8), Whole::Known(24)]);
        assert!(sizes(&[0, 0, 0, 0, 0], None).is_err());
        assert!(sizes(&[-1, -5], None).is_err());
    }
}
