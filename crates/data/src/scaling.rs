//! Fits the scaling that is stored with a model.

use crate::offset_encoding::{F32_RELATIVE_ERROR, GapHistogram};
use crate::statistics::{Moments, Statistics};
use std::collections::BTreeMap;
use thalweg_core::schema::{Encoding, RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::{Missing, Scale};
use thalweg_core::{Error, Result, Task};

/// A standard deviation below this fraction of the mean is rounding error: the column is constant.
const CONSTANT_DEVIATION: f64 = 1e-12;

/// Fraction of a column's distinct values that may collapse without a warning: some do in any column of
/// random numbers.
const TOLERATED_LOSS: f64 = 0.01;

/// What must be fitted before rows can be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScalingFit {
    /// `Auto` is already resolved.
    pub(crate) features: Scale,
    /// For regression targets; `Auto` is already resolved.
    pub(crate) target: Scale,
    /// Whether missing numbers are replaced by the mean.
    pub(crate) means: bool,
}

impl ScalingFit {
    /// Resolves the job's settings. Scalings that need no statistics are written to the schema at once.
    pub(crate) fn choose(scale: Scale, missing: Missing, schema: &mut Schema) -> ScalingFit {
        let fixed = !schema.scaling.factor.is_empty();
        let features = match (&schema.shape, scale) {
            _ if fixed => Scale::None,
            (RowShape::Text { .. }, _) | (_, Scale::None) => Scale::None,
            (RowShape::Image { .. }, Scale::Auto | Scale::Minmax) => {
                schema.scaling.factor = vec![1.0 / 255.0];
                Scale::None
            }
            (RowShape::Sparse { .. }, Scale::Auto) => Scale::None,
            (RowShape::Table { .. }, Scale::Auto) => Scale::Standard,
            (_, scale) => scale,
        };
        let target = match (schema.task, scale) {
            (Task::Classification, _) | (_, Scale::None) => Scale::None,
            (Task::Regression, Scale::Minmax) => Scale::Minmax,
            (Task::Regression, Scale::Auto | Scale::Standard) => Scale::Standard,
        };
        let features = if numeric_positions(schema).is_empty() { Scale::None } else { features };
        let means = missing == Missing::Mean
            && matches!(schema.shape, RowShape::Table { .. })
            && !numeric_positions(schema).is_empty();
        ScalingFit { features, target, means }
    }

    pub(crate) fn none() -> ScalingFit {
        ScalingFit { features: Scale::None, target: Scale::None, means: false }
    }

    pub(crate) fn needs_statistics(&self) -> bool {
        self.target != Scale::None || self.needs_columns()
    }

    /// Whether features need statistics, not only targets.
    pub(crate) fn needs_columns(&self) -> bool {
        self.features != Scale::None || self.means
    }

    /// Writes scaling and imputed values into the schema. Returns warnings about columns whose values
    /// collapse in single precision even when scaled.
    pub(crate) fn fit(
        &self,
        parts: &[Statistics],
        blocks: usize,
        schema: &mut Schema,
    ) -> Result<Vec<String>> {
        let merged = MergedStatistics::of(parts, blocks)?;
        if self.target != Scale::None {
            schema.target = target_scaling(self.target, &merged.target);
        }
        if self.means
            && let RowShape::Table { columns } = &mut schema.shape
        {
            let mut position = 0;
            for column in columns {
                let width = column.encoding.width();
                if let Encoding::Number { imputed } = &mut column.encoding {
                    *imputed = Some(merged.columns.get(&position).map_or(0.0, |moments| moments.mean));
                }
                position += width as u32;
            }
        }
        if self.features != Scale::None {
            schema.scaling = match &schema.shape {
                RowShape::Sparse { .. } => self.sparse(&merged, schema.width()),
                _ => self.dense(&merged, schema.width()),
            };
        }
        Ok(merged.precision_warnings(schema))
    }

    fn dense(&self, merged: &MergedStatistics, width: usize) -> Scaling {
        let mut scaling = Scaling { shift: vec![0.0; width], factor: vec![1.0; width] };
        for (&column, moments) in &merged.columns {
            let (shift, factor) = shift_and_factor(self.features, moments);
            scaling.shift[column as usize] = shift;
            scaling.factor[column as usize] = factor;
        }
        scaling
    }

