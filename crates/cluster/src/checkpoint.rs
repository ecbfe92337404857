//! Checkpoints: the state that training resumes from, by tensor name, so that a world of any size can load it.

use crate::tensorfile::TensorFile;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_core::{Error, Kind, Layout, Result};

/// The training state after a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Steps completed since the beginning of the job.
    pub step: u64,
    /// The job as TOML.
    pub job: String,
    /// Digest of the training data.
    pub data: String,
    /// Model description by key, enough for inference. Empty in older files.
    pub model: BTreeMap<String, String>,
    /// The rows of the epoch consumed so far, as encoded by the audit.
    pub audit: Vec<u8>,
    /// Sum of losses and number of rows of the epoch so far.
    pub loss: (f64, u64),
    /// Of local rounds that adapt: the loss of the first epoch, and the steps between two merges; zeros if there are none.
    pub interval: (f64, u64),
    /// Training time so far. Zero in older files.
    pub trained: Duration,
    /// In layout order.
    pub parameters: Vec<f32>,
    /// Optimizer state by slot name, each in layout order.
    pub slots: Vec<(String, Vec<f32>)>,
    /// The step before which the slots were zero: a strategy without them came before.
    pub slots_start: u64,
}

impl Checkpoint {
    /// Writes `step-N.safetensors` and removes all but the newest `keep`.
    pub fn write(&self, folder: &Path, layout: &Layout, keep: usize) -> Result<PathBuf> {
        fs::create_dir_all(folder)
            .map_err(|error| Error::io(format!("cannot make {}", folder.display()), &error))?;
        remove_temporary_files(folder);
        let mut file = TensorFile::of_this_version();
        file.metadata.insert("step".into(), self.step.to_string());
        file.metadata.insert("job".into(), self.job.clone());
        file.metadata.insert("data".into(), self.data.clone());
        for (key, text) in &self.model {
            file.metadata.insert(format!("{MODEL}{key}"), text.clone());
        }
        file.metadata.insert("audit".into(), self.audit.len().to_string());
        let audit = pack(&self.audit);
        file.push(AUDIT, vec![audit.len()], audit);
        file.metadata.insert("trained_us".into(), self.trained.as_micros().to_string());
        file.metadata.insert("loss".into(), format!("{} {}", self.loss.0, self.loss.1));
        if self.interval != (0.0, 0) {
            file.metadata.insert(INTERVAL.into(), format!("{} {}", self.interval.0, self.interval.1));
        }
        let slots: Vec<&str> = self.slots.iter().map(|(name, _)| name.as_str()).collect();
        file.metadata.insert("slots".into(), slots.join(" "));
        file.metadata.insert("slots_start".into(), self.slots_start.to_string());
        for tensor in layout.tensors() {
            file.push_ordered(tensor.name.clone(), tensor, &self.parameters[tensor.range()]);
            for (slot, values) in &self.slots {
                file.push_ordered(format!("{slot}.{}", tensor.name), tensor, &values[tensor.range()]);
            }
        }
        let path = folder.join(format!("step-{:09}.safetensors", self.step));
        file.write(&path)?;
        prune(folder, keep, &path);
        Ok(path)
    }

    /// Reads a checkpoint that must have the tensors of `layout`.
    pub fn read(path: &Path, layout: &Layout) -> Result<Checkpoint> {
        Checkpoint::from_file(&TensorFile::read(path)?, path, layout)
    }

