//! Constants computed element by element.

use super::super::tensor::{Constant, Data, Whole};
use super::{MOST, bounded, broadcast, spread};
use crate::onnx::proto::data_type;

pub fn each_float(constant: &Constant, function: impl Fn(f32) -> f32) -> Result<Constant, String> {
    match &constant.data {
        Data::Floats(values) => Ok(Constant {
            sizes: constant.sizes.clone(),
            data: Data::Floats(values.iter().map(|value| function(*value)).collect()),
        }),
        _ => Err("expected numbers with a fraction".into()),
    }
}

pub fn each_whole(constant: &Constant, function: impl Fn(i64) -> Option<i64>) -> Result<Constant, String> {
    let number = |number: i64| function(number).map(Whole::Known).ok_or("a number is too large");
    let data = constant.known()?.into_iter().map(number).collect::<Result<Vec<Whole>, _>>()?;
    Ok(Constant { sizes: constant.sizes.clone(), data: Data::Wholes(data) })
}

pub fn cast(constant: &Constant, to: i64) -> Result<Constant, String> {
    let to = i32::try_from(to).unwrap_or(0);
    let data = match (&constant.data, to) {
        (Data::Floats(values), data_type::FLOAT | data_type::DOUBLE) => Data::Floats(values.clone()),
        (Data::Floats(values), data_type::BOOL) => {
            Data::Wholes(values.iter().map(|value| Whole::Known(i64::from(*value != 0.0))).collect())
        }
        (Data::Floats(values), data_type::INT32 | data_type::INT64) => {
            let far = if to == data_type::INT32 { i64::from(i32::MAX) } else { i64::MAX };
            if values.iter().any(|value| value.is_nan() || value.abs() > far as f32) {
                return Err("attribute `to`: a number is too large for that type".into());
            }
            Data::Wholes(values.iter().map(|value| Whole::Known(*value as i64)).collect())
        }
        (Data::Wholes(_), data_type::FLOAT | data_type::DOUBLE) => {
            Data::Floats(constant.known()?.into_iter().map(|value| value as f32).collect())
        }
        (Data::Wholes(_), data_type::BOOL) => {
            return each_whole(constant, |value| Some(i64::from(value != 0)));
        }
        (Data::Wholes(values), data_type::INT32 | data_type::INT64) => Data::Wholes(values.clone()),
        _ => return Err(format!("attribute `to` = {to} is not supported")),
    };
    Ok(Constant { sizes: constant.sizes.clone(), data })
}

pub fn binary(operator: &str, inputs: &[&Constant]) -> Result<Constant, String> {
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
        _ => return Err(beyond()),
    };
    result.ok_or_else(|| format!("{operator}: a number makes no sense"))
}

pub fn choose(inputs: &[&Constant]) -> Result<Constant, String> {
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

pub fn triangle(constant: &Constant, upper: bool, diagonal: Option<&Constant>) -> Result<Constant, String> {
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

pub fn range(inputs: &[&Constant]) -> Result<Constant, String> {
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
