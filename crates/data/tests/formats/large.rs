//! Sources that do not fit into memory: read by position, packed ones unpacked once, the index kept.

use crate::support::{all, batch, folder, read, spec};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::Path;
use thalweg_core::spec::setting::Bytes;
use thalweg_data::Data;

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn table() -> String {
    (0..20_000).map(|row| format!("{row},{}.25,k{},{}\n", row * 7 % 1000, row % 3, row % 2)).collect()
}

fn cached(folder: &Path, ending: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder.join("cache")).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect()
}

#[test]
fn a_packed_table_streams_the_same_rows_from_its_unpacked_copy() {
    let packed = gzip(&table());
    let folder = folder(&[("rows.csv.gz", &packed)]);
    let mut spec = spec(folder.path(), "rows.csv.gz");
    let expected = read(&spec).unwrap();
    assert!(!folder.path().join("cache").exists(), "what fits in memory leaves no trace");
    spec.memory = Bytes(1000);
    for _ in 0..2 {
        assert_eq!(read(&spec).unwrap(), expected);
    }
    assert_eq!((cached(folder.path(), ".unpacked").len(), cached(folder.path(), ".index").len()), (1, 1));
    std::fs::write(&cached(folder.path(), ".index")[0], b"nonsense").unwrap();
    assert_eq!(read(&spec).unwrap(), expected);
    spec.ignore = vec!["c0".into()];
    read(&spec).unwrap();
    assert_eq!(cached(folder.path(), ".index").len(), 2, "other options, another index");
}

#[test]
fn a_changed_file_is_indexed_again() {
    let folder = folder(&[("rows.csv", table().as_bytes())]);
    let mut spec = spec(folder.path(), "rows.csv");
    spec.memory = Bytes(0);
    assert_eq!(Data::open(&spec, 1).unwrap().training.len(), 20_000);
    std::fs::write(folder.path().join("rows.csv"), "1,2,a,0\n3,4,b,1\n").unwrap();
    let data = Data::open(&spec, 1).unwrap();
    assert_eq!(data.training.len(), 2);
    assert_eq!(all(&data.training).unwrap().0.len(), 8);
}

#[test]
fn a_cache_that_cannot_be_written_matters_only_for_packed_files() {
    let packed = gzip(&table());
    let folder = folder(&[("rows.csv", table().as_bytes()), ("rows.csv.gz", &packed), ("cache", b"a file")]);
    let mut spec = spec(folder.path(), "rows.csv");
    spec.memory = Bytes(1000);
    assert_eq!(Data::open(&spec, 1).unwrap().training.len(), 20_000);
    spec.source += ".gz";
    let error = Data::open(&spec, 1).unwrap_err();
    assert!(
        error.message.contains("cannot unpack") && error.hint.unwrap().contains("data.cache"),
        "{}",
        error.message
    );
}

#[test]
fn sparse_rows_and_texts_stream_too() {
    let rows: String =
        (0..9000).map(|row| format!("{} {}:1.5 {}:2\n", row % 2, row % 50 + 1, row % 7 + 60)).collect();
    let text: String = (0..150_000).map(|n| ['a', 'ß', '€', 'x'][n * n % 11 % 4]).collect();
    let (packed_rows, packed_text) = (gzip(&rows), gzip(&text));
    let folder = folder(&[("rows.libsvm.gz", &packed_rows), ("book.txt.gz", &packed_text)]);
    for name in ["rows.libsvm.gz", "book.txt.gz"] {
        let mut spec = spec(folder.path(), name);
        let expected = batch(&Data::open(&spec, 1).unwrap().training).unwrap();
        spec.memory = Bytes(1000);
        for _ in 0..2 {
            assert!(batch(&Data::open(&spec, 1).unwrap().training).unwrap() == expected, "{name}");
        }
    }
}
