//! Writes a mutated file of each kind, and processes it as the commands do before training starts.

use crate::corpus::{Corpus, gzip};
use crate::random::Random;
use crate::{mutate, protobuf};
use clap::{Parser, ValueEnum};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg::cli::Cli;
use thalweg::view::report::ReportView;
use thalweg::{JobComponents, SpecComponents};
use thalweg_cluster::checkpoint;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::spec::setting::Bytes;
use thalweg_core::spec::{Job, JobLayers};
use thalweg_core::{Batch, Error, Features, Kind, Model, Result, Schema};
use thalweg_data::{Data, Records, Rows, sniff};
use thalweg_graph::onnx::OnnxModel;
use thalweg_graph::{Network, Options, Team};
use thalweg_train::SavedModel;
use thalweg_train::footprint::Footprint;
use thalweg_train::registry;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileKind {
    Job,
    Csv,
    Tsv,
    Jsonl,
    Libsvm,
    Idx,
    Parquet,
    Gz,
    Text,
    Onnx,
    Model,
    Checkpoint,
    Report,
    Join,
}

/// Networks up to this size are also run.
const MAX_RUN_BYTES: u64 = 64 << 20;

/// A mutated file.
pub struct Case {
    pub kind: FileKind,
    pub path: PathBuf,
    random: Random,
}

/// Writes the file of a case into an empty folder.
pub fn write(corpus: &Corpus, kind: FileKind, mut random: Random, folder: &Path) -> std::io::Result<Case> {
    let draws = &mut random;
    let (name, bytes) = match kind {
        FileKind::Job => ("job.toml", mutated_text(draws, &corpus.job)),
        FileKind::Csv => ("rows.csv", mutated_text(draws, &corpus.table)),
        FileKind::Tsv => ("rows.tsv", mutated_text(draws, &corpus.table)),
        FileKind::Jsonl => ("rows.jsonl", mutated_text(draws, &corpus.lines)),
        FileKind::Libsvm => ("rows.libsvm", mutated_text(draws, &corpus.sparse)),
        FileKind::Text => ("book.txt", mutated_text(draws, &corpus.text)),
        FileKind::Report => ("report.json", mutated_text(draws, &corpus.report)),
        FileKind::Join => ("join.json", mutated_text(draws, &corpus.join)),
        FileKind::Idx => {
            let which = draws.below(2);
            for (part, name) in IDX.iter().enumerate() {
                fs::write(folder.join(name), &corpus.images[part])?;
            }
            (IDX[which], mutated_bytes(draws, &corpus.images[which..=which]))
        }
        FileKind::Parquet => ("rows.parquet", parquet(draws, &corpus.parquet)),
        FileKind::Gz => ("rows.csv.gz", gzipped(draws, &corpus.table)),
        FileKind::Onnx => {
            let mut bytes = draws.pick(&corpus.onnx).clone();
            match draws.percent(85) {
                true => protobuf::mutate(draws, &mut bytes, &corpus.onnx),
                false => mutate::bytes(draws, &mut bytes, &corpus.onnx),
            }
            ("net.onnx", bytes)
        }
        FileKind::Model => {
            ("model.safetensors", checksummed(draws, &corpus.model, &folder.join("model.safetensors"))?)
        }
        FileKind::Checkpoint => {
            fs::create_dir_all(folder.join("checkpoints"))?;
            let name = "checkpoints/step-000000005.safetensors";
            (name, checksummed(draws, &corpus.checkpoint, &folder.join(name))?)
        }
    };
    let path = folder.join(name);
    fs::write(&path, bytes)?;
    Ok(Case { kind, path, random })
}

const IDX: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];

fn mutated_text(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut text = random.pick(samples).clone();
    mutate::text(random, &mut text, samples);
    text
}

fn mutated_bytes(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(samples).clone();
    mutate::bytes(random, &mut bytes, samples);
    bytes
}

/// Mutates the data, the footer (with a matching length), or any bytes.
fn parquet(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    let bytes = random.pick(samples).clone();
    let length = bytes.len();
    let footer = u32::from_le_bytes(bytes[length - 8..length - 4].try_into().unwrap_or_default()) as usize;
    let begin = length - 8 - footer.min(length - 8);
    let (mut data, mut footer) = (bytes[..begin].to_vec(), bytes[begin..length - 8].to_vec());
    match random.below(3) {
        0 => mutate::bytes(random, &mut data, samples),
        1 => mutate::bytes(random, &mut footer, samples),
        _ => {
            let mut bytes = bytes;
            mutate::bytes(random, &mut bytes, samples);
            return bytes;
        }
    }
    let length = (footer.len() as u32).to_le_bytes();
    [&data[..], &footer, &length, b"PAR1"].concat()
}

