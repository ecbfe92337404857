//! Folding of operators on axes: gather, slice, concat, reshape, transpose.

use super::super::constant::{ConstantTensor, TensorData};
use super::super::view::normalize_axis;
use super::{checked_len, take};

fn split_at_axis(sizes: &[usize], axis: usize) -> (usize, usize, usize) {
    (sizes[..axis].iter().product(), sizes[axis], sizes[axis + 1..].iter().product())
}

pub fn gather(inputs: &[&ConstantTensor], axis: i64) -> Result<ConstantTensor, String> {
    let &[constant, indices] = inputs else { return Err("expected two inputs".into()) };
    let axis = normalize_axis(axis, constant.sizes.len())?;
    let (before, count, inner) = split_at_axis(&constant.sizes, axis);
    let indices_known = indices.known_ints()?;
    let wanted = indices_known.iter().map(|index| normalize_axis(*index, count));
    let wanted = wanted.collect::<Result<Vec<usize>, String>>()?;
    let sizes = [&constant.sizes[..axis], &indices.sizes, &constant.sizes[axis + 1..]].concat();
    checked_len(&sizes)?;
    let indices: Vec<usize> = (0..before)
        .flat_map(|outer| wanted.iter().map(move |index| (outer * count + index) * inner))
        .flat_map(|begin| begin..begin + inner)
        .collect();
    take(constant, &indices, sizes)
}

/// The range of a slice along an axis of that size, clamped as ONNX does; only steps of 1.
pub fn slice_range(begin: i64, end: i64, step: i64, size: usize) -> Result<std::ops::Range<usize>, String> {
    if step != 1 {
        return Err(format!("a slice with step {step} is not supported"));
    }
    let clamp = |index: i64| {
        let index = if index < 0 { index.saturating_add(size as i64) } else { index };
        index.clamp(0, size as i64) as usize
    };
    let (begin, end) = (clamp(begin), clamp(end));
    Ok(begin..end.max(begin))
}

/// Axis, begin, end and step of each sliced axis.
pub fn slice_specs(
    inputs: &[Option<&ConstantTensor>],
    rank: usize,
) -> Result<Vec<(usize, i64, i64, i64)>, String> {
    let numbers =
        |index: usize| inputs.get(index).copied().flatten().map(ConstantTensor::known_ints).transpose();
    let (begins, ends) = (numbers(0)?.ok_or("`starts` is missing")?, numbers(1)?.ok_or("`ends` is missing")?);
    let axes = numbers(2)?.unwrap_or_else(|| (0..begins.len() as i64).collect());
    let steps = numbers(3)?.unwrap_or_else(|| vec![1; begins.len()]);
    if ends.len() != begins.len() || axes.len() != begins.len() || steps.len() != begins.len() {
        return Err("`starts`, `ends`, `axes` and `steps` differ in length".into());
    }
    let spec = |at: usize| Ok((normalize_axis(axes[at], rank)?, begins[at], ends[at], steps[at]));
    (0..begins.len()).map(spec).collect()
}

pub fn slice(inputs: &[&ConstantTensor]) -> Result<ConstantTensor, String> {
    let constant = *inputs.first().ok_or("it has no inputs")?;
    let rest: Vec<Option<&ConstantTensor>> = inputs[1..].iter().map(|input| Some(*input)).collect();
    let mut result = constant.clone();
    for (axis, begin, end, step) in slice_specs(&rest, constant.sizes.len())? {
        let (before, count, inner) = split_at_axis(&result.sizes, axis);
        let span = slice_range(begin, end, step, count)?;
        let indices: Vec<usize> = (0..before)
            .flat_map(|outer| (outer * count + span.start) * inner..(outer * count + span.end) * inner)
            .collect();
        let mut sizes = result.sizes.clone();
        sizes[axis] = span.len();
        result = take(&result, &indices, sizes)?;
    }
    Ok(result)
}

