//! One file per format: `open` indexes a source in one pass, `decode` turns a block into rows.

pub(crate) mod csv;
pub(crate) mod digits;
pub(crate) mod idx;
pub(crate) mod libsvm;
pub(crate) mod memory;
pub(crate) mod parquet;
pub(crate) mod text;

use crate::block::{Block, Blocks};
use crate::content::{BEGINNING, check_text};
use crate::folder::Folder;
use crate::locate::{FileKind, Located, locate};
use crate::raw::{Budget, Raw};
use crate::spool;
use crate::table::unseen::UnseenCategory;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_core::schema::{Schema, Shape};
use thalweg_core::spec::data::{DataSpec, Scale};
use thalweg_core::spec::setting::Bytes;
use thalweg_core::{Error, Kind, Result};

/// A source of rows, indexed.
pub(crate) trait Source: Send + Sync {
    /// Which rows each block holds.
    fn blocks(&self) -> &Arc<Blocks>;

    /// Memory a decoded row takes, about: a pure function of the source, for it decides the order of rows.
    fn row_bytes(&self) -> u64;

    /// Decodes a block. A value that cannot be used is an error that names file and row.
    fn decode(&self, block: usize) -> Result<Arc<Block>>;

    /// A checksum of what each file holds: the same rows have the same, wherever they are read.
    fn checksums(&self) -> &[u32];

    /// Categories that the schema does not know, in the blocks decoded so far.
    fn unseen(&self) -> Vec<UnseenCategory> {
        Vec::new()
    }

    /// What the user had better know about how the source is read, although nothing is wrong.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// Rows that overlap the row after them, so that a split has to leave them out; 0 if rows stand alone.
    fn overlap(&self) -> u64 {
        0
    }
}

/// An opened source and what its rows mean.
pub(crate) struct Opened {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) schema: Schema,
    /// Rows that the source itself keeps for validation.
    pub(crate) held: Option<Arc<dyn Source>>,
}

impl Opened {
    /// The rows to judge a model by that was trained elsewhere: those kept for validation, or all.
    pub(crate) fn unseen(self) -> Arc<dyn Source> {
        self.held.unwrap_or(self.source)
    }
}

/// Opens what a job names; with a stored schema, its columns, classes and categories hold.
pub(crate) fn open(spec: &DataSpec, known: Option<&Schema>) -> Result<Opened> {
    open_located(spec, known, true)
}

/// Opens rows to be predicted: their labels are not looked at, and may be absent in Parquet and sparse files.
pub(crate) fn open_unlabelled(spec: &DataSpec, schema: &Schema) -> Result<Opened> {
    open_located(spec, Some(schema), false)
}

fn open_located(spec: &DataSpec, known: Option<&Schema>, labelled: bool) -> Result<Opened> {
    open_source(spec, known, labelled).map_err(|error| naming(error, &spec.source))
}

/// What is wrong with data is told with its source, where the message does not name a file of it.
pub(crate) fn naming(mut error: Error, source: &str) -> Error {
    let stem = source.trim_end_matches('/').rsplit('/').next().unwrap_or(source);
    let stem = stem.split(['*', '?', '[']).next().unwrap_or(stem);
    if error.kind == Kind::Data && !error.message.contains(stem) {
        error.message = format!("{source}: {}", error.message);
    }
    error
}

fn open_source(spec: &DataSpec, known: Option<&Schema>, labelled: bool) -> Result<Opened> {
    let opened = match locate(&spec.source)? {
        Located::Digits => digits::open(spec, known)?,
        Located::Folder(folder) => idx::open(&folder, spec, known)?,
        Located::Files(FileKind::Table, paths) => csv::open(open_all(&paths, spec)?, spec, known)?,
        Located::Files(FileKind::Libsvm, paths) => {
            libsvm::open(open_all(&paths, spec)?, spec, known, labelled)?
        }
        Located::Files(FileKind::Text, paths) => text::open(open_all(&paths, spec)?, spec, known)?,
        Located::Files(FileKind::Parquet, paths) => parquet::open(&paths, spec, known, labelled)?,
    };
    if opened.source.blocks().rows() == 0 {
        return Err(
            Error::data(format!("{} holds no rows", spec.source)).hint("check data.source and the file")
        );
    }
    Ok(opened)
}

/// A stored schema does not fit the source.
pub(crate) fn mismatch(source: &str, found: &str, wanted: &str) -> Error {
    Error::data(format!("{source} holds {found}, but the model was trained on {wanted}"))
        .hint("choose a source like the one the model was trained on")
}

/// What rows of a shape are called in messages.
pub(crate) fn shape_name(shape: &Shape) -> &'static str {
    match shape {
        Shape::Table { .. } => "a table",
        Shape::Image { .. } => "images",
        Shape::Sparse { .. } => "sparse rows",
        Shape::Text { .. } => "a text",
    }
}

/// What is kept in memory as it stands in the files: half of what a rank may use, the rest is for decoded rows.
pub(crate) fn budget(spec: &DataSpec) -> Budget {
    let cache = Folder::choose(spec.cache.as_deref()).limited_to(spec.cache_limit.0);
    Budget { bytes: spec.memory.0 / 2, cache }
}

/// What a pass over the files finds, and their checksums: kept in the cache folder if the files are too large for
/// memory.
pub(crate) fn indexed<T: Serialize + DeserializeOwned>(
    kind: &str,
    files: &[Raw],
    spec: &DataSpec,
    known: Option<&Schema>,
    pass: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<u32>)> {
    // The pass first: a large file is then read only once.
    let pass = || {
        let found = pass()?;
        Ok((found, files.iter().map(Raw::checksum).collect::<Result<_>>()?))
    };
    if !files.iter().any(Raw::streams) {
        return pass();
    }
    let identities: Vec<_> = files.iter().filter_map(Raw::identity).collect();
    let shaping = DataSpec {
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
        // A file that grew or shrank meanwhile explains whatever was found, and must not be remembered.
        files.iter().try_for_each(Raw::check_unchanged)?;
        found
    };
    spool::remembered(&identities, &format!("{kind} {shaping:?} {known:?}"), &budget(spec).cache, pass)
}

/// Opens the files of a source, as many in memory as fit. All are text; what is not is refused.
pub(crate) fn open_all(paths: &[PathBuf], spec: &DataSpec) -> Result<Vec<Raw>> {
    let mut budget = budget(spec);
    let mut open = |path: &PathBuf| {
        let file = Raw::open(path, &mut budget)?;
        check_text(file.name(), &file.slice(0..file.len().min(BEGINNING as u64))?)?;
        Ok(file)
    };
    paths.iter().map(&mut open).collect()
}
