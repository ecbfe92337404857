//! Folders in the MNIST layout: images and labels as IDX files, plain or gz; a t10k part is used for
//! validation.

use super::{OpenedSource, RowSource, index_files, memory_budget, mismatch, shape_name};
use crate::block::{BLOCK_BYTES, BLOCK_ROWS, Block, BlockFeatures, BlockIndex};
use crate::checksum::Checksum;
use crate::file_bytes::{FileBytes, MemoryBudget};
use crate::locate::check_regular;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_core::schema::{RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::{DataSpec, TaskChoice};
use thalweg_core::{Error, Result, Targets, Task};

/// Element type in an IDX header.
const UNSIGNED_BYTE: u8 = 8;

struct IdxSource {
    images: FileBytes,
    checksums: Vec<u32>,
    /// Byte offset of the first pixel.
    data_offset: u64,
    pixels: u64,
    labels: Vec<u8>,
    /// Class of each label value; `None` for a regression.
    classes: Option<Box<[u32; 256]>>,
    blocks: Arc<BlockIndex>,
}

pub(crate) fn open(folder: &Path, spec: &DataSpec, known: Option<&Schema>) -> Result<OpenedSource> {
    let mut budget = memory_budget(spec);
    let Some(training) = IdxPart::open(folder, "train", &mut budget)? else { return Err(no_parts(folder)) };
    let schema = match known {
        Some(schema) => schema.clone(),
        None => training.schema(spec.task)?,
    };
    let validation = match (spec.validation.is_none(), IdxPart::open(folder, "t10k", &mut budget)?) {
        (true, Some(part)) => Some(part.source(&schema, spec)?),
        _ => None,
    };
    Ok(OpenedSource { source: training.source(&schema, spec)?, schema, validation })
}

/// A pair of image and label files with consistent headers.
struct IdxPart {
    images: FileBytes,
    data_offset: u64,
    sizes: Vec<usize>,
    labels_name: String,
    labels: Vec<u8>,
}

impl IdxPart {
    /// Opens a part; `None` if the folder does not contain it.
    fn open(folder: &Path, part: &str, budget: &mut MemoryBudget) -> Result<Option<IdxPart>> {
        let (images, labels) = (find(folder, part, "images")?, find(folder, part, "labels")?);
        let (images, labels) = match (images, labels) {
            (Some(images), Some(labels)) => (images, labels),
            (None, None) => return Ok(None),
            (Some(images), None) => return Err(unpaired(&images, part, "labels")),
            (None, Some(labels)) => return Err(unpaired(&labels, part, "images")),
        };
        check_regular(&images)?;
        check_regular(&labels)?;
        let images = FileBytes::open(&images, budget)?;
        let labels = FileBytes::open(&labels, budget)?;
        let (data_offset, shape) = header(&images)?;
        let (labels_offset, labels_shape) = header(&labels)?;
        if shape.len() < 2 || labels_shape.len() != 1 {
            return Err(Error::data(format!(
                "{} has {} dimensions and {} has {}; expected images and a list of labels",
                images.name(),
                shape.len(),
                labels.name(),
                labels_shape.len()
            )));
        }
        if shape[0] != labels_shape[0] {
            return Err(Error::data(format!(
                "{} holds {} images but {} holds {} labels",
                images.name(),
                shape[0],
                labels.name(),
                labels_shape[0]
            ))
            .hint("use files that belong together"));
        }
        let labels_name = labels.name().to_string();
        let labels = labels.slice(labels_offset..labels.len())?.to_vec();
        Ok(Some(IdxPart { images, data_offset, sizes: shape[1..].to_vec(), labels_name, labels }))
    }

    fn schema(&self, task: TaskChoice) -> Result<Schema> {
        let task = if task == TaskChoice::Regression { Task::Regression } else { Task::Classification };
        let mut seen = [false; 256];
        self.labels.iter().for_each(|&label| seen[usize::from(label)] = true);
        let classes: Vec<String> =
            (0..256).filter(|&label| seen[label]).map(|label| label.to_string()).collect();
        if let ([class], Task::Classification) = (classes.as_slice(), task) {
            return Err(Error::data(format!("{}: every image has the same label {class}", self.labels_name))
                .hint("a classification needs at least two classes"));
        }
        Ok(Schema {
            shape: RowShape::Image { sizes: self.sizes.clone() },
            task,
            label: None,
            classes: if task == Task::Classification { classes } else { Vec::new() },
            scaling: Scaling::default(),
            target: TargetScaling::default(),
            reconstruct: false,
            source_columns: Vec::new(),
        })
    }

    fn source(self, schema: &Schema, spec: &DataSpec) -> Result<Arc<dyn RowSource>> {
        let sizes = match &schema.shape {
            RowShape::Image { sizes } => sizes,
            other => return Err(mismatch(self.images.name(), "images", shape_name(other))),
        };
        if *sizes != self.sizes {
            let found = format!("images of {:?} pixels", self.sizes);
            return Err(mismatch(self.images.name(), &found, &format!("images of {sizes:?} pixels")));
        }
        let classes = match schema.task {
            Task::Classification => Some(self.class_indices(&schema.classes)?),
            Task::Regression => None,
        };
        let pixels = sizes.iter().product::<usize>() as u64;
        let blocks =
            BlockIndex::even(self.labels.len() as u64, (BLOCK_BYTES / pixels.max(1)).clamp(1, BLOCK_ROWS));
        let IdxPart { images, data_offset, labels, .. } = self;
        // Pixels need no index; the pass only computes their checksum.
        let ((), mut checksums) =
            index_files("pixels", std::slice::from_ref(&images), spec, None, || Ok(()))?;
        checksums.push(Checksum::of(&labels));
        let blocks = Arc::new(blocks);
        Ok(Arc::new(IdxSource { images, checksums, data_offset, pixels, labels, classes, blocks }))
    }

    /// Maps label values to classes; a label without a class is an error.
    fn class_indices(&self, names: &[String]) -> Result<Box<[u32; 256]>> {
        let mut indices = Box::new([u32::MAX; 256]);
        for (class, name) in names.iter().enumerate() {
            if let Ok(label) = name.parse::<u8>() {
                indices[usize::from(label)] = class as u32;
            }
        }
        match self.labels.iter().position(|&label| indices[usize::from(label)] == u32::MAX) {
            None => Ok(indices),
            Some(row) => Err(Error::data(format!(
                "{} row {}: the label {} is not one of the classes {}",
                self.labels_name,
                row + 1,
                self.labels[row],
                names.join(", ")
            ))
            .hint("take the row out, or give the training part images of that class")),
        }
    }
}

impl RowSource for IdxSource {
    fn blocks(&self) -> &Arc<BlockIndex> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        self.pixels + 8
    }

    fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        let rows = self.blocks.range(block);
        let pixels = self
            .images
            .slice(self.data_offset + rows.start * self.pixels..self.data_offset + rows.end * self.pixels)?;
        let labels = self.labels[rows.start as usize..rows.end as usize].iter();
        let targets = match &self.classes {
            Some(classes) => Targets::Classes(labels.map(|&label| classes[usize::from(label)]).collect()),
            None => Targets::Values(labels.map(|&label| f32::from(label)).collect()),
        };
        Ok(Arc::new(Block::new(BlockFeatures::Pixels(pixels), targets)))
    }
}

