//! What tables of all formats share: which column is what, and how its values become numbers.

pub(crate) mod categories;
pub(crate) mod columns;
pub(crate) mod encoder;
pub(crate) mod kind;
pub(crate) mod labels;
pub(crate) mod placement;
pub(crate) mod problem;
pub(crate) mod spelling;
pub(crate) mod unseen;
pub(crate) mod value;
