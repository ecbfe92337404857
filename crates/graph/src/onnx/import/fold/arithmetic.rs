//! Folding of element-wise operators.

use super::super::constant::{ConstantTensor, SymInt, TensorData};
use super::{MAX_ELEMENTS, broadcast_shape, broadcast_to, checked_len};
use crate::onnx::proto::data_type;

pub fn map_floats(
    constant: &ConstantTensor,
    function: impl Fn(f32) -> f32,
) -> Result<ConstantTensor, String> {
    match &constant.data {
        TensorData::Floats(values) => Ok(ConstantTensor {
            sizes: constant.sizes.clone(),
            data: TensorData::Floats(values.iter().map(|value| function(*value)).collect()),
        }),
        _ => Err("expected floats".into()),
    }
}

pub fn map_ints(
    constant: &ConstantTensor,
    function: impl Fn(i64) -> Option<i64>,
) -> Result<ConstantTensor, String> {
    let number = |number: i64| function(number).map(SymInt::Known).ok_or("integer overflow");
    let data = constant.known_ints()?.into_iter().map(number).collect::<Result<Vec<SymInt>, _>>()?;
    Ok(ConstantTensor { sizes: constant.sizes.clone(), data: TensorData::Ints(data) })
}

pub fn cast(constant: &ConstantTensor, to: i64) -> Result<ConstantTensor, String> {
    let to = i32::try_from(to).unwrap_or(0);
    let data = match (&constant.data, to) {
        (TensorData::Floats(values), data_type::FLOAT | data_type::DOUBLE) => {
            TensorData::Floats(values.clone())
        }
        (TensorData::Floats(values), data_type::BOOL) => {
            TensorData::Ints(values.iter().map(|value| SymInt::Known(i64::from(*value != 0.0))).collect())
        }
        (TensorData::Floats(values), data_type::INT32 | data_type::INT64) => {
            let limit = if to == data_type::INT32 { i64::from(i32::MAX) } else { i64::MAX };
            if values.iter().any(|value| value.is_nan() || value.abs() > limit as f32) {
                return Err("attribute `to`: a value is out of range for that type".into());
            }
            TensorData::Ints(values.iter().map(|value| SymInt::Known(*value as i64)).collect())
        }
        (TensorData::Ints(_), data_type::FLOAT | data_type::DOUBLE) => {
            TensorData::Floats(constant.known_ints()?.into_iter().map(|value| value as f32).collect())
        }
        (TensorData::Ints(_), data_type::BOOL) => {
            return map_ints(constant, |value| Some(i64::from(value != 0)));
        }
        (TensorData::Ints(values), data_type::INT32 | data_type::INT64) => TensorData::Ints(values.clone()),
        _ => return Err(format!("attribute `to` = {to} is not supported")),
    };
    Ok(ConstantTensor { sizes: constant.sizes.clone(), data })
}

pub fn binary(operator: &str, inputs: &[&ConstantTensor]) -> Result<ConstantTensor, String> {
    let &[left, right] = inputs else { return Err("expected two inputs".into()) };
    let sizes = broadcast_shape(inputs)?;
    let (left, right) = (broadcast_to(left, &sizes)?, broadcast_to(right, &sizes)?);
    let data = match (&left.data, &right.data) {
        (TensorData::Floats(left), TensorData::Floats(right)) => {
            let pairs = left.iter().copied().zip(right.iter().copied());
            let compare = |test: fn(&f32, &f32) -> bool| {
                let pairs = left.iter().zip(right.iter());
                TensorData::Ints(pairs.map(|(left, right)| SymInt::Known(test(left, right).into())).collect())
            };
            match operator {
                "Add" => TensorData::Floats(pairs.map(|(left, right)| left + right).collect()),
                "Sub" => TensorData::Floats(pairs.map(|(left, right)| left - right).collect()),
                "Mul" => TensorData::Floats(pairs.map(|(left, right)| left * right).collect()),
                "Div" => TensorData::Floats(pairs.map(|(left, right)| left / right).collect()),
                "Pow" => TensorData::Floats(pairs.map(|(left, right)| left.powf(right)).collect()),
                "Equal" => compare(f32::eq),
                "Less" => compare(f32::lt),
                "Greater" => compare(f32::gt),
                "LessOrEqual" => compare(f32::le),
                "GreaterOrEqual" => compare(f32::ge),
                _ => return Err("expected integers".into()),
            }
        }
        (TensorData::Ints(left), TensorData::Ints(right)) => {
            let pairs = left.iter().zip(right);
            TensorData::Ints(
                pairs.map(|(left, right)| binary_int(operator, *left, *right)).collect::<Result<_, _>>()?,
            )
        }
        _ => return Err("its inputs mix floats and integers".into()),
    };
    Ok(ConstantTensor { sizes, data })
}