    fn from_file(file: &TensorFile<'_>, path: &Path, layout: &Layout) -> Result<Checkpoint> {
        let shown = path.display();
        let broken = |what: &str| Error::data(format!("{shown} cannot be used: its `{what}` is invalid"));
        file.check_version(path)?;
        let gather = |prefix: &str| -> Result<Vec<f32>> {
            let mut flat = Vec::with_capacity(layout.len());
            for tensor in layout.tensors() {
                let name = format!("{prefix}{}", tensor.name);
                match file.in_memory_order(&name, tensor) {
                    Ok(values) => flat.extend_from_slice(&values),
                    Err(Some(shape)) => {
                        return Err(Error::job(format!(
                            "{shown}: tensor `{name}` is {shape:?}, but the model has {:?}",
                            tensor.file_shape()
                        ))
                        .hint("resume with the model it was trained with, or start fresh with --overwrite"));
                    }
                    Err(None) => {
                        return Err(Error::job(format!("{shown} has no tensor `{name}`"))
                            .hint("resume with the model and optimizer it was trained with, or start fresh with --overwrite"));
                    }
                }
            }
            Ok(flat)
        };
        let parameters = gather("")?;
        let slots = file.text("slots", path)?.split_whitespace();
        let slots =
            slots.map(|slot| Ok((slot.to_string(), gather(&format!("{slot}."))?))).collect::<Result<_>>()?;
        let sensible = |step: &u64| *step <= MAX_STEP;
        let (loss, rows) = file.text("loss", path)?.split_once(' ').ok_or_else(|| broken("loss"))?;
        Ok(Checkpoint {
            step: file.text("step", path)?.parse().ok().filter(sensible).ok_or_else(|| broken("step"))?,
            job: file.text("job", path)?.to_string(),
            data: file.text("data", path)?.to_string(),
            model: model_of(file),
            audit: unpack(file, path)?,
            loss: (loss.parse().map_err(|_| broken("loss"))?, rows.parse().map_err(|_| broken("loss"))?),
            interval: match file.metadata.get(INTERVAL) {
                Some(text) => read_interval(text).ok_or_else(|| broken(INTERVAL))?,
                None => (0.0, 0),
            },
            trained: match file.metadata.get("trained_us") {
                Some(micros) => micros
                    .parse()
                    .ok()
                    .filter(sensible)
                    .map(Duration::from_micros)
                    .ok_or_else(|| broken("trained_us"))?,
                None => Duration::ZERO,
            },
            parameters,
            slots,
            // Older files have none: their slots are those of the whole job.
            slots_start: match file.metadata.get("slots_start") {
                Some(step) => step.parse().ok().filter(sensible).ok_or_else(|| broken("slots_start"))?,
                None => 0,
            },
        })
    }
}

/// Largest step and number of microseconds accepted: it can be added to without overflow, and JSON reports hold it exactly.
const MAX_STEP: u64 = 1 << 53;

const INTERVAL: &str = "merge_interval";

fn read_interval(text: &str) -> Option<(f64, u64)> {
    let (loss, steps) = text.split_once(' ')?;
    let loss: f64 = loss.parse().ok().filter(|loss: &f64| loss.is_finite() && *loss >= 0.0)?;
    Some((loss, steps.parse().ok().filter(|steps| *steps <= MAX_STEP)?))
}

/// Prefix of the metadata keys of the model.
const MODEL: &str = "model.";

/// The model description of a checkpoint; empty for other files.
pub fn model_of(file: &TensorFile<'_>) -> BTreeMap<String, String> {
    let own = file.metadata.iter().filter_map(|(key, text)| Some((key.strip_prefix(MODEL)?, text)));
    own.map(|(key, text)| (key.to_string(), text.clone())).collect()
}

/// Whether a tensor file is a checkpoint, not just a model.
pub fn is_checkpoint(file: &TensorFile<'_>) -> bool {
    file.metadata.contains_key("slots") && file.metadata.contains_key("audit")
}

/// The tensor that holds the audit's bytes.
const AUDIT: &str = "thalweg.audit";

/// Bytes reinterpreted as `f32`, the only element type of the file.
fn pack(bytes: &[u8]) -> Vec<f32> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        f32::from_le_bytes(word)
    };
    bytes.chunks(4).map(word).collect()
}

