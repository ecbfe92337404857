//! Detects binary files and foreign text encodings from the first bytes of a file.

use thalweg_core::{Error, Result};

/// Name of standard input in messages.
pub const STANDARD_INPUT: &str = "standard input";

/// Bytes inspected.
pub(crate) const BEGINNING: usize = 1 << 12;

/// Signatures of formats that are mistaken for tables: first bytes, description, hint.
const SIGNATURES: &[(&[u8], &str, &str)] = &[
    (
        b"PK\x03\x04",
        "an Excel workbook or a zip archive",
        "save the sheet as CSV, or unpack the archive, and name that file",
    ),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV and name that file"),
    (b"PAR1", "a Parquet file", "rename it so that its name ends in .parquet"),
    (b"\x1f\x8b", "packed with gzip", "rename it so that its name ends in .gz"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", "unpack it with unzstd and name the unpacked file"),
    (b"BZh", "packed with bzip2", "unpack it with bunzip2 and name the unpacked file"),
    (b"\xfd7zXZ", "packed with xz", "unpack it with unxz and name the unpacked file"),
    (b"\x93NUMPY", "a NumPy array", "write it as CSV with numpy.savetxt, or as Parquet"),
    (b"\x89HDF", "an HDF5 file", "write its table as CSV or Parquet"),
    (b"ARROW1", "an Arrow file", "write its table as CSV or Parquet"),
    (b"ORC", "an ORC file", "write its table as CSV or Parquet"),
    (b"SQLite format 3", "an SQLite database", "export its table as CSV"),
    (b"%PDF-", "a PDF document", "name a file with rows"),
    (b"\x89PNG", "a PNG picture", "name a file with rows"),
    (b"\xff\xd8\xff", "a JPEG picture", "name a file with rows"),
];

/// Returns an error unless the file can be text in UTF-8 or an 8-bit encoding. `beginning` holds its first
/// bytes, uncompressed.
pub fn check_text(name: &str, beginning: &[u8]) -> Result<()> {
    let beginning = &beginning[..beginning.len().min(BEGINNING)];
    match detect_binary(beginning) {
        None => Ok(()),
        Some((what, advice)) => {
            let file = if name == STANDARD_INPUT { String::new() } else { format!(" {name}") };
            Err(Error::data(format!("{name} is {what}, not text in UTF-8"))
                .hint(advice.replace(" FILE", &file)))
        }
    }
}

pub(crate) fn no_rows(name: &str, header: bool) -> Error {
    let what = if header { "holds a header and no rows" } else { "is empty" };
    Error::data(format!("{name} {what}")).hint("add rows, or name another file")
}

/// Description and hint for content that is not text; `None` for text.
fn detect_binary(beginning: &[u8]) -> Option<(&'static str, &'static str)> {
    if beginning.starts_with(b"\xff\xfe\0\0") || beginning.starts_with(b"\0\0\xfe\xff") {
        return Some(("text in UTF-32", "convert it, for instance with iconv -f utf-32 -t utf-8 FILE"));
    }
    if beginning.starts_with(b"\xff\xfe") || beginning.starts_with(b"\xfe\xff") {
        return Some((
            "text in UTF-16",
            "convert it, for instance with iconv -f utf-16 -t utf-8 FILE; Excel saves \"CSV UTF-8\"",
        ));
    }
    if let Some((_, what, advice)) = SIGNATURES.iter().find(|(start, ..)| is_signature(beginning, start)) {
        return Some((what, advice));
    }
    let zeros = |from: usize| beginning.iter().skip(from).step_by(2).filter(|&&byte| byte == 0).count();
    let (even, odd, half) = (zeros(0), zeros(1), beginning.len() / 2);
    match even + odd {
        0 => None,
        // In UTF-16 every other byte of a Latin letter is 0.
        _ if odd * 10 >= half * 9 && even * 10 < half => {
            Some(("text in UTF-16", "convert it, for instance with iconv -f utf-16le -t utf-8 FILE"))
        }
        _ if even * 10 >= half * 9 && odd * 10 < half => {
            Some(("text in UTF-16", "convert it, for instance with iconv -f utf-16be -t utf-8 FILE"))
        }
        _ => Some(("a binary file", "write its rows as CSV, JSON lines or Parquet")),
    }
}

/// A signature of printable characters could also start a text, so a control character must follow.
fn is_signature(beginning: &[u8], signature: &[u8]) -> bool {
    let control = |byte: &u8| *byte < 0x20 && !byte.is_ascii_whitespace();
    let letters = signature.iter().all(u8::is_ascii_graphic);
    beginning.starts_with(signature) && (!letters || beginning.iter().any(control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(beginning: &[u8]) -> String {
        check_text("rows.csv", beginning).unwrap_err().message
    }

    #[test]
    fn other_encodings_and_binary_files_are_identified() {
        let utf16: Vec<u8> = "a,b\n1,2\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = "a,b\n1,2\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(refused(&utf16), "rows.csv is text in UTF-16, not text in UTF-8");
        assert_eq!(refused(&big), "rows.csv is text in UTF-16, not text in UTF-8");
        assert!(refused(&[b"\xff\xfe", &utf16[..]].concat()).contains("UTF-16"));
        assert!(refused(b"PK\x03\x04\x14\0").contains("an Excel workbook or a zip archive"));
        assert!(refused(b"\x1f\x8b\x08\0").contains("packed with gzip"));
        assert!(refused(b"PAR1\x15\x04").contains("a Parquet file"));
        assert!(refused(b"\x01\x02\0\x03\0\0\0\x7f").contains("a binary file"));
        let hint = check_text("rows.csv", &utf16).unwrap_err().hint.unwrap();
        assert_eq!(hint, "convert it, for instance with iconv -f utf-16le -t utf-8 rows.csv");
        let hint = check_text(STANDARD_INPUT, &utf16).unwrap_err().hint.unwrap();
        assert_eq!(hint, "convert it, for instance with iconv -f utf-16le -t utf-8");
    }

    #[test]
    fn text_passes_in_utf_8_and_in_older_encodings() {
        for text in [
            &b""[..],
            b"a,b\n1,2\n",
            b"\xef\xbb\xbfa,b\n",
            b"caf\xe9,1\n",
            b"ORC,PAR1\n",
            "\u{1f600}".as_bytes(),
        ] {
            assert_eq!(check_text("rows.csv", text), Ok(()));
        }
    }
}
