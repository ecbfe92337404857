//! One module per format: `open` indexes a source in one pass, `decode` turns a block into rows.

pub(crate) mod csv;
pub(crate) mod digits;
pub(crate) mod idx;
pub(crate) mod libsvm;
pub(crate) mod memory;
pub(crate) mod parquet;
pub(crate) mod text;

use crate::block::{Block, BlockIndex};
use crate::content::{BEGINNING, check_text};
use crate::disk_cache;
use crate::disk_cache::folder::CacheFolder;
use crate::file_bytes::{FileBytes, MemoryBudget};
use crate::locate::{FileKind, SourceLocation, locate};
use crate::table::unseen::UnseenCategory;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_core::schema::{RowShape, Schema};
use thalweg_core::spec::data::{DataSpec, Scale};
use thalweg_core::spec::setting::Bytes;
use thalweg_core::{Error, Kind, Result};

/// An indexed source of rows.
pub(crate) trait RowSource: Send + Sync {
    fn blocks(&self) -> &Arc<BlockIndex>;

    /// Approximate memory per decoded row. Must be a pure function of the source, because it determines the
    /// order of rows.
    fn row_bytes(&self) -> u64;

    /// Decodes a block. An invalid value is an error that names file and row.
    fn decode(&self, block: usize) -> Result<Arc<Block>>;

    /// One checksum per file: equal on every rank that reads the same bytes.
    fn checksums(&self) -> &[u32];

    /// Categories missing in the schema, in the blocks decoded so far.
    fn unseen_categories(&self) -> Vec<UnseenCategory> {
        Vec::new()
    }

    /// Messages for the user about how the source is read; not errors.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// Number of following rows that a row overlaps, which a split must leave out; 0 for independent rows.
    fn overlap(&self) -> u64 {
        0
    }
}

pub(crate) struct OpenedSource {
    pub(crate) source: Arc<dyn RowSource>,
    pub(crate) schema: Schema,
    /// Validation rows provided by the source itself.
    pub(crate) validation: Option<Arc<dyn RowSource>>,
}

impl OpenedSource {
    /// Rows to evaluate an existing model on: the validation part, if there is one, else all.
    pub(crate) fn evaluation_source(self) -> Arc<dyn RowSource> {
        self.validation.unwrap_or(self.source)
    }
}

/// Opens the source of a job; with a stored schema, its columns, classes and categories are used.
pub(crate) fn open(spec: &DataSpec, known: Option<&Schema>) -> Result<OpenedSource> {
    open_located(spec, known, true)
}

/// Opens rows for prediction: labels are ignored, and may be absent in Parquet and sparse files.
pub(crate) fn open_unlabelled(spec: &DataSpec, schema: &Schema) -> Result<OpenedSource> {
    open_located(spec, Some(schema), false)
}

fn open_located(spec: &DataSpec, known: Option<&Schema>, labelled: bool) -> Result<OpenedSource> {
    open_source(spec, known, labelled).map_err(|error| with_source_name(error, &spec.source))
}

/// Prefixes a data error with its source, unless the message names one of its files.
pub(crate) fn with_source_name(mut error: Error, source: &str) -> Error {
    let stem = source.trim_end_matches('/').rsplit('/').next().unwrap_or(source);
    let stem = stem.split(['*', '?', '[']).next().unwrap_or(stem);
    if error.kind == Kind::Data && !error.message.contains(stem) {
        error.message = format!("{source}: {}", error.message);
    }
    error
}

fn open_source(spec: &DataSpec, known: Option<&Schema>, labelled: bool) -> Result<OpenedSource> {
    let opened = match locate(&spec.source)? {
        SourceLocation::Digits => digits::open(spec, known)?,
        SourceLocation::Folder(folder) => idx::open(&folder, spec, known)?,
        SourceLocation::Files(FileKind::Table, paths) => {
            csv::open(open_text_files(&paths, spec)?, spec, known)?
        }
        SourceLocation::Files(FileKind::Libsvm, paths) => {
            libsvm::open(open_text_files(&paths, spec)?, spec, known, labelled)?
        }
        SourceLocation::Files(FileKind::Text, paths) => {
            text::open(open_text_files(&paths, spec)?, spec, known)?
        }
        SourceLocation::Files(FileKind::Parquet, paths) => parquet::open(&paths, spec, known, labelled)?,
    };
    if opened.source.blocks().rows() == 0 {
        return Err(
            Error::data(format!("{} holds no rows", spec.source)).hint("check data.source and the file")
        );
    }
    Ok(opened)
}

/// Error for a source that does not match the stored schema.
pub(crate) fn mismatch(source: &str, found: &str, wanted: &str) -> Error {
    Error::data(format!("{source} holds {found}, but the model was trained on {wanted}"))
        .hint("choose a source like the one the model was trained on")
}

pub(crate) fn shape_name(shape: &RowShape) -> &'static str {
    match shape {
        RowShape::Table { .. } => "a table",
        RowShape::Image { .. } => "images",
        RowShape::Sparse { .. } => "sparse rows",
        RowShape::Text { .. } => "a text",
    }
}

/// Half of `data.memory` is for file contents, the other half for decoded rows.
pub(crate) fn memory_budget(spec: &DataSpec) -> MemoryBudget {
    let cache = CacheFolder::choose(spec.cache.as_deref()).with_limit(spec.cache_limit.0);
    MemoryBudget { bytes: spec.memory.0 / 2, cache }
}

/// Runs an index pass and computes the checksums; the result is stored in the cache folder if a file is too
/// large for memory.
pub(crate) fn index_files<T: Serialize + DeserializeOwned>(
    kind: &str,
    files: &[FileBytes],
    spec: &DataSpec,
    known: Option<&Schema>,
    pass: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<u32>)> {
    // The pass runs first: it reads a large file once and completes its checksum.
    let pass = || {
        let found = pass()?;
        Ok((found, files.iter().map(FileBytes::checksum).collect::<Result<_>>()?))
    };
    if !files.iter().any(FileBytes::is_on_disk) {
        return pass();
    }
    let identities: Vec<_> = files.iter().filter_map(FileBytes::identity).collect();
    let index_options = DataSpec {
        source: String::new(),
        scale: Scale::Auto,
        validation: None,
        memory: Bytes(0),
        cache: None,
        cache_limit: Bytes(0),
        ..spec.clone()
    };
    let pass = || {
        let found = pass();
        // A file changed during the pass takes precedence over any other error, and its index must not be
        // stored.
        files.iter().try_for_each(FileBytes::check_unchanged)?;
        found
    };
    disk_cache::cached_index(
        &identities,
        &format!("{kind} {index_options:?} {known:?}"),
        &memory_budget(spec).cache,
        pass,
    )
}

/// Opens text files, in memory as far as they fit; binary files are refused.
pub(crate) fn open_text_files(paths: &[PathBuf], spec: &DataSpec) -> Result<Vec<FileBytes>> {
    let mut budget = memory_budget(spec);
    let mut open = |path: &PathBuf| {
        let file = FileBytes::open(path, &mut budget)?;
        check_text(file.name(), &file.slice(0..file.len().min(BEGINNING as u64))?)?;
        Ok(file)
    };
    paths.iter().map(&mut open).collect()
}
