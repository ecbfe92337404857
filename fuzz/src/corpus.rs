//! Small valid files of every kind that Thalweg reads.

use flate2::{Compression, write::GzEncoder};
use parquet::basic::{Compression as Codec, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thalweg_cluster::checkpoint::Checkpoint;
use thalweg_core::schema::{Column, Encoding as Encoded, RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::{JobSpec, Layout, Model, Task};
use thalweg_graph::{Network, Options};
use thalweg_train::SavedModel;
use thalweg_train::modelfile::unflatten;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Valid files by kind, with the schema and layout of the checkpoint.
pub struct Corpus {
    pub job: Vec<Vec<u8>>,
    pub table: Vec<Vec<u8>>,
    pub lines: Vec<Vec<u8>>,
    pub sparse: Vec<Vec<u8>>,
    pub images: [Vec<u8>; 2],
    pub parquet: Vec<Vec<u8>>,
    pub text: Vec<Vec<u8>>,
    pub onnx: Vec<Vec<u8>>,
    pub model: Vec<Vec<u8>>,
    pub checkpoint: Vec<Vec<u8>>,
    pub report: Vec<Vec<u8>>,
    pub join: Vec<Vec<u8>>,
    /// A table of three numbers and a category, with two classes.
    pub schema: Schema,
    pub layout: Layout,
}

impl Corpus {
    /// Generates all files; `folder` is for writers that need a path.
    pub fn generate(folder: &Path) -> Outcome<Corpus> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let schema = table_schema();
        let (checkpoint, layout) = checkpoint(folder, &schema)?;
        Ok(Corpus {
            job: files(&repository.join("examples"), "toml")?.into_iter().chain([JOB.into()]).collect(),
            table: tables(),
            lines: vec![LINES.into()],
            sparse: vec![SPARSE.into(), b"+1 qid:3 0:1 3:2.5 # a\n-1 1:1e3\n+1\n".to_vec()],
            images: images(),
            parquet: parquets(&repository)?,
            text: vec![
                "the wheels on the bus\n".repeat(4).into(),
                "na\u{ef}ve \u{1f600} text ".repeat(9).into(),
            ],
            onnx: files(&repository.join("crates/graph/tests/onnx"), "onnx")?,
            model: models(folder)?,
            checkpoint,
            report: vec![REPORT.into()],
            join: vec![
                b"{\"address\":\"127.0.0.1:9\",\"token\":\"0123456789abcdef0123456789abcdef\"}".to_vec(),
            ],
            schema,
            layout,
        })
    }
}

const JOB: &str = "[data]\nsource = \"builtin:digits\"\nlabel = -1\nvalidation = 0.2\nwindow = 32\nmemory = \"1GiB\"\n\n[model]\n\
    layers = [\"dense 32 relu\", \"dropout 0.1\", \"dense auto\"]\n\n[train]\nglobal_batch = 64\nepochs = 3\nseed = 7\n\
    optimizer = { kind = \"adam\", lr = 1e-3 }\ntarget = { accuracy = 0.9 }\n\n[strategy]\npreset = \"allreduce\"\n\n\
    [fault]\nstep_deadline = \"30s\"\ncheckpoint_every = 100\n\n[engine]\nkind = \"sim\"\nworkers = 4\nslow = { 1 = 2.0 }\n\n\
    [engine.network]\nlatency = \"50us\"\nvariation = 0.2\nbandwidth = \"1GiB\"\nspeed = 1e10\n\
    links = [{ from = [0, 1], to = 2, latency = \"20ms\", bandwidth = \"10MiB\" }]\n";

const LINES: &str = "{\"a\": 1, \"b\": 2.5, \"c\": -3, \"colour\": \"red\"}\n[1, 2, 3, \"blue\"]\n\
    {\"features\": [1, 2, 3, \"blue\"]}\n";

const SPARSE: &str = "1 1:0.5 7:2\n0 2:1 3:1 9:0.25\n1 1:1 4:-2\n0 7:3\n";

const REPORT: &str = "{\"version\":1,\"name\":\"digits\",\"outcome\":\"interrupted\",\"job\":{},\"dials\":{},\"world\":[],\
    \"epochs\":[{\"epoch\":0,\"step\":10,\"loss\":1.5}],\"audit\":[{\"epoch\":0,\"expected\":9,\"once\":9,\"missed\":0,\
    \"repeated\":0,\"dropped\":0}],\"final\":{},\"wall_s\":1.5,\"samples_per_s\":100.0,\"ranks\":[],\"failures\":[]}";

fn tables() -> Vec<Vec<u8>> {
    let mut plain = String::from("a,b,c,colour,label\n");
    let mut wide = String::new();
    for row in 0..24 {
        let colour = ["red", "blue"][row % 2];
        plain += &format!("{row},{}.5,-{row},{colour},{}\n", row * 2, ["x", "y"][row / 2 % 2]);
        wide += &format!("{row}\t1e{}\t\"quoted, {row}\"\t{}\n", row % 9, row % 3);
    }
    let semicolons = "x;y\n1,5;2\n2,5;3\n\n3,5;4\n4;5\n".to_string();
    [plain, wide, semicolons].map(String::into_bytes).to_vec()
}

fn images() -> [Vec<u8>; 2] {
    let count = 12u32;
    let mut pixels = [[0, 0, 8, 3], count.to_be_bytes(), 4u32.to_be_bytes(), 3u32.to_be_bytes()].concat();
    pixels.extend((0..count * 12).map(|pixel| pixel as u8));
    let mut labels = [[0, 0, 8, 1], count.to_be_bytes()].concat();
    labels.extend((0..count).map(|label| label as u8 % 3));
    [pixels, labels]
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

fn parquets(repository: &Path) -> Outcome<Vec<Vec<u8>>> {
    let mut all = files(&repository.join("crates/data/tests/files"), "parquet")?;
    let kinds = [
        (Codec::UNCOMPRESSED, None, 40),
        (Codec::SNAPPY, None, 3000),
        (Codec::ZSTD(ZstdLevel::default()), Some(Encoding::DELTA_BYTE_ARRAY), 200),
        (Codec::UNCOMPRESSED, Some(Encoding::DELTA_LENGTH_BYTE_ARRAY), 200),
        (Codec::GZIP(Default::default()), Some(Encoding::PLAIN), 100),
    ];
    for (codec, encoding, rows) in kinds {
        all.push(parquet(codec, encoding, rows)?);
    }
    Ok(all)
}

fn parquet(codec: Codec, encoding: Option<Encoding>, rows: usize) -> Outcome<Vec<u8>> {
    const SCHEMA: &str =
        "message rows { REQUIRED DOUBLE a; OPTIONAL BYTE_ARRAY city (UTF8); REQUIRED INT64 label; }";
    let mut properties = WriterProperties::builder().set_compression(codec);
    if let Some(encoding) = encoding {
        properties = properties.set_dictionary_enabled(false).set_column_encoding("city".into(), encoding);
    }
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build()))?;
    let mut group = writer.next_row_group()?;
    let numbers: Vec<f64> = (0..rows).map(|row| (row % 50) as f64 * 0.5).collect();
    let levels: Vec<i16> = (0..rows).map(|row| i16::from(row % 7 != 2)).collect();
    let present = levels.iter().enumerate().filter(|(_, level)| **level > 0);
    let cities: Vec<ByteArray> = present.map(|(row, _)| ["oslo", "rome"][row % 2].into()).collect();
    let labels: Vec<i64> = (0..rows as i64).map(|row| row % 3).collect();
    if let Some(mut column) = group.next_column()? {
        column.typed::<DoubleType>().write_batch(&numbers, None, None)?;
        column.close()?;
    }
    if let Some(mut column) = group.next_column()? {
        column.typed::<ByteArrayType>().write_batch(&cities, Some(&levels), None)?;
        column.close()?;
    }
    if let Some(mut column) = group.next_column()? {
        column.typed::<Int64Type>().write_batch(&labels, None, None)?;
        column.close()?;
    }
    group.close()?;
    Ok(writer.into_inner()?)
}

