//! Sources larger than memory: read by position, gz files decompressed once, the index cached.

use crate::support::{all, batch, folder, read, spec};
use flate2::{Compression, write::GzEncoder};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::setting::Bytes;
use thalweg_data::{Data, Rows};

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
fn a_gz_table_streams_the_same_rows_from_its_unpacked_copy() {
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

/// Rows of a file on disk that is edited in place after it was opened. `seen` sets whether the edit changes
/// the modification time: file system clocks are coarse, so it may not.
fn edited(name: &str, text: &str, edit: &str, seen: bool) -> Rows {
    let folder = folder(&[(name, text.as_bytes())]);
    let mut spec = spec(folder.path(), name);
    spec.memory = Bytes(0);
    let rows = Data::open(&spec, 1).unwrap().training;
    let path = folder.path().join(name);
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    std::fs::write(&path, edit).unwrap();
    let after = if seen { before + Duration::from_secs(1) } else { before };
    File::options().write(true).open(&path).unwrap().set_modified(after).unwrap();
    rows
}

#[test]
fn a_file_edited_in_place_is_an_error() {
    let sparse: String = (0..100).map(|row| format!("{} {}:1.5\n", row % 2, row % 9 + 1)).collect();
    for (name, text) in [("rows.csv", table()), ("rows.libsvm", sparse)] {
        let other_values = text.replace('5', "6");
        // The same length with one row fewer.
        let blank =
            format!("{}\n{}", " ".repeat(text.find('\n').unwrap()), &text[text.find('\n').unwrap() + 1..]);
        let half = text.split_at(text.len() / 2).0;
        for (edit, seen) in [(other_values.as_str(), true), (half, true), (half, false), (&blank, false)] {
            let message = batch(&edited(name, &text, edit, seen)).unwrap_err().message;
            assert!(
                message.ends_with("changed while it was read")
                    || message.ends_with("became shorter while it was read"),
                "{name}: {message}"
            );
        }
    }
}

#[test]
fn an_unwritable_cache_is_an_error_only_for_gz_files() {
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

#[test]
fn checksums_depend_on_values_only() {
    let sparse: String = (0..5000).map(|row| format!("{} {}:1.5\n", row % 2, row % 9 + 1)).collect();
    let text = "the quick brown fox ".repeat(200);
    let cases = [
        ("rows.csv", table(), ",7.25", ",8.25"),
        ("rows.libsvm", sparse, ":1.5", ":2.5"),
        ("a.txt", text, "quick", "brown"),
    ];
    for (name, before, from, to) in cases {
        let after = before.replacen(from, to, 1);
        assert_ne!(before, after);
        let checksums = |text: &str, packed: bool, memory: u64| {
            let (name, bytes) = match packed {
                true => (format!("{name}.gz"), gzip(text)),
                false => (name.to_string(), text.into()),
            };
            let folder = folder(&[(&name, &bytes)]);
            let spec = DataSpec { memory: Bytes(memory), ..spec(folder.path(), &name) };
            // The second time, the checksum of a large file comes from the cache.
            let found = [(); 2].map(|()| Data::open(&spec, 1).unwrap().checksums());
            assert_eq!(found[0], found[1]);
            found[0].clone()
        };
        let expected = checksums(&before, false, 1 << 30);
        for (packed, memory) in [(true, 1 << 30), (false, 0), (true, 0)] {
            assert_eq!(checksums(&before, packed, memory), expected, "{name} {packed} {memory}");
            assert_ne!(checksums(&after, packed, memory), expected, "{name} {packed} {memory}");
        }
        assert_ne!(checksums(&after, false, 1 << 30), expected, "{name}");
    }
}
