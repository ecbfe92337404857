//! Tables as text, valid and malicious.

use crate::support::{all, fit, folder, read, spec};
use thalweg_core::schema::{Encoding, RowShape};
use thalweg_core::spec::data::{DataSpec, Missing, Scale, TaskChoice};
use thalweg_core::spec::setting::{Auto, Bytes, ColumnRef, HeldOut};
use thalweg_core::{Error, Result, Schema, Targets, Task};
use thalweg_data::Data;

fn read_text(text: &str, change: impl Fn(&mut DataSpec)) -> Result<(Vec<f32>, Targets, Schema)> {
    let folder = folder(&[("people.csv", text.as_bytes())]);
    let mut spec = spec(folder.path(), "people.csv");
    change(&mut spec);
    read(&spec)
}

fn error_of(text: &str, change: impl Fn(&mut DataSpec)) -> Error {
    read_text(text, change).unwrap_err()
}

fn names(schema: &Schema) -> Vec<&str> {
    let RowShape::Table { columns } = &schema.shape else { panic!("not a table") };
    columns.iter().map(|column| column.name.as_str()).collect()
}

#[test]
fn numbers_categories_and_classes() {
    let text = "age,city,spender\n30,oslo,yes\n41.5,rome,no\n29,oslo,no\n";
    let (values, targets, schema) = read_text(text, |_| ()).unwrap();
    assert_eq!(values, [30.0, 1.0, 0.0, 41.5, 0.0, 1.0, 29.0, 1.0, 0.0]);
    assert_eq!(targets, Targets::Classes(vec![1, 0, 0]));
    assert_eq!((names(&schema), schema.label.as_deref()), (vec!["age", "city"], Some("spender")));
    assert_eq!(schema.classes, ["no", "yes"]);
}

#[test]
fn other_dialects_read_the_same() {
    let expected = read_text("1,2,0\n3,4,1\n", |_| ()).unwrap();
    for text in [
        "1;2;0\n3;4;1\n",
        "1\t2\t0\r\n3\t4\t1\r\n",
        "1|2|0\n\n3|4|1",
        " 1  2 0\n 3  4 1\n",
        "\"1\",2,0\n 3, 4,1\n",
    ] {
        assert_eq!(read_text(text, |_| ()).unwrap(), expected, "{text:?}");
    }
    assert_eq!(names(&expected.2), ["c0", "c1"]);
}

