//! Every format from file to batch, valid and malicious, through the public API.

mod hostile;
mod images;
mod in_memory;
mod large;
mod parquet;
mod precision;
mod public_datasets;
mod records;
mod sniff;
mod sparse;
mod support;
mod table;
mod text;
