//! Single values as they stand in a text: missing, a number, or something else.

/// Whether a field says that there is no value: empty, NA, NaN, null or ?.
pub(crate) fn is_missing(field: &[u8]) -> bool {
    match field {
        b"" | b"?" => true,
        _ if field.len() > 4 => false,
        _ => [&b"na"[..], b"nan", b"null"].iter().any(|word| field.eq_ignore_ascii_case(word)),
    }
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
