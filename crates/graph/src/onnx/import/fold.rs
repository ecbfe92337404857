//! What can be computed while reading: the shapes that exporters compute at run time, masks, scale factors.

use super::settings::Settings;
use super::tensor::{Constant, Data, Whole};
use super::view::place;
use crate::onnx::proto::data_type;

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
        "Cast" => one().and_then(|one| cast(one, settings.int("to", 0))),
        "Where" => choose(inputs),
        "Trilu" => one().and_then(|one| triangle(one, settings.int("upper", 1) != 0, inputs.get(1).copied())),
        "Range" => range(inputs),
        "Gather" => gather(inputs, settings.int("axis", 0)),
        "Slice" => slice(inputs),
        "Concat" => concat(inputs, settings.int("axis", 0)),
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

fn each_float(constant: &Constant, function: impl Fn(f32) -> f32) -> Result<Constant, String> {
    match &constant.data {
        Data::Floats(values) => Ok(Constant {
            sizes: constant.sizes.clone(),
            data: Data::Floats(values.iter().map(|value| function(*value)).collect()),
        }),
        _ => Err("expected numbers with a fraction".into()),
    }
}

fn each_whole(constant: &Constant, function: impl Fn(i64) -> Option<i64>) -> Result<Constant, String> {
    let number = |number: i64| function(number).map(Whole::Known).ok_or("a number is too large");
    let data = constant.known()?.into_iter().map(number).collect::<Result<Vec<Whole>, _>>()?;
    Ok(Constant { sizes: constant.sizes.clone(), data: Data::Wholes(data) })
}

fn cast(constant: &Constant, to: i64) -> Result<Constant, String> {
    let to = i32::try_from(to).unwrap_or(0);
    let data = match (&constant.data, to) {
        (Data::Floats(values), data_type::FLOAT | data_type::DOUBLE) => Data::Floats(values.clone()),
        (Data::Floats(values), data_type::BOOL) => {
            Data::Wholes(values.iter().map(|value| Whole::Known(i64::from(*value != 0.0))).collect())
        }
        (Data::Floats(values), data_type::INT32 | data_type::INT64) => {
            Data::Wholes(values.iter().map(|value| Whole::Known(*value as i64)).collect())
        }
        (Data::Wholes(_), data_type::FLOAT | data_type::DOUBLE) => {
            Data::Floats(constant.known()?.into_iter().map(|value| value as f32).collect())
        }
        (Data::Wholes(_), data_type::BOOL) => {
            return each_whole(constant, |value| Some(i64::from(value != 0)));
        }
        (Data::Wholes(values), data_type::INT32 | data_type::INT64) => Data::Wholes(values.clone()),
        _ => return Err(format!("turns elements into type {to}")),
    };
    Ok(Constant { sizes: constant.sizes.clone(), data })
}

fn binary(operator: &str, inputs: &[&Constant]) -> Result<Constant, String> {
    let &[left, right] = inputs else { return Err("expected two inputs".into()) };
    let sizes = broadcast(inputs)?;
    let (left, right) = (spread(left, &sizes)?, spread(right, &sizes)?);
    let data = match (&left.data, &right.data) {
        (Data::Floats(left), Data::Floats(right)) => {
            let pairs = left.iter().copied().zip(right.iter().copied());
            let truth = |test: fn(&f32, &f32) -> bool| {
                let pairs = left.iter().zip(right.iter());
                Data::Wholes(pairs.map(|(left, right)| Whole::Known(test(left, right).into())).collect())
            };
            match operator {
                "Add" => Data::Floats(pairs.map(|(left, right)| left + right).collect()),
                "Sub" => Data::Floats(pairs.map(|(left, right)| left - right).collect()),
                "Mul" => Data::Floats(pairs.map(|(left, right)| left * right).collect()),
                "Div" => Data::Floats(pairs.map(|(left, right)| left / right).collect()),
                "Pow" => Data::Floats(pairs.map(|(left, right)| left.powf(right)).collect()),
                "Equal" => truth(f32::eq),
                "Less" => truth(f32::lt),
                "Greater" => truth(f32::gt),
                "LessOrEqual" => truth(f32::le),
                "GreaterOrEqual" => truth(f32::ge),
                _ => return Err("expected whole numbers".into()),
            }
        }
        (Data::Wholes(left), Data::Wholes(right)) => {
            let pairs = left.iter().zip(right);
            Data::Wholes(pairs.map(|(left, right)| whole(operator, *left, *right)).collect::<Result<_, _>>()?)
        }
        _ => return Err("mixes numbers with and without a fraction".into()),
    };
    Ok(Constant { sizes, data })
}

