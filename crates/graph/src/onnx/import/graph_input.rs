//! The graph's input, bound to the rows of the data.

use super::importer::Importer;
use super::job_error;
use super::value::Value;
use super::view::View;
use crate::input::Input;
use crate::onnx::proto::{DimensionValue, GraphProto, ValueInfoProto, data_type};
use thalweg_core::{Error, Result};

/// The declared shape of an input; `None` for a dynamic size.
fn sizes_of(input: &ValueInfoProto) -> Option<Vec<Option<i64>>> {
    let shape = input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
    let size = |value: &Option<DimensionValue>| match value {
        Some(DimensionValue::Size(size)) => Some(*size),
        _ => None,
    };
    Some(shape.dim.iter().map(|dim| size(&dim.value)).collect())
}

/// The input that the file declares, if all of its sizes are fixed. The vocabulary of a text is the number of rows of
/// its embedding table.
pub fn declared_input(graph: &GraphProto) -> Option<Input> {
    let initializer = |name: &str| graph.initializer.iter().find(|tensor| tensor.name == name);
    let input = graph.input.iter().find(|input| initializer(&input.name).is_none())?;
    let sizes = sizes_of(input)?;
    let size = |size: &Option<i64>| {
        size.and_then(|size| usize::try_from(size).ok()).filter(|size| (1..=1 << 24).contains(size))
    };
    let sizes = sizes.get(1..)?.iter().map(size).collect::<Option<Vec<usize>>>()?;
    let reader =
        graph.node.iter().find(|node| node.op_type == "Gather" && node.input.get(1) == Some(&input.name));
    let table =
        reader.and_then(|node| initializer(node.input.first()?)).and_then(|tensor| tensor.dims.first());
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

/// Formats a shape as `rows x 1 x 28 x 28`.
fn format_shape(sizes: &[Option<i64>]) -> String {
    let size = |size: &Option<i64>| size.map_or("any".into(), |size| size.to_string());
    let sizes: Vec<String> = std::iter::once("rows".into()).chain(sizes.iter().map(size)).collect();
    sizes.join(" x ")
}

impl Importer<'_> {
    /// Binds the graph's input to the rows.
    pub fn bind_input(&mut self) -> Result<()> {
        let graph = self.graph;
        let mut inputs = graph.input.iter().filter(|input| !self.values.contains_key(input.name.as_str()));
        let (Some(input), None) = (inputs.next(), inputs.next()) else {
            let names: Vec<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
            return Err(job_error(format!("expected one input, the rows, got {}", names.join(", "))));
        };
        let sizes = sizes_of(input).unwrap_or_default();
        let Some((rows, sizes)) = sizes.split_first() else {
            return Err(job_error(format!("input `{}`: its shape is not declared", input.name)));
        };
        self.exported_rows = *rows;
        let elements = input.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
        let is_integer =
            elements.is_some_and(|kind| matches!(kind.elem_type, data_type::INT32 | data_type::INT64));
        let value =
            if is_integer { self.symbols(input, sizes)? } else { Value::View(self.rows(input, sizes)?) };
        self.values.insert(&input.name, value);
        Ok(())
    }

    fn mismatch(&self, input: &ValueInfoProto, sizes: &[Option<i64>], what: &str) -> Error {
        let got = match self.builder.input {
            Input::Flat(width) => format!("rows of {width} numbers"),
            Input::Image([height, width, channels]) => {
                format!("images of {channels} x {height} x {width} (channels x height x width)")
            }
            Input::Symbols { window, vocabulary } => format!("rows of {window} symbols of {vocabulary}"),
        };
        let name = &input.name;
        job_error(format!("input `{name}`: the file expects {what}{}, the data has {got}", format_shape(sizes)))
            .hint("export the model for rows of the data's shape; for a text, data.window is the number of symbols per row")
    }

    fn symbols(&self, input: &ValueInfoProto, sizes: &[Option<i64>]) -> Result<Value> {
        match (self.builder.input, sizes) {
            (Input::Symbols { .. }, [None]) => Ok(Value::Symbols),
            (Input::Symbols { window, .. }, [Some(size)]) if *size == window as i64 => Ok(Value::Symbols),
            _ => Err(self.mismatch(input, sizes, "integers (symbols of a text), ")),
        }
    }

    fn rows(&mut self, input: &ValueInfoProto, sizes: &[Option<i64>]) -> Result<View> {
        let data = self.builder.input;
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
            // A flat input of a file holds one channel after another.
            let view = self.image_rows([height, width, channels]);
            let axes = vec![view.axes[0].clone(), view.axes[1..].concat()];
            return Ok(View { axes, ..view });
        }
        let plain = match data {
            Input::Image([height, width, 1]) if fits(&[height, width]) => vec![height, width],
            Input::Image(_) if sizes.len() == 3 => return Err(self.mismatch(input, sizes, "")),
            data => self.infer_dynamic(sizes, data).ok_or_else(|| self.mismatch(input, sizes, ""))?,
        };
        let node = self.builder.features(&plain);
        Ok(View::new(node, &plain))
    }

    /// The rows as images: NCHW in the file, NHWC in memory.
    fn image_rows(&mut self, sizes: [usize; 3]) -> View {
        let node = self.builder.features(&sizes);
        let mut view = View::new(node, &sizes);
        let channels = view.axes.remove(3);
        view.axes.insert(1, channels);
        view
    }

    /// The sizes with the dynamic one inferred from the width of a row.
    fn infer_dynamic(&self, sizes: &[Option<i64>], data: Input) -> Option<Vec<usize>> {
        if let Input::Symbols { window, vocabulary } = data
            && sizes == [None, None]
        {
            return Some(vec![window, vocabulary]);
        }
        let known = sizes.iter().flatten().try_fold(1usize, |product, size| {
            product.checked_mul(usize::try_from(*size).ok().filter(|size| *size > 0)?)
        })?;
        let dynamic = sizes.iter().filter(|size| size.is_none()).count();
        let rest = data.width() / known;
        let fits = rest * known == data.width() && (dynamic == 1 || (dynamic == 0 && rest == 1));
        let size = |size: &Option<i64>| size.map_or(rest, |size| size as usize);
        fits.then(|| sizes.iter().map(size).collect())
    }
}
