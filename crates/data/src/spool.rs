//! Packed files too large for memory: unpacked once into the cache folder.

use std::fs::File;
use std::path::Path;
use thalweg_core::{Error, Result};

/// The unpacked file, from the cache or unpacked now.
pub(crate) fn unpacked(path: &Path, _cache: Option<&Path>) -> Result<File> {
    Err(Error::data(format!("{} is larger than data.memory once unpacked", path.display())).hint("unpack it"))
}
