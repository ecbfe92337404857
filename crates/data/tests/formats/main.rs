//! Every format from file to batch, good and hostile, through the public interface.

mod hostile;
mod images;
mod large;
mod own_rows;
mod parquet;
mod precision;
mod real_sets;
mod records;
mod sniff;
mod sparse;
mod support;
mod table;
mod text;
