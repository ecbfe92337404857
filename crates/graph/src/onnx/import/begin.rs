//! Where a file begins: its input, fitted to the rows of the data.

use super::importer::Importer;
use super::item::Item;
use super::view::View;
use super::wrong;
use crate::input::Input;
use crate::onnx::proto::{Graph, Size, ValueInfo, data_type};
use thalweg_core::{Error, Result};

/// The sizes of an input; nothing where the file leaves one open.
fn sizes_of(input: &ValueInfo) -> Option<Vec<Option<i64>>> {
    let shape = input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
    let size = |value: &Option<Size>| match value {
        Some(Size::Value(size)) => Some(*size),
        _ => None,
    };
    Some(shape.dim.iter().map(|dim| size(&dim.value)).collect())
}

/// The rows that a file asks for, as far as it says so itself: where it embeds symbols, it knows those of its table.
pub fn own_input(graph: &Graph) -> Option<Input> {
    let given = |name: &str| graph.initializer.iter().find(|tensor| tensor.name == name);
    let input = graph.input.iter().find(|input| given(&input.name).is_none())?;
    let sizes = sizes_of(input)?;
    let size = |size: &Option<i64>| {
        size.and_then(|size| usize::try_from(size).ok()).filter(|size| (1..=1 << 24).contains(size))
    };
    let sizes = sizes.get(1..)?.iter().map(size).collect::<Option<Vec<usize>>>()?;
    let reader =
        graph.node.iter().find(|node| node.op_type == "Gather" && node.input.get(1) == Some(&input.name));
    let table = reader.and_then(|node| given(node.input.first()?)).and_then(|tensor| tensor.dims.first());
    match (table, sizes.as_slice()) {
        (Some(vocabulary), &[window]) => {
            Some(Input::Symbols { window, vocabulary: usize::try_from(*vocabulary).ok()? })
        }
        (None, &[channels, height, width]) => Some(Input::Image([height, width, channels])),
        (None, sizes) => {
            sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size)).map(Input::Flat)
        }
        _ => None,
    }
}

/// `rows x 1 x 28 x 28`.
fn shown(sizes: &[Option<i64>]) -> String {
    let size = |size: &Option<i64>| size.map_or("any".into(), |size| size.to_string());
    let sizes: Vec<String> = std::iter::once("rows".into()).chain(sizes.iter().map(size)).collect();
    sizes.join(" x ")
}

impl Importer<'_> {
    /// Says what the file's input stands for.
    pub fn begin(&mut self) -> Result<()> {
        let graph = self.graph;
        let mut inputs = graph.input.iter().filter(|input| !self.items.contains_key(input.name.as_str()));
        let (Some(input), None) = (inputs.next(), inputs.next()) else {
            let names: Vec<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
            return Err(wrong(format!("expected one input, the rows; it has {}", names.join(", "))));
        };
        let sizes = sizes_of(input).unwrap_or_default();
        let Some((rows, sizes)) = sizes.split_first() else {
            return Err(wrong(format!("input `{}`: its sizes are not known", input.name)));
        };
        self.written_for = *rows;
        let elements = input.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
        let whole =
            elements.is_some_and(|kind| matches!(kind.elem_type, data_type::INT32 | data_type::INT64));
        let item = if whole { self.symbols(input, sizes)? } else { Item::View(self.rows(input, sizes)?) };
        self.items.insert(&input.name, item);
        Ok(())
    }

    fn mismatch(&self, input: &ValueInfo, sizes: &[Option<i64>], what: &str) -> Error {
        let got = match self.assembly.input {
            Input::Flat(width) => format!("rows of {width} numbers"),
            Input::Image([height, width, channels]) => {
                format!("images of {channels} x {height} x {width} (channels x height x width)")
            }
            Input::Symbols { window, vocabulary } => format!("rows of {window} symbols of {vocabulary}"),
        };
        let name = &input.name;
        wrong(format!("input `{name}`: the file expects {what}{}, the data has {got}", shown(sizes)))
            .hint("export the model for rows of the data's shape; for a text, data.window says how many symbols a row has")
    }

    fn symbols(&self, input: &ValueInfo, sizes: &[Option<i64>]) -> Result<Item> {
        match (self.assembly.input, sizes) {
            (Input::Symbols { .. }, [None]) => Ok(Item::Symbols),
            (Input::Symbols { window, .. }, [Some(size)]) if *size == window as i64 => Ok(Item::Symbols),
            _ => Err(self.mismatch(input, sizes, "whole numbers (symbols of a text), ")),
        }
    }

    fn rows(&mut self, input: &ValueInfo, sizes: &[Option<i64>]) -> Result<View> {
        let data = self.assembly.input;
        let fits = |own: &[usize]| {
            own.len() == sizes.len()
                && own.iter().zip(sizes).all(|(own, size)| size.is_none_or(|size| size == *own as i64))
        };
        if let Input::Image([height, width, channels]) = data
            && fits(&[channels, height, width])
        {
            return Ok(self.image_rows([height, width, channels]));
        }
        if let Input::Image([height, width, channels]) = data
            && channels > 1
            && fits(&[data.width()])
        {
            // A file that takes images in one line takes one channel after another.
            let view = self.image_rows([height, width, channels]);
            let axes = vec![view.axes[0].clone(), view.axes[1..].concat()];
            return Ok(View { axes, ..view });
        }
        let plain = match data {
            Input::Image([height, width, 1]) if fits(&[height, width]) => vec![height, width],
            Input::Image(_) if sizes.len() == 3 => return Err(self.mismatch(input, sizes, "")),
            data => self.filled(sizes, data).ok_or_else(|| self.mismatch(input, sizes, ""))?,
        };
        let node = self.assembly.features(&plain);
        Ok(View::new(node, &plain))
    }

    /// The rows as images: their channels come first in the file, and last in memory.
    fn image_rows(&mut self, sizes: [usize; 3]) -> View {
        let node = self.assembly.features(&sizes);
        let mut view = View::new(node, &sizes);
        let channels = view.axes.remove(3);
        view.axes.insert(1, channels);
        view
    }

    /// Sizes with the open one filled in, so that they hold a row.
    fn filled(&self, sizes: &[Option<i64>], data: Input) -> Option<Vec<usize>> {
        if let Input::Symbols { window, vocabulary } = data
            && sizes == [None, None]
        {
            return Some(vec![window, vocabulary]);
        }
        let known = sizes.iter().flatten().try_fold(1usize, |product, size| {
            product.checked_mul(usize::try_from(*size).ok().filter(|size| *size > 0)?)
        })?;
        let open = sizes.iter().filter(|size| size.is_none()).count();
        let rest = data.width() / known;
        let fits = rest * known == data.width() && (open == 1 || (open == 0 && rest == 1));
        let size = |size: &Option<i64>| size.map_or(rest, |size| size as usize);
        fits.then(|| sizes.iter().map(size).collect())
    }
}
