//! Summaries of sources for `init`.

use crate::support::{folder, spec};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Result, Task};
use thalweg_data::Data;
use thalweg_data::sniff::{Form, Sniffed, TableForm, sniff};

fn sniff_text(name: &str, text: &str) -> Sniffed {
    let folder = folder(&[(name, text.as_bytes())]);
    sniff_source(folder.path().join(name).to_str().unwrap()).unwrap()
}

fn sniff_source(source: &str) -> Result<Sniffed> {
    sniff(&DataSpec { source: source.into(), ..Default::default() }, &mut |_, _| ())
}

fn table(sniffed: Sniffed) -> TableForm {
    match sniffed.form {
        Form::Table(table) => table,
        Form::Other(schema) => panic!("not a table: {schema:?}"),
    }
}

#[test]
fn columns_are_described_and_a_label_is_guessed() {
    let rows: String =
        (0..50).map(|row| format!("id{row};{}.5;{};c{}\n", row, ["a", "b"][row % 2], row % 3)).collect();
    let text = format!("name;age;class;city\n{rows}x;;a;c1\n");
    let sniffed = sniff_text("people.csv", &text);
    assert_eq!((sniffed.rows, sniffed.task), (51, Task::Classification));
    let TableForm { columns, label, delimiter, header, why } = table(sniffed);
    assert_eq!(why, "by its name");
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

/// The proposed label, and the columns to leave out.
fn guess(text: &str) -> (String, Vec<String>) {
    let TableForm { columns, label, .. } = table(sniff_text("rows.csv", text));
    let ignored = columns.iter().filter(|column| column.ignore.is_some());
    (columns[label].name.clone(), ignored.map(|column| column.name.clone()).collect())
}

#[test]
fn free_text_is_not_guessed_as_the_label() {
    let rows: String =
        (0..60).map(|row| format!("{},{},call {row} now\n", ["ham", "spam"][row % 2], row * row)).collect();
    assert_eq!(guess(&format!("kind,length,text\n{rows}")), ("kind".into(), vec!["text".into()]));
    let rows: String =
        (0..60).map(|row| format!("{},call {} now\n", ["ham", "spam"][row % 2], row.min(57))).collect();
    assert_eq!(guess(&rows), ("c0".into(), vec!["c1".into()]), "nearly unique is as good as unique");
    let rows: String = (0..60).map(|row| format!("call {} now\n", row.min(57))).collect();
    assert_eq!(guess(&format!("text\n{rows}")).0, "text", "there is nothing else");
}

#[test]
fn dates_are_left_out() {
    for day in ["2011-01-0", "2011-01-0% 12:30", "0%.1.2011", "0%/02/11"] {
        let rows: String = (0..60)
            .map(|row| format!("{},{}\n", day.replace('%', &(row % 9).to_string()), row * row))
            .collect();
        assert_eq!(guess(&format!("day,amount\n{rows}")), ("amount".into(), vec!["day".into()]), "{day}");
    }
}

#[test]
fn all_rows_of_a_sorted_table_are_seen() {
    let rows: String =
        (0..16).flat_map(|class| (0..1500).map(move |row| format!("{}.5,{class}\n", row % 77))).collect();
    let sniffed = sniff_text("rows.csv", &format!("a,class\n{rows}"));
    assert_eq!((sniffed.rows, sniffed.task), (24_000, Task::Classification));
    assert_eq!(table(sniffed).columns[1].distinct, 16);
    let rows: String = (0..30_000).map(|row| format!("{}.5,{}\n", row % 77, row / 15_000)).collect();
    assert_eq!(table(sniff_text("rows.csv", &format!("a,class\n{rows}"))).columns[1].distinct, 2);
    let rows: String = (0..40_000).map(|row| format!("{},{}.5\n", row % 50, 10_000 + row)).collect();
    let sniffed = sniff_text("rows.csv", &rows);
    assert_eq!((sniffed.rows, sniffed.task), (40_000, Task::Regression));
    let many = &table(sniffed).columns[1];
    assert!(many.more && many.distinct == 10_000);
}

#[test]
fn texts_after_the_first_rows_must_be_declared() {
    let rows: String =
        (0..24_000).map(|row| format!("{},{}\n", if row < 12_000 { "1" } else { "A" }, row % 2)).collect();
    let columns = table(sniff_text("rows.csv", &format!("code,class\n{rows}"))).columns;
    assert!(columns[0].declare && !columns[0].numeric);
}

#[test]
fn the_label_is_chosen_from_all_columns() {
    let why = |text: &str| {
        let TableForm { columns, label, why, .. } = table(sniff_text("rows.csv", text));
        (columns[label].name.clone(), why)
    };
    let rows: String = (0..40).map(|row| format!("{},{}.5,{}.25\n", row * 7 % 2, row, row * 3)).collect();
    assert_eq!(why(&rows), ("c0".into(), "the first column, of two different values".into()));
    let rows: String =
        (0..40).map(|row| format!("{},{}.5,{}.25\n", ["M", "B"][row * 7 % 2], row, row * 3)).collect();
    assert_eq!(why(&format!("verdict,a,b\n{rows}")), ("verdict".into(), "the only column of texts".into()));
    let rows: String = (0..40).map(|row| format!("{}.5,{},{}.25\n", row, row % 3, row * 3)).collect();
    assert_eq!(why(&format!("a,Target,b\n{rows}")), ("Target".into(), "by its name".into()));
    assert_eq!(why(&format!("a,b,c\n{rows}")), ("c".into(), "the last column".into()));
}

#[test]
fn identifiers_and_leaks_are_left_out() {
    let rows: String = (0..60)
        .map(|row| {
            let class = row * 7 % 3;
            format!(
                "{},{},{}.5,{},{}\n",
                row,
                1000 + row * row,
                row % 13,
                class,
                ["ash", "oak", "elm"][class]
            )
        })
        .collect();
    let TableForm { columns, .. } =
        table(sniff_text("trees.csv", &format!(",tree_id,height,code,species\n{rows}")));
    let ignored: Vec<_> = columns.iter().map(|column| column.ignore.as_deref().unwrap_or("")).collect();
    assert!(ignored[0].starts_with("the row numbers of a data frame"), "{ignored:?}");
    assert!(ignored[1].starts_with("a different whole number in every row"), "{ignored:?}");
    assert_eq!(&ignored[2..], ["", "gives `species` away: each determines the other", ""]);
}

#[test]
fn a_header_without_rows_is_an_error() {
    let folder = folder(&[("h.csv", b"a,b,y\n")]);
    let error = |name: &str| sniff_source(folder.path().join(name).to_str().unwrap()).unwrap_err().message;
    assert!(error("h.csv").ends_with("h.csv holds a header and no rows"));
}

#[test]
fn texts_among_numbers_leave_a_column_out_with_the_reason() {
    let ticket = |row: u32| match row % 4 {
        0 => format!("A/5 {row}"),
        _ => (row * 17 % 9973).to_string(),
    };
    // Text only in the first rows, by which training decides the kind, and numbers later.
    let late = |row: u32| if row < 11_000 { format!("t{}", row % 50) } else { format!("{row}.5") };
    let good = |row: u32| row % 97 * 3;
    let rows: String = (0..40_000)
        .map(|row| {
            let cell = if row == 7 { "oops".into() } else { format!("{}.25", row % 89) };
            format!("{},{},{},{cell},{}\n", good(row), ticket(row), late(row), row % 2)
        })
        .collect();
    let TableForm { columns, .. } =
        table(sniff_text("rows.csv", &format!("good,ticket,late,cell,y\n{rows}")));
    let ignored: Vec<_> = columns.iter().map(|column| column.ignore.as_deref().unwrap_or("")).collect();
    assert_eq!(
        ignored,
        [
            "",
            "numbers and texts: `A/5 0` is not a number, nor are 9999 more",
            "numbers and texts: `t0` is not a number, nor are 10999 more",
            "`oops` is not a number; the others are",
            ""
        ]
    );
}

#[test]
fn other_forms_show_their_schema() {
    let sniffed = sniff_text("rows.libsvm", "1 1:2 3:4\n0 2:1\n");
    assert_eq!((sniffed.rows, sniffed.task), (2, Task::Classification));
    assert!(matches!(sniff_source("builtin:digits").unwrap().form, Form::Other(_)));
}

#[test]
fn one_class_is_refused_as_in_training() {
    let folder = folder(&[("one.csv", b"a,label\n1,yes\n2,yes\n3,yes\n")]);
    let source = folder.path().join("one.csv").to_str().unwrap().to_string();
    let error = sniff_source(&source).unwrap_err();
    assert!(
        error.message.ends_with("one.csv: every row has the same label `yes` in column `label`"),
        "{error}"
    );
    assert_eq!(error.hint, Data::open(&spec(folder.path(), "one.csv"), 1).unwrap_err().hint);
}