fn table_schema() -> Schema {
    let number = |name: &str| Column { name: name.into(), encoding: Encoded::Number { imputed: None } };
    let categories = vec!["blue".to_string(), "red".to_string()];
    let colour = Column { name: "colour".into(), encoding: Encoded::OneHot { categories } };
    Schema {
        shape: RowShape::Table { columns: vec![number("a"), number("b"), number("c"), colour] },
        task: Task::Classification,
        label: Some("label".into()),
        classes: vec!["x".into(), "y".into()],
        scaling: Scaling { shift: vec![1.0; 5], factor: vec![0.5; 5] },
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: ["a", "b", "c", "colour", "label"].map(String::from).to_vec(),
    }
}

fn network(schema: &Schema, layers: &[&str]) -> Outcome<(Network, Vec<String>, Vec<f32>)> {
    let layers: Vec<String> = layers.iter().map(|layer| layer.to_string()).collect();
    let network = Network::for_schema(&layers, schema, Options::default())?;
    let mut parameters = vec![0.0; network.layout().len()];
    network.initialize(7, &mut parameters);
    Ok((network, layers, parameters))
}

fn models(folder: &Path) -> Outcome<Vec<Vec<u8>>> {
    let table = table_schema();
    let image = Schema { shape: RowShape::Image { sizes: vec![4, 3] }, ..table.clone() };
    let text = Schema {
        shape: RowShape::Text { window: 4, alphabet: vec!['a', 'b', ' '] },
        classes: ["a", "b", " "].map(String::from).to_vec(),
        ..table.clone()
    };
    let sparse = Schema {
        shape: RowShape::Sparse { columns: 9, first: 1 },
        scaling: Scaling::default(),
        ..table.clone()
    };
    let mut all = Vec::new();
    let kinds: [(Schema, &[&str]); 4] = [
        (table, &["dense 4 relu", "dense auto"]),
        (Schema { scaling: Scaling::default(), ..image }, &["conv 2 3x3 relu", "flatten", "dense auto"]),
        (Schema { scaling: Scaling::default(), ..text }, &["embedding 3", "lstm 2", "dense auto"]),
        (sparse, &["dense auto"]),
    ];
    for (schema, layers) in kinds {
        let (network, layers, parameters) = network(&schema, layers)?;
        let path = folder.join("sample.safetensors");
        let saved = SavedModel {
            schema,
            layers,
            onnx: None,
            job: JobSpec::default().recipe(),
            step: 5,
            notices: Vec::new(),
            rows: None,
            combine: None,
            combiner: Vec::new(),
            tensors: unflatten(network.layout(), &parameters),
            path: PathBuf::new(),
        };
        saved.write(&path)?;
        all.push(fs::read(&path)?);
    }
    Ok(all)
}

fn checkpoint(folder: &Path, schema: &Schema) -> Outcome<(Vec<Vec<u8>>, Layout)> {
    let (network, layers, parameters) = network(schema, &["dense 3 relu", "dense auto"])?;
    let layout = network.layout().clone();
    let model = BTreeMap::from([
        ("schema".to_string(), serde_json::to_string(schema)?),
        ("layers".to_string(), serde_json::to_string(&layers)?),
    ]);
    let checkpoint = Checkpoint {
        interval: (2.5, 7),
        step: 5,
        job: JobSpec::default().recipe(),
        data: "d".into(),
        model,
        audit: vec![0; 16],
        loss: (0.5, 64),
        trained: Duration::from_micros(1500),
        slots: vec![("m".into(), parameters.clone()), ("v".into(), parameters.clone())],
        parameters,
        slots_start: 0,
    };
    let path = checkpoint.write(folder, &layout, 1)?;
    Ok((vec![fs::read(path)?], layout))
}

/// The files of a folder with that extension, ordered by name.
fn files(folder: &Path, extension: &str) -> Outcome<Vec<Vec<u8>>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|other| other == extension));
    paths.sort();
    Ok(paths.iter().map(fs::read).collect::<Result<_, _>>()?)
}