/// Symbolic arithmetic on sizes: the batch size stays symbolic where the result is a multiple of it.
fn binary_int(operator: &str, left: SymInt, right: SymInt) -> Result<SymInt, String> {
    use SymInt::{Known, TimesRows};
    let symbolic = || format!("{operator} of sizes that depend on the rows is not supported");
    let result = match (operator, left, right) {
        ("Add", TimesRows(left), TimesRows(right)) => left.checked_add(right).map(TimesRows),
        ("Sub", TimesRows(left), TimesRows(right)) if left == right => Some(Known(0)),
        ("Sub", TimesRows(left), TimesRows(right)) => left.checked_sub(right).map(TimesRows),
        ("Mul", TimesRows(left), Known(right)) | ("Mul", Known(left), TimesRows(right)) => {
            left.checked_mul(right).map(TimesRows)
        }
        ("Div", TimesRows(left), Known(right)) if right != 0 && left % right == 0 => {
            Some(TimesRows(left / right))
        }
        ("Div", TimesRows(left), TimesRows(right)) if right != 0 && left % right == 0 => {
            Some(Known(left / right))
        }
        ("Equal", left, right) => Some(Known(i64::from(left == right))),
        (_, Known(left), Known(right)) => match operator {
            "Add" => left.checked_add(right),
            "Sub" => left.checked_sub(right),
            "Mul" => left.checked_mul(right),
            "Div" => left.checked_div(right),
            // The result has the sign of the divisor.
            "Mod" => left.checked_rem(right).and_then(|rest| rest.checked_add(right)?.checked_rem(right)),
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
        _ => return Err(symbolic()),
    };
    result.ok_or_else(|| format!("{operator}: integer overflow or division by 0"))
}

pub fn select(inputs: &[&ConstantTensor]) -> Result<ConstantTensor, String> {
    let &[condition, _, _] = inputs else { return Err("expected three inputs".into()) };
    let sizes = broadcast_shape(inputs)?;
    let condition = broadcast_to(condition, &sizes)?.known_ints()?;
    let [yes, no] = [broadcast_to(inputs[1], &sizes)?, broadcast_to(inputs[2], &sizes)?];
    let data = match (&yes.data, &no.data) {
        (TensorData::Floats(yes), TensorData::Floats(no)) => {
            let chosen = condition.iter().zip(yes.iter().zip(no.iter()));
            TensorData::Floats(chosen.map(|(is, (yes, no))| if *is != 0 { *yes } else { *no }).collect())
        }
        (TensorData::Ints(yes), TensorData::Ints(no)) => {
            let chosen = condition.iter().zip(yes.iter().zip(no));
            TensorData::Ints(chosen.map(|(is, (yes, no))| if *is != 0 { *yes } else { *no }).collect())
        }
        _ => return Err("its inputs mix floats and integers".into()),
    };
    Ok(ConstantTensor { sizes, data })
}

pub fn trilu(
    constant: &ConstantTensor,
    upper: bool,
    diagonal: Option<&ConstantTensor>,
) -> Result<ConstantTensor, String> {
    let shift = match diagonal {
        Some(diagonal) => diagonal.known_ints()?.first().copied().unwrap_or(0),
        None => 0,
    };
    let &[.., rows, columns] = constant.sizes.as_slice() else { return Err("expected a matrix".into()) };
    let kept = |index: usize| {
        let (row, column) = ((index / columns % rows.max(1)) as i64, (index % columns) as i64);
        let edge = row.saturating_add(shift);
        if upper { column >= edge } else { column <= edge }
    };
    let sizes = constant.sizes.clone();
    let data = match &constant.data {
        TensorData::Floats(values) => {
            let values = values.iter().enumerate();
            TensorData::Floats(values.map(|(index, value)| if kept(index) { *value } else { 0.0 }).collect())
        }
        TensorData::Ints(values) => {
            let values = values.iter().enumerate();
            TensorData::Ints(
                values.map(|(index, value)| if kept(index) { *value } else { SymInt::Known(0) }).collect(),
            )
        }
        TensorData::Missing => return Err("its input has no data".into()),
    };
    Ok(ConstantTensor { sizes, data })
}

pub fn range(inputs: &[&ConstantTensor]) -> Result<ConstantTensor, String> {
    let ends: Vec<i64> =
        inputs.iter().map(|input| input.known_ints()).collect::<Result<Vec<_>, _>>()?.concat();
    let &[begin, end, step] = ends.as_slice() else { return Err("expected start, limit and delta".into()) };
    let far = |count: usize| begin.checked_add(step.checked_mul(count as i64)?);
    let inside = |number: &i64| if step > 0 { *number < end } else { *number > end };
    if step == 0 {
        return Err("its delta is 0".into());
    }
    let numbers: Vec<i64> = (0..=MAX_ELEMENTS).map_while(far).take_while(inside).collect();
    checked_len(&[numbers.len()])?;
    Ok(ConstantTensor::vector(numbers.into_iter().map(SymInt::Known).collect()))
}
