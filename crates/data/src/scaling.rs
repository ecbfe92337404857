//! From statistics to the scaling that is stored with a model.

use crate::narrow::{Gaps, RESOLUTION};
use crate::statistics::{Moments, Statistics};
use std::collections::BTreeMap;
use thalweg_core::schema::{Encoding, Scaling, Schema, Shape, TargetScaling};
use thalweg_core::spec::data::{Missing, Scale};
use thalweg_core::{Error, Result, Task};

/// A deviation this small beside the mean is rounding: the column counts as constant.
const CONSTANT: f64 = 1e-12;

/// The share of a column's different values that may become equal without a word: some do in any column of random numbers.
const TOLERATED: f64 = 0.01;

/// What has to be fitted before rows can be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fitting {
    /// How the numbers of a row are scaled; `Auto` does not occur.
    pub(crate) features: Scale,
    /// How the target of a regression is scaled; `Auto` does not occur.
    pub(crate) target: Scale,
    /// Whether missing numbers become the mean.
    pub(crate) means: bool,
}

impl Fitting {
    /// What a job asks for. Scalings that need no statistics go into the schema at once.
    pub(crate) fn choose(scale: Scale, missing: Missing, schema: &mut Schema) -> Fitting {
        let fixed = !schema.scaling.factor.is_empty();
        let features = match (&schema.shape, scale) {
            _ if fixed => Scale::None,
            (Shape::Text { .. }, _) | (_, Scale::None) => Scale::None,
            (Shape::Image { .. }, Scale::Auto | Scale::Minmax) => {
                schema.scaling.factor = vec![1.0 / 255.0];
                Scale::None
            }
            (Shape::Sparse { .. }, Scale::Auto) => Scale::None,
            (Shape::Table { .. }, Scale::Auto) => Scale::Standard,
            (_, scale) => scale,
        };
        let target = match (schema.task, scale) {
            (Task::Classification, _) | (_, Scale::None) => Scale::None,
            (Task::Regression, Scale::Minmax) => Scale::Minmax,
            (Task::Regression, Scale::Auto | Scale::Standard) => Scale::Standard,
        };
        let features = if numbers(schema).is_empty() { Scale::None } else { features };
        let means = missing == Missing::Mean
            && matches!(schema.shape, Shape::Table { .. })
            && !numbers(schema).is_empty();
        Fitting { features, target, means }
    }

    /// Nothing is left to fit.
    pub(crate) fn done() -> Fitting {
        Fitting { features: Scale::None, target: Scale::None, means: false }
    }

    /// Whether statistics are needed at all.
    pub(crate) fn needs_statistics(&self) -> bool {
        self.target != Scale::None || self.needs_columns()
    }

    /// Whether the numbers of a row are looked at, not only targets.
    pub(crate) fn needs_columns(&self) -> bool {
        self.features != Scale::None || self.means
    }

    /// Writes scaling and imputed values into the schema. The answer names columns that single precision is too coarse
    /// for even when scaled.
    pub(crate) fn fit(
        &self,
        parts: &[Statistics],
        blocks: usize,
        schema: &mut Schema,
    ) -> Result<Vec<String>> {
        let combined = Combined::of(parts, blocks)?;
        if self.target != Scale::None {
            schema.target = target_scaling(self.target, &combined.target);
        }
        if self.means
            && let Shape::Table { columns } = &mut schema.shape
        {
            let mut place = 0;
            for column in columns {
                let width = column.encoding.width();
                if let Encoding::Number { imputed } = &mut column.encoding {
                    *imputed = Some(combined.columns.get(&place).map_or(0.0, |moments| moments.mean));
                }
                place += width as u32;
            }
        }
        if self.features != Scale::None {
            schema.scaling = match &schema.shape {
                Shape::Sparse { .. } => self.sparse(&combined, schema.width()),
                _ => self.dense(&combined, schema.width()),
            };
        }
        Ok(combined.coarse(schema))
    }

