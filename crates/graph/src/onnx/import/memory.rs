//! Values brought into the order in memory that an operator asks for.

use super::importer::Importer;
use super::item::{Item, Moment};
use super::tensor::Whole;
use super::view::{Piece, View};
use crate::graph::NodeId;
use crate::op::Op;
use crate::op::elementwise::Step;
use crate::op::transpose::Transpose;

impl Importer<'_> {
    /// What a name stands for; names were checked when their node's turn came.
    pub fn item(&self, name: &str) -> Result<Item, String> {
        self.items.get(name).cloned().ok_or_else(|| format!("reads `{name}`, which nothing gives"))
    }

    /// A computed value, with nothing left to multiply.
    pub fn view(&mut self, name: &str) -> Result<View, String> {
        let view = self.lazy_view(name)?;
        self.settled(view)
    }

    /// A computed value that may still have to be multiplied.
    pub fn lazy_view(&mut self, name: &str) -> Result<View, String> {
        match self.item(name)? {
            Item::View(view) => Ok(view),
            Item::Moment(Moment::Mean, view) => {
                let last = view.axes.len() - 1;
                self.mean_over(&view, &[last], true)
            }
            Item::Symbols => Err("computes with symbols of a text, which only an embedding reads".into()),
            Item::Weight(_) | Item::Constant(_) | Item::Filled(_) => {
                Err(format!("expected something computed from the rows, but `{name}` is given"))
            }
            Item::Scores(_) | Item::Erf(..) | Item::Moment(..) => {
                Err("is no known pattern: products of queries and keys belong to an attention, the error function to a GELU".into())
            }
            Item::Unknown => Err(String::new()),
        }
    }

    /// The value multiplied by what it was still to be multiplied by.
    pub fn settled(&mut self, mut view: View) -> Result<View, String> {
        if view.factor != 1.0 {
            view.node = self.assembly.add(Op::step(Step::Scale(view.factor)), &[view.node])?;
            view.factor = 1.0;
        }
        Ok(view)
    }

    /// A node under these sizes.
    pub fn sized(&mut self, node: NodeId, sizes: &[usize]) -> Result<NodeId, String> {
        match self.assembly.shape(node).sizes() == sizes {
            true => Ok(node),
            false => self.assembly.reshape(node, sizes),
        }
    }

    /// The value with its memory in that order of atoms.
    pub fn ordered(&mut self, view: &View, order: &[usize]) -> Result<View, String> {
        let mut view = view.clone();
        for (place, atom) in order.iter().enumerate() {
            let found = view.atoms[place..].iter().position(|(number, _)| number == atom);
            let found = found.ok_or("an axis is read twice")?;
            if found == 0 {
                continue;
            }
            // What stands from here on is turned around what is wanted.
            let sizes = |atoms: &[(usize, usize)]| atoms.iter().map(|(_, size)| size).product::<usize>();
            let before = sizes(&view.atoms[..place]);
            let [first, second] =
                [sizes(&view.atoms[place..place + found]), sizes(&view.atoms[place + found..])];
            let three = [before, first, second];
            let node = self.sized(view.node, if before == 1 { &three[1..] } else { &three })?;
            view.node = self.assembly.add(Op::Transpose(Transpose), &[node])?;
            view.atoms[place..].rotate_left(found);
        }
        Ok(view)
    }

    /// The value with the atoms of some axes at the end of its memory, those axes in that order, and how many numbers
    /// they hold.
    pub fn ending_with(&mut self, view: &View, axes: &[usize]) -> Result<(View, usize), String> {
        let mut inner = Vec::new();
        let mut width = 1;
        for axis in axes {
            width *= view.size(*axis)?;
            inner.extend(view.atoms_of(*axis));
        }
        let outer = view.atoms.iter().map(|(atom, _)| *atom).filter(|atom| !inner.contains(atom));
        let order: Vec<usize> = outer.chain(inner.iter().copied()).collect();
        Ok((self.ordered(view, &order)?, width))
    }

    /// The value as lines of `width` numbers, whatever stands before them.
    pub fn lines(&mut self, view: &View, width: usize) -> Result<NodeId, String> {
        match self.assembly.shape(view.node).width() == width {
            true => Ok(view.node),
            false => self.table(view, width),
        }
    }

    /// The value as `outer x width`, or one line per row.
    pub fn table(&mut self, view: &View, width: usize) -> Result<NodeId, String> {
        let outer = view.per_row() / width.max(1);
        let sizes = [outer, width];
        self.sized(view.node, if outer == 1 { &sizes[1..] } else { &sizes })
    }

    /// The value with its axes in memory as in the file, rows in front.
    pub fn in_order(&mut self, view: &View) -> Result<NodeId, String> {
        if view.axes.first().map(Vec::as_slice) != Some(&[Piece::Rows]) {
            return Err("its first axis is not the rows of the batch".into());
        }
        let order: Vec<usize> = (1..view.axes.len()).flat_map(|axis| view.atoms_of(axis)).collect();
        let view = self.ordered(view, &order)?;
        let sizes: Vec<usize> = (1..view.axes.len()).map(|axis| view.axis(axis).1).collect();
        self.sized(view.node, &sizes)
    }

    /// An image that the file has with its channels first, in one line or three axes, as it lies in memory here.
    pub fn as_row(&mut self, view: &View, [height, width, channels]: [usize; 3]) -> Result<NodeId, String> {
        let sizes = [channels, height, width].map(|size| Whole::Known(size as i64));
        let image = view.reshaped(&[&[Whole::Rows(1)], &sizes[..]].concat());
        let image = image.ok_or("is not in the shape of the images it is to make again")?;
        let (image, _) = self.ending_with(&image, &[2, 3, 1])?;
        self.sized(image.node, &[height, width, channels])
    }

    /// Two values of the same sizes with the same order in memory: the second is brought into that of the first.
    pub fn aligned(&mut self, left: &View, right: &View) -> Result<(View, View), String> {
        if left.sizes() != right.sizes() {
            let shown = |view: &View| {
                crate::graph::Shape::rows(&view.atoms.iter().map(|atom| atom.1).collect::<Vec<_>>())
            };
            return Err(format!("joins values of different sizes ({} and {})", shown(left), shown(right)));
        }
        let (left, right) = (self.whole_axes(left)?, self.whole_axes(right)?);
        let axis_of = |view: &View, atom: usize| {
            (0..view.axes.len()).find(|axis| view.axes[*axis].contains(&Piece::Atom(atom)))
        };
        let order = left.atoms.iter().map(|(atom, _)| {
            let axis = axis_of(&left, *atom).ok_or("memory without an axis")?;
            right.atoms_of(axis).first().copied().ok_or("axes of different sizes")
        });
        let order = order.collect::<Result<Vec<usize>, &str>>()?;
        let right = self.ordered(&right, &order)?;
        Ok((left, right))
    }

    /// The value with one atom per axis at most.
    fn whole_axes(&mut self, view: &View) -> Result<View, String> {
        if view.axes.iter().any(|axis| axis.len() > 1 && axis.contains(&Piece::Rows)) {
            return Err("joins values whose rows are mixed with another axis".into());
        }
        let mut order: Vec<usize> = Vec::new();
        for (atom, _) in &view.atoms {
            let axis = (0..view.axes.len()).find(|axis| view.axes[*axis].contains(&Piece::Atom(*atom)));
            let atoms = axis.map(|axis| view.atoms_of(axis)).unwrap_or_default();
            order.extend(atoms.into_iter().filter(|atom| !order.contains(atom)).collect::<Vec<_>>());
        }
        let ordered = self.ordered(view, &order)?;
        let mut whole = View { atoms: Vec::new(), ..ordered.clone() };
        for (atom, _) in &ordered.atoms {
            let axis =
                (0..view.axes.len()).find(|axis| view.axes[*axis].first() == Some(&Piece::Atom(*atom)));
            if let Some(axis) = axis {
                whole.atoms.push((*atom, ordered.axis(axis).1));
                whole.axes[axis] = vec![Piece::Atom(*atom)];
            }
        }
        Ok(whole)
    }
}
