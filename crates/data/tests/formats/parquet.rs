//! Parquet files, written with the column writer.

use crate::support::{all, folder, read, spec};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use std::sync::Arc;
use tempfile::TempDir;
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::spec::setting::{Bytes, ColumnRef};
use thalweg_core::{Result, Schema, Targets};
use thalweg_data::Data;

const SCHEMA: &str = "message rows {
    REQUIRED INT32 age;
    OPTIONAL DOUBLE income;
    OPTIONAL BYTE_ARRAY city (UTF8);
    REQUIRED BOOLEAN member;
    REQUIRED INT64 label;
}";

/// Two row groups; every tenth income and every seventh city is null.
fn file(rows: usize) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_data_page_row_count_limit(700).build());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    for range in [0..rows / 3, rows / 3..rows] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ages: Vec<i32> = range.clone().map(|row| row as i32).collect();
        column.typed::<Int32Type>().write_batch(&ages, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let there = |row: &usize| row % 10 != 3;
        let incomes: Vec<f64> = range.clone().filter(there).map(|row| row as f64 * 0.5).collect();
        let levels: Vec<i16> = range.clone().map(|row| i16::from(there(&row))).collect();
        column.typed::<DoubleType>().write_batch(&incomes, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let there = |row: &usize| row % 7 != 2;
        let cities: Vec<ByteArray> =
            range.clone().filter(there).map(|row| ["oslo", "rome"][row % 2].into()).collect();
        let levels: Vec<i16> = range.clone().map(|row| i16::from(there(&row))).collect();
        column.typed::<ByteArrayType>().write_batch(&cities, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let members: Vec<bool> = range.clone().map(|row| row % 2 == 0).collect();
        column.typed::<BoolType>().write_batch(&members, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let labels: Vec<i64> = range.map(|row| row as i64 % 4 - 1).collect();
        column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn read_file(bytes: &[u8], change: impl Fn(&mut DataSpec)) -> Result<(Vec<f32>, Targets, Schema)> {
    let folder = folder(&[("rows.parquet", bytes)]);
    let mut spec = spec(folder.path(), "rows.parquet");
    change(&mut spec);
    read(&spec)
}

#[test]
fn columns_and_nulls_over_row_groups_and_blocks() {
    let rows = 60_000;
    let (values, targets, schema) = read_file(&file(rows), |spec| spec.missing = Missing::Zero).unwrap();
    assert_eq!((schema.width(), values.len()), (6, 6 * rows));
    assert_eq!(schema.classes, ["-1", "0", "1", "2"]);
    for (row, numbers) in values.chunks(6).enumerate() {
        let income = if row % 10 == 3 { 0.0 } else { row as f32 * 0.5 };
        let city = if row % 7 == 2 { 0 } else { 1 + row % 2 };
        let mut expected = [row as f32, income, 0.0, 0.0, 0.0, f32::from(row % 2 == 0)];
        expected[2 + city] = 1.0;
        assert_eq!(numbers, expected, "row {row}");
    }
    let Targets::Classes(classes) = targets else { panic!("not classes") };
    assert!(classes.iter().enumerate().all(|(row, &class)| class as usize == row % 4));
}

#[test]
fn nulls_are_refused_by_name_and_columns_can_be_chosen() {
    let error = read_file(&file(900), |_| ()).unwrap_err();
    assert!(error.message.ends_with("rows.parquet row 4, column `income`: the value is missing"), "{error}");
    let (values, targets, _) = read_file(&file(900), |spec| {
        spec.label = Some(ColumnRef::Name("member".into()));
        spec.ignore = vec!["income".into(), "city".into()];
        spec.categorical = vec!["label".into()];
    })
    .unwrap();
    assert_eq!((&values[..5], values.len()), (&[0.0, 1.0, 0.0, 0.0, 0.0][..], 900 * 5));
    assert_eq!(targets, Targets::Classes((0..900).map(|row| u32::from(row % 2 == 0)).collect()));
    let error = read_file(&file(900), |spec| spec.label = Some(ColumnRef::Name("lable".into()))).unwrap_err();
    assert!(error.message.contains("did you mean `label`?"));
}

#[test]
fn another_file_is_read_with_the_stored_schema() {
    let folder: TempDir = folder(&[("a.parquet", &file(900)), ("b.parquet", &file(30))]);
    let mut spec = spec(folder.path(), "a.parquet");
    spec.missing = Missing::Mean;
    let (values, _, schema) = read(&spec).unwrap();
    spec.source = folder.path().join("b.parquet").to_str().unwrap().into();
    let (others, _) = all(&Data::open_for_evaluation(&spec, &schema).unwrap()).unwrap();
    assert_eq!(others, values[..30 * 6]);
    spec.source = folder.path().join("*.parquet").to_str().unwrap().into();
    assert_eq!(read(&spec).unwrap().1.len(), 930);
}

#[test]
fn invalid_and_truncated_files_are_errors() {
    let bytes = file(300);
    for bytes in [&b"PAR1"[..], b"", b"not parquet at all", &bytes[..bytes.len() / 2], &bytes[100..]] {
        let error = read_file(bytes, |_| ()).unwrap_err();
        assert!(error.message.contains("rows.parquet is damaged or no Parquet file"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn flipped_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = file(300);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = read_file(&bytes, |spec| spec.missing = Missing::Zero);
    }
}

#[test]
fn checksums_do_not_depend_on_memory_and_differ_between_files() {
    let checksums = |bytes: &[u8], memory: u64| {
        let folder = folder(&[("rows.parquet", bytes)]);
        let spec =
            DataSpec { memory: Bytes(memory), missing: Missing::Zero, ..spec(folder.path(), "rows.parquet") };
        let found = [(); 2].map(|()| Data::open(&spec, 1).unwrap().checksums());
        assert_eq!(found[0], found[1]);
        assert_eq!(folder.path().join("cache").exists(), memory == 0);
        found[0].clone()
    };
    let one = checksums(&file(300), 1 << 30);
    assert_eq!(one, checksums(&file(300), 0));
    assert_ne!(one, checksums(&file(301), 0));
}

#[test]
fn rows_to_predict_need_no_label() {
    let folder = folder(&[("rows.parquet", &file(500))]);
    let mut spec = spec(folder.path(), "rows.parquet");
    spec.missing = Missing::Zero;
    let trained = Data::open(&spec, 1).unwrap().schema;
    let (expected, _) = all(&Data::open_for_evaluation(&spec, &trained).unwrap()).unwrap();

    let schema = "message rows { REQUIRED BOOLEAN member; OPTIONAL BYTE_ARRAY city (UTF8);
        REQUIRED INT32 age; OPTIONAL DOUBLE income; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<BoolType>().write_batch(&[true, false], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let cities: [ByteArray; 2] = ["oslo".into(), "rome".into()];
    column.typed::<ByteArrayType>().write_batch(&cities, Some(&[1, 1]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[0, 1], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<DoubleType>().write_batch(&[0.0, 0.5], Some(&[1, 1]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    std::fs::write(folder.path().join("new.parquet"), writer.into_inner().unwrap()).unwrap();
    let spec = DataSpec { source: folder.path().join("new.parquet").to_str().unwrap().into(), ..spec };
    let (values, targets) = all(&Data::open_for_prediction(&spec, &trained).unwrap()).unwrap();
    assert_eq!(values, expected[..values.len()], "the first two rows, in columns of another order");
    assert_eq!(targets, Targets::Classes(vec![0, 0]));
    let error = Data::open_for_evaluation(&spec, &trained).unwrap_err();
    assert!(error.message.contains("no column `label`, the label of the model"), "{error}");
}

/// Written by pyarrow: four rows of a number, a text with a null, and a label.
fn by_pyarrow(compression: &str) -> DataSpec {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    DataSpec { missing: Missing::Mean, ..spec(&folder, &format!("{compression}.parquet")) }
}

#[test]
fn lz4_is_read_and_brotli_is_refused() {
    let (values, targets, _) = read(&by_pyarrow("lz4")).unwrap();
    let expected = [1.5, 0.0, 0.0, 1.0, 2.5, 0.0, 1.0, 0.0, 3.5, 0.0, 0.0, 1.0, 4.5, 1.0, 0.0, 0.0];
    assert_eq!(values, expected);
    assert_eq!(targets, Targets::Classes(vec![1, 0, 1, 0]));
    let error = read(&by_pyarrow("brotli")).unwrap_err();
    assert!(
        error.message.ends_with("brotli.parquet is compressed with brotli, which this build cannot read"),
        "{error}"
    );
    assert!(error.hint.unwrap().contains("zstd"));
}

#[test]
fn a_dictionary_of_an_impossible_size_is_refused() {
    // 212 bytes: the decoder would reserve 64 GiB for them.
    let error = read(&by_pyarrow("claims")).unwrap_err();
    let expected = "claims.parquet is damaged or no Parquet file: row group 1, column `a`: \
                    a dictionary claims 2147483647 values where there can be 2";
    assert!(error.message.ends_with(expected), "{error}");
}