fn unpack(file: &TensorFile<'_>, path: &Path) -> Result<Vec<u8>> {
    let broken = || Error::data(format!("{} cannot be used: its audit is invalid", path.display()));
    let length: usize = file.text("audit", path)?.parse().map_err(|_| broken())?;
    let packed = &file.tensors.get(AUDIT).ok_or_else(broken)?.values;
    let mut bytes: Vec<u8> = packed.iter().flat_map(|value| value.to_le_bytes()).collect();
    if length > bytes.len() {
        return Err(broken());
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// The checkpoints of a folder, newest first.
pub fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let numbered = |path: PathBuf| {
        let is_one = path.extension().is_some_and(|extension| extension == "safetensors");
        step_of(&path).filter(|_| is_one).map(|step| (step, path))
    };
    let mut paths: Vec<(u64, PathBuf)> = entries.filter_map(|entry| numbered(entry.ok()?.path())).collect();
    // By step: names of steps past a billion are longer.
    paths.sort_by(|one, other| other.cmp(one));
    paths.into_iter().map(|(_, path)| path).collect()
}

/// The checkpoint to resume from.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The newest intact checkpoint.
    pub checkpoint: Checkpoint,
    pub path: PathBuf,
    /// Newer files that are damaged, with the reason.
    pub damaged: Vec<(PathBuf, Error)>,
}

/// The newest intact checkpoint of a folder; None if the folder has no checkpoints. An intact one of another model is
/// an error, since older ones belong to the same model.
pub fn newest(folder: &Path, layout: &Layout) -> Result<Option<Found>> {
    let Some((file, path, damaged)) = newest_file(folder)? else { return Ok(None) };
    let checkpoint = Checkpoint::from_file(&file, &path, layout)?;
    Ok(Some(Found { checkpoint, path, damaged }))
}

