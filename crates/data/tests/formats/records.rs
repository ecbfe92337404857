//! Rows to predict.

use crate::support::{folder, read, spec};
use std::io::{BufReader, Read};
use thalweg_core::schema::{RowShape, Scaling, TargetScaling};
use thalweg_core::spec::data::{DataSpec, Missing, Scale};
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::{Auto, ColumnRef};
use thalweg_core::{Batch, Features, Result, Schema, Targets, Task};
use thalweg_data::{Data, Records};

fn trained(text: &str, change: impl Fn(&mut DataSpec)) -> Schema {
    let folder = folder(&[("people.csv", text.as_bytes())]);
    let mut spec = spec(folder.path(), "people.csv");
    change(&mut spec);
    read(&spec).unwrap().2
}

fn people() -> Schema {
    trained("age,city,y\n30,oslo,yes\n50,rome,no\n", |_| ())
}

fn shaped(shape: RowShape, factor: Vec<f32>) -> Schema {
    let classes = vec!["a".into(), "b".into()];
    let (scaling, target) = (Scaling { shift: vec![], factor }, TargetScaling::default());
    Schema {
        shape,
        task: Task::Classification,
        label: None,
        classes,
        scaling,
        target,
        reconstruct: false,
        source_columns: Vec::new(),
    }
}

fn collect(mut records: Records<&[u8]>) -> Result<Vec<Batch>> {
    let mut batches = Vec::new();
    let mut batch = records.empty_batch();
    while records.next_batch(2, &mut batch)? {
        batches.push(batch.clone());
    }
    Ok(batches)
}

fn dense(batches: Vec<Batch>) -> Vec<f32> {
    let features = batches.into_iter().map(|batch| match batch.features {
        Features::Dense(values) => values,
        other => panic!("not dense: {other:?}"),
    });
    features.flatten().collect()
}

fn csv(text: &str, schema: &Schema) -> Result<Vec<f32>> {
    collect(Records::csv(text.as_bytes(), schema, &DataSpec::default())?).map(dense)
}

fn json(text: &str, schema: &Schema) -> Result<Vec<f32>> {
    collect(Records::json(text.as_bytes(), schema)).map(dense)
}

#[test]
fn csv_with_and_without_header_and_label() {
    let schema = people();
    let expected = vec![30.0, 1.0, 0.0, 40.0, 0.0, 1.0, 7.0, 0.0, 1.0];
    for text in [
        "age,city\n30,oslo\n40,rome\n7,rome\n",
        "city,id,age\noslo,1,30\nrome,2,40\nrome,3,7\n",
        "age;city;y\n30;oslo;yes\n40;rome;no\n7;rome;\n",
        "30,oslo\n40,rome\n7,rome\n",
        "30,oslo,yes\n40,rome,no\n7,rome,no",
    ] {
        assert_eq!(csv(text, &schema).unwrap(), expected, "{text}");
    }
    assert!(csv("", &schema).unwrap().is_empty());
    assert!(csv("age,city\n", &schema).unwrap().is_empty());
}

#[test]
fn batches_are_bounded_and_rows_numbered() {
    let schema = people();
    let batches =
        collect(Records::csv(&b"1,oslo\n2,oslo\n3,oslo\n"[..], &schema, &DataSpec::default()).unwrap())
            .unwrap();
    let rows: Vec<_> = batches.iter().map(|batch| batch.rows.clone()).collect();
    assert_eq!(rows, [vec![0, 1], vec![2]]);
}

#[test]
fn json_objects_and_arrays() {
    let schema = people();
    let text = "{\"city\": \"oslo\", \"age\": 30, \"extra\": [1]}\n\n[40, \"rome\"]\n{\"features\": [7.5, \"rome\"]}\n";
    assert_eq!(json(text, &schema).unwrap(), [30.0, 1.0, 0.0, 40.0, 0.0, 1.0, 7.5, 0.0, 1.0]);
    let message = |text: &str| json(text, &schema).unwrap_err().message;
    assert!(message("{\"city\": \"oslo\"}").contains("input row 1, column `age`: the value is missing"));
    assert!(
        message("[1]").contains("input row 1 has 1 columns without names, but the model was trained on 2")
    );
    assert!(message("{}").contains("column `age`: the value is missing"));
    assert!(message("{\"aeg\": 1, \"city\": \"oslo\"}").contains("no column `aeg`; did you mean `age`?"));
    let error = json("{\"quantity\": 1}", &schema).unwrap_err();
    assert_eq!(error.message, "input row 1: the model has no column `quantity`");
    assert_eq!(error.hint.unwrap(), "its columns are age, city");
    assert!(message("nonsense").contains("is not JSON"));
    assert!(message("[[1], \"oslo\"]").contains("expected a number or a text"));
    assert!(message("3").contains("expected an object"));
}

