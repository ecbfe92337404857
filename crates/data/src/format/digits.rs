//! `builtin:digits`: handwritten digits compiled into the binary.
//!
//! Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak (1998), UCI Machine Learning
//! Repository, <https://doi.org/10.24432/C50P49>, CC BY 4.0. 1797 images of 8 x 8 pixels with values 0 to 16,
//! then the digit.

use super::{OpenedSource, csv};
use crate::file_bytes::FileBytes;
use thalweg_core::Result;
use thalweg_core::schema::Schema;
use thalweg_core::spec::data::{DataSpec, Scale, TaskChoice};
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;

const COMPRESSED: &[u8] = include_bytes!("../../assets/digits.csv.gz");

/// The largest pixel value. Some pixels are set in very few images, and standardising would inflate them, so
/// pixels are divided by this value by default.
const MAX_PIXEL: f32 = 16.0;

pub(crate) fn open(spec: &DataSpec, known: Option<&Schema>) -> Result<OpenedSource> {
    let raw = FileBytes::embedded("builtin:digits", COMPRESSED)?;
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
        opened.schema.scaling.factor = vec![1.0 / MAX_PIXEL];
    }
    Ok(opened)
}
