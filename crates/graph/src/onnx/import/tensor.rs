//! Numbers that a file brings, checked against the shape they claim to have.

use crate::graph::MOST_ELEMENTS;
use crate::onnx::proto::{Tensor, data_type};
use std::sync::Arc;

/// A whole number that may depend on the rows of a batch: sizes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// That number.
    Known(i64),
    /// That many times the rows of the batch.
    Rows(i64),
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Numbers.
    Floats(Arc<[f32]>),
    /// Whole numbers and truth values.
    Wholes(Vec<Whole>),
    /// Numbers that were left out: a model file keeps them elsewhere.
    Missing,
}

/// A tensor that does not depend on the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Its sizes.
    pub sizes: Vec<usize>,
    /// Its elements, as many as the sizes say.
    pub data: Data,
}

impl Constant {
    /// Whole numbers in a line.
    pub fn line(values: Vec<Whole>) -> Constant {
        Constant { sizes: vec![values.len()], data: Data::Wholes(values) }
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The only number of it, if there is one only.
    pub fn single(&self) -> Option<f32> {
        match &self.data {
            Data::Floats(values) if values.len() == 1 => Some(values[0]),
            _ => None,
        }
    }

    /// Its whole numbers.
    pub fn wholes(&self) -> Result<&[Whole], String> {
        match &self.data {
            Data::Wholes(values) => Ok(values),
            _ => Err("expected whole numbers".into()),
        }
    }

    /// Its whole numbers, none of which may depend on the rows.
    pub fn known(&self) -> Result<Vec<i64>, String> {
        let number = |whole: &Whole| match whole {
            Whole::Known(number) => Ok(*number),
            Whole::Rows(_) => Err("expected numbers that do not depend on the rows".to_string()),
        };
        self.wholes()?.iter().map(number).collect()
    }

    /// Reads a tensor of a file. `partial` allows numbers to be missing.
    pub fn read(tensor: &Tensor, partial: bool) -> Result<Constant, String> {
        if tensor.data_location != 0 || !tensor.external_data.is_empty() {
            return Err("its numbers are in another file; write the model into one file".into());
        }
        let size =
            |size: &i64| usize::try_from(*size).map_err(|_| format!("a size of {size} makes no sense"));
        let sizes = tensor.dims.iter().map(size).collect::<Result<Vec<usize>, String>>()?;
        let product = sizes.iter().try_fold(1usize, |len, size| len.checked_mul(*size));
        let len = product
            .filter(|len| *len <= MOST_ELEMENTS)
            .ok_or("its sizes are more than a machine can hold")?;
        let data = match tensor.data_type {
            data_type::FLOAT => {
                let numbers = numbers(tensor, &tensor.float_data, f32::from_le_bytes);
                match numbers {
                    Ok(numbers) if numbers.is_empty() && len > 0 && partial => Data::Missing,
                    numbers => Data::Floats(numbers?.into()),
                }
            }
            data_type::DOUBLE => {
                let numbers = numbers(tensor, &tensor.double_data, f64::from_le_bytes)?;
                Data::Floats(numbers.into_iter().map(|number| number as f32).collect())
            }
            data_type::INT64 => {
                let numbers = numbers(tensor, &tensor.int64_data, i64::from_le_bytes)?;
                Data::Wholes(numbers.into_iter().map(Whole::Known).collect())
            }
            data_type::INT32 => {
                let numbers = numbers(tensor, &tensor.int32_data, i32::from_le_bytes)?;
                Data::Wholes(numbers.into_iter().map(|number| Whole::Known(number.into())).collect())
            }
            data_type::BOOL => {
                let small: Vec<u8> = tensor.int32_data.iter().map(|number| u8::from(*number != 0)).collect();
                let numbers = numbers(tensor, &small, |[byte]: [u8; 1]| u8::from(byte != 0))?;
                Data::Wholes(numbers.into_iter().map(|number| Whole::Known(number.into())).collect())
            }
            other => return Err(format!("elements of type {other} are not supported (float and int64 are)")),
        };
        let found = match &data {
            Data::Floats(values) => values.len(),
            Data::Wholes(values) => values.len(),
            Data::Missing => len,
        };
        match found == len {
            true => Ok(Constant { sizes, data }),
            false => Err(format!("its sizes {sizes:?} ask for {len} numbers, but it holds {found}")),
        }
    }
}

/// The numbers of a tensor, from wherever it keeps them.
fn numbers<T: Copy, const N: usize>(
    tensor: &Tensor,
    plain: &[T],
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, String> {
    if tensor.raw_data.is_empty() {
        return Ok(plain.to_vec());
    }
    let (whole, rest) = tensor.raw_data.as_chunks::<N>();
    match rest.is_empty() {
        true => Ok(whole.iter().map(|bytes| decode(*bytes)).collect()),
        false => Err(format!("its {} bytes are no whole number of elements", tensor.raw_data.len())),
    }
}
