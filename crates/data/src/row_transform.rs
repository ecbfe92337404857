//! From decoded rows to model inputs: imputation and scaling.

use thalweg_core::schema::{Encoding, RowShape, Schema};

/// Imputation and scaling; created once after the fit and shared by all row sets.
#[derive(Clone, Debug)]
pub(crate) struct RowTransform {
    schema: Schema,
    /// One per column; empty if `uniform` is all there is to apply.
    columns: Vec<ColumnTransform>,
    /// Factor for all columns.
    uniform: f32,
}

/// Scaling of one column, in double precision with one rounding at the end.
#[derive(Clone, Copy, Debug)]
struct ColumnTransform {
    shift: f64,
    factor: f64,
    /// Scaled replacement for a missing value.
    imputed: f32,
}

impl ColumnTransform {
    fn apply(&self, value: f64, offset: f64) -> f32 {
        let scaled = ((value - (self.shift - offset)) * self.factor) as f32;
        if value.is_nan() { self.imputed } else { scaled }
    }
}

impl RowTransform {
    pub(crate) fn new(schema: &Schema) -> RowTransform {
        let scaling = &schema.scaling;
        let mut imputed: Vec<Option<f64>> = Vec::new();
        if let RowShape::Table { columns } = &schema.shape {
            for column in columns {
                match column.encoding {
                    Encoding::Number { imputed: value } => imputed.push(value),
                    Encoding::OneHot { .. } => imputed.resize(imputed.len() + column.encoding.width(), None),
                }
            }
        }
        let missing = imputed.iter().any(Option::is_some);
        let columns = match (scaling.shift.as_slice(), scaling.factor.as_slice()) {
            ([], [] | [_]) if !missing => Vec::new(),
            _ if matches!(schema.shape, RowShape::Sparse { .. } | RowShape::Text { .. }) => Vec::new(),
            _ => (0..schema.width())
                .map(|index| ColumnTransform {
                    shift: scaling.shift(index),
                    factor: f64::from(scaling.factor(index)),
                    imputed: match imputed.get(index) {
                        Some(Some(value)) => scaling.apply(index, *value),
                        _ => f32::NAN,
                    },
                })
                .collect(),
        };
        RowTransform { schema: schema.clone(), columns, uniform: scaling.factor(0) }
    }

    /// Appends a row, imputed and scaled.
    pub(crate) fn apply(&self, row: impl Iterator<Item = f64>, into: &mut Vec<f32>) {
        match self.columns.is_empty() {
            true => into.extend(row.map(|value| (value * f64::from(self.uniform)) as f32)),
            false => into.extend(row.zip(&self.columns).map(|(value, column)| column.apply(value, 0.0))),
        }
    }

    /// Like [`RowTransform::apply`], for a row stored as distances from `offsets` (empty if all are 0).
    pub(crate) fn apply_encoded(&self, row: &[f32], offsets: &[f64], into: &mut Vec<f32>) {
        let wide = row.iter().map(|&value| f64::from(value));
        match (self.columns.is_empty(), offsets.is_empty()) {
            (true, true) => into.extend(row.iter().map(|value| value * self.uniform)),
            (true, false) => self.apply(wide.zip(offsets).map(|(value, offset)| value + offset), into),
            (false, true) => self.apply(wide, into),
            (false, false) => {
                let columns = self.columns.iter().zip(offsets);
                into.extend(wide.zip(columns).map(|(value, (column, &offset))| column.apply(value, offset)));
            }
        }
    }

    /// Like [`RowTransform::apply`], for bytes. The uniform factor is applied in single precision.
    pub(crate) fn apply_pixels(&self, row: &[u8], into: &mut Vec<f32>) {
        match self.columns.is_empty() {
            true => into.extend(row.iter().map(|&pixel| f32::from(pixel) * self.uniform)),
            false => self.apply(row.iter().map(|&pixel| f64::from(pixel)), into),
        }
    }

    /// The scaled target.
    pub(crate) fn target(&self, value: f64) -> f32 {
        self.schema.target.apply(value)
    }

    /// Scaling factor of a sparse column.
    pub(crate) fn factor(&self, column: u32) -> f32 {
        self.schema.scaling.factor.get(column as usize).copied().unwrap_or(1.0)
    }
}
