//! Numbers that exceed single precision: times, large integers, and warnings about values that collapse.

use crate::support::{all, fit, folder, spec};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::collections::HashSet;
use std::sync::Arc;
use tempfile::TempDir;
use thalweg_core::spec::data::{DataSpec, Missing, Scale};
use thalweg_core::spec::setting::ColumnRef;
use thalweg_core::{Features, Targets};
use thalweg_data::{Data, Records};

const ROWS: i64 = 2000;

/// Unix times, one second apart, permuted.
fn second(row: i64) -> i64 {
    1_700_000_000 + row * 7 % ROWS
}

fn table(delimiter: char) -> String {
    let row = |row| format!("{}{delimiter}{}\n", second(row), row % 2);
    format!("time{delimiter}y\n") + &(0..ROWS).map(row).collect::<String>()
}

fn as_parquet() -> Vec<u8> {
    let schema = parse_message_type("message rows { REQUIRED INT64 time; REQUIRED INT32 y; }").unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let times: Vec<i64> = (0..ROWS).map(second).collect();
    column.typed::<Int64Type>().write_batch(&times, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let labels: Vec<i32> = (0..ROWS).map(|row| row as i32 % 2).collect();
    column.typed::<Int32Type>().write_batch(&labels, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

fn opened(folder: &TempDir, file: &str, scale: Scale) -> (DataSpec, Data) {
    let spec = DataSpec { scale, ..spec(folder.path(), file) };
    let mut data = Data::open(&spec, 1).unwrap();
    fit(&mut data).unwrap();
    (spec, data)
}

fn distinct(values: &[f32]) -> usize {
    values.iter().map(|value| value.to_bits()).collect::<HashSet<_>>().len()
}

#[test]
fn seconds_stay_distinct_in_every_format_and_command() {
    let folder = folder(&[
        ("rows.csv", table(',').as_bytes()),
        ("rows.tsv", table('\t').as_bytes()),
        ("rows.parquet", &as_parquet()),
    ]);
    let mean = (0..ROWS).map(second).sum::<i64>() as f64 / ROWS as f64;
    let squares = (0..ROWS).map(|row| (second(row) as f64 - mean).powi(2)).sum::<f64>();
    let deviation = (squares / ROWS as f64).sqrt();
    for file in ["rows.csv", "rows.tsv", "rows.parquet"] {
        let (spec, data) = opened(&folder, file, Scale::Standard);
        let (values, _) = all(&data.training).unwrap();
        assert_eq!(distinct(&values), ROWS as usize, "{file}");
        for (row, value) in values.iter().enumerate() {
            let expected = (second(row as i64) as f64 - mean) / deviation;
            assert!((f64::from(*value) - expected).abs() < 1e-5, "{file}: {value} for {expected}");
        }
        assert_eq!(
            all(&Data::open_for_evaluation(&spec, &data.schema).unwrap()).unwrap().0,
            values,
            "{file}: evaluated"
        );
        let csv: String = (0..ROWS).map(|row| format!("{}\n", second(row))).collect();
        let json: String = (0..ROWS).map(|row| format!("{{\"time\": {}}}\n", second(row))).collect();
        for mut records in [
            Records::csv(csv.as_bytes(), &data.schema, &DataSpec::default()).unwrap(),
            Records::json(json.as_bytes(), &data.schema),
        ] {
            let mut batch = records.empty_batch();
            assert!(records.next_batch(ROWS as usize, &mut batch).unwrap());
            assert_eq!(batch.features, Features::Dense(values.clone()), "{file}: predicted");
        }
        let (_, data) = opened(&folder, file, Scale::Minmax);
        let (values, _) = all(&data.training).unwrap();
        assert_eq!(distinct(&values), ROWS as usize, "{file}");
        let reaches = |limit| values.contains(&limit);
        assert!(reaches(0.0) && reaches(1.0) && values.iter().all(|value| (0.0..=1.0).contains(value)));
    }
}

#[test]
fn the_scaling_does_not_depend_on_the_number_of_partitions() {
    let text: String = (0..20_000).map(|row| format!("{}.5,{}\n", second(row), row % 3)).collect();
    let folder = folder(&[("rows.csv", text.as_bytes())]);
    let spec = DataSpec { scale: Scale::Standard, ..spec(folder.path(), "rows.csv") };
    let fitted = |parts: usize| {
        let mut data = Data::open(&spec, 1).unwrap();
        let statistics: Vec<_> = (0..parts).map(|part| data.statistics(part, parts).unwrap()).collect();
        data.fit(&statistics).unwrap();
        data.schema.scaling
    };
    assert_eq!(fitted(1), fitted(3));
    assert_eq!(fitted(1), fitted(4));
}

#[test]
fn targets_and_missing_values_keep_their_precision() {
    let text: String = (0..ROWS).map(|row| format!("{row},{}.25\n", second(row))).collect();
    let sparse: String = (0..ROWS).map(|row| format!("{}.25 1:{row}\n", second(row))).collect();
    let folder = folder(&[("rows.csv", text.as_bytes()), ("rows.libsvm", sparse.as_bytes())]);
    for file in ["rows.csv", "rows.libsvm"] {
        let (_, data) = opened(&folder, file, Scale::Standard);
        let ids: Vec<u64> = data.training.ids().collect();
        let mut batch = data.training.empty_batch();
        data.training.load(&ids, 0, &mut batch).unwrap();
        let Targets::Values(targets) = batch.targets else { panic!("not a regression") };
        for (row, target) in targets.iter().enumerate() {
            let again = data.schema.target.invert(*target);
            assert!((again - second(row as i64) as f64 - 0.25).abs() < 0.01, "{file}: {again}");
        }
    }
    let gaps: String = (0..ROWS)
        .map(|row| if row == 5 { format!("0,,{row}\n") } else { format!("0,{},{row}\n", second(row)) })
        .collect();
    let folder = self::folder(&[("gaps.csv", gaps.as_bytes())]);
    let spec = DataSpec { scale: Scale::Standard, missing: Missing::Mean, ..spec(folder.path(), "gaps.csv") };
    let mut data = Data::open(&spec, 1).unwrap();
    fit(&mut data).unwrap();
    let (values, _) = all(&data.training).unwrap();
    assert_eq!(values[2 * 5 + 1], 0.0, "the mean, once scaled");
}

#[test]
fn values_that_collapse_are_reported_by_column() {
    // Account numbers from two ranges: close to each other within the second, far from the first.
    let number = |row: i64| if row % 2 == 0 { row } else { 4_000_000_000_000_000 + row };
    let rows =
        |with: &dyn Fn(i64) -> String| (0..ROWS).map(|row| format!("{},{}\n", with(row), row % 3)).collect();
    let warnings = |text: String| {
        let text = format!("account,y\n{text}");
        let folder = folder(&[("rows.csv", text.as_bytes())]);
        let spec = DataSpec {
            scale: Scale::Standard,
            label: Some(ColumnRef::Name("y".into())),
            ..spec(folder.path(), "rows.csv")
        };
        let mut data = Data::open(&spec, 1).unwrap();
        let statistics = data.statistics(0, 1).unwrap();
        data.fit(&[statistics]).unwrap()
    };
    let reported = warnings(rows(&|row| number(row).to_string()));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].starts_with("column `account`: ") && reported[0].contains("cannot be told apart"),
        "{reported:?}"
    );
    for ordinary in [
        rows(&|row| second(row).to_string()),
        rows(&|row| (4_000_000_000_000_000 + row).to_string()),
        rows(&|row| format!("{}", (row * 7919 % 10_007) as f64 * 123_456.789)),
        rows(&|row| format!("0.{}", row * 7919 % 10_007)),
    ] {
        assert!(warnings(ordinary).is_empty());
    }
}

#[test]
fn times_over_decades_stay_distinct_up_to_the_resolution_of_scaling() {
    // Pairs of times, 2004 to 2024.
    let times = |apart: i64| {
        (0..ROWS).flat_map(move |pair| [0, apart].map(|more| 1_072_915_200 + pair * 315_569 + more))
    };
    let opened = |apart: i64, scale: Scale| {
        let text: String =
            times(apart).enumerate().map(|(row, time)| format!("{time},{}\n", row % 2)).collect();
        let folder = folder(&[("rows.csv", text.as_bytes())]);
        let mut data = Data::open(&DataSpec { scale, ..spec(folder.path(), "rows.csv") }, 1).unwrap();
        let statistics = data.statistics(0, 1).unwrap();
        let reported = data.fit(&[statistics]).unwrap();
        (distinct(&all(&data.training).unwrap().0), reported)
    };
    let rows = 2 * ROWS as usize;
    assert_eq!(opened(60, Scale::Standard), (rows, Vec::new()));
    // Between 0.5 and 1, a minute is close to the resolution of single precision.
    let (different, reported) = opened(60, Scale::Minmax);
    assert!(different > rows - rows / 500 && reported.is_empty(), "{different} {reported:?}");
    let (different, reported) = opened(4, Scale::Standard);
    assert!(different < rows);
    assert!(reported.len() == 1 && reported[0].contains("cannot be told apart"), "{reported:?}");
}