/// One whole number from two, rows and all.
fn whole(operator: &str, left: Whole, right: Whole) -> Result<Whole, String> {
    use Whole::{Known, Rows};
    let beyond = || format!("{operator} of sizes that depend on the rows");
    let result = match (operator, left, right) {
        ("Add", Rows(left), Rows(right)) => left.checked_add(right).map(Rows),
        ("Sub", Rows(left), Rows(right)) if left == right => Some(Known(0)),
        ("Sub", Rows(left), Rows(right)) => left.checked_sub(right).map(Rows),
        ("Mul", Rows(left), Known(right)) | ("Mul", Known(left), Rows(right)) => {
            left.checked_mul(right).map(Rows)
        }
        ("Div", Rows(left), Known(right)) if right != 0 && left % right == 0 => Some(Rows(left / right)),
        ("Div", Rows(left), Rows(right)) if right != 0 && left % right == 0 => Some(Known(left / right)),
        ("Equal", left, right) => Some(Known(i64::from(left == right))),
        (_, Known(left), Known(right)) => match operator {
            "Add" => left.checked_add(right),
            "Sub" => left.checked_sub(right),
            "Mul" => left.checked_mul(right),
            "Div" => left.checked_div(right),
            "Mod" => left.checked_rem_euclid(right),
            "Pow" => u32::try_from(right).ok().and_then(|right| left.checked_pow(right)),
            "Less" => Some(i64::from(left < right)),
            "Greater" => Some(i64::from(left > right)),
            "LessOrEqual" => Some(i64::from(left <= right)),
            "GreaterOrEqual" => Some(i64::from(left >= right)),
            "And" => Some(i64::from(left != 0 && right != 0)),
            "Or" => Some(i64::from(left != 0 || right != 0)),
            _ => None,
        }
        .map(Known),
        _ => return Err(beyond()),
    };
    result.ok_or_else(|| format!("{operator}: a number makes no sense"))
}

fn choose(inputs: &[&Constant]) -> Result<Constant, String> {
    let &[condition, _, _] = inputs else { return Err("expected three inputs".into()) };
    let sizes = broadcast(inputs)?;
    let condition = spread(condition, &sizes)?.known()?;
    let [yes, no] = [spread(inputs[1], &sizes)?, spread(inputs[2], &sizes)?];
    let data = match (&yes.data, &no.data) {
        (Data::Floats(yes), Data::Floats(no)) => {
            let chosen = condition.iter().zip(yes.iter().zip(no.iter()));
            Data::Floats(chosen.map(|(is, (yes, no))| if *is != 0 { *yes } else { *no }).collect())
        }
        (Data::Wholes(yes), Data::Wholes(no)) => {
            let chosen = condition.iter().zip(yes.iter().zip(no));
            Data::Wholes(chosen.map(|(is, (yes, no))| if *is != 0 { *yes } else { *no }).collect())
        }
        _ => return Err("mixes numbers with and without a fraction".into()),
    };
    Ok(Constant { sizes, data })
}

fn triangle(constant: &Constant, upper: bool, diagonal: Option<&Constant>) -> Result<Constant, String> {
    let shift = match diagonal {
        Some(diagonal) => diagonal.known()?.first().copied().unwrap_or(0),
        None => 0,
    };
    let &[.., rows, columns] = constant.sizes.as_slice() else { return Err("expected a matrix".into()) };
    let kept = |place: usize| {
        let (row, column) = ((place / columns % rows.max(1)) as i64, (place % columns) as i64);
        let edge = row.saturating_add(shift);
        if upper { column >= edge } else { column <= edge }
    };
    let sizes = constant.sizes.clone();
    let data = match &constant.data {
        Data::Floats(values) => {
            let values = values.iter().enumerate();
            Data::Floats(values.map(|(place, value)| if kept(place) { *value } else { 0.0 }).collect())
        }
        Data::Wholes(values) => {
            let values = values.iter().enumerate();
            Data::Wholes(
                values.map(|(place, value)| if kept(place) { *value } else { Whole::Known(0) }).collect(),
            )
        }
        Data::Missing => return Err("computes with numbers that are not there".into()),
    };
    Ok(Constant { sizes, data })
}

fn range(inputs: &[&Constant]) -> Result<Constant, String> {
    let ends: Vec<i64> = inputs.iter().map(|input| input.known()).collect::<Result<Vec<_>, _>>()?.concat();
    let &[begin, end, step] = ends.as_slice() else { return Err("expected begin, end and step".into()) };
    let far = |count: usize| begin.checked_add(step.checked_mul(count as i64)?);
    let inside = |number: &i64| if step > 0 { *number < end } else { *number > end };
    if step == 0 {
        return Err("a step of 0".into());
    }
    let numbers: Vec<i64> = (0..=MOST).map_while(far).take_while(inside).collect();
    bounded(&[numbers.len()])?;
    Ok(Constant::line(numbers.into_iter().map(Whole::Known).collect()))
}

/// Sizes before, at and behind an axis.
fn around(sizes: &[usize], axis: usize) -> (usize, usize, usize) {
    (sizes[..axis].iter().product(), sizes[axis], sizes[axis + 1..].iter().product())
}

fn gather(inputs: &[&Constant], axis: i64) -> Result<Constant, String> {
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

fn slice(inputs: &[&Constant]) -> Result<Constant, String> {
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

fn concat(inputs: &[&Constant], axis: i64) -> Result<Constant, String> {
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

fn unsqueeze(constant: &Constant, axes: &[i64]) -> Result<Constant, String> {
    let rank = constant.sizes.len() + axes.len();
    let axes = axes.iter().map(|axis| place(*axis, rank)).collect::<Result<Vec<usize>, String>>()?;
    let mut own = constant.sizes.iter().copied();
    let sizes = (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { own.next().unwrap_or(1) });
    Ok(Constant { sizes: sizes.collect(), data: constant.data.clone() })
}

fn squeeze(constant: &Constant, axes: Option<Vec<i64>>) -> Result<Constant, String> {
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

fn reshape(constant: &Constant, wanted: &[i64]) -> Result<Constant, String> {
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

fn transpose(constant: &Constant, order: Option<&[i64]>) -> Result<Constant, String> {
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
