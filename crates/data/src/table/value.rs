//! Parses single fields: missing values and numbers.

/// Words that pandas reads as missing, case-sensitive.
const MISSING_WORDS: [&[u8]; 9] =
    [b"#N/A", b"#N/A N/A", b"#NA", b"-1.#IND", b"-1.#QNAN", b"1.#IND", b"1.#QNAN", b"<NA>", b"None"];

/// Words that pandas reads as missing, in any case.
const CASELESS_MISSING: [&[u8]; 5] = [b"NA", b"N/A", b"NaN", b"-NaN", b"NULL"];

const LONGEST_MISSING: usize = 8;

/// Whether a field is missing: empty, `?`, or a word such as NA, NaN, null, None or #N/A.
pub(crate) fn is_missing(field: &[u8]) -> bool {
    match field {
        b"" | b"?" => true,
        _ if field.len() > LONGEST_MISSING => false,
        _ => {
            MISSING_WORDS.contains(&field)
                || CASELESS_MISSING.iter().any(|word| field.eq_ignore_ascii_case(word))
        }
    }
}

/// The field, unless it is missing.
pub(crate) fn present(field: &[u8]) -> Option<&[u8]> {
    (!is_missing(field)).then_some(field)
}

/// Parses a number, which may be infinite.
pub(crate) fn parse_number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// A field for messages: lossy UTF-8, abbreviated.
pub(crate) fn printable(field: &[u8]) -> String {
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
    fn missing_values_are_detected() {
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
        assert!(words.iter().all(|word| word.len() <= LONGEST_MISSING));
    }

    #[test]
    fn numbers_are_parsed() {
        for (text, value) in [("1", 1.0), ("-2.5", -2.5), ("+3", 3.0), ("1e3", 1000.0), (".5", 0.5)] {
            assert_eq!(parse_number(text.as_bytes()), Some(value));
        }
        assert!(
            ["", "abc", "1,5", "0x1f", "1 2", "\u{661}"]
                .iter()
                .all(|text| parse_number(text.as_bytes()).is_none())
        );
        assert_eq!(parse_number(b"inf"), Some(f64::INFINITY));
    }
}
