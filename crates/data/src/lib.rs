//! From files to batches: sources, formats, split, scaling and row order.
//!
//! A source (a table, an IDX folder, sparse rows, text, in-memory arrays) is opened and indexed in one cheap
//! pass: number of rows, block boundaries, classes and categories. Values are decoded block by block on
//! demand, into a bounded cache. A seed splits the rows into training and validation; statistics over the
//! training rows fit the scaling. `Rows` then turns row ids into batches, and `Sampler` determines the ids of
//! each step: a pure function of seed, epoch, step and global batch, independent of the number of workers.
//!
//! The id of a row is its index in the source, from 0, on every rank.

mod block;
mod block_cache;
mod checksum;
mod content;
mod data;
mod disk_cache;
mod disk_file;
mod even_range;
mod extent;
mod file_bytes;
mod format;
mod locate;
mod offset_encoding;
mod records;
mod row_transform;
mod rows;
mod sampler;
mod scaling;
mod selection;
pub mod sniff;
mod split;
mod statistics;
mod table;

pub use content::{STANDARD_INPUT, check_text};
pub use data::Data;
pub use even_range::even_range;
pub use format::csv::dialect::is_auto_detected;
pub use locate::{FileKind, file_not_found, kind_by_name, source_exists, source_files, stem};
pub use records::Records;
pub use rows::Rows;
pub use sampler::Sampler;
pub use statistics::Statistics;
pub use table::unseen::UnseenCategory;
