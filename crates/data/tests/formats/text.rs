//! Plain text in windows.

use crate::support::{batch, folder, spec};
use thalweg_core::spec::setting::HeldOut;
use thalweg_core::{Features, Targets};
use thalweg_data::Data;

fn open(text: &[u8], window: usize, share: f64) -> thalweg_core::Result<Data> {
    let folder = folder(&[("book.txt", text)]);
    let mut spec = spec(folder.path(), "book.txt");
    (spec.window, spec.validation) = (window, Some(HeldOut::Share(share)));
    Data::open(&spec, 1)
}

#[test]
fn a_row_shows_a_window_and_the_next_character() {
    let data = open("abcäb".as_bytes(), 2, 0.0).unwrap();
    assert_eq!(data.schema.classes, ["a", "b", "c", "ä"]);
    let batch = batch(&data.training).unwrap();
    assert_eq!(batch.targets, Targets::Classes(vec![2, 3, 1]));
    assert_eq!(batch.width, 8);
    let Features::Tokens { symbols, window, vocabulary } = batch.features else { panic!("not tokens") };
    assert_eq!((symbols, window, vocabulary), (vec![0, 1, 1, 2, 2, 3], 2, 4));
}

#[test]
fn the_end_validates_and_no_training_window_reaches_into_it() {
    let text: String = (0..200_000u64).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
    let data = open(text.as_bytes(), 10, 0.25).unwrap();
    let rows = 200_000 - 10;
    assert_eq!(data.validation.len(), (rows as f64 * 0.25).round() as u64);
    let first_validation = data.validation.id(0);
    let last = data.training.id(data.training.len() - 1);
    assert_eq!(last + 10 + 1, first_validation, "its last character is the one before the validation text");
    assert_eq!(data.validation.id(data.validation.len() - 1), rows - 1);
    for rows in [&data.training, &data.validation] {
        let batch = batch(rows).unwrap();
        let (Features::Tokens { symbols, .. }, Targets::Classes(next)) = (batch.features, batch.targets)
        else {
            panic!("not tokens")
        };
        let class = |place: u64| u32::from(text.as_bytes()[place as usize]);
        let number = |place: u64| {
            data.schema.classes.iter().position(|name| u32::from(name.as_bytes()[0]) == class(place))
        };
        for row in (0..rows.len()).step_by(997) {
            let id = rows.id(row);
            assert_eq!(Some(next[row as usize] as usize), number(id + 10));
            assert_eq!(Some(symbols[row as usize * 10] as usize), number(id));
        }
    }
}

#[test]
fn damaged_texts_are_errors() {
    let message = |text: &[u8]| open(text, 4, 0.0).unwrap_err().message;
    assert!(message(b"ab\ncd\xffef").contains("line 2: the byte at position 5 is not UTF-8"));
    assert!(message(b"\xc3").contains("position 0"));
    assert!(message(b"abcdef\xc3").contains("position 6"));
    assert!(message(b"abcd").contains("shorter than data.window = 4"));
    assert!(message(b"").contains("shorter than"));
    assert!(message(b"aaaaaaaaaaa").contains("nothing but 'a'"));
}

#[test]
fn another_text_must_use_the_same_alphabet() {
    let data = open(b"abcabcabc", 2, 0.0).unwrap();
    let folder = folder(&[("good.txt", b"cbacba"), ("bad.txt", b"abcx")]);
    let with = |name: &str| Data::open_for_evaluation(&spec(folder.path(), name), &data.schema);
    assert_eq!(with("good.txt").unwrap().len(), 4);
    assert!(with("bad.txt").unwrap_err().message.contains("'x'"));
}