pub fn concat(inputs: &[&ConstantTensor], axis: i64) -> Result<ConstantTensor, String> {
    let first = *inputs.first().ok_or("it has no inputs")?;
    let axis = normalize_axis(axis, first.sizes.len())?;
    if axis != 0 {
        return Err("constants can only be concatenated along axis 0".into());
    }
    let mut sizes = first.sizes.clone();
    sizes[0] = inputs.iter().map(|input| input.sizes.first().copied().unwrap_or(0)).sum();
    checked_len(&sizes)?;
    if inputs.iter().any(|input| input.sizes.len() != sizes.len() || input.sizes[1..] != sizes[1..]) {
        return Err("its inputs differ in shape besides the axis".into());
    }
    let data = match first.data {
        TensorData::Ints(_) => {
            let parts = inputs.iter().map(|input| input.ints()).collect::<Result<Vec<_>, _>>()?;
            TensorData::Ints(parts.concat())
        }
        _ => {
            let parts = inputs.iter().map(|input| match &input.data {
                TensorData::Floats(values) => Ok(values.as_ref()),
                _ => Err("its inputs mix floats and integers"),
            });
            TensorData::Floats(parts.collect::<Result<Vec<_>, _>>()?.concat().into())
        }
    };
    Ok(ConstantTensor { sizes, data })
}

pub fn unsqueeze(constant: &ConstantTensor, axes: &[i64]) -> Result<ConstantTensor, String> {
    let rank = constant.sizes.len() + axes.len();
    let axes = axes.iter().map(|axis| normalize_axis(*axis, rank)).collect::<Result<Vec<usize>, String>>()?;
    let mut own = constant.sizes.iter().copied();
    let sizes = (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { own.next().unwrap_or(1) });
    Ok(ConstantTensor { sizes: sizes.collect(), data: constant.data.clone() })
}

pub fn squeeze(constant: &ConstantTensor, axes: Option<Vec<i64>>) -> Result<ConstantTensor, String> {
    let rank = constant.sizes.len();
    let axes = match axes {
        Some(axes) => {
            axes.iter().map(|axis| normalize_axis(*axis, rank)).collect::<Result<Vec<usize>, String>>()?
        }
        None => (0..rank).filter(|axis| constant.sizes[*axis] == 1).collect(),
    };
    if axes.iter().any(|axis| constant.sizes[*axis] != 1) {
        return Err("attribute or input `axes`: an axis is not of size 1".into());
    }
    let sizes = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| constant.sizes[axis]).collect();
    Ok(ConstantTensor { sizes, data: constant.data.clone() })
}

pub fn reshape(constant: &ConstantTensor, wanted: &[i64]) -> Result<ConstantTensor, String> {
    let len = constant.len();
    let mut known = wanted.iter().filter(|size| **size > 0);
    let known = known.try_fold(1usize, |product, size| product.checked_mul(*size as usize)).unwrap_or(0);
    let size = |(axis, size): (usize, &i64)| match *size {
        -1 => len.checked_div(known).ok_or("its shape has an invalid size".to_string()),
        0 => {
            let missing = "its shape keeps (0) the size of an axis that does not exist";
            constant.sizes.get(axis).copied().ok_or(missing.into())
        }
        size => usize::try_from(size).map_err(|_| format!("size {size} is invalid")),
    };
    let sizes = wanted.iter().enumerate().map(size).collect::<Result<Vec<usize>, String>>()?;
    let product = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    match product == Some(len) {
        true => Ok(ConstantTensor { sizes, data: constant.data.clone() }),
        false => Err(format!("shape {:?} cannot be reshaped to {sizes:?}", constant.sizes)),
    }
}

pub fn transpose(constant: &ConstantTensor, order: Option<&[i64]>) -> Result<ConstantTensor, String> {
    let rank = constant.sizes.len();
    let order = match order {
        Some(order) => {
            order.iter().map(|axis| normalize_axis(*axis, rank)).collect::<Result<Vec<usize>, String>>()?
        }
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
        return Err("attribute `perm` is not a permutation of the axes".into());
    }
    let sizes: Vec<usize> = order.iter().map(|axis| constant.sizes[*axis]).collect();
    let len = checked_len(&sizes)?;
    let strides: Vec<usize> = (0..rank).map(|axis| constant.sizes[axis + 1..].iter().product()).collect();
    let source = |mut index: usize| {
        let mut source_index = 0;
        for (axis, size) in order.iter().zip(&sizes).rev() {
            source_index += index % size * strides[*axis];
            index /= size;
        }
        source_index
    };
    let indices: Vec<usize> = (0..len).map(source).collect();
    take(constant, &indices, sizes)
}
