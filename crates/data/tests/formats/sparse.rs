//! Sparse rows.

use crate::support::{batch, fit, folder, spec};
use thalweg_core::schema::RowShape;
use thalweg_core::spec::data::{DataSpec, Scale};
use thalweg_core::{Features, Result, Schema, Targets, Task};
use thalweg_data::Data;

type SparseRows = (Vec<usize>, Vec<u32>, Vec<f32>, Targets);

fn read_text(text: &str, change: impl Fn(&mut DataSpec)) -> Result<(SparseRows, Schema)> {
    let folder = folder(&[("rows.libsvm", text.as_bytes())]);
    let mut spec = spec(folder.path(), "rows.libsvm");
    change(&mut spec);
    let mut data = Data::open(&spec, 1)?;
    fit(&mut data)?;
    let batch = batch(&data.training)?;
    let Features::Sparse { starts, columns, values } = batch.features else { panic!("not sparse") };
    Ok(((starts, columns, values, batch.targets), data.schema))
}

fn message(text: &str) -> String {
    read_text(text, |_| ()).unwrap_err().message
}

#[test]
fn rows_stay_sparse_and_columns_count_from_one() {
    let text = "# a comment\n+1 1:0.5 3:2 # more\n\n-1 qid:7 4:1\n+1\n-1 3:1 1:4\n";
    let ((starts, columns, values, targets), schema) = read_text(text, |_| ()).unwrap();
    assert_eq!(starts, [0, 2, 3, 3, 5]);
    assert_eq!(columns, [0, 2, 3, 0, 2]);
    assert_eq!(values, [0.5, 2.0, 1.0, 4.0, 1.0]);
    assert_eq!(targets, Targets::Classes(vec![1, 0, 1, 0]));
    assert_eq!(schema.shape, RowShape::Sparse { columns: 4, first: 1 });
}

#[test]
fn a_column_zero_means_counting_from_zero() {
    let ((_, columns, _, targets), schema) = read_text("0.5 0:1 3:1\n1.5 1:1\n", |_| ()).unwrap();
    assert_eq!((columns, schema.shape), (vec![0, 3, 1], RowShape::Sparse { columns: 4, first: 0 }));
    assert_eq!((targets, schema.task), (Targets::Values(vec![0.5, 1.5]), Task::Regression));
}

#[test]
fn damaged_rows_are_reported_with_their_location() {
    assert!(message("1 1:2\n0 x:2\n").contains("line 2, column `x:2`: expected a column's number"));
    assert!(message("1 1:2\n0 3\n").contains("line 2, column `3`"));
    assert!(message("1 1:2\n0 2:abc\n").contains("line 2, column `2`: `abc` is not a number"));
    assert!(message("1 1:2\n0 2:1e99\n").contains("not a finite number"));
    assert!(message("1 1:2\n0 2:1 2:3\n").contains("column `2`: the column occurs twice"));
    assert!(message("1 1:2\n1:2 2:1\n").contains("line 2, column `label`: the label is missing"));
    assert!(message("1 1:2\n0 99999999999999999999:1\n").contains("line 2"));
    assert!(message("1 1:2\n1 2:1\n").contains("same label `1`"));
    assert!(message("# nothing\n").contains("holds no rows"));
}

#[test]
fn a_column_number_beyond_the_limit_is_refused() {
    let width =
        |column: u64| read_text(&format!("1 1:2\n0 {column}:1\n"), |_| ()).map(|(_, schema)| schema.width());
    assert_eq!(width(1 << 24).unwrap(), 1 << 24);
    for column in [(1 << 24) + 1, 1 << 28, u64::MAX] {
        let error = width(column).unwrap_err();
        let wanted = format!("line 2, column `{column}`: the largest number a column can have is 16777216");
        assert!(error.message.contains(&wanted), "{error}");
        assert!(error.hint.unwrap().contains("number the columns anew"));
    }
}

#[test]
fn scaling_multiplies_and_never_shifts() {
    let text = "1 1:4 2:-8\n0 1:2\n1 2:4\n0 1:4\n";
    let ((_, _, values, _), schema) = read_text(text, |spec| spec.scale = Scale::Minmax).unwrap();
    assert_eq!(values, [1.0, -1.0, 0.5, 0.5, 1.0]);
    assert!(schema.scaling.shift.is_empty());
    let ((_, _, values, _), _) =
        read_text("1 1:2\n0 2:1\n1 1:2\n0 2:1\n", |spec| spec.scale = Scale::Standard).unwrap();
    assert_eq!(values, [2.0, 2.0, 2.0, 2.0], "deviations of 1 and a half, zeros counted");
}

#[test]
fn another_file_must_have_the_same_columns() {
    let folder = folder(&[
        ("rows.libsvm", b"1 1:1 5:1\n0 2:1\n"),
        ("narrow.libsvm", b"0 2:1\n"),
        ("wide.libsvm", b"0 2:1\n1 6:1\n"),
        ("zero.libsvm", b"0 0:1\n"),
    ]);
    let mut spec = spec(folder.path(), "rows.libsvm");
    let schema = Data::open(&spec, 1).unwrap().schema;
    let mut with = |name: &str| {
        spec.source = folder.path().join(name).to_str().unwrap().into();
        Data::open_for_evaluation(&spec, &schema).and_then(|rows| batch(&rows))
    };
    assert_eq!(with("narrow.libsvm").unwrap().width, 5);
    let message = with("wide.libsvm").unwrap_err().message;
    assert!(
        message.contains("wide.libsvm line 2, column `6`: the model was trained on columns 1 to 5"),
        "{message}"
    );
    assert!(with("zero.libsvm").unwrap_err().message.contains("column `0`"));
}

#[test]
fn rows_to_predict_need_no_label() {
    let folder =
        folder(&[("rows.libsvm", b"+1 1:0.5 3:2\n-1 2:1\n"), ("new.libsvm", b"1:0.5 3:2\n7 2:1\n? 3:1\n")]);
    let schema = Data::open(&spec(folder.path(), "rows.libsvm"), 1).unwrap().schema;
    let new = spec(folder.path(), "new.libsvm");
    let read = batch(&Data::open_for_prediction(&new, &schema).unwrap()).unwrap();
    let (starts, columns, values) = (vec![0, 2, 3, 4], vec![0, 2, 1, 2], vec![0.5, 2.0, 1.0, 1.0]);
    assert_eq!(read.features, Features::Sparse { starts, columns, values });
    assert!(Data::open_for_evaluation(&new, &schema).unwrap_err().message.contains("the label is missing"));
}
