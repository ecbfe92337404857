//! From files to batches: sources, formats, the split, scaling and the order of rows.
//!
//! A source (a table, an IDX folder, sparse rows, a text, a user's own arrays) is opened and indexed in one cheap
//! pass: how many rows, where their blocks begin, which classes and categories there are. Values are decoded block
//! by block when they are needed, into a cache bounded in memory. A seed cuts the rows into training and validation;
//! statistics over the training rows fit the scaling. From then on `Rows` turns row ids into batches, and `Sampler`
//! says which ids make up a step: a pure function of seed, epoch, step and global batch, the same for any number of
//! workers.
//!
//! A row keeps its id, its place in the source counted from 0, whoever reads it.

mod block;
mod cache;
mod checksum;
mod content;
mod data;
mod eviction;
mod extent;
mod folder;
mod format;
mod locate;
mod narrow;
mod raw;
pub mod records;
mod rows;
mod sampler;
mod scaling;
mod selection;
mod share;
pub mod sniff;
mod split;
mod spool;
mod statistics;
mod table;

pub use content::{STANDARD_INPUT, check_text};
pub use data::Data;
pub use format::csv::dialect::is_guessed;
pub use locate::{FileKind, exists, files, kind_by_name, missing, stem};
pub use records::Records;
pub use rows::Rows;
pub use sampler::{Sampler, WINDOW_BYTES};
pub use share::share;
pub use statistics::Statistics;
pub use table::unseen::UnseenCategory;