/// An intact file, its path, and newer ones that are damaged.
type NewestFile = (TensorFile<'static>, PathBuf, Vec<(PathBuf, Error)>);

/// The newest intact checkpoint of a folder, of any model.
pub fn newest_file(folder: &Path) -> Result<Option<NewestFile>> {
    let mut damaged = Vec::new();
    for path in list(folder) {
        match TensorFile::read(&path) {
            Ok(file) => return Ok(Some((file, path, damaged))),
            Err(error) if error.kind == Kind::Data => damaged.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    match damaged.first() {
        None => Ok(None),
        Some((_, error)) => Err(Error::data(format!("no checkpoint can be loaded; {}", error.message))
            .hint("put back a whole copy, or start fresh with --overwrite")),
    }
}

/// Extension of damaged checkpoints, which are kept for inspection only.
const DAMAGED: &str = "damaged";

/// Renames a damaged checkpoint, so that it is not tried again and does not count when old ones are removed.
pub fn set_aside(path: &Path) -> Result<PathBuf> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{DAMAGED}"));
    let aside = PathBuf::from(aside);
    let moved = fs::rename(path, &aside);
    moved.map_err(|error| Error::io(format!("cannot rename {}", path.display()), &error))?;
    Ok(aside)
}

/// Removes all checkpoints, damaged and temporary files of a folder.
pub fn clear(folder: &Path) -> std::io::Result<()> {
    remove_temporary_files(folder);
    with_extension(folder, DAMAGED).chain(list(folder)).try_for_each(fs::remove_file)
}

/// The step in a checkpoint's file name.
pub fn step_of(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// Removes temporary files of a killed writer. The folder has one writer, this run.
pub fn remove_temporary_files(folder: &Path) {
    for path in with_extension(folder, "tmp") {
        let _ = fs::remove_file(path);
    }
}

fn with_extension(folder: &Path, extension: &'static str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(move |path| path.extension().is_some_and(|other| other == extension))
}

/// Keeps the file just written, even if damaged ones have higher steps.
fn prune(folder: &Path, keep: usize, written: &Path) {
    for old in list(folder).into_iter().filter(|path| path != written).skip(keep.saturating_sub(1)) {
        // Best effort: a file that cannot be removed only costs space.
        let _ = fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::model::{Density, TensorRole};

    fn layout(width: usize) -> Layout {
        let mut layout = Layout::default();
        layout.push("b", &[2], TensorRole::Trainable, Density::Dense);
        layout.push("w", &[2, width], TensorRole::Trainable, Density::Dense);
        layout
    }

    fn sample(step: u64) -> Checkpoint {
        Checkpoint {
            step,
            job: "format = 1\n".into(),
            loss: (0.1 + 0.2, 64),
            interval: (step as f64 / 3.0, step % 10),
            trained: Duration::from_micros(1500 + step),
            data: "d".into(),
            model: BTreeMap::from([("layers".to_string(), "[]".to_string())]),
            audit: vec![255, 1, 2, 3, 0xff, 0xff, 0xc1, 0x7f, 9],
            parameters: (0..8).map(|i| i as f32 / 3.0).collect(),
            slots: vec![("m".into(), vec![1.0; 8]), ("v".into(), vec![2.0; 8])],
            slots_start: step / 2,
        }
    }

    #[test]
    fn a_checkpoint_is_restored_bitwise_and_old_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for step in [9, 10, 11] {
            sample(step).write(folder.path(), &layout(3), 2).unwrap();
        }
        let paths = list(folder.path());
        assert_eq!(paths.iter().filter_map(|path| step_of(path)).collect::<Vec<_>>(), [11, 10]);
        assert_eq!(Checkpoint::read(&paths[0], &layout(3)).unwrap(), sample(11));
    }

    #[test]
    fn checkpoints_are_sorted_by_step_not_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for step in [999_999_999, 1_000_000_000, 5] {
            sample(step).write(folder.path(), &layout(3), 9).unwrap();
        }
        fs::write(folder.path().join("step-last.safetensors"), b"").unwrap();
        let steps: Vec<_> = list(folder.path()).iter().filter_map(|path| step_of(path)).collect();
        assert_eq!(steps, [1_000_000_000, 999_999_999, 5]);
        assert_eq!(newest(folder.path(), &layout(3)).unwrap().unwrap().checkpoint.step, 1_000_000_000);
        sample(1_000_000_001).write(folder.path(), &layout(3), 2).unwrap();
        let steps: Vec<_> = list(folder.path()).iter().filter_map(|path| step_of(path)).collect();
        assert_eq!(steps, [1_000_000_001, 1_000_000_000], "the oldest go");
    }

    #[test]
    fn the_newest_intact_checkpoint_is_found_and_damaged_ones_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest(folder.path(), &layout(3)).unwrap(), None);
        for step in [1, 2, 3] {
            sample(step).write(folder.path(), &layout(3), 3).unwrap();
        }
        for path in &list(folder.path())[..2] {
            fs::write(path, &fs::read(path).unwrap()[..200]).unwrap();
        }
        let found = newest(folder.path(), &layout(3)).unwrap().unwrap();
        assert_eq!((found.checkpoint, step_of(&found.path)), (sample(1), Some(1)));
        let steps: Vec<_> = found.damaged.iter().filter_map(|(path, _)| step_of(path)).collect();
        assert_eq!(steps, [3, 2]);
        // Damaged ones have higher steps, but the file just written stays.
        let written = sample(2).write(folder.path(), &layout(3), 1).unwrap();
        assert!(written.exists());
        set_aside(&found.damaged[0].0).unwrap_err();
        fs::write(&written, b"").unwrap();
        let error = newest(folder.path(), &layout(3)).unwrap_err();
        assert!(error.message.contains("no checkpoint can be loaded"), "{error}");
        set_aside(&written).unwrap();
        assert!(list(folder.path()).is_empty());
        clear(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused_by_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let path = sample(1).write(folder.path(), &layout(3), 2).unwrap();
        let error = Checkpoint::read(&path, &layout(4)).unwrap_err();
        assert!(error.message.contains("`w` is [2, 3], but the model has [2, 4]"), "{error}");
    }
}