/// Mutates before or after compression; rarely a file that expands to 4 MiB.
fn gzipped(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    if random.percent(1) {
        return gzip(&vec![b'1'; 4 << 20]);
    }
    if random.percent(30) {
        return gzip(&mutated_text(random, samples));
    }
    let mut bytes = gzip(random.pick::<Vec<u8>>(samples));
    mutate::bytes(random, &mut bytes, samples);
    bytes
}

/// Mutates metadata or tensors of a tensor file and writes a valid checksum, or mutates its bytes.
fn checksummed(random: &mut Random, samples: &[Vec<u8>], path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = random.pick(samples).clone();
    fs::write(path, &bytes)?;
    let Some(mut file) = TensorFile::read(path).ok().filter(|_| random.percent(85)) else {
        mutate::bytes(random, &mut bytes, samples);
        return Ok(bytes);
    };
    for _ in 0..1 + random.below(2) {
        let keys: Vec<String> = file.metadata.keys().cloned().collect();
        let names: Vec<String> = file.tensors.keys().cloned().collect();
        let (key, name) = (random.pick(&keys).clone(), random.pick(&names).clone());
        match random.below(8) {
            0 => drop(file.metadata.remove(&key)),
            1 => drop(file.tensors.remove(&name)),
            2 => {
                if let Some(tensor) = file.tensors.get_mut(&name) {
                    let (shape, values) = (tensor.shape.to_mut(), tensor.values.to_mut());
                    values.push(f32::from_bits(random.next() as u32));
                    *shape = vec![values.len()];
                }
            }
            _ => {
                let others: Vec<Vec<u8>> =
                    file.metadata.values().map(|text| text.clone().into_bytes()).collect();
                let mut text = file.metadata.get(&key).cloned().unwrap_or_default().into_bytes();
                mutate::text(random, &mut text, &others);
                file.metadata.insert(key, String::from_utf8_lossy(&text).into_owned());
            }
        }
    }
    // If it cannot be written, the unmodified sample is used.
    let _ = file.write(path);
    fs::read(path)
}

/// Processes the file. The error comes with a text that it must contain.
pub fn run(corpus: &Corpus, case: &Case, folder: &Path) -> std::result::Result<(), (Error, &'static str)> {
    let random = &mut case.random.clone();
    let path = case.path.as_path();
    match case.kind {
        FileKind::Job => job(random, path).map_err(|error| (error, "")),
        FileKind::Csv
        | FileKind::Tsv
        | FileKind::Libsvm
        | FileKind::Parquet
        | FileKind::Gz
        | FileKind::Text => source(random, path, folder).map_err(|error| (error, "@")),
        FileKind::Idx => source(random, folder, folder).map_err(|error| (error, "@")),
        FileKind::Jsonl => lines(random, path, corpus).map_err(|error| (error, "input")),
        FileKind::Onnx => onnx(path).map_err(|error| (error, "model.onnx")),
        FileKind::Model => model(path).map_err(|error| (error, "@")),
        FileKind::Checkpoint => {
            let newest = checkpoint::newest(&folder.join("checkpoints"), &corpus.layout).map(drop);
            newest.and_then(|()| model(folder)).map_err(|error| (error, "@"))
        }
        FileKind::Report => {
            drop(ReportView::open(folder, "fuzz", &Job::default(), true));
            Ok(())
        }
        FileKind::Join => join(path, folder).map_err(|error| (error, "@")),
    }
}

fn command(arguments: &[&str]) -> Result<()> {
    let cli = Cli::try_parse_from(std::iter::once(&"thalweg").chain(arguments));
    cli.map_err(|error| Error::job(error.to_string())).and_then(Cli::run).map(drop)
}

fn job(random: &mut Random, path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    if random.percent(5) {
        return command(&["config", &shown]);
    }
    let text = fs::read(path).map_err(|error| Error::io(&shown, &error))?;
    let mut layers = JobLayers::default();
    layers.add_file(&shown, &String::from_utf8_lossy(&text)).map_err(Error::job)?;
    let spec = registry::resolve(layers)?.spec;
    let schema = Schema { ..digits_schema()? };
    let components = SpecComponents::new(&spec);
    let model = components.model(&schema, &Arc::new(Team::default()))?;
    Footprint::of_training(&spec, model.as_ref(), registry::ranks(&spec)).check(
        model.as_ref(),
        &schema,
        &spec.data.source,
    )
}

