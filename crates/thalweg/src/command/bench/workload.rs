//! Benchmark workloads: a network, its optimizer, its batch and synthetic data of the right shape, as a job file.
//!
//! The scripts that measure other systems use the same ones. The data is written in an ordinary file format, so that a
//! measured job reads its rows like any other.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use thalweg_core::{Error, Result, Rng};
use thalweg_graph::{Input, zoo};

/// Numbers of training and validation images; few of the latter, since validation is not measured.
const IMAGES: [usize; 2] = [10_240, 256];
/// Height and width of an image.
const SIDE: usize = 28;
/// Characters of the text.
const CHARACTERS: usize = 64 * 320;
/// Distinct characters, and characters per row.
const TEXT: Input = Input::Symbols { window: 64, vocabulary: 65 };

/// A benchmark workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// 784-128-10, Adam, 256 rows
    Mlp,
    /// 784-128-10, Adam, 64 rows
    MlpB64,
    /// 784-1024-1024-10, momentum, 128 rows
    Wide,
    /// Two convolutions and two dense layers, momentum, 64 images
    Lenet,
    /// Four transformer blocks over 64 characters, Adam, 32 rows
    Gpt,
    /// An LSTM over 64 characters, Adam, 32 rows
    Lstm,
}

impl Workload {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Mlp => "mlp",
            Workload::MlpB64 => "mlp-b64",
            Workload::Wide => "wide",
            Workload::Lenet => "lenet",
            Workload::Gpt => "gpt",
            Workload::Lstm => "lstm",
        }
    }

    /// Rows of a step, for each worker.
    fn batch(self) -> usize {
        match self {
            Workload::Mlp => 256,
            Workload::Wide => 128,
            Workload::MlpB64 | Workload::Lenet => 64,
            Workload::Gpt | Workload::Lstm => 32,
        }
    }

    fn layers(self) -> Result<Vec<String>> {
        let image = Input::Image([SIDE, SIDE, 1]);
        match self {
            Workload::Mlp | Workload::MlpB64 => zoo::layers("mlp", image),
            Workload::Wide => {
                Ok(["dense 1024 relu", "dense 1024 relu", "dense auto"].map(String::from).into())
            }
            Workload::Lenet => zoo::layers("lenet", image),
            Workload::Gpt => zoo::layers("gpt-mini", TEXT),
            Workload::Lstm => zoo::layers("char-lstm", TEXT),
        }
    }

    /// Writes data and job file into a folder and returns the job's path. The job has 1,000,000 epochs: the benchmark
    /// stops it.
    pub fn write(self, folder: &Path, workers: usize, threads: usize) -> Result<PathBuf> {
        let data = folder.join("data");
        make_folder(&data)?;
        let (source, rest) = match self {
            Workload::Gpt | Workload::Lstm => (write_text(&data)?, "window = 64\nvalidation = 0.01\n"),
            _ => (write_images(&data)?, ""),
        };
        let optimizer = match self {
            Workload::Wide | Workload::Lenet => "kind = \"momentum\"\nlr = 0.01\nmomentum = 0.9\n",
            _ => "kind = \"adam\"\nlr = 1e-3\n",
        };
        let mut job = String::new();
        let layers = toml::Value::from(self.layers()?);
        let source = toml::Value::from(source.display().to_string());
        let batch = self.batch() * workers;
        let _ = write!(job, "[data]\nsource = {source}\n{rest}\n[model]\nlayers = {layers}\n\n");
        let _ = write!(job, "[train]\nglobal_batch = {batch}\nepochs = 1000000\n\n");
        let _ = write!(job, "[train.optimizer]\n{optimizer}\n");
        let _ = write!(job, "[engine]\nworkers = {workers}\nthreads = {threads}\n");
        let path = folder.join(format!("{}.toml", self.name()));
        write(&path, job.as_bytes())?;
        Ok(path)
    }
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| Error::io(format!("cannot create {}", path.display()), &error))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| Error::io(format!("cannot write {}", path.display()), &error))
}

/// Images of noise with random labels, as an IDX folder.
fn write_images(folder: &Path) -> Result<PathBuf> {
    let mut rng = Rng::keyed(0, "bench", &[]);
    for (part, rows) in ["train", "t10k"].into_iter().zip(IMAGES) {
        let mut images = vec![0, 0, 8, 3];
        for size in [rows, SIDE, SIDE] {
            images.extend((size as u32).to_be_bytes());
        }
        images.extend((0..rows * SIDE * SIDE).map(|_| rng.below(256) as u8));
        write(&folder.join(format!("{part}-images-idx3-ubyte")), &images)?;
        let mut labels = vec![0, 0, 8, 1];
        labels.extend((rows as u32).to_be_bytes());
        labels.extend((0..rows).map(|row| if row < 10 { row as u8 } else { rng.below(10) as u8 }));
        write(&folder.join(format!("{part}-labels-idx1-ubyte")), &labels)?;
    }
    Ok(folder.to_path_buf())
}

/// A random text that contains every character of the vocabulary.
fn write_text(folder: &Path) -> Result<PathBuf> {
    let Input::Symbols { vocabulary, .. } = TEXT else { return Err(Error::internal("text has symbols")) };
    let mut rng = Rng::keyed(0, "bench", &[]);
    let symbol = |number: u64| b'0' + number as u8;
    let first = (0..vocabulary as u64).map(symbol);
    let rest: Vec<u8> = (0..CHARACTERS).map(|_| symbol(rng.below(vocabulary as u64))).collect();
    let path = folder.join("noise.txt");
    write(&path, &first.chain(rest).collect::<Vec<u8>>())?;
    Ok(path)
}