/// Offset of the first element, and the dimensions; the file length must match them exactly.
fn header(file: &FileBytes) -> Result<(u64, Vec<usize>)> {
    let magic = file.slice(0..file.len().min(4))?;
    let &[0, 0, kind, dimensions] = &magic[..] else { return Err(not_idx(file)) };
    if !(1..=8).contains(&dimensions) {
        return Err(not_idx(file));
    }
    if kind != UNSIGNED_BYTE {
        return Err(Error::data(format!(
            "{} holds elements of type {kind:#04x}; only bytes (0x08) can be read",
            file.name()
        )));
    }
    let data_offset = 4 + 4 * u64::from(dimensions);
    if file.len() < data_offset {
        return Err(not_idx(file));
    }
    let sizes = file.slice(4..data_offset)?;
    let sizes: Vec<usize> = sizes
        .chunks_exact(4)
        .map(|size| u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize)
        .collect();
    let product = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    let expected = product.and_then(|product| product.checked_add(data_offset));
    if expected != Some(file.len()) || sizes[1..].contains(&0) {
        return Err(Error::data(format!(
            "{} is {} bytes long, which does not fit its sizes {sizes:?}",
            file.name(),
            file.len()
        ))
        .hint("it may be incomplete: copy or download it again"));
    }
    Ok((data_offset, sizes))
}