fn digits_schema() -> Result<Schema> {
    static SCHEMA: std::sync::OnceLock<Result<Schema>> = std::sync::OnceLock::new();
    SCHEMA.get_or_init(|| Data::open(&DataSpec::default(), 1).map(|data| data.schema)).clone()
}

/// As training does before its first step.
fn source(random: &mut Random, path: &Path, folder: &Path) -> Result<()> {
    let text = |path: &Path| path.display().to_string();
    let spec = DataSpec {
        source: text(path),
        missing: if random.percent(50) { Missing::Error } else { Missing::Mean },
        memory: Bytes(if random.percent(30) { 0 } else { 1 << 20 }),
        cache: Some(text(&folder.join("cache"))),
        cache_limit: Bytes(2 << 20),
        window: 3,
        ..DataSpec::default()
    };
    if random.percent(20) {
        sniff::sniff(&spec, &mut |_, _| ())?;
    }
    let mut data = Data::open(&spec, 1)?;
    if data.needs_statistics() {
        let statistics = data.statistics(0, 1)?;
        data.fit(&[statistics])?;
    }
    first_rows(&data.training)?;
    first_rows(&data.validation).map(drop)
}

fn first_rows(rows: &Rows) -> Result<Batch> {
    let ids: Vec<u64> = rows.ids().take(64).collect();
    let mut batch = rows.empty_batch();
    rows.load(&ids, 0, &mut batch)?;
    Ok(batch)
}

fn lines(random: &mut Random, path: &Path, corpus: &Corpus) -> Result<()> {
    let bytes = fs::read(path).map_err(|error| Error::io(path.display(), &error))?;
    let read = |mut records: Records<&[u8]>| {
        let mut batch = records.empty_batch();
        while records.next_batch(8, &mut batch)? {}
        Ok(())
    };
    match random.percent(70) {
        true => read(Records::json(&bytes[..], &corpus.schema)),
        false => read(Records::csv(&bytes[..], &corpus.schema, &DataSpec::default())?),
    }
}

fn onnx(path: &Path) -> Result<()> {
    let bytes = fs::read(path).map_err(|error| Error::io(path.display(), &error))?;
    let source = OnnxModel::read(&bytes)?;
    source.embedded_scaling()?;
    let mut network = source.standalone_network(Options::default())?;
    network.describe(64);
    let mut parameters = Vec::new();
    if Footprint::of_prediction(&network, 2).total() < MAX_RUN_BYTES {
        parameters.resize(network.layout().len(), 0.0);
        network.initialize(1, &mut parameters);
        let width = network.inputs();
        let batch = Batch {
            epoch: 0,
            rows: vec![0, 1],
            width,
            features: Features::Dense(vec![0.5; 2 * width]),
            targets: thalweg_core::Targets::Classes(vec![0, 1]),
        };
        // Rows of another form are refused.
        let _ = network.predict(&parameters, &batch, &mut Vec::new());
    }
    Ok(())
}

/// As `predict` does.
fn model(path: &Path) -> Result<()> {
    let saved = SavedModel::read(path)?;
    let (network, parameters) = saved.network()?;
    if Footprint::of_prediction(&network, 8).total() < MAX_RUN_BYTES {
        let _ = predict_rows(network, &parameters, &saved.schema);
    }
    Ok(())
}

fn predict_rows(mut network: Network, parameters: &[f32], schema: &Schema) -> Result<()> {
    let rows = b"a,b,c,colour\n1,2,3,red\n0,0,0,blue\n";
    let mut records = Records::csv(&rows[..], schema, &DataSpec::default())?;
    let mut batch = records.empty_batch();
    while records.next_batch(8, &mut batch)? {
        network.predict(parameters, &batch, &mut Vec::new())?;
    }
    Ok(())
}

/// A join file that still has an address is not used, as it would be connected to.
fn join(path: &Path, folder: &Path) -> Result<()> {
    let text = fs::read(path).map_err(|error| Error::io(path.display(), &error))?;
    let value: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    if value.is_some_and(|value| value["address"].is_string() && value["token"].is_string()) {
        return Ok(());
    }
    match command(&["join", &folder.display().to_string()]) {
        // A job that cannot be joined has its own exit code.
        Err(error) if error.kind == Kind::Rendezvous => Err(Error::job(error.message)),
        ended => ended,
    }
}
