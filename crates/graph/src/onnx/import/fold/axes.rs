//! Axes of constants: chosen from, cut, joined, turned.

use super::super::tensor::{Constant, Data};
use super::super::view::place;
use super::{bounded, pick};

/// Sizes before, at and behind an axis.
fn around(sizes: &[usize], axis: usize) -> (usize, usize, usize) {
    (sizes[..axis].iter().product(), sizes[axis], sizes[axis + 1..].iter().product())
}

pub fn gather(inputs: &[&Constant], axis: i64) -> Result<Constant, String> {
    let &[constant, indices] = inputs else { return Err("expected two inputs".into()) };
    let axis = place(axis, constant.sizes.len())?;
    let (before, count, behind) = around(&constant.sizes, axis);
    let indices_known = indices.known()?;
    let wanted = indices_known.iter().map(|index| place(*index, count));
    let wanted = wanted.collect::<Result<Vec<usize>, String>>()?;
    let sizes = [&constant.sizes[..axis], &indices.sizes, &constant.sizes[axis + 1..]].concat();
    bounded(&sizes)?;
    let places: Vec<usize> = (0..before)
        .flat_map(|outer| wanted.iter().map(move |index| (outer * count + index) * behind))
        .flat_map(|begin| begin..begin + behind)
        .collect();
    pick(constant, &places, sizes)
}

/// First and last-but-one place of a slice along an axis of that size; only slices forward by one.
pub fn span(begin: i64, end: i64, step: i64, size: usize) -> Result<std::ops::Range<usize>, String> {
    if step != 1 {
        return Err(format!("a slice with a step of {step}"));
    }
    let clamp = |place: i64| {
        let place = if place < 0 { place.saturating_add(size as i64) } else { place };
        place.clamp(0, size as i64) as usize
    };
    let (begin, end) = (clamp(begin), clamp(end));
    Ok(begin..end.max(begin))
}

/// What a slice takes: axis, begin, end and step of each cut.
pub fn cuts(inputs: &[Option<&Constant>], rank: usize) -> Result<Vec<(usize, i64, i64, i64)>, String> {
    let numbers = |index: usize| inputs.get(index).copied().flatten().map(Constant::known).transpose();
    let (begins, ends) = (numbers(0)?.ok_or("no begins")?, numbers(1)?.ok_or("no ends")?);
    let axes = numbers(2)?.unwrap_or_else(|| (0..begins.len() as i64).collect());
    let steps = numbers(3)?.unwrap_or_else(|| vec![1; begins.len()]);
    if ends.len() != begins.len() || axes.len() != begins.len() || steps.len() != begins.len() {
        return Err("begins, ends and axes differ in number".into());
    }
    let cut = |at: usize| Ok((place(axes[at], rank)?, begins[at], ends[at], steps[at]));
    (0..begins.len()).map(cut).collect()
}

pub fn slice(inputs: &[&Constant]) -> Result<Constant, String> {
    let constant = *inputs.first().ok_or("reads nothing")?;
    let rest: Vec<Option<&Constant>> = inputs[1..].iter().map(|input| Some(*input)).collect();
    let mut result = constant.clone();
    for (axis, begin, end, step) in cuts(&rest, constant.sizes.len())? {
        let (before, count, behind) = around(&result.sizes, axis);
        let span = span(begin, end, step, count)?;
        let places: Vec<usize> = (0..before)
            .flat_map(|outer| (outer * count + span.start) * behind..(outer * count + span.end) * behind)
            .collect();
        let mut sizes = result.sizes.clone();
        sizes[axis] = span.len();
        result = pick(&result, &places, sizes)?;
    }
    Ok(result)
}

