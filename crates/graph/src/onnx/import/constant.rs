//! Constant tensors of a file, checked against the shape they declare.

use super::attributes::Attributes;
use crate::graph::MAX_ELEMENTS;
use crate::onnx::proto::{TensorProto, data_type};
use std::sync::Arc;

/// An integer that may be a multiple of the batch size, as sizes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymInt {
    Known(i64),
    /// This many times the rows of the batch.
    TimesRows(i64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    Floats(Arc<[f32]>),
    /// Integers and booleans.
    Ints(Vec<SymInt>),
    /// Omitted: a model file stores them separately.
    Missing,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConstantTensor {
    pub sizes: Vec<usize>,
    /// As many elements as `sizes` has.
    pub data: TensorData,
}

impl ConstantTensor {
    pub fn vector(values: Vec<SymInt>) -> ConstantTensor {
        ConstantTensor { sizes: vec![values.len()], data: TensorData::Ints(values) }
    }

    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The float of a tensor with one element.
    pub fn scalar(&self) -> Option<f32> {
        match &self.data {
            TensorData::Floats(values) if values.len() == 1 => Some(values[0]),
            _ => None,
        }
    }

    pub fn ints(&self) -> Result<&[SymInt], String> {
        match &self.data {
            TensorData::Ints(values) => Ok(values),
            _ => Err("expected integers".into()),
        }
    }

    /// The integers; an error if one depends on the rows.
    pub fn known_ints(&self) -> Result<Vec<i64>, String> {
        let number = |int: &SymInt| match int {
            SymInt::Known(number) => Ok(*number),
            SymInt::TimesRows(_) => Err("expected integers that do not depend on the rows".to_string()),
        };
        self.ints()?.iter().map(number).collect()
    }

    /// Decodes a tensor. `data_optional` allows float data to be missing.
    pub fn read(tensor: &TensorProto, data_optional: bool) -> Result<ConstantTensor, String> {
        if tensor.data_location != 0 || !tensor.external_data.is_empty() {
            return Err(
                "its data is in an external file; export the model as one file (external_data=False)".into(),
            );
        }
        let size = |size: &i64| usize::try_from(*size).map_err(|_| format!("size {size} is invalid"));
        let sizes = tensor.dims.iter().map(size).collect::<Result<Vec<usize>, String>>()?;
        let product = sizes.iter().try_fold(1usize, |len, size| len.checked_mul(*size));
        let len =
            product.filter(|len| *len <= MAX_ELEMENTS).ok_or("its shape is more than a machine can hold")?;
        let data = match tensor.data_type {
            data_type::FLOAT => {
                let numbers = numbers(tensor, &tensor.float_data, f32::from_le_bytes);
                match numbers {
                    Ok(numbers) if numbers.is_empty() && len > 0 && data_optional => TensorData::Missing,
                    numbers => TensorData::Floats(numbers?.into()),
                }
            }
            data_type::DOUBLE => {
                let numbers = numbers(tensor, &tensor.double_data, f64::from_le_bytes)?;
                TensorData::Floats(numbers.into_iter().map(|number| number as f32).collect())
            }
            data_type::INT64 => {
                let numbers = numbers(tensor, &tensor.int64_data, i64::from_le_bytes)?;
                TensorData::Ints(numbers.into_iter().map(SymInt::Known).collect())
            }
            data_type::INT32 => {
                let numbers = numbers(tensor, &tensor.int32_data, i32::from_le_bytes)?;
                TensorData::Ints(numbers.into_iter().map(|number| SymInt::Known(number.into())).collect())
            }
            data_type::BOOL => {
                let small: Vec<u8> = tensor.int32_data.iter().map(|number| u8::from(*number != 0)).collect();
                let numbers = numbers(tensor, &small, |[byte]: [u8; 1]| u8::from(byte != 0))?;
                TensorData::Ints(numbers.into_iter().map(|number| SymInt::Known(number.into())).collect())
            }
            other => return Err(format!("data type {other} is not supported (float and int64 are)")),
        };
        let found = match &data {
            TensorData::Floats(values) => values.len(),
            TensorData::Ints(values) => values.len(),
            TensorData::Missing => len,
        };
        match found == len {
            true => Ok(ConstantTensor { sizes, data }),
            false => Err(format!("its shape {sizes:?} has {len} elements, but it holds {found}")),
        }
    }

    /// The value of a `Constant` node, which is one of its attributes.
    pub fn from_attributes(attributes: Attributes<'_>) -> Result<ConstantTensor, String> {
        let floats =
            |values: &[f32], sizes| ConstantTensor { sizes, data: TensorData::Floats(values.into()) };
        let ints = |values: &[i64], sizes| {
            let values = values.iter().map(|value| SymInt::Known(*value)).collect();
            ConstantTensor { sizes, data: TensorData::Ints(values) }
        };
        Ok(if let Some(tensor) = attributes.tensor("value") {
            ConstantTensor::read(tensor, false)?
        } else if let Some(values) = attributes.ints("value_ints") {
            ints(values, vec![values.len()])
        } else if let Some(values) = attributes.floats("value_floats") {
            floats(values, vec![values.len()])
        } else if let Some(value) = attributes.optional_int("value_int") {
            ints(&[value], vec![])
        } else if let Some(value) = attributes.optional_float("value_float") {
            floats(&[value], vec![])
        } else {
            attributes.check_all_read()?;
            return Err("attribute `value` is missing".into());
        })
    }
}

/// The elements of a tensor, from `raw_data` or the typed field.
fn numbers<T: Copy, const N: usize>(
    tensor: &TensorProto,
    typed: &[T],
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, String> {
    if tensor.raw_data.is_empty() {
        return Ok(typed.to_vec());
    }
    let (chunks, rest) = tensor.raw_data.as_chunks::<N>();
    match rest.is_empty() {
        true => Ok(chunks.iter().map(|bytes| decode(*bytes)).collect()),
        false => Err(format!("its {} bytes are not a multiple of the element size", tensor.raw_data.len())),
    }
}