fn not_idx(file: &FileBytes) -> Error {
    Error::data(format!("{} is not an IDX file", file.name())).hint("an IDX file begins with two zero bytes")
}

/// Finds `train-images-idx3-ubyte` or `train-images.idx3-ubyte`; an uncompressed file is preferred.
fn find(folder: &Path, part: &str, what: &str) -> Result<Option<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| Error::io(format!("cannot read the folder {}", folder.display()), &error))?;
    let prefix = format!("{part}-{what}");
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let name = name.strip_suffix(".gz").unwrap_or(&name);
            let rest = name.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix(['-', '.']));
            rest.is_some_and(|rest| rest.starts_with("idx") && rest.ends_with("ubyte"))
        })
        .collect();
    found.sort_by_key(|path| (path.extension().is_some_and(|extension| extension == "gz"), path.clone()));
    Ok(found.into_iter().next())
}

fn unpaired(file: &Path, part: &str, other: &str) -> Error {
    Error::data(format!("{} stands alone: there is no {part}-{other}-idx file beside it", file.display()))
}

fn no_parts(folder: &Path) -> Error {
    Error::data(format!("the folder {} holds no train-images-idx3-ubyte file", folder.display()))
        .hint(format!("for files of other kinds name them, for instance {}/*.csv", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, UNSIGNED_BYTE, sizes.len() as u8];
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        folder
    }

    fn open_folder(files: &[(&str, Vec<u8>)]) -> Result<OpenedSource> {
        open(folder(files).path(), &DataSpec::default(), None)
    }

    #[test]
    fn both_file_name_forms_and_gz_are_found() {
        let packed = crate::file_bytes::tests::gzip(&idx(&[2], &[3, 7]));
        let opened = open_folder(&[
            ("train-images.idx3-ubyte", idx(&[2, 1, 2], &[1, 2, 3, 4])),
            ("train-labels-idx1-ubyte.gz", packed),
        ])
        .unwrap();
        assert_eq!(opened.schema.classes, ["3", "7"]);
        let block = opened.source.decode(0).unwrap();
        assert_eq!(block.targets, Targets::Classes(vec![0, 1]));
        let BlockFeatures::Pixels(pixels) = &block.features else { panic!("not pixels") };
        assert_eq!(&pixels[..], [1, 2, 3, 4]);
    }

    #[test]
    fn damaged_folders_have_distinct_errors() {
        let message = |files: &[(&str, Vec<u8>)]| open_folder(files).err().unwrap().message;
        let images = ("train-images-idx3-ubyte", idx(&[2, 1, 2], &[1, 2, 3, 4]));
        let labels = |count: u32| ("train-labels-idx1-ubyte", idx(&[count], &vec![1; count as usize]));
        assert!(message(&[]).contains("holds no train-images"));
        assert!(message(std::slice::from_ref(&images)).contains("stands alone"));
        assert!(message(&[images.clone(), labels(3)]).contains("2 images but"));
        assert!(message(&[images.clone(), labels(2)]).contains("same label 1"));
        let cut = ("train-images-idx3-ubyte", idx(&[2, 1, 2], &[1, 2, 3]));
        assert!(message(&[cut, labels(2)]).contains("does not fit its sizes [2, 1, 2]"));
        let huge = ("train-images-idx3-ubyte", idx(&[u32::MAX, u32::MAX, u32::MAX], &[]));
        assert!(message(&[huge, labels(2)]).contains("does not fit"));
        let foreign = ("train-images-idx3-ubyte", b"hello".to_vec());
        assert!(message(&[foreign, labels(2)]).contains("not an IDX file"));
        let floats = ("train-images-idx3-ubyte", vec![0, 0, 13, 3, 0, 0]);
        assert!(message(&[floats, labels(2)]).contains("only bytes"));
    }

    #[test]
    fn a_label_of_the_validation_part_must_be_a_class() {
        let error = open_folder(&[
            ("train-images-idx3-ubyte", idx(&[2, 1, 2], &[1, 2, 3, 4])),
            ("train-labels-idx1-ubyte", idx(&[2], &[0, 1])),
            ("t10k-images-idx3-ubyte", idx(&[1, 1, 2], &[1, 2])),
            ("t10k-labels-idx1-ubyte", idx(&[1], &[9])),
        ]);
        assert!(error.err().unwrap().message.contains("row 1: the label 9"));
    }
}
