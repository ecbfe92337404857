//! What can be computed while reading: the shapes that exporters compute at run time, masks, scale factors.

mod arithmetic;
mod axes;

use super::settings::Settings;
use super::tensor::{Constant, Data, Whole};
use crate::onnx::proto::data_type;
use arithmetic::{binary, cast, choose, each_float, each_whole, range, triangle};
use axes::{concat, gather, reshape, slice, squeeze, transpose, unsqueeze};
pub use axes::{cuts, span};

/// The same numbers as floats.
pub fn as_floats(constant: &Constant) -> Result<Constant, String> {
    cast(constant, data_type::FLOAT.into())
}

/// Most numbers of a folded result: masks and shapes are small.
pub const MOST: usize = 1 << 22;

/// The operators that are computed where all they read is known.
pub const OPERATORS: [&str; 31] = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Pow",
    "Sqrt",
    "Neg",
    "Cast",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "And",
    "Or",
    "Not",
    "Where",
    "Trilu",
    "Range",
    "Gather",
    "Slice",
    "Concat",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "Transpose",
    "Expand",
    "Identity",
    "ReduceProd",
    "ConstantOfShape",
];

/// The result of an operator over constants; nothing if the operator is not one of these.
pub fn fold(
    operator: &str,
    settings: Settings<'_>,
    inputs: &[&Constant],
) -> Option<Result<Constant, String>> {
    let one = || inputs.first().copied().ok_or_else(|| "reads nothing".to_string());
    let axes = || match (inputs.get(1), settings.ints("axes")) {
        (Some(axes), _) => axes.known().map(Some),
        (None, Some(axes)) => Ok(Some(axes.to_vec())),
        (None, None) => Ok(None),
    };
    Some(match operator {
        "Identity" => one().cloned(),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Equal" | "Less" | "Greater" | "LessOrEqual"
        | "GreaterOrEqual" | "And" | "Or" => binary(operator, inputs),
        "Sqrt" => one().and_then(|one| each_float(one, f32::sqrt)),
        "Neg" => one().and_then(|one| match &one.data {
            Data::Wholes(_) => each_whole(one, |number| number.checked_neg()),
            _ => each_float(one, |number| -number),
        }),
        "Not" => one().and_then(|one| each_whole(one, |number| Some(i64::from(number == 0)))),
        "Cast" => one().and_then(|one| cast(one, settings.needed("to")?)),
        "Where" => choose(inputs),
        "Trilu" => one().and_then(|one| triangle(one, settings.int("upper", 1) != 0, inputs.get(1).copied())),
        "Range" => range(inputs),
        "Gather" => gather(inputs, settings.int("axis", 0)),
        "Slice" => slice(inputs),
        "Concat" => settings.needed("axis").and_then(|axis| concat(inputs, axis)),
        "Unsqueeze" => one().and_then(|one| unsqueeze(one, &axes()?.ok_or("no axes")?)),
        "Squeeze" => one().and_then(|one| squeeze(one, axes()?)),
        "Reshape" => one().and_then(|one| {
            let sizes = inputs.get(1).ok_or("no sizes")?.known()?;
            reshape(one, &sizes)
        }),
        "Transpose" => one().and_then(|one| transpose(one, settings.ints("perm"))),
        "Expand" => one().and_then(|one| {
            let sizes = sizes_of(inputs.get(1).ok_or("no sizes")?)?;
            let wide = Constant { data: Data::Wholes(vec![Whole::Known(1); bounded(&sizes)?]), sizes };
            let sizes = broadcast(&[one, &wide])?;
            spread(one, &sizes)
        }),
        "ConstantOfShape" => one().and_then(|one| {
            let value = match settings.tensor("value") {
                Some(tensor) => Constant::read(tensor, false)?,
                None => Constant { sizes: vec![1], data: Data::Floats([0.0].into()) },
            };
            spread(&value, &sizes_of(one)?)
        }),
        "ReduceProd" => one().and_then(|one| {
            let (axes, empty) = (axes()?.unwrap_or_default(), settings.int("noop_with_empty_axes", 0) != 0);
            if axes.is_empty() && empty {
                return Err("attribute `noop_with_empty_axes` other than 0 is not supported".into());
            }
            if one.sizes.len() > 1 || !matches!(axes[..], [] | [0 | -1]) {
                return Err("attribute `axes`: only the product of all numbers of a line is supported".into());
            }
            let product = one.known()?.iter().try_fold(1i64, |product, number| product.checked_mul(*number));
            let product = Whole::Known(product.ok_or("too large")?);
            let kept = settings.int("keepdims", 1) != 0;
            Ok(Constant { sizes: if kept { vec![1] } else { vec![] }, data: Data::Wholes(vec![product]) })
        }),
        _ => return None,
    })
}

/// How many elements sizes make, if that is little.
fn bounded(sizes: &[usize]) -> Result<usize, String> {
    let len = sizes.iter().try_fold(1usize, |len, size| len.checked_mul(*size)).filter(|len| *len <= MOST);
    len.ok_or_else(|| format!("a constant of sizes {sizes:?} is too large"))
}

fn sizes_of(constant: &Constant) -> Result<Vec<usize>, String> {
    let size = |size: &i64| usize::try_from(*size).map_err(|_| format!("a size of {size} makes no sense"));
    constant.known()?.iter().map(size).collect()
}

/// The sizes that all inputs are spread to.
pub fn broadcast(inputs: &[&Constant]) -> Result<Vec<usize>, String> {
    let rank = inputs.iter().map(|input| input.sizes.len()).max().unwrap_or(0);
    let mut sizes = vec![1; rank];
    for input in inputs {
        for (size, own) in sizes.iter_mut().rev().zip(input.sizes.iter().rev()) {
            match (*size, *own) {
                (_, 1) => {}
                (1, own) => *size = own,
                (size, own) if size == own => {}
                _ => return Err(format!("sizes {:?} do not fit", input.sizes)),
            }
        }
    }
    bounded(&sizes)?;
    Ok(sizes)
}

/// A constant repeated to larger sizes.
pub fn spread(constant: &Constant, sizes: &[usize]) -> Result<Constant, String> {
    let len = bounded(sizes)?;
    let places: Vec<usize> = (0..len)
        .map(|mut index| {
            let (mut place, mut stride) = (0, 1);
            for (axis, size) in sizes.iter().enumerate().rev() {
                let at = index % size;
                index /= size;
                let behind = sizes.len() - axis;
                if let Some(own) = constant.sizes.len().checked_sub(behind).map(|axis| constant.sizes[axis]) {
                    place += if own == 1 { 0 } else { at * stride };
                    stride *= own;
                }
            }
            place
        })
        .collect();
    pick(constant, &places, sizes.to_vec())
}

/// Some elements of a constant under new sizes.
fn pick(constant: &Constant, places: &[usize], sizes: Vec<usize>) -> Result<Constant, String> {
    let outside = || "reads beyond a constant".to_string();
    let data = match &constant.data {
        Data::Floats(values) => {
            let floats = places.iter().map(|place| values.get(*place).copied().ok_or_else(outside));
            Data::Floats(floats.collect::<Result<Vec<f32>, String>>()?.into())
        }
        Data::Wholes(values) => {
            let wholes = places.iter().map(|place| values.get(*place).copied().ok_or_else(outside));
            Data::Wholes(wholes.collect::<Result<Vec<Whole>, String>>()?)
        }
        Data::Missing => return Err("computes with numbers that are not there".into()),
    };
    Ok(Constant { sizes, data })
}
