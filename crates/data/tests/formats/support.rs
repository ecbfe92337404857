//! Temporary folders with files, and helpers that load whole row sets.

use std::path::Path;
use tempfile::TempDir;
use thalweg_core::spec::data::{DataSpec, Scale};
use thalweg_core::spec::setting::HeldOut;
use thalweg_core::{Batch, Features, Result, Schema, Targets};
use thalweg_data::{Data, Rows};

pub fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
    folder
}

/// All rows train, unscaled; the cache is beside the files.
pub fn spec(folder: &Path, pattern: &str) -> DataSpec {
    DataSpec {
        source: folder.join(pattern).to_str().unwrap().into(),
        validation: Some(HeldOut::Share(0.0)),
        scale: Scale::None,
        cache: Some(folder.join("cache").to_str().unwrap().into()),
        ..Default::default()
    }
}

/// Fits the scaling if needed.
pub fn fit(data: &mut Data) -> Result<()> {
    if data.needs_statistics() {
        let statistics = data.statistics(0, 1)?;
        data.fit(&[statistics])?;
    }
    Ok(())
}

pub fn batch(rows: &Rows) -> Result<Batch> {
    let ids: Vec<u64> = (0..rows.len()).map(|index| rows.id(index)).collect();
    let mut batch = rows.empty_batch();
    rows.load(&ids, 0, &mut batch)?;
    Ok(batch)
}

/// All rows of a dense set.
pub fn all(rows: &Rows) -> Result<(Vec<f32>, Targets)> {
    let batch = batch(rows)?;
    let Features::Dense(values) = batch.features else { panic!("not dense") };
    Ok((values, batch.targets))
}

pub fn read(spec: &DataSpec) -> Result<(Vec<f32>, Targets, Schema)> {
    let mut data = Data::open(spec, 1)?;
    fit(&mut data)?;
    let (values, targets) = all(&data.training)?;
    Ok((values, targets, data.schema))
}
