//! Tensors by name in a safetensors file, with a checksum, written so that a reader sees all of it or none.

use crate::durable::{unwritable, write_whole};
use crate::regular;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::path::Path;
use thalweg_core::model::Tensor;
use thalweg_core::{Error, Result};

/// The version of models and checkpoints: tensors are ordered as PyTorch has them.
const FORMAT: &str = "2";
/// The version before it: tensors are in the order of memory.
const IN_MEMORY_ORDER: &str = "1";
/// The metadata key that holds it.
const VERSION: &str = "format";

/// The one metadata key of a file: everything about it as a JSON object. (With several keys the format's own writer
/// would put them in random order, and equal models would be different files.)
const ABOUT: &str = "thalweg";
/// Within it, the checksum over all the rest.
const CHECKSUM: &str = "sha256";

/// One tensor of a file: its own, or a look at somebody's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    /// Sizes, outermost first.
    pub shape: Cow<'a, [usize]>,
    /// Values, row-major.
    pub values: Cow<'a, [f32]>,
}

/// Named tensors and what is written about them. Writing copies none of them: whoever writes large ones lends them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFile<'a> {
    /// By name.
    pub tensors: BTreeMap<String, Stored<'a>>,
    /// Texts by key.
    pub metadata: BTreeMap<String, String>,
}

impl<'a> TensorFile<'a> {
    /// Adds a tensor.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Cow<'a, [usize]>>,
        values: impl Into<Cow<'a, [f32]>>,
    ) {
        self.tensors.insert(name.into(), Stored { shape: shape.into(), values: values.into() });
    }

    /// An empty file of this version of models and checkpoints.
    pub fn of_this_version() -> TensorFile<'a> {
        let metadata = BTreeMap::from([(VERSION.into(), FORMAT.into())]);
        TensorFile { tensors: BTreeMap::new(), metadata }
    }

    /// Refuses a version that is not known.
    pub fn check_version(&self, path: &Path) -> Result<()> {
        match self.text(VERSION, path)? {
            FORMAT | IN_MEMORY_ORDER => Ok(()),
            _ => Err(Error::data(format!("{} has a format this version does not know", path.display()))
                .hint("use the version of thalweg that wrote it")),
        }
    }

    /// Adds a tensor of a layout, given in the order of memory.
    pub fn push_ordered(&mut self, name: impl Into<String>, tensor: &Tensor, values: &'a [f32]) {
        self.push(name, tensor.file_shape(), tensor.to_file(values));
    }

    /// The values of a tensor of a layout in the order of memory; an error gives the sizes it has in the file instead,
    /// if it is there at all.
    pub fn in_memory_order(&self, name: &str, tensor: &Tensor) -> Result<Cow<'_, [f32]>, Option<&[usize]>> {
        let stored = self.tensors.get(name).ok_or(None)?;
        let is_old = self.metadata.get(VERSION).is_some_and(|version| version == IN_MEMORY_ORDER);
        let shape = if is_old { tensor.shape.clone() } else { tensor.file_shape() };
        match (stored.shape == shape, is_old) {
            (false, _) => Err(Some(&stored.shape)),
            (true, true) => Ok(Cow::Borrowed(&stored.values)),
            (true, false) => Ok(tensor.to_memory(&stored.values)),
        }
    }

    /// Covers names, shapes, values and metadata.
    fn checksum(&self) -> String {
        let mut digest = Sha256::new();
        for (key, text) in self.metadata.iter().filter(|(key, _)| *key != CHECKSUM) {
            digest.update(format!("{key}={}:{text}\n", text.len()));
        }
        for (name, tensor) in &self.tensors {
            digest.update(format!("{name} {:?}\n", tensor.shape));
            digest.update(bytemuck::cast_slice::<f32, u8>(&tensor.values));
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Writes it: first beside its place, then moved there in one go.
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

    /// What the format puts before the values, which follow in the order of names.
    fn header(&self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let mut about = self.metadata.clone();
        about.insert(CHECKSUM.into(), self.checksum());
        let about = HashMap::from([(ABOUT.to_string(), serde_json::to_string(&about)?)]);
        let mut end = 0;
        let place = |(name, tensor): (&String, &Stored<'_>)| {
            let start = end;
            end += size_of_val(&*tensor.values);
            let (dtype, shape) = (Dtype::F32, tensor.shape.to_vec());
            (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
        };
        let places = self.tensors.iter().map(place).collect();
        let mut header = serde_json::to_vec(&Metadata::new(Some(about), places)?)?;
        // So that the values are aligned for whoever maps the file.
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }

    /// Whether a file begins as such a file does: the length of its header, then the header.
    pub fn is_one(path: &Path) -> Result<bool> {
        let mut start = Vec::new();
        let read = regular::open(path).and_then(|file| file.take(9).read_to_end(&mut start));
        read.map_err(|error| Error::io(format!("cannot read {}", path.display()), &error))?;
        Ok(start.get(8) == Some(&b'{'))
    }

    /// Reads it and checks it against its checksum.
    pub fn read(path: &Path) -> Result<TensorFile<'static>> {
        let shown = path.display();
        let bytes = regular::read(path).map_err(|error| Error::io(format!("cannot read {shown}"), &error))?;
        let broken = |why: String| {
            Error::data(format!("{shown} is damaged: {why}")).hint(
                "it was cut short or changed after it was written; use another checkpoint or train again",
            )
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| broken(error.to_string()))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| broken(error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|metadata| metadata.get(ABOUT)).ok_or_else(|| {
            Error::data(format!("{shown} was not written by thalweg: it does not say what it is"))
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

    /// A text of the metadata.
    pub fn text(&self, key: &str, path: &Path) -> Result<&str> {
        self.metadata.get(key).map(String::as_str).ok_or_else(|| {
            Error::data(format!("{} does not say its `{key}`: it is not such a file", path.display()))
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
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        sample().write(&path).unwrap();
        assert_eq!(TensorFile::read(&path).unwrap(), sample());
        assert!(TensorFile::is_one(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        sample().write(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(TensorFile::read(&path).is_err(), "cut to {length}");
        }
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 0x10;
            fs::write(&path, &changed).unwrap();
            if let Ok(read) = TensorFile::read(&path) {
                assert_eq!(read, sample(), "byte {place} changed what is read");
            }
        }
    }
}
