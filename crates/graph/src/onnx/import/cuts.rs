//! Parts of values: sliced, split, joined, chosen.

use super::fold;
use super::importer::Importer;
use super::item::Item;
use super::settings::Settings;
use super::tensor::{Constant, Whole};
use super::view::{self, Piece, View};
use crate::onnx::proto::Node;
use crate::op::concatenate::{Columns, Concatenate};
use crate::op::{Op, last};
use crate::pass::MOST_INPUTS;
use std::ops::Range;

impl Importer<'_> {
    /// Some places of an axis, from one to another.
    fn cut(&mut self, view: &View, axis: usize, span: Range<usize>) -> Result<View, String> {
        let size = view.size(axis)?;
        if span.is_empty() || span.end > size {
            return Err(format!("takes places {span:?} of an axis of size {size}"));
        }
        if span.len() == size {
            return Ok(view.clone());
        }
        let view = match view.axes[axis].len() {
            1 => view.clone(),
            _ => self.ending_with(view, &[axis])?.0,
        };
        // An axis of several atoms stands at the end now, and becomes one.
        let atoms = view.atoms_of(axis);
        let place = view.atoms.iter().position(|(atom, _)| Some(atom) == atoms.first()).unwrap_or(0);
        let behind: usize = view.atoms[place + atoms.len()..].iter().map(|(_, size)| size).product();
        let before = view.per_row() / (size * behind).max(1);
        let mut result = view.clone();
        let node = if before == 1 && span.len() == 1 && span.end == size {
            let node = self.sized(view.node, &[size, behind])?;
            self.assembly.add(Op::Last(last::Last), &[node])?
        } else {
            let lines = if before == 1 { vec![size * behind] } else { vec![before, size * behind] };
            let node = self.sized(view.node, &lines)?;
            let columns = Columns { begin: span.start * behind, count: span.len() * behind };
            self.assembly.add(Op::Columns(columns), &[node])?
        };
        result.node = node;
        result.atoms.drain(place + 1..place + atoms.len());
        result.atoms[place].1 = span.len();
        result.axes[axis] = vec![Piece::Atom(result.atoms[place].0)];
        if span.len() == 1 {
            result.atoms.remove(place);
            result.axes[axis].clear();
        }
        Ok(result)
    }

    /// `Slice`.
    pub fn slice(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let name = node.input.first().map_or("", String::as_str);
        let mut given = Vec::new();
        for (index, setting) in [(1, "starts"), (2, "ends"), (3, "axes"), (4, "steps")] {
            let line =
                |values: &[i64]| Constant::line(values.iter().map(|value| Whole::Known(*value)).collect());
            given.push(match node.input.get(index).filter(|name| !name.is_empty()) {
                Some(name) => Some(self.wholes(name)?),
                None => settings.ints(setting).map(line),
            });
        }
        if let Item::Filled(value) = self.item(name)? {
            return Ok(Item::Filled(value));
        }
        let mut view = self.view(name)?;
        let given: Vec<Option<&Constant>> = given.iter().map(Option::as_ref).collect();
        for (axis, begin, end, step) in fold::cuts(&given, view.axes.len())? {
            if view.axes[axis].contains(&Piece::Rows) && begin == 0 && end >= i64::from(i32::MAX) && step == 1
            {
                continue;
            }
            let span = fold::span(begin, end, step, view.size(axis)?)?;
            view = self.cut(&view, axis, span)?;
        }
        Ok(Item::View(view))
    }

    /// `Split`.
    pub fn split(&mut self, node: &Node, settings: Settings<'_>) -> Result<Vec<Item>, String> {
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let axis = view.place(settings.int("axis", 0))?;
        let (size, count) = (view.size(axis)?, node.output.len());
        let parts = settings.int("num_outputs", count as i64);
        if parts != count as i64 {
            return Err(format!("attribute `num_outputs` = {parts}, but it has {count} outputs"));
        }
        let lengths = match (node.input.get(1).filter(|name| !name.is_empty()), settings.ints("split")) {
            (Some(name), _) => self.wholes(name)?.known()?,
            (None, Some(lengths)) => lengths.to_vec(),
            (None, None) => {
                let each = size.div_ceil(count.max(1));
                (0..count).map(|part| size.saturating_sub(part * each).min(each) as i64).collect()
            }
        };
        let mut begin = 0;
        let mut items = Vec::new();
        for length in lengths {
            let length = usize::try_from(length).ok().filter(|length| *length <= size - begin.min(size));
            let end = begin + length.ok_or("its parts are larger than the whole")?;
            items.push(Item::View(self.cut(&view, axis, begin..end)?));
            begin = end;
        }
        Ok(items)
    }

    /// `Concat`.
    pub fn concat(&mut self, node: &Node, axis: i64) -> Result<Item, String> {
        if node.input.len() > MOST_INPUTS {
            return Err(format!("joins more than {MOST_INPUTS} values"));
        }
        let views = node.input.iter().map(|name| self.view(name)).collect::<Result<Vec<View>, String>>()?;
        let first = views.first().ok_or("joins nothing")?.clone();
        let axis = first.place(axis)?;
        let mut nodes = Vec::new();
        let mut total = 0;
        let mut result = None;
        for view in &views {
            let others = |view: &View| {
                let mut sizes = view.sizes();
                sizes.remove(axis.min(sizes.len().saturating_sub(1)));
                sizes
            };
            if view.axes.len() != first.axes.len() || others(view) != others(&first) {
                return Err("joins values of different sizes".into());
            }
            // In all of them the axis comes last in memory, the others in the file's order.
            let order: Vec<usize> = (0..view.axes.len())
                .filter(|other| *other != axis)
                .flat_map(|other| view.atoms_of(other))
                .chain(view.atoms_of(axis))
                .collect();
            let image = axis == 1 && view.axes.len() == 4;
            let order =
                if image { [view.atoms_of(2), view.atoms_of(3), view.atoms_of(1)].concat() } else { order };
            let view = self.ordered(view, &order)?;
            let width = view.size(axis)?;
            nodes.push(self.table(&view, width)?);
            total += width;
            result.get_or_insert(view);
        }
        let node = self.assembly.add(Op::Concatenate(Concatenate), &nodes)?;
        let mut view = result.ok_or("joins nothing")?;
        let kept = view.atoms.len() - view.axes[axis].len();
        view.atoms.truncate(kept);
        view.axes[axis] = view.add_atom(total);
        Ok(Item::View(View { node, ..view }))
    }

    /// `Gather`: an embedding, or one place of an axis.
    pub fn gather(&mut self, name: &str, places: &str, axis: i64) -> Result<Item, String> {
        match (self.item(name)?, self.item(places)?) {
            (Item::Weight(table), Item::Symbols) if axis == 0 => self.embedding(&table),
            (Item::Constant(_), Item::Symbols) if axis == 0 => {
                let table = self.weight(name)?;
                self.embedding(&table)
            }
            (Item::Weight(mut table), Item::Constant(places)) if axis == 0 && !table.transposed => {
                let known = places.known()?;
                let all = table.tensor.sizes.first().copied().unwrap_or(0);
                if known.iter().copied().ne(0..all as i64) {
                    return Err(format!(
                        "takes some lines of `{}`; only all of them in order are supported",
                        table.name
                    ));
                }
                table.tensor.sizes = [&places.sizes, &table.tensor.sizes[1..]].concat();
                Ok(Item::Weight(table))
            }
            (Item::Filled(value), _) => Ok(Item::Filled(value)),
            (_, Item::Constant(places)) => {
                let view = self.view(name)?;
                let axis = view.place(axis)?;
                let &[index] = places.known()?.as_slice() else {
                    return Err("takes several places of an axis".into());
                };
                let place = view::place(index, view.size(axis)?)?;
                let mut view = self.cut(&view, axis, place..place + 1)?;
                if places.sizes.is_empty() {
                    view.axes.remove(axis);
                }
                Ok(Item::View(view))
            }
            _ => Err("only embeddings of symbols and fixed places of an axis are supported".into()),
        }
    }
}
