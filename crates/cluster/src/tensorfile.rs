//! Tensors by name in a safetensors file, with a checksum, written atomically.

use crate::durable::{unwritable, write_whole};
use crate::regular_file;
use safetensors::tensor::{self, Dtype, Metadata, SafeTensors};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::path::Path;
use thalweg_core::model::TensorInfo;
use thalweg_core::{Error, Result};

/// Format version of models and checkpoints: tensors have PyTorch's element order.
const FORMAT: &str = "2";
/// The version before: tensors have the memory order of this program.
const IN_MEMORY_ORDER: &str = "1";
/// The metadata key of the format version.
const VERSION: &str = "format";

/// The only safetensors metadata key: all metadata as one JSON object. (The safetensors writer orders several keys
/// randomly, so equal models would give different files.)
const ABOUT: &str = "thalweg";
/// Its key of the checksum over everything else.
const CHECKSUM: &str = "sha256";

/// A tensor of a file, owned or borrowed.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor<'a> {
    /// Outermost dimension first.
    pub shape: Cow<'a, [usize]>,
    /// Row-major.
    pub values: Cow<'a, [f32]>,
}

/// Named tensors and metadata. Writing copies no borrowed tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFile<'a> {
    pub tensors: BTreeMap<String, StoredTensor<'a>>,
    pub metadata: BTreeMap<String, String>,
}

impl<'a> TensorFile<'a> {
    pub fn push(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Cow<'a, [usize]>>,
        values: impl Into<Cow<'a, [f32]>>,
    ) {
        self.tensors.insert(name.into(), StoredTensor { shape: shape.into(), values: values.into() });
    }