pub fn concat(inputs: &[&Constant], axis: i64) -> Result<Constant, String> {
    let first = *inputs.first().ok_or("reads nothing")?;
    let axis = place(axis, first.sizes.len())?;
    if axis != 0 {
        return Err("joins constants along an inner axis".into());
    }
    let mut sizes = first.sizes.clone();
    sizes[0] = inputs.iter().map(|input| input.sizes.first().copied().unwrap_or(0)).sum();
    bounded(&sizes)?;
    if inputs.iter().any(|input| input.sizes.len() != sizes.len() || input.sizes[1..] != sizes[1..]) {
        return Err("joins constants of different sizes".into());
    }
    let data = match first.data {
        Data::Wholes(_) => {
            let parts = inputs.iter().map(|input| input.wholes()).collect::<Result<Vec<_>, _>>()?;
            Data::Wholes(parts.concat())
        }
        _ => {
            let parts = inputs.iter().map(|input| match &input.data {
                Data::Floats(values) => Ok(values.as_ref()),
                _ => Err("mixes numbers with and without a fraction"),
            });
            Data::Floats(parts.collect::<Result<Vec<_>, _>>()?.concat().into())
        }
    };
    Ok(Constant { sizes, data })
}

pub fn unsqueeze(constant: &Constant, axes: &[i64]) -> Result<Constant, String> {
    let rank = constant.sizes.len() + axes.len();
    let axes = axes.iter().map(|axis| place(*axis, rank)).collect::<Result<Vec<usize>, String>>()?;
    let mut own = constant.sizes.iter().copied();
    let sizes = (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { own.next().unwrap_or(1) });
    Ok(Constant { sizes: sizes.collect(), data: constant.data.clone() })
}

pub fn squeeze(constant: &Constant, axes: Option<Vec<i64>>) -> Result<Constant, String> {
    let rank = constant.sizes.len();
    let axes = match axes {
        Some(axes) => axes.iter().map(|axis| place(*axis, rank)).collect::<Result<Vec<usize>, String>>()?,
        None => (0..rank).filter(|axis| constant.sizes[*axis] == 1).collect(),
    };
    if axes.iter().any(|axis| constant.sizes[*axis] != 1) {
        return Err("drops an axis that is not of size 1".into());
    }
    let sizes = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| constant.sizes[axis]).collect();
    Ok(Constant { sizes, data: constant.data.clone() })
}

pub fn reshape(constant: &Constant, wanted: &[i64]) -> Result<Constant, String> {
    let len = constant.len();
    let mut known = wanted.iter().filter(|size| **size > 0);
    let known = known.try_fold(1usize, |product, size| product.checked_mul(*size as usize)).unwrap_or(0);
    let size = |(place, size): (usize, &i64)| match *size {
        -1 => len.checked_div(known).ok_or("a size makes no sense".to_string()),
        0 => constant.sizes.get(place).copied().ok_or("keeps a size that is not there".into()),
        size => usize::try_from(size).map_err(|_| format!("a size of {size} makes no sense")),
    };
    let sizes = wanted.iter().enumerate().map(size).collect::<Result<Vec<usize>, String>>()?;
    let product = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    match product == Some(len) {
        true => Ok(Constant { sizes, data: constant.data.clone() }),
        false => Err(format!("{:?} cannot become {sizes:?}", constant.sizes)),
    }
}

pub fn transpose(constant: &Constant, order: Option<&[i64]>) -> Result<Constant, String> {
    let rank = constant.sizes.len();
    let order = match order {
        Some(order) => order.iter().map(|axis| place(*axis, rank)).collect::<Result<Vec<usize>, String>>()?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
        return Err("its order of axes makes no sense".into());
    }
    let sizes: Vec<usize> = order.iter().map(|axis| constant.sizes[*axis]).collect();
    let len = bounded(&sizes)?;
    let strides: Vec<usize> = (0..rank).map(|axis| constant.sizes[axis + 1..].iter().product()).collect();
    let source = |mut index: usize| {
        let mut place = 0;
        for (axis, size) in order.iter().zip(&sizes).rev() {
            place += index % size * strides[*axis];
            index /= size;
        }
        place
    };
    let places: Vec<usize> = (0..len).map(source).collect();
    pick(constant, &places, sizes)
}