#[test]
fn invalid_input_is_reported_without_job_settings() {
    let schema = people();
    let error = csv("age,city\n1,oslo\nabc,rome\n", &schema).unwrap_err();
    assert_eq!(error.message, "input row 2, column `age`: `abc` is not a number");
    assert!(!error.hint.unwrap().contains("data."));
    let error = csv("1,paris\n", &schema).unwrap_err();
    assert!(
        error.message.contains("the category `paris` is not known")
            && error.hint.unwrap().contains("oslo, rome")
    );
    assert!(csv("age,town\n1,oslo\n", &schema).unwrap_err().message.contains("no column `city`"));
    assert!(
        csv("1,oslo,yes,3\n", &schema)
            .unwrap_err()
            .message
            .contains("4 columns without names, but the model was trained on 2")
    );
    assert!(csv("1,oslo\n2\n", &schema).unwrap_err().message.contains("input row 2 has 1 fields"));
}

#[test]
fn imputation_and_scaling_match_training() {
    let schema = trained("age,city,y\n1,a,0\n,b,1\n3,?,0\n", |spec| {
        (spec.missing, spec.scale) = (Missing::Mean, Scale::Standard);
    });
    let values = csv(",zzz\n", &schema).unwrap();
    assert_eq!(values, [0.0, 1.0, 0.0, 0.0], "the mean is 0 once scaled; an unknown city counts as missing");
    assert_eq!(json("{\"city\": \"a\"}", &schema).unwrap(), [0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn columns_without_names_keep_their_positions() {
    let schema = trained("0,1.5,2\n1,3.5,4\n", |spec| {
        spec.label = Some(ColumnRef::Index(0));
    });
    assert_eq!(csv("9,5,6\n", &schema).unwrap(), [5.0, 6.0], "with the label in its place");
    assert_eq!(csv("5,6\n", &schema).unwrap(), [5.0, 6.0]);
}

#[test]
fn fields_and_arrays_without_names_map_by_training_order() {
    let text = "id,y,age,city,note\n1,yes,30,oslo,a\n2,no,50,rome,b\n";
    let schema = trained(text, |spec| {
        spec.label = Some(ColumnRef::Name("y".into()));
        spec.ignore = vec!["id".into(), "note".into()];
    });
    let expected = [40.0, 0.0, 1.0];
    for row in ["7,no,40,rome,x", "7,40,rome,x", "no,40,rome", "40,rome"] {
        assert_eq!(csv(row, &schema).unwrap(), expected, "{row}");
        assert_eq!(csv(&row.replace(',', "\t"), &schema).unwrap(), expected, "{row}");
        let quoted: Vec<String> = row.split(',').map(|field| format!("\"{field}\"")).collect();
        assert_eq!(json(&format!("[{}]", quoted.join(",")), &schema).unwrap(), expected, "{row}");
    }
    let error = csv("1,2,3,4,5,6", &schema).unwrap_err();
    assert!(error.message.contains("6 columns without names"), "{error}");
    assert!(error.hint.unwrap().contains("id, y, age, city, note (label `y`)"));

    let old = Schema { source_columns: Vec::new(), ..schema };
    assert_eq!(csv("40,rome", &old).unwrap(), expected);
    let error = csv("no,40,rome", &old).unwrap_err();
    assert!(error.message.contains("does not store the order of the others"), "{error}");
    assert_eq!(csv("city,id,age\nrome,3,40", &old).unwrap(), expected);
}

#[test]
fn the_job_sets_the_header() {
    let schema = trained("0,1.5,2\n1,3.5,4\n", |spec| spec.label = Some(ColumnRef::Index(0)));
    let read = |text: &'static str, header| {
        let spec = DataSpec { header, ..DataSpec::default() };
        collect(Records::csv(text.as_bytes(), &schema, &spec)?).map(dense)
    };
    assert_eq!(read("x,y\n5,6\n", Auto::Auto).unwrap(), [5.0, 6.0], "words where there should be numbers");
    assert_eq!(read("9,9\n5,6\n", Auto::Is(true)).unwrap(), [5.0, 6.0]);
    assert!(read("x,y\n5,6\n", Auto::Is(false)).unwrap_err().message.contains("`x` is not a number"));
}

#[test]
fn labels_are_read_from_arrays_and_objects() {
    let schema = trained("y,a\n10,1\n20,2\n30.5,3\n", |spec| {
        (spec.label, spec.scale) = (Some(ColumnRef::Index(0)), Scale::Standard);
    });
    let read = |text: &'static str| collect(Records::json(text.as_bytes(), &schema).labelled(&schema)?);
    let batches = read("[20, 2]\n{\"a\": 2, \"y\": 20}\n").unwrap();
    let expected = schema.target.apply(20.0);
    assert_eq!(batches[0].targets, Targets::Values(vec![expected, expected]));
    assert!(read("[2]").unwrap_err().message.contains("column `y`: the label is missing"));
    assert!(read("{\"a\": 2}").unwrap_err().message.contains("column `y`: the label is missing"));
}

#[test]
fn digits_accept_rows_with_and_without_label() {
    let schema = Data::open(&DataSpec::default(), 1).unwrap().schema;
    let pixels = vec!["16"; 64].join(",");
    assert_eq!(csv(&pixels, &schema).unwrap(), vec![1.0; 64]);
    assert_eq!(csv(&format!("{pixels},3"), &schema).unwrap(), vec![1.0; 64]);
}

#[test]
fn pixels_are_scaled() {
    let schema = shaped(RowShape::Image { sizes: vec![1, 2] }, vec![0.5]);
    assert_eq!(csv("2,4\n", &schema).unwrap(), [1.0, 2.0]);
    assert_eq!(csv("p1,p0\n2,4\n", &schema).unwrap(), [2.0, 1.0]);
    assert_eq!(json("[2, 4]\n", &schema).unwrap(), [1.0, 2.0]);
}

#[test]
fn sparse_rows_by_number_or_as_arrays() {
    let schema = shaped(RowShape::Sparse { columns: 3, first: 1 }, vec![1.0, 2.0, 1.0]);
    let sparse = |batches: Result<Vec<Batch>>| batches.map(|batches| batches[0].features.clone());
    let expected = Features::Sparse { starts: vec![0, 2], columns: vec![1, 2], values: vec![3.0, 4.0] };
    let read = |text: &'static str| sparse(collect(Records::json(text.as_bytes(), &schema)));
    assert_eq!(read("{\"3\": 4, \"2\": 1.5}").unwrap(), expected);
    assert_eq!(read("[0, 1.5, 4]").unwrap(), expected);
    assert_eq!(
        sparse(collect(Records::csv(&b"0,1.5,4\n"[..], &schema, &DataSpec::default()).unwrap())).unwrap(),
        expected
    );
    assert!(read("{\"0\": 4}").unwrap_err().message.contains("no column `0`"));
    assert!(read("{\"3\": \"x\"}").unwrap_err().message.contains("is not a number"));
}

#[test]
fn only_the_end_of_a_text_is_used() {
    let schema = shaped(RowShape::Text { window: 3, alphabet: vec![' ', ',', 'a', 'b'] }, vec![]);
    let symbols = |batches: Result<Vec<Batch>>| batches.map(|batches| batches[0].features.clone());
    let expected = |symbols: &[u32]| Features::Tokens { symbols: symbols.to_vec(), window: 3, vocabulary: 4 };
    let from_json = |text: &'static str| symbols(collect(Records::json(text.as_bytes(), &schema)));
    let from_csv = |text: &'static str| {
        symbols(collect(Records::csv(text.as_bytes(), &schema, &DataSpec::default()).unwrap()))
    };
    assert_eq!(from_json("{\"text\": \"bbba, \"}").unwrap(), expected(&[2, 1, 0]));
    assert_eq!(from_json("\"aab\"").unwrap(), expected(&[2, 2, 3]));
    assert_eq!(from_csv("text\naa,b\n").unwrap(), expected(&[2, 1, 3]));
    assert_eq!(from_csv("aa,b ").unwrap(), expected(&[1, 3, 0]));
    assert!(from_csv("ab\n").unwrap_err().message.contains("has 2 characters; the model reads 3"));
    assert!(from_csv("abz\n").unwrap_err().message.contains("'z'"));
}

#[test]
fn an_endless_row_is_refused_with_its_number() {
    let schema = people();
    let endless = |start: &'static [u8]| BufReader::new(start.chain(std::io::repeat(b'1').take(1 << 30)));
    let mut batch = Records::json(&b""[..], &schema).empty_batch();
    let mut refused = |mut records: Records<_>| loop {
        match records.next_batch(1, &mut batch) {
            Ok(more) => assert!(more, "the row was taken"),
            Err(error) => break error.message,
        }
    };
    let json = refused(Records::json(endless(b"[30, \"oslo\"]\n["), &schema));
    assert_eq!(json, "input row 2 is longer than 64 MiB");
    let csv = refused(Records::csv(endless(b"30,oslo\n31,oslo\n\""), &schema, &DataSpec::default()).unwrap());
    assert_eq!(csv, "input row 3 is longer than 64 MiB");
    let spaces = DataSpec { delimiter: Auto::Is(Delimiter::Spaces), ..DataSpec::default() };
    let spaced = refused(Records::csv(endless(b"30 oslo\n"), &schema, &spaces).unwrap());
    assert_eq!(spaced, "input row 2 is longer than 64 MiB");
}