    /// Sparse rows keep their zeros: no shift, only a factor from the largest absolute value or the standard
    /// deviation.
    fn sparse(&self, merged: &MergedStatistics, width: usize) -> Scaling {
        let mut factor = vec![1.0; width];
        for (&column, moments) in &merged.columns {
            let mut moments = *moments;
            moments.add_zeros(merged.rows - moments.count);
            let size = match self.features {
                Scale::Minmax => moments.largest.abs().max(moments.smallest.abs()),
                _ => moments.deviation(),
            };
            factor[column as usize] = inverse(size, 0.0);
        }
        Scaling { shift: Vec::new(), factor }
    }
}

/// Positions of numbers in a row, without one-hot columns.
pub(crate) fn numeric_positions(schema: &Schema) -> Vec<u32> {
    match &schema.shape {
        RowShape::Table { columns } => {
            let mut position = 0;
            let mut numeric_positions = Vec::new();
            for column in columns {
                if matches!(column.encoding, Encoding::Number { .. }) {
                    numeric_positions.push(position);
                }
                position += column.encoding.width() as u32;
            }
            numeric_positions
        }
        RowShape::Image { .. } | RowShape::Sparse { .. } => (0..schema.width() as u32).collect(),
        RowShape::Text { .. } => Vec::new(),
    }
}

/// Statistics over all blocks, merged in block order.
struct MergedStatistics {
    rows: u64,
    columns: BTreeMap<u32, Moments>,
    target: Moments,
    gaps: BTreeMap<u32, GapHistogram>,
}

impl MergedStatistics {
    fn of(parts: &[Statistics], blocks: usize) -> Result<MergedStatistics> {
        let mut partials: Vec<_> = parts.iter().flat_map(|part| &part.blocks).collect();
        partials.sort_by_key(|partial| partial.block);
        if !partials.iter().map(|partial| partial.block).eq(0..blocks as u64) {
            return Err(Error::internal("the statistics do not cover every block of the source once"));
        }
        let mut merged = MergedStatistics {
            rows: 0,
            columns: BTreeMap::new(),
            target: Moments::default(),
            gaps: BTreeMap::new(),
        };
        for partial in partials {
            merged.rows += partial.rows;
            merged.target.merge(&partial.target);
            for (column, moments) in &partial.columns {
                merged.columns.entry(*column).or_default().merge(moments);
            }
            for (column, gaps) in &partial.gaps {
                merged.gaps.entry(*column).or_default().merge(gaps);
            }
        }
        Ok(merged)
    }

    /// Warnings about columns whose distinct values collapse when scaled.
    fn precision_warnings(&self, schema: &Schema) -> Vec<String> {
        let names = if self.gaps.is_empty() { Vec::new() } else { schema.names() };
        let mut warnings = Vec::new();
        for (&column, gaps) in &self.gaps {
            let Some(moments) = self.columns.get(&column) else { continue };
            let distance = (moments.mean - schema.scaling.shift(column as usize)).abs();
            let resolution = F32_RELATIVE_ERROR * distance.max(moments.deviation());
            let share = gaps.fraction_lost(resolution);
            if share > TOLERATED_LOSS {
                let resolution = resolution.max(gaps.resolution());
                let name = names.get(column as usize).map_or("?", String::as_str);
                warnings.push(format!(
                    "column `{name}`: {:.0}% of its different values cannot be told apart: they range from {} to {}, and \
                     single precision resolves steps of {resolution:.3}; leave it out with data.ignore, or split it \
                     into columns of smaller range",
                    100.0 * share,
                    moments.smallest,
                    moments.largest
                ));
            }
        }
        warnings
    }
}

fn target_scaling(scale: Scale, moments: &Moments) -> TargetScaling {
    match scale {
        Scale::None | Scale::Auto => TargetScaling::default(),
        scale => {
            let (shift, factor) = shift_and_factor(scale, moments);
            TargetScaling { shift, factor }
        }
    }
}

fn shift_and_factor(scale: Scale, moments: &Moments) -> (f64, f32) {
    match (moments.count, scale) {
        (0, _) => (0.0, 1.0),
        (_, Scale::Minmax) => {
            (moments.smallest, inverse(moments.largest - moments.smallest, moments.smallest))
        }
        _ => (moments.mean, inverse(moments.deviation(), moments.mean)),
    }
}

/// `1 / size`, or 1 for a column that is constant up to rounding.
fn inverse(size: f64, mean: f64) -> f32 {
    let factor = (1.0 / size) as f32;
    if size <= CONSTANT_DEVIATION * mean.abs() || !factor.is_normal() { 1.0 } else { factor }
}
