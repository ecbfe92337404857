//! `builtin:digits`: handwritten digits that come with the program.
//!
//! Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository,
//! <https://doi.org/10.24432/C50P49>, CC BY 4.0. 1797 images of 8 x 8 pixels with values 0 to 16, then the digit.

use super::{Opened, csv};
use crate::raw::Raw;
use thalweg_core::Result;
use thalweg_core::schema::Schema;
use thalweg_core::spec::data::{DataSpec, Scale, TaskChoice};
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;

const PACKED: &[u8] = include_bytes!("../../assets/digits.csv.gz");

/// The largest pixel. Some pixels are set in a handful of images only: standardising them would blow up those few
/// values, so by default pixels are divided by this instead.
const BRIGHTEST: f32 = 16.0;

/// Opens the digits as the table they are.
pub(crate) fn open(spec: &DataSpec, known: Option<&Schema>) -> Result<Opened> {
    let raw = Raw::embedded("builtin:digits", PACKED)?;
    let spec = DataSpec {
        header: Auto::Is(false),
        delimiter: Auto::Is(Delimiter::Byte(b',')),
        task: match spec.task {
            TaskChoice::Auto => TaskChoice::Classification,
            chosen => chosen,
        },
        ..spec.clone()
    };
    let mut opened = csv::open(vec![raw], &spec, known)?;
    if spec.scale == Scale::Auto && known.is_none() {
        opened.schema.scaling.factor = vec![1.0 / BRIGHTEST];
    }
    Ok(opened)
}
