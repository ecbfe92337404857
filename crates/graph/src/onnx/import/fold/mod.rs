//! Constant folding: shapes that exporters compute at run time, masks, scale factors.

mod arithmetic;
mod axes;

use super::attributes::Attributes;
use super::constant::{ConstantTensor, SymInt, TensorData};
use crate::onnx::proto::data_type;
use arithmetic::{binary, cast, map_floats, map_ints, range, select, trilu};
use axes::{concat, gather, reshape, slice, squeeze, transpose, unsqueeze};
pub use axes::{slice_range, slice_specs};

pub fn as_floats(constant: &ConstantTensor) -> Result<ConstantTensor, String> {
    cast(constant, data_type::FLOAT.into())
}

/// Limit on the elements of a folded result; masks and shapes are small.
pub const MAX_ELEMENTS: usize = 1 << 22;

/// Operators that are folded if all inputs are constant.
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

/// The result of an operator over constants; `None` for other operators.
pub fn fold(
    operator: &str,
    attributes: Attributes<'_>,
    inputs: &[&ConstantTensor],
) -> Option<Result<ConstantTensor, String>> {
    let one = || inputs.first().copied().ok_or_else(|| "it has no inputs".to_string());
    let axes = || match (inputs.get(1), attributes.ints("axes")) {
        (Some(axes), _) => axes.known_ints().map(Some),
        (None, Some(axes)) => Ok(Some(axes.to_vec())),
        (None, None) => Ok(None),
    };
    Some(match operator {
        "Identity" => one().cloned(),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Equal" | "Less" | "Greater" | "LessOrEqual"
        | "GreaterOrEqual" | "And" | "Or" => binary(operator, inputs),
        "Sqrt" => one().and_then(|one| map_floats(one, f32::sqrt)),
        "Neg" => one().and_then(|one| match &one.data {
            TensorData::Ints(_) => map_ints(one, |number| number.checked_neg()),
            _ => map_floats(one, |number| -number),
        }),
        "Not" => one().and_then(|one| map_ints(one, |number| Some(i64::from(number == 0)))),
        "Cast" => one().and_then(|one| cast(one, attributes.required_int("to")?)),
        "Where" => select(inputs),
        "Trilu" => one().and_then(|one| trilu(one, attributes.int("upper", 1) != 0, inputs.get(1).copied())),
        "Range" => range(inputs),
        "Gather" => gather(inputs, attributes.int("axis", 0)),
        "Slice" => slice(inputs),
        "Concat" => attributes.required_int("axis").and_then(|axis| concat(inputs, axis)),
        "Unsqueeze" => one().and_then(|one| unsqueeze(one, &axes()?.ok_or("`axes` is missing")?)),
        "Squeeze" => one().and_then(|one| squeeze(one, axes()?)),
        "Reshape" => one().and_then(|one| {
            let sizes = inputs.get(1).ok_or("its shape is missing")?.known_ints()?;
            reshape(one, &sizes)
        }),
        "Transpose" => one().and_then(|one| transpose(one, attributes.ints("perm"))),
        "Expand" => one().and_then(|one| {
            let sizes = sizes_of(inputs.get(1).ok_or("its shape is missing")?)?;
            let wide = ConstantTensor {
                data: TensorData::Ints(vec![SymInt::Known(1); checked_len(&sizes)?]),
                sizes,
            };
            let sizes = broadcast_shape(&[one, &wide])?;
            broadcast_to(one, &sizes)
        }),
        "ConstantOfShape" => one().and_then(|one| {
            let value = match attributes.tensor("value") {
                Some(tensor) => ConstantTensor::read(tensor, false)?,
                None => ConstantTensor { sizes: vec![1], data: TensorData::Floats([0.0].into()) },
            };
            broadcast_to(&value, &sizes_of(one)?)
        }),
        "ReduceProd" => one().and_then(|one| {
            let (axes, empty) = (axes()?.unwrap_or_default(), attributes.int("noop_with_empty_axes", 0) != 0);
            if axes.is_empty() && empty {
                return Err("attribute `noop_with_empty_axes` other than 0 is not supported".into());
            }
            if one.sizes.len() > 1 || !matches!(axes[..], [] | [0 | -1]) {
                return Err(
                    "attribute `axes`: only the product of all elements of a vector is supported".into()
                );
            }
            let product =
                one.known_ints()?.iter().try_fold(1i64, |product, number| product.checked_mul(*number));
            let product = SymInt::Known(product.ok_or("integer overflow")?);
            let kept = attributes.int("keepdims", 1) != 0;
            Ok(ConstantTensor {
                sizes: if kept { vec![1] } else { vec![] },
                data: TensorData::Ints(vec![product]),
            })
        }),
        _ => return None,
    })
}

fn checked_len(sizes: &[usize]) -> Result<usize, String> {
    let len =
        sizes.iter().try_fold(1usize, |len, size| len.checked_mul(*size)).filter(|len| *len <= MAX_ELEMENTS);
    len.ok_or_else(|| format!("a constant of shape {sizes:?} is too large"))
}

fn sizes_of(constant: &ConstantTensor) -> Result<Vec<usize>, String> {
    let size = |size: &i64| usize::try_from(*size).map_err(|_| format!("size {size} is invalid"));
    constant.known_ints()?.iter().map(size).collect()
}

/// The common shape that all inputs broadcast to.
pub fn broadcast_shape(inputs: &[&ConstantTensor]) -> Result<Vec<usize>, String> {
    let rank = inputs.iter().map(|input| input.sizes.len()).max().unwrap_or(0);
    let mut sizes = vec![1; rank];
    for input in inputs {
        for (size, own) in sizes.iter_mut().rev().zip(input.sizes.iter().rev()) {
            match (*size, *own) {
                (_, 1) => {}
                (1, own) => *size = own,
                (size, own) if size == own => {}
                _ => return Err(format!("shape {:?} does not broadcast", input.sizes)),
            }
        }
    }
    checked_len(&sizes)?;
    Ok(sizes)
}

/// A constant broadcast to a shape.
pub fn broadcast_to(constant: &ConstantTensor, sizes: &[usize]) -> Result<ConstantTensor, String> {
    let len = checked_len(sizes)?;
    let indices: Vec<usize> = (0..len)
        .map(|mut index| {
            let (mut source, mut stride) = (0, 1);
            for (axis, size) in sizes.iter().enumerate().rev() {
                let at = index % size;
                index /= size;
                let from_end = sizes.len() - axis;
                if let Some(own) = constant.sizes.len().checked_sub(from_end).map(|axis| constant.sizes[axis])
                {
                    source += if own == 1 { 0 } else { at * stride };
                    stride *= own;
                }
            }
            source
        })
        .collect();
    take(constant, &indices, sizes.to_vec())
}

/// The elements of a constant at `indices`, under a new shape.
fn take(constant: &ConstantTensor, indices: &[usize], sizes: Vec<usize>) -> Result<ConstantTensor, String> {
    let outside = || "an index is out of range".to_string();
    let data = match &constant.data {
        TensorData::Floats(values) => {
            let floats = indices.iter().map(|index| values.get(*index).copied().ok_or_else(outside));
            TensorData::Floats(floats.collect::<Result<Vec<f32>, String>>()?.into())
        }
        TensorData::Ints(values) => {
            let ints = indices.iter().map(|index| values.get(*index).copied().ok_or_else(outside));
            TensorData::Ints(ints.collect::<Result<Vec<SymInt>, String>>()?)
        }
        TensorData::Missing => return Err("its input has no data".into()),
    };
    Ok(ConstantTensor { sizes, data })
}