    /// An empty file of the current format version.
    pub fn of_this_version() -> TensorFile<'a> {
        let metadata = BTreeMap::from([(VERSION.into(), FORMAT.into())]);
        TensorFile { tensors: BTreeMap::new(), metadata }
    }

    /// Fails for an unknown format version.
    pub fn check_version(&self, path: &Path) -> Result<()> {
        match self.text(VERSION, path)? {
            FORMAT | IN_MEMORY_ORDER => Ok(()),
            _ => Err(Error::data(format!("{} has a format this version does not know", path.display()))
                .hint("use the version of thalweg that wrote it")),
        }
    }

    /// Adds a tensor of a layout from values in memory order.
    pub fn push_ordered(&mut self, name: impl Into<String>, tensor: &TensorInfo, values: &'a [f32]) {
        self.push(name, tensor.file_shape(), tensor.to_file(values));
    }

    /// The values of a tensor of a layout in memory order. The error is its shape in the file, or None if the file does
    /// not have it.
    pub fn in_memory_order(
        &self,
        name: &str,
        tensor: &TensorInfo,
    ) -> Result<Cow<'_, [f32]>, Option<&[usize]>> {
        let stored = self.tensors.get(name).ok_or(None)?;
        let is_old = self.metadata.get(VERSION).is_some_and(|version| version == IN_MEMORY_ORDER);
        let shape = if is_old { tensor.shape.clone() } else { tensor.file_shape() };
        match (stored.shape == shape, is_old) {
            (false, _) => Err(Some(&stored.shape)),
            (true, true) => Ok(Cow::Borrowed(&stored.values)),
            (true, false) => Ok(tensor.to_memory(&stored.values)),
        }
    }

    /// SHA-256 over names, shapes, values and metadata.
    fn checksum(&self) -> String {
        let mut digest = Sha256::new();
        for (key, text) in self.metadata.iter().filter(|(key, _)| *key != CHECKSUM) {
            digest.update(format!("{key}={}:{text}\n", text.len()));
        }
        for (name, tensor) in &self.tensors {
            digest.update(format!("{name} {:?}\n", tensor.shape));
            digest.update(bytemuck::cast_slice::<f32, u8>(&tensor.values));
        }
        thalweg_core::hex::encode(&digest.finalize())
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let header =
            self.header().map_err(|error| Error::internal(format!("{}: {error}", path.display())))?;
        write_whole(path, |file| {
            let mut put = |bytes: &[u8]| file.write_all(bytes).map_err(|error| unwritable(path, &error));
            put(&(header.len() as u64).to_le_bytes())?;
            put(&header)?;
            self.tensors.values().try_for_each(|tensor| put(bytemuck::cast_slice(&tensor.values)))
        })
    }

    /// The safetensors header; the values follow it in the order of names.
    fn header(&self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let mut about = self.metadata.clone();
        about.insert(CHECKSUM.into(), self.checksum());
        let about = HashMap::from([(ABOUT.to_string(), serde_json::to_string(&about)?)]);
        let mut end = 0;
        let entry = |(name, tensor): (&String, &StoredTensor<'_>)| {
            let start = end;
            end += size_of_val(&*tensor.values);
            let (dtype, shape) = (Dtype::F32, tensor.shape.to_vec());
            (name.clone(), tensor::TensorInfo { dtype, shape, data_offsets: (start, end) })
        };
        let entries = self.tensors.iter().map(entry).collect();
        let mut header = serde_json::to_vec(&Metadata::new(Some(about), entries)?)?;
        // Aligns the values for readers that map the file.
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }

    /// Whether a file begins like a safetensors file: an 8-byte header length, then `{`.
    pub fn is_tensor_file(path: &Path) -> Result<bool> {
        let mut start = Vec::new();
        let read = regular_file::open(path).and_then(|file| file.take(9).read_to_end(&mut start));
        read.map_err(|error| Error::io(format!("cannot read {}", path.display()), &error))?;
        Ok(start.get(8) == Some(&b'{'))
    }

    /// Reads a file and verifies its checksum.
    pub fn read(path: &Path) -> Result<TensorFile<'static>> {
        let shown = path.display();
        let bytes =
            regular_file::read(path).map_err(|error| Error::io(format!("cannot read {shown}"), &error))?;
        let broken = |why: String| {
            Error::data(format!("{shown} is damaged: {why}")).hint(
                "it was cut short or changed after it was written; use another checkpoint or train again",
            )
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| broken(error.to_string()))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| broken(error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|metadata| metadata.get(ABOUT)).ok_or_else(|| {
            Error::data(format!("{shown} was not written by thalweg: it has no `{ABOUT}` metadata"))
        })?;
        let metadata = serde_json::from_str(about).map_err(|error| broken(error.to_string()))?;
        let mut file = TensorFile { tensors: BTreeMap::new(), metadata };
        for (name, view) in tensors.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(broken(format!("tensor {name} is not f32")));
            }
            let values: Vec<f32> =
                view.data().as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
            file.push(name, view.shape().to_vec(), values);
        }
        match file.metadata.remove(CHECKSUM) {
            Some(stored) if stored == file.checksum() => Ok(file),
            Some(_) => Err(broken("its checksum does not fit its content".into())),
            None => Err(Error::data(format!("{shown} was not written by thalweg: it has no checksum"))),
        }
    }

    /// A metadata value; an error if it is missing.
    pub fn text(&self, key: &str, path: &Path) -> Result<&str> {
        self.metadata.get(key).map(String::as_str).ok_or_else(|| {
            Error::data(format!(
                "{} has no `{key}` in its metadata: it is not a model or checkpoint of thalweg",
                path.display()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn sample() -> TensorFile<'static> {
        let mut file = TensorFile::default();
        file.push("layers.0.weight", &[2, 3][..], &[1.0, -2.0, 3.5, 0.0, f32::MIN_POSITIVE, 9.0][..]);
        file.push("layers.0.bias", &[0][..], &[][..]);
        file.metadata.insert("step".into(), "17".into());
        file
    }

    #[test]
    fn a_file_is_read_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        sample().write(&path).unwrap();
        assert_eq!(TensorFile::read(&path).unwrap(), sample());
        assert!(TensorFile::is_tensor_file(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        sample().write(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(TensorFile::read(&path).is_err(), "cut to {length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            fs::write(&path, &changed).unwrap();
            if let Ok(read) = TensorFile::read(&path) {
                assert_eq!(read, sample(), "byte {at} changed what is read");
            }
        }
    }
}
