//! Delimiter detection.

use super::fields::FieldReader;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;

/// Lines sampled.
const SAMPLE_LINES: usize = 200;

/// Delimiters tried, most likely first.
const DETECTED: [Delimiter; 5] = [
    Delimiter::Byte(b','),
    Delimiter::Byte(b'\t'),
    Delimiter::Byte(b';'),
    Delimiter::Byte(b'|'),
    Delimiter::Spaces,
];

/// Whether the delimiter is among those detected automatically.
pub fn is_auto_detected(delimiter: Delimiter) -> bool {
    DETECTED.contains(&delimiter)
}

fn choose(requested: Auto<Delimiter>, sample: &[u8]) -> Delimiter {
    match requested {
        Auto::Is(delimiter) => delimiter,
        Auto::Auto => guess(sample),
    }
}

/// Detects the delimiter, and the offset of the first record: C4.5 files such as UCI Adult start with a
/// comment line behind a bar.
pub(crate) fn detect(beginning: &[u8], requested: Auto<Delimiter>) -> (Delimiter, usize) {
    let comment = beginning.first() == Some(&b'|') && !beginning[1..].starts_with(b"|");
    let body = match memchr::memchr(b'\n', beginning) {
        Some(end) if comment => end + 1,
        _ => 0,
    };
    let delimiter = choose(requested, &beginning[body..]);
    (delimiter, if delimiter == Delimiter::Byte(b'|') { 0 } else { body })
}

/// The delimiter that splits most lines into the same number of fields, at least two.
fn guess(sample: &[u8]) -> Delimiter {
    let best = DETECTED
        .into_iter()
        .map(|candidate| (agreement(sample, candidate), candidate))
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    match best {
        Some((score, delimiter)) if score > 0.0 => delimiter,
        _ => Delimiter::Byte(b','),
    }
}

/// The fraction of lines with the most frequent number of fields; 0 if that number is one.
fn agreement(sample: &[u8], delimiter: Delimiter) -> f64 {
    let mut reader = FieldReader::new(sample, delimiter);
    let mut counts = Vec::new();
    while counts.len() < SAMPLE_LINES {
        match reader.next("") {
            Ok(Some(record)) => counts.push(record.len()),
            _ => break,
        }
    }
    // The sample may end within a line.
    if counts.len() > 2 {
        counts.pop();
    }
    let first = counts.first().copied();
    counts.sort_unstable();
    let commonest = counts.chunk_by(|one, other| one == other).max_by_key(|same| same.len());
    match commonest {
        // A single word above lines of several words is the header of a text column, not of several columns.
        Some(same) if delimiter == Delimiter::Spaces && first != Some(same[0]) => 0.0,
        Some(same) if same[0] > 1 => same.len() as f64 / counts.len() as f64,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(text: &str) -> Delimiter {
        choose(Auto::Auto, text.as_bytes())
    }

    #[test]
    fn delimiters_are_detected() {
        assert_eq!(guess("a,b\n1,2\n3,4\n"), Delimiter::Byte(b','));
        assert_eq!(guess("a;b\n1,5;2,5\n3,1;4,0\n"), Delimiter::Byte(b';'), "decimal commas");
        assert_eq!(guess("a;b;c\n1;2,5;3\n3,1;4;5\n"), Delimiter::Byte(b';'));
        assert_eq!(guess("a b\tc\n1\t2\n1\t2\n"), Delimiter::Byte(b'\t'));
        assert_eq!(guess("1|2\n3|4\n"), Delimiter::Byte(b'|'));
        assert_eq!(guess(" 1   2\n10  20\n"), Delimiter::Spaces);
        assert_eq!(guess("39, State gov, 7\n50, Self, 3\n"), Delimiter::Byte(b','));
        assert_eq!(guess("\"a, b\";1\n\"c, d, e\";2\n"), Delimiter::Byte(b';'));
        assert_eq!(guess("text\nmany happy returns\nhow are you\n"), Delimiter::Byte(b','), "sentences");
        assert_eq!(guess("1\n2\n"), Delimiter::Byte(b','));
    }

    #[test]
    fn a_delimiter_set_by_the_job_is_used() {
        let tab = Auto::Is(Delimiter::Byte(b'\t'));
        assert_eq!(choose(tab, b"a,b\n1,2\n"), Delimiter::Byte(b'\t'));
    }
}
