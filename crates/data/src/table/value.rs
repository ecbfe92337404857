//! Single values as they stand in a text: missing, a number, or something else.

/// Words for a missing value: those pandas reads as missing, in these very spellings.
const WORDS: [&[u8]; 9] =
    [b"#N/A", b"#N/A N/A", b"#NA", b"-1.#IND", b"-1.#QNAN", b"1.#IND", b"1.#QNAN", b"<NA>", b"None"];

/// Words for a missing value in upper or lower case.
const CASELESS_WORDS: [&[u8]; 5] = [b"NA", b"N/A", b"NaN", b"-NaN", b"NULL"];

/// The longest of these words.
const LONGEST_WORD: usize = 8;

/// Whether a field says that there is no value: empty, `?`, or a word such as NA, NaN, null, None or #N/A.
pub(crate) fn is_missing(field: &[u8]) -> bool {
    match field {
        b"" | b"?" => true,
        _ if field.len() > LONGEST_WORD => false,
        _ => WORDS.contains(&field) || CASELESS_WORDS.iter().any(|word| field.eq_ignore_ascii_case(word)),
    }
}

/// The field, unless it says that there is no value.
pub(crate) fn present(field: &[u8]) -> Option<&[u8]> {
    (!is_missing(field)).then_some(field)
}

/// The number a field spells, if it is one; it may be infinite.
pub(crate) fn number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Bytes for a message: readable, and short.
pub(crate) fn shown(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_nothing() {
        assert!(
            ["", "NA", "na", "NaN", "nan", "null", "NULL", "?"]
                .iter()
                .all(|text| is_missing(text.as_bytes()))
        );
        assert!(["0", "none", "naan", "-", "nulls", "??"].iter().all(|text| !is_missing(text.as_bytes())));
    }

    #[test]
    fn words_that_pandas_reads_as_missing() {
        let words = [
            "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
            "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
        ];
        assert!(words.iter().all(|word| is_missing(word.as_bytes())));
        assert!(words.iter().all(|word| word.len() <= LONGEST_WORD));
    }

    #[test]
    fn spellings_of_numbers() {
        for (text, value) in [("1", 1.0), ("-2.5", -2.5), ("+3", 3.0), ("1e3", 1000.0), (".5", 0.5)] {
            assert_eq!(number(text.as_bytes()), Some(value));
        }
        assert!(
            ["", "abc", "1,5", "0x1f", "1 2", "\u{661}"].iter().all(|text| number(text.as_bytes()).is_none())
        );
        assert_eq!(number(b"inf"), Some(f64::INFINITY));
    }
}