    fn dense(&self, combined: &Combined, width: usize) -> Scaling {
        let mut scaling = Scaling { shift: vec![0.0; width], factor: vec![1.0; width] };
        for (&column, moments) in &combined.columns {
            let (shift, factor) = shift_and_factor(self.features, moments);
            scaling.shift[column as usize] = shift;
            scaling.factor[column as usize] = factor;
        }
        scaling
    }

    /// Sparse rows keep their zeros: no shift, only a factor by the largest absolute value or the deviation.
    fn sparse(&self, combined: &Combined, width: usize) -> Scaling {
        let mut factor = vec![1.0; width];
        for (&column, moments) in &combined.columns {
            let mut moments = *moments;
            moments.add_zeros(combined.rows - moments.count);
            let size = match self.features {
                Scale::Minmax => moments.largest.abs().max(moments.smallest.abs()),
                _ => moments.deviation(),
            };
            factor[column as usize] = inverse(size, 0.0);
        }
        Scaling { shift: Vec::new(), factor }
    }
}

/// The places of numbers (not categories) in a row.
pub(crate) fn numbers(schema: &Schema) -> Vec<u32> {
    match &schema.shape {
        Shape::Table { columns } => {
            let mut place = 0;
            let mut numbers = Vec::new();
            for column in columns {
                if matches!(column.encoding, Encoding::Number { .. }) {
                    numbers.push(place);
                }
                place += column.encoding.width() as u32;
            }
            numbers
        }
        Shape::Image { .. } | Shape::Sparse { .. } => (0..schema.width() as u32).collect(),
        Shape::Text { .. } => Vec::new(),
    }
}

/// All blocks together.
struct Combined {
    rows: u64,
    columns: BTreeMap<u32, Moments>,
    target: Moments,
    gaps: BTreeMap<u32, Gaps>,
}

impl Combined {
    fn of(parts: &[Statistics], blocks: usize) -> Result<Combined> {
        let mut partials: Vec<_> = parts.iter().flat_map(|part| &part.blocks).collect();
        partials.sort_by_key(|partial| partial.block);
        if !partials.iter().map(|partial| partial.block).eq(0..blocks as u64) {
            return Err(Error::internal("the statistics do not cover every block of the source once"));
        }
        let mut combined =
            Combined { rows: 0, columns: BTreeMap::new(), target: Moments::default(), gaps: BTreeMap::new() };
        for partial in partials {
            combined.rows += partial.rows;
            combined.target.merge(&partial.target);
            for (column, moments) in &partial.columns {
                combined.columns.entry(*column).or_default().merge(moments);
            }
            for (column, gaps) in &partial.gaps {
                combined.gaps.entry(*column).or_default().merge(gaps);
            }
        }
        Ok(combined)
    }

    /// What to say of columns whose different values become equal once they are scaled.
    fn coarse(&self, schema: &Schema) -> Vec<String> {
        let names = if self.gaps.is_empty() { Vec::new() } else { schema.names() };
        let mut said = Vec::new();
        for (&column, gaps) in &self.gaps {
            let Some(moments) = self.columns.get(&column) else { continue };
            let distance = (moments.mean - schema.scaling.shift(column as usize)).abs();
            let resolution = RESOLUTION * distance.max(moments.deviation());
            let share = gaps.share_lost(resolution);
            if share > TOLERATED {
                let resolution = resolution.max(gaps.resolution());
                let name = names.get(column as usize).map_or("?", String::as_str);
                said.push(format!(
                    "column `{name}`: {:.0}% of its different values cannot be told apart: they range from {} to {}, and \
                     single precision tells apart steps of {resolution:.3}; leave it out with data.ignore, or make columns \
                     of less range of it",
                    100.0 * share,
                    moments.smallest,
                    moments.largest
                ));
            }
        }
        said
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
    if size <= CONSTANT * mean.abs() || !factor.is_normal() { 1.0 } else { factor }
}
