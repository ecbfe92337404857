//! Sizes of values, and axes turned, joined and cut without moving memory.

use super::fold;
use super::importer::Importer;
use super::item::Item;
use super::settings::Settings;
use super::tensor::{Constant, Data, Whole};
use super::view::{self, View};
use crate::input::Input;
use crate::onnx::proto::{Node, data_type};

impl Importer<'_> {
    /// `Cast`: rows and weights keep their type; symbols stay whole numbers.
    pub fn cast(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let to = settings.needed("to")?;
        let item = self.item(node.input.first().map_or("", String::as_str))?;
        let kind = i32::try_from(to).unwrap_or(0);
        let keeps = match (&item, kind) {
            (_, data_type::FLOAT | data_type::DOUBLE) => true,
            (Item::Symbols, data_type::INT32 | data_type::INT64) => true,
            (Item::Filled(value), data_type::INT32 | data_type::INT64) => value.fract() == 0.0,
            _ => false,
        };
        match keeps {
            true => self.passed_on(node),
            false => Err(format!(
                "attribute `to` = {to}: values that depend on the rows can only be cast to float (1) or double (11)"
            )),
        }
    }

    /// `Identity`: the same under another name.
    pub fn passed_on(&mut self, node: &Node) -> Result<Item, String> {
        let item = self.item(node.input.first().map_or("", String::as_str))?;
        Ok(match item {
            // Exporters join tensors that begin alike; here each is one of its own again.
            Item::Weight(mut weight) => {
                weight.name = node.output.first().cloned().unwrap_or_default();
                Item::Weight(weight)
            }
            item => item,
        })
    }

    /// Whole numbers that are known now.
    pub fn wholes(&self, name: &str) -> Result<Constant, String> {
        match self.item(name)? {
            Item::Constant(constant) => Ok(constant),
            Item::Weight(weight) => Ok(weight.tensor),
            _ => Err(format!("`{name}` depends on the rows")),
        }
    }

    /// Axes, as an input or, in older sets, as a setting.
    fn axes(&self, node: &Node, settings: Settings<'_>) -> Result<Option<Vec<i64>>, String> {
        match (node.input.get(1).filter(|name| !name.is_empty()), settings.ints("axes")) {
            (Some(name), _) => self.wholes(name)?.known().map(Some),
            (None, axes) => Ok(axes.map(<[i64]>::to_vec)),
        }
    }

    /// The sizes of a value.
    fn sizes(&self, name: &str) -> Result<Vec<Whole>, String> {
        let known = |sizes: &[usize]| sizes.iter().map(|size| Whole::Known(*size as i64)).collect();
        Ok(match self.item(name)? {
            Item::View(view) => view.sizes(),
            Item::Constant(constant) => known(&constant.sizes),
            Item::Weight(weight) => known(&weight.tensor.sizes),
            Item::Symbols => {
                let Input::Symbols { window, .. } = self.assembly.input else {
                    return Err("no symbols".into());
                };
                vec![Whole::Rows(1), Whole::Known(window as i64)]
            }
            _ => return Err("its sizes are not known".into()),
        })
    }

    /// `Shape`.
    pub fn shape_of(&mut self, name: &str, settings: Settings<'_>) -> Result<Item, String> {
        let sizes = self.sizes(name)?;
        let end = settings.given("end").unwrap_or(i64::MAX);
        let span = fold::span(settings.int("start", 0), end, 1, sizes.len())?;
        Ok(Item::Constant(Constant::line(sizes[span].to_vec())))
    }

    /// `Size`.
    pub fn size_of(&mut self, name: &str) -> Result<Item, String> {
        let mut total = Whole::Known(1);
        for size in self.sizes(name)? {
            total = match (total, size) {
                (Whole::Known(a), Whole::Known(b)) => Whole::Known(a.saturating_mul(b)),
                (Whole::Known(a) | Whole::Rows(a), Whole::Rows(b)) | (Whole::Rows(a), Whole::Known(b)) => {
                    Whole::Rows(a.saturating_mul(b))
                }
            };
        }
        Ok(Item::Constant(Constant { sizes: vec![], data: Data::Wholes(vec![total]) }))
    }

    /// `Reshape` of values and of weights.
    pub fn reshape(&mut self, name: &str, sizes: &str, settings: Settings<'_>) -> Result<Item, String> {
        let sizes = self.wholes(sizes)?;
        match self.item(name)? {
            Item::Weight(mut weight) if !weight.transposed => {
                let folded = fold::fold("Reshape", settings, &[&weight.tensor, &sizes]);
                weight.tensor = folded.unwrap_or_else(|| Err("cannot be reshaped".into()))?;
                Ok(Item::Weight(weight))
            }
            Item::Filled(value) => Ok(Item::Filled(value)),
            _ => {
                let view = self.lazy_view(name)?;
                let zero = settings.int("allowzero", 0) != 0;
                let target = view::target(&view, sizes.wholes()?, zero, self.written_for)?;
                self.reshaped(&view, &target).map(Item::View)
            }
        }
    }

    /// `Flatten`: everything before an axis, and everything from there on.
    pub fn flatten(&mut self, name: &str, axis: i64) -> Result<Item, String> {
        let view = self.lazy_view(name)?;
        let axis = if axis == view.axes.len() as i64 { view.axes.len() } else { view.place(axis)? };
        let axes = vec![view.axes[..axis].concat(), view.axes[axis..].concat()];
        Ok(Item::View(View { axes, ..view }))
    }

    fn reshaped(&mut self, view: &View, target: &[Whole]) -> Result<View, String> {
        if let Some(view) = view.reshaped(target) {
            return Ok(view);
        }
        // Where the new axes cut across memory, it is brought into the file's order first.
        let factor = view.factor;
        let node = self.in_order(view)?;
        let flat = View::new(node, &[view.per_row()]);
        let reshaped = flat.reshaped(target).ok_or("its new sizes do not fit")?;
        Ok(View { factor, ..reshaped })
    }

    /// `Transpose`: memory stays.
    pub fn transpose(&mut self, name: &str, settings: Settings<'_>) -> Result<Item, String> {
        let wanted = settings.ints("perm");
        match self.item(name)? {
            Item::Weight(mut weight) if weight.own.len() == 2 && weight.tensor.sizes == weight.own => {
                let turns = wanted.is_none_or(|order| order == [1, 0]);
                weight.transposed ^= turns;
                Ok(Item::Weight(weight))
            }
            Item::Filled(value) => Ok(Item::Filled(value)),
            _ => {
                let view = self.lazy_view(name)?;
                let rank = view.axes.len();
                let order: Vec<i64> =
                    wanted.map_or_else(|| (0..rank as i64).rev().collect(), <[i64]>::to_vec);
                let order =
                    order.iter().map(|axis| view.place(*axis)).collect::<Result<Vec<usize>, String>>()?;
                if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
                    return Err("its order of axes makes no sense".into());
                }
                let axes = order.iter().map(|axis| view.axes[*axis].clone()).collect();
                Ok(Item::View(View { axes, ..view }))
            }
        }
    }

    /// `Squeeze`.
    pub fn squeeze(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let name = node.input.first().map_or("", String::as_str);
        let axes = self.axes(node, settings)?;
        if let Item::Filled(value) = self.item(name)? {
            return Ok(Item::Filled(value));
        }
        let mut view = self.lazy_view(name)?;
        let axes = match axes {
            Some(axes) => {
                axes.iter().map(|axis| view.place(*axis)).collect::<Result<Vec<usize>, String>>()?
            }
            None => (0..view.axes.len()).filter(|axis| view.axes[*axis].is_empty()).collect(),
        };
        if axes.iter().any(|axis| !view.axes[*axis].is_empty()) {
            return Err("drops an axis that is not of size 1".into());
        }
        let mut axis = 0;
        view.axes.retain(|_| {
            axis += 1;
            !axes.contains(&(axis - 1))
        });
        Ok(Item::View(view))
    }

    /// `Unsqueeze`.
    pub fn unsqueeze(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let name = node.input.first().map_or("", String::as_str);
        let axes = self.axes(node, settings)?.ok_or("its axes are not known")?;
        match self.item(name)? {
            Item::Filled(value) => Ok(Item::Filled(value)),
            Item::Weight(mut weight) if !weight.transposed => {
                let axes = Constant::line(axes.into_iter().map(Whole::Known).collect());
                let folded = fold::fold("Unsqueeze", settings, &[&weight.tensor, &axes]);
                weight.tensor = folded.unwrap_or_else(|| Err("cannot be reshaped".into()))?;
                Ok(Item::Weight(weight))
            }
            _ => {
                let mut view = self.lazy_view(name)?;
                let rank = view.axes.len() + axes.len();
                let mut places = axes
                    .iter()
                    .map(|axis| view::place(*axis, rank))
                    .collect::<Result<Vec<usize>, String>>()?;
                places.sort_unstable();
                for place in places {
                    view.axes.insert(place.min(view.axes.len()), Vec::new());
                }
                Ok(Item::View(view))
            }
        }
    }

    /// `Expand` and `ConstantOfShape` for as many rows as there are.
    pub fn expand(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let name = node.input.first().map_or("", String::as_str);
        if node.op_type == "ConstantOfShape" {
            let Some(value) = settings.tensor("value") else { return Ok(Item::Filled(0.0)) };
            let value = fold::as_floats(&Constant::read(value, false)?)?.single();
            return value.map(Item::Filled).ok_or_else(|| "attribute `value` is not one number".into());
        }
        let sizes = self.wholes(node.input.get(1).map_or("", String::as_str))?;
        match self.item(name)? {
            Item::Constant(constant) if constant.single().is_some() => {
                Ok(Item::Filled(constant.single().unwrap_or(0.0)))
            }
            Item::Weight(weight) if weight.tensor.single().is_some() => {
                Ok(Item::Filled(weight.tensor.single().unwrap_or(0.0)))
            }
            Item::Filled(value) => Ok(Item::Filled(value)),
            Item::View(view) if view.sizes() == sizes.wholes()? => Ok(Item::View(view)),
            _ => Err("repeats a value, which is not supported".into()),
        }
    }

    /// `OneHot` of the symbols: the rows as numbers.
    pub fn one_hot(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let [name, depth, values] = [0, 1, 2].map(|index| node.input.get(index).map_or("", String::as_str));
        let (Item::Symbols, Input::Symbols { window, vocabulary }) = (self.item(name)?, self.assembly.input)
        else {
            return Err("only the symbols of a text become numbers this way".into());
        };
        let axis = settings.int("axis", -1);
        if !matches!(axis, -1 | 2) {
            return Err(format!("attribute `axis` = {axis} is not supported (-1 is)"));
        }
        if fold::as_floats(&self.wholes(depth)?)?.single() != Some(vocabulary as f32) {
            return Err(format!("expected a depth of {vocabulary}, one place for each symbol of the data"));
        }
        match &fold::as_floats(&self.wholes(values)?)?.data {
            Data::Floats(values) if **values == [0.0, 1.0] => {}
            _ => return Err("only the values 0 and 1 are supported".into()),
        }
        let node = self.assembly.features(&[window, vocabulary]);
        Ok(Item::View(View::new(node, &[window, vocabulary])))
    }
}
