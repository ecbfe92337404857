//! Common to tables of all formats: column roles, and the encoding of values.

pub(crate) mod categories;
pub(crate) mod column_kind;
pub(crate) mod column_mapping;
pub(crate) mod column_roles;
pub(crate) mod encoder;
pub(crate) mod labels;
pub(crate) mod number_format;
pub(crate) mod unseen;
pub(crate) mod value;
pub(crate) mod value_error;
