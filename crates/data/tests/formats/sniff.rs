//! A first look at a source.

use crate::support::{folder, spec};
use thalweg_core::Task;
use thalweg_data::Data;
use thalweg_data::sniff::{Form, Sniffed, sniff};

fn look(name: &str, text: &str) -> Sniffed {
    let folder = folder(&[(name, text.as_bytes())]);
    sniff(folder.path().join(name).to_str().unwrap()).unwrap()
}

#[test]
fn columns_are_described_and_a_label_is_guessed() {
    let rows: String =
        (0..50).map(|row| format!("id{row};{}.5;{};c{}\n", row, ["a", "b"][row % 2], row % 3)).collect();
    let text = format!("name;age;class;city\n{rows}x;;a;c1\n");
    let sniffed = look("people.csv", &text);
    assert_eq!((sniffed.rows, sniffed.rows_exact, sniffed.task), (51, true, Task::Classification));
    let Form::Table { columns, label, delimiter, header } = sniffed.form else { panic!("not a table") };
    assert_eq!((label, delimiter.as_deref(), header), (2, Some(";"), true));
    let seen: Vec<_> = columns
        .iter()
        .map(|c| (c.name.as_str(), c.numeric, c.distinct, c.missing, c.ignore.is_some()))
        .collect();
    let expected = [
        ("name", false, 51, 0, true),
        ("age", true, 50, 1, false),
        ("class", false, 2, 0, false),
        ("city", false, 3, 0, false),
    ];
    assert_eq!(seen, expected);
    assert_eq!(columns[2].examples, ["a", "b"]);
}

/// The name of the guessed label, and the columns to leave out.
fn guess(text: &str) -> (String, Vec<String>) {
    let Form::Table { columns, label, .. } = look("rows.csv", text).form else { panic!("not a table") };
    let ignored = columns.iter().filter(|column| column.ignore.is_some());
    (columns[label].name.clone(), ignored.map(|column| column.name.clone()).collect())
}

#[test]
fn free_text_is_not_guessed_as_the_label() {
    let rows: String =
        (0..60).map(|row| format!("{},{},call {row} now\n", ["ham", "spam"][row % 2], row * row)).collect();
    assert_eq!(guess(&format!("kind,length,text\n{rows}")), ("length".into(), vec!["text".into()]));
    let rows: String =
        (0..60).map(|row| format!("{},call {} now\n", ["ham", "spam"][row % 2], row.min(57))).collect();
    assert_eq!(guess(&rows), ("c0".into(), vec!["c1".into()]), "nearly unique is as good as unique");
    let rows: String = (0..60).map(|row| format!("call {} now\n", row.min(57))).collect();
    assert_eq!(guess(&format!("text\n{rows}")).0, "text", "there is nothing else");
}

#[test]
fn dates_are_left_out_and_say_so() {
    for day in ["2011-01-0", "2011-01-0% 12:30", "0%.1.2011", "0%/02/11"] {
        let rows: String = (0..60)
            .map(|row| format!("{},{}\n", day.replace('%', &(row % 9).to_string()), row * row))
            .collect();
        assert_eq!(guess(&format!("day,amount\n{rows}")), ("amount".into(), vec!["day".into()]), "{day}");
    }
}

#[test]
fn long_tables_are_estimated() {
    let rows: String = (0..40_000).map(|row| format!("{},{}.5\n", 10_000 + row, 10_000 + row)).collect();
    let sniffed = look("rows.csv", &rows);
    assert_eq!((sniffed.rows_exact, sniffed.task, sniffed.width()), (false, Task::Regression, 1));
    assert!((39_000..41_000).contains(&sniffed.rows), "{}", sniffed.rows);
}

#[test]
fn other_forms_show_their_schema() {
    let sniffed = look("rows.libsvm", "1 1:2 3:4\n0 2:1\n");
    assert_eq!((sniffed.rows, sniffed.width(), sniffed.task), (2, 3, Task::Classification));
    assert!(matches!(sniff("builtin:digits").unwrap().form, Form::Other(_)));
}

#[test]
fn one_class_is_refused_as_in_training() {
    let folder = folder(&[("one.csv", b"a,label\n1,yes\n2,yes\n3,yes\n")]);
    let source = folder.path().join("one.csv").to_str().unwrap().to_string();
    let error = sniff(&source).unwrap_err();
    assert_eq!(error.message, "every row has the same label `yes` in column `label`");
    assert_eq!(error.hint, Data::open(&spec(folder.path(), "one.csv"), 1).unwrap_err().hint);
}
