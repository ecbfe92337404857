//! The operators: plain functions over slices, one file each. They check nothing but lengths; the pass that calls
//! them has checked the batch.

pub mod activate;
pub mod cross_entropy;
pub mod dense;
pub mod product;
pub mod sparse;
pub mod squared_error;