#[test]
fn a_header_is_recognised_or_declared() {
    let (_, _, schema) = read_text("a,b,y\n1,2,0\n3,4,1\n", |_| ()).unwrap();
    assert_eq!(names(&schema), ["a", "b"]);
    let (values, _, _) = read_text("5,6,0\n1,2,0\n3,4,1\n", |spec| spec.header = Auto::Is(true)).unwrap();
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
    let (_, targets, schema) = read_text("colour,class\nred,a\nblue,b\nred,b\n", |_| ()).unwrap();
    assert_eq!((names(&schema), targets.len()), (vec!["colour"], 3));
    let (_, targets, _) = read_text("red,a\nblue,b\nred,b\n", |_| ()).unwrap();
    assert_eq!(targets.len(), 3);
    let doubtful = error_of("1,2,3,x,0\n1,2,3,4,0\n3,4,5,6,1\n", |_| ());
    assert!(doubtful.message.contains("neither a header nor a row"), "{doubtful}");
    let short = error_of("title\n1,2,0\n3,4,1\n", |_| ());
    assert!(short.message.contains("line 1 has 1 fields, but the rows after it have 3"), "{short}");
    let (values, _, _) = read_text("title\n1,2,0\n3,4,1\n", |spec| spec.header = Auto::Is(true)).unwrap();
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn an_invalid_number_is_an_error_on_open_or_decode() {
    let text =
        "age,city,y\n1,a,0\n2,a,1\n3,b,0\n4,b,1\n5,a,0\n6,a,1\n7,a,0\n8,a,1\n9,a,0\n10,a,1\n\nabc,a,0\n";
    let error = error_of(text, |_| ());
    assert!(error.message.ends_with("people.csv line 13, column `age`: `abc` is not a number"), "{error}");
    assert!(error.hint.unwrap().contains("data.categorical = [\"age\"]"));
    let rows: String = (0..11_000).map(|row| format!("{row},{}\n", row % 2)).collect();
    let folder = folder(&[("people.csv", format!("age,y\n{rows}abc,1\n").as_bytes())]);
    let data = Data::open(&spec(folder.path(), "people.csv"), 1).unwrap();
    let error = all(&data.training).unwrap_err();
    assert!(error.message.ends_with("people.csv line 11002, column `age`: `abc` is not a number"), "{error}");
    assert!(data.statistics(0, 1).is_err());
    assert!(error_of(&text.replace("abc", "inf"), |_| ()).message.contains("`inf` is not a finite number"));
    assert!(error_of(&text.replace("abc", "1e99"), |_| ()).message.contains("`1e99` is not a finite number"));
}

#[test]
fn missing_values_are_an_error_or_filled_in() {
    let text = "age,city,y\n1,a,0\n,b,1\n3,?,0\n";
    let error = error_of(text, |_| ());
    assert!(error.message.contains("line 3, column `age`: the value is missing"), "{error}");
    let error = error_of("age,city,y\n1,a,0\n2,b,1\n3,?,0\n", |_| ());
    assert!(error.message.contains("line 4, column `city`: `?` stands for a missing value"), "{error}");
    let (values, _, _) = read_text(text, |spec| spec.missing = Missing::Mean).unwrap();
    assert_eq!(values, [1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 3.0, 1.0, 0.0, 0.0]);
    let (values, _, schema) = read_text(text, |spec| spec.missing = Missing::Zero).unwrap();
    assert_eq!(values[4], 0.0);
    let RowShape::Table { columns } = &schema.shape else { panic!("not a table") };
    assert_eq!(columns[0].encoding, Encoding::Number { imputed: Some(0.0) });
    let error = error_of("age,y\n1,0\n2,\n", |spec| spec.missing = Missing::Mean);
    assert!(error.message.contains("line 3, column `y`: the label is missing"), "{error}");
}

#[test]
fn damaged_tables_have_distinct_errors() {
    let message = |text: &str| error_of(text, |_| ()).message;
    assert!(message("").contains("is empty"));
    assert!(message("\n \n").contains("is empty"));
    assert!(message("age,y\n").contains("holds a header and no rows"));
    assert!(message("a,y\n1,x\n2,x\n").contains("same label `x`"));
    assert!(message("a,b,y\n1,2,0\n3,1\n4,5,1\n").contains("line 3 has 2 fields where the others have 3"));
    assert!(
        message("a,b,y\n1,2,0\n3,1,1,1\n4,5,1\n").contains("line 3 has 4 fields where the others have 3")
    );
    assert!(message("1\n2\n3\n").contains("no column to learn from"));
    let many: String = (0..1100).map(|row| format!("name{row},{}\n", row % 2)).collect();
    assert!(message(&many).contains("more than 1000 different values"));
}

#[test]
fn names_in_the_job_must_exist() {
    let text = "age,city,income\n1,a,0\n2,b,1\n";
    let unknown = |change: fn(&mut DataSpec)| error_of(text, change).message;
    let label = unknown(|spec| spec.label = Some(ColumnRef::Name("incme".into())));
    assert!(label.contains("data.label: unknown column `incme`; did you mean `income`?"), "{label}");
    assert!(unknown(|spec| spec.ignore = vec!["ag".into()]).contains("data.ignore: unknown column `ag`"));
    assert!(unknown(|spec| spec.categorical = vec!["ct".into()]).contains("data.categorical"));
    assert!(unknown(|spec| spec.label = Some(ColumnRef::Index(7))).contains("only 3 columns"));
}

#[test]
fn columns_can_be_declared_left_out_and_predicted() {
    let text = "id,code,y\n1,7,2.5\n2,9,3.5\n3,7,1.0\n";
    let (values, targets, schema) = read_text(text, |spec| {
        spec.ignore = vec!["id".into()];
        spec.categorical = vec!["code".into()];
    })
    .unwrap();
    assert_eq!(values, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    assert_eq!((targets, schema.task), (Targets::Values(vec![2.5, 3.5, 1.0]), Task::Regression));
    let (_, targets, schema) = read_text(text, |spec| {
        spec.label = Some(ColumnRef::Index(1));
        spec.task = TaskChoice::Classification;
    })
    .unwrap();
    assert_eq!((targets, schema.classes), (Targets::Classes(vec![0, 1, 0]), vec!["7".into(), "9".into()]));
}

#[test]
fn several_files_are_one_source() {
    let expected = read_text("a,y\n1,0\n2,1\n3,0\n", |_| ()).unwrap();
    for second in ["a,y\n2,1\n3,0\n", "2,1\n3,0\n"] {
        let folder = folder(&[("part-1.csv", b"a,y\n1,0\n"), ("part-2.csv", second.as_bytes())]);
        assert_eq!(read(&spec(folder.path(), "part-*.csv")).unwrap(), expected);
    }
    let wider = folder(&[("a.csv", b"a,y\n1,0\n2,1\n"), ("b.csv", b"a,b,y\n2,2,1\n")]);
    let error = read(&spec(wider.path(), "*.csv")).unwrap_err();
    assert!(
        error.message.contains("b.csv has 3 columns where") && error.message.ends_with("a.csv has 2"),
        "{error}"
    );
    let renamed = folder(&[("a.csv", b"a,y\n1,0\n2,1\n"), ("b.csv", b"b,y\n2,1\n")]);
    let error = read(&spec(renamed.path(), "*.csv")).unwrap_err();
    assert!(error.message.contains("column 0 is called `b` in"), "{error}");
}

#[test]
fn scaling_is_fitted_on_the_training_rows_alone() {
    let rows: String = (0..1000).map(|row| format!("{row},5,{}\n", row * 3)).collect();
    for scale in [Scale::Auto, Scale::Minmax] {
        let folder = folder(&[("people.csv", rows.as_bytes())]);
        let mut spec = spec(folder.path(), "people.csv");
        (spec.scale, spec.validation, spec.task) = (scale, None, TaskChoice::Regression);
        let mut data = Data::open(&spec, 3).unwrap();
        assert_eq!((data.training.len(), data.validation.len()), (800, 200));
        fit(&mut data).unwrap();
        let (values, Targets::Values(targets)) = all(&data.training).unwrap() else { panic!("classes") };
        let column: Vec<f32> = values.chunks(2).map(|row| row[0]).collect();
        assert!(values.chunks(2).all(|row| row[1] == 0.0), "a constant column becomes 0");
        for numbers in [&column, &targets] {
            let mean = numbers.iter().sum::<f32>() / 800.0;
            let (low, high) = numbers.iter().fold((f32::MAX, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
            match scale {
                Scale::Minmax => assert!(low == 0.0 && (high - 1.0).abs() < 1e-6),
                _ => assert!(mean.abs() < 1e-4 && high > 1.6 && low < -1.6),
            }
        }
    }
}

#[test]
fn the_fit_is_the_same_bits_for_any_number_of_parts() {
    let rows: String = (0..20_000).map(|row| format!("{},{}\n", (row as f64).sin() * 1e3, row % 7)).collect();
    let folder = folder(&[("people.csv", rows.as_bytes())]);
    let mut spec = spec(folder.path(), "people.csv");
    spec.scale = Scale::Standard;
    let schema = |parts: usize| {
        let mut data = Data::open(&spec, 3).unwrap();
        let statistics: Vec<_> = (0..parts).map(|part| data.statistics(part, parts).unwrap()).collect();
        data.fit(&statistics).unwrap();
        data.schema
    };
    let one = schema(1);
    assert_ne!(one.scaling.factor, [1.0]);
    for parts in [2, 3, 9] {
        assert_eq!(schema(parts), one);
    }
}

#[test]
fn another_source_is_read_with_the_stored_schema() {
    let folder = folder(&[
        ("train.csv", b"age,city,y\n1,a,no\n2,b,yes\n3,a,no\n"),
        ("test.csv", b"y,id,city,age\nyes,7,b,4\n"),
        ("unknown.csv", b"age,city,y\n1,z,no\n"),
        ("class.csv", b"age,city,y\n1,a,maybe\n"),
        ("narrow.csv", b"age,town,y\n1,a,no\n"),
    ]);
    let mut spec = spec(folder.path(), "train.csv");
    let schema = read(&spec).unwrap().2;
    let mut with = |name: &str| {
        spec.source = folder.path().join(name).to_str().unwrap().into();
        Data::open_for_evaluation(&spec, &schema).and_then(|rows| all(&rows))
    };
    assert_eq!(with("test.csv").unwrap(), (vec![4.0, 0.0, 1.0], Targets::Classes(vec![1])));
    let message = with("unknown.csv").unwrap_err().message;
    assert!(message.contains("line 2, column `city`: the category `z` is not known"), "{message}");
    assert!(with("class.csv").unwrap_err().message.contains("the class `maybe` is not known"));
    assert!(with("narrow.csv").unwrap_err().message.contains("has no column `city`"));
}

#[test]
fn the_memory_limit_does_not_change_the_rows() {
    let rows: String = (0..10_000).map(|row| format!("{row},{}.5,k{}\n", row * 7 % 1000, row % 3)).collect();
    let folder = folder(&[("people.csv", rows.as_bytes())]);
    let mut spec = spec(folder.path(), "people.csv");
    let in_memory = read(&spec).unwrap();
    spec.memory = Bytes(0);
    assert_eq!(read(&spec).unwrap(), in_memory);
}

#[test]
fn a_separate_validation_source_is_checked_with_the_statistics() {
    let folder = folder(&[
        ("train.csv", b"age,city,y\n1,a,no\n2,b,yes\n3,a,no\n"),
        ("validation.csv", b"age,city,y\n9,b,yes\n"),
        ("bad.csv", b"age,city,y\n1,a,no\n2,zzz,no\n"),
    ]);
    let mut spec = spec(folder.path(), "train.csv");
    spec.scale = Scale::Standard;
    let validation = |name: &str| Some(HeldOut::Source(folder.path().join(name).to_str().unwrap().into()));
    spec.validation = validation("validation.csv");
    let mut data = Data::open(&spec, 1).unwrap();
    fit(&mut data).unwrap();
    assert_eq!((data.training.len(), data.validation.len(), data.validation.source_len()), (3, 1, 1));
    assert_eq!(all(&data.validation).unwrap().1, Targets::Classes(vec![1]));
    spec.validation = validation("bad.csv");
    let message = Data::open(&spec, 1).unwrap().statistics(0, 1).unwrap_err().message;
    assert!(message.contains("bad.csv line 3, column `city`: the category `zzz`"), "{message}");
}

#[test]
fn a_stored_schema_gives_the_same_rows_without_a_fit() {
    let rows: String = (0..500).map(|row| format!("{row},k{},{}\n", row % 3, row % 2)).collect();
    let folder = folder(&[("people.csv", rows.as_bytes())]);
    let mut spec = spec(folder.path(), "people.csv");
    (spec.scale, spec.validation) = (Scale::Auto, None);
    let mut data = Data::open(&spec, 5).unwrap();
    assert!(all(&data.training).is_err(), "not before the fit");
    fit(&mut data).unwrap();
    let again = Data::open_with_schema(&spec, 5, &data.schema).unwrap();
    assert!(!again.needs_statistics());
    assert_eq!(again.schema, data.schema);
    assert_eq!(all(&again.training).unwrap(), all(&data.training).unwrap());
    assert_eq!(all(&again.validation).unwrap(), all(&data.validation).unwrap());
}

#[test]
fn a_few_texts_among_numbers_are_errors_not_categories() {
    let error = error_of("age,y\n31,0\n42,1\noops,0\n53,1\nn.a.,0\n64,1\n75,1\n", |_| ());
    let expected =
        "line 4, column `age`: `oops` is not a number, nor is 1 more of the first 7 values: `n.a.` (line 6)";
    assert!(error.message.ends_with(expected), "{error}");
    let (_, _, schema) = read_text("code,y\n1,0\n2,1\n1,0\n2,1\nK,0\n1,1\nK,1\n2,1\n", |_| ()).unwrap();
    let RowShape::Table { columns } = &schema.shape else { panic!("not a table") };
    assert!(matches!(&columns[0].encoding, Encoding::OneHot { categories } if categories.len() == 3));
}

#[test]
fn unsupported_number_formats_are_refused_with_advice() {
    let refused = |text: &str| error_of(text, |_| ());
    let error = refused("price;y\n1,50;0\n2,75;1\n3;0\n");
    let expected = "line 2, column `price`: `1,50` is a number with a decimal comma, which is not read";
    assert!(error.message.ends_with(expected), "{error}");
    assert!(error.hint.unwrap().contains("write a point instead"));
    let error = refused("price,y\n950,0\n\"1,250\",1\n\"12,000\",0\n");
    assert!(
        error.message.contains("line 3, column `price`: `1,250` is a number with separated thousands"),
        "{error}"
    );
    let error = refused("share,y\n12%,0\n7.5%,1\n80%,1\n");
    assert!(error.message.contains("`12%` is a number with a percent sign"), "{error}");
    let error = refused("a,share\n1,12%\n2,7.5%\n3,80%\n");
    assert!(
        error.message.contains("line 2, column `share`: `12%` is a number with a percent sign"),
        "{error}"
    );
    assert!(error.hint.unwrap().contains("data.task = \"classification\""));
    let declared = |spec: &mut DataSpec| spec.categorical = vec!["share".into()];
    assert!(read_text("share,y\n12%,0\n7.5%,1\n80%,1\n", declared).is_ok());
}

#[test]
fn pandas_words_are_missing_values() {
    let text = "age,city,y\n1,oslo,0\nN/A,rome,1\n#N/A,None,0\n<NA>,None,0\n2,oslo,1\n";
    let error = error_of(text, |_| ());
    assert!(error.message.ends_with("line 3, column `age`: `N/A` stands for a missing value"), "{error}");
    let folder = folder(&[("people.csv", text.as_bytes())]);
    let spec = DataSpec { missing: Missing::Zero, ..spec(folder.path(), "people.csv") };
    let data = Data::open(&spec, 1).unwrap();
    let (values, _) = all(&data.training).unwrap();
    assert_eq!(&values[..8], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(data.notices().len(), 1);
    assert!(data.notices()[0].starts_with("column `city`: `None` counts as a missing value (2 rows)"));
    let error = error_of("a,y\n1,None\n2,x\n3,z\n", |_| ());
    assert!(error.message.contains("the label is missing: `None` stands for a missing value"), "{error}");
    assert!(error.hint.unwrap().contains("rename it if it is a class"));
}

#[test]
fn an_unnamed_data_frame_index_is_reported() {
    let notices = |text: &str| {
        let folder = folder(&[("frame.csv", text.as_bytes())]);
        Data::open(&spec(folder.path(), "frame.csv"), 1).unwrap().notices()
    };
    let reported = notices(",age,y\n0,30,a\n1,41,b\n2,29,a\n");
    assert!(reported[0].contains("column 0 has no name and numbers the rows"), "{reported:?}");
    assert!(reported[0].ends_with("data.ignore = [\"c0\"] leaves it out"), "{reported:?}");
    assert_eq!(notices("Unnamed: 0,age,y\n0,30,a\n1,41,b\n2,29,a\n").len(), 1);
    assert!(notices("id,age,y\n0,30,a\n1,41,b\n2,29,a\n").is_empty());
    assert!(notices(",age,y\n7,30,a\n1,41,b\n2,29,a\n").is_empty());
}

#[test]
fn categories_unknown_to_the_model_are_counted() {
    let text = "city,y\noslo,0\nrome,1\n,0\noslo,1\n";
    let folder = folder(&[("people.csv", text.as_bytes()), ("new.csv", b"city,y\nbern,0\nrome,1\nbern,0\n")]);
    let train = DataSpec { missing: Missing::Mean, ..spec(folder.path(), "people.csv") };
    let schema = Data::open(&train, 1).unwrap().schema;
    let rows = Data::open_for_evaluation(
        &DataSpec { missing: Missing::Mean, ..spec(folder.path(), "new.csv") },
        &schema,
    )
    .unwrap();
    assert_eq!(all(&rows).unwrap().0, [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    let unseen = rows.unseen_categories();
    assert_eq!(unseen.len(), 1);
    assert_eq!((unseen[0].column.as_str(), unseen[0].value.as_str(), unseen[0].rows), ("city", "bern", 2));
}

#[test]
fn utf_16_and_workbooks_are_identified() {
    let utf16: Vec<u8> = "a,y\n1,0\n2,1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let folder =
        folder(&[("wide.csv", &[b"\xff\xfe", &utf16[..]].concat()), ("book.csv", b"PK\x03\x04\x14\0\x06\0")]);
    let error = |name: &str| Data::open(&spec(folder.path(), name), 1).unwrap_err();
    assert!(error("wide.csv").message.ends_with("wide.csv is text in UTF-16, not text in UTF-8"));
    assert!(error("wide.csv").hint.unwrap().contains("iconv -f utf-16 -t utf-8"));
    assert!(error("book.csv").message.contains("is an Excel workbook or a zip archive"));
}
