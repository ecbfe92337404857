//! What separates the columns of a table.

use super::fields::FieldReader;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;

/// Lines looked at to guess.
const SAMPLE_LINES: usize = 200;

/// Those that are looked for, the likelier ones first.
const GUESSED: [Delimiter; 5] = [
    Delimiter::Byte(b','),
    Delimiter::Byte(b'\t'),
    Delimiter::Byte(b';'),
    Delimiter::Byte(b'|'),
    Delimiter::Spaces,
];

/// Whether a delimiter is among those that are looked for in a table.
pub fn is_guessed(delimiter: Delimiter) -> bool {
    GUESSED.contains(&delimiter)
}

/// What a job asks for, or what the beginning of a table looks like.
fn choose(asked: Auto<Delimiter>, sample: &[u8]) -> Delimiter {
    match asked {
        Auto::Is(delimiter) => delimiter,
        Auto::Auto => guess(sample),
    }
}

/// The delimiter of a table by its beginning, and where its records begin: C4.5 files such as UCI Adult have a comment
/// behind a bar in their first line.
pub(crate) fn begin(beginning: &[u8], asked: Auto<Delimiter>) -> (Delimiter, usize) {
    let comment = beginning.first() == Some(&b'|') && !beginning[1..].starts_with(b"|");
    let body = match memchr::memchr(b'\n', beginning) {
        Some(end) if comment => end + 1,
        _ => 0,
    };
    let delimiter = choose(asked, &beginning[body..]);
    (delimiter, if delimiter == Delimiter::Byte(b'|') { 0 } else { body })
}

/// The one that cuts the most lines into the same number of fields, more than one.
fn guess(sample: &[u8]) -> Delimiter {
    let best = GUESSED
        .into_iter()
        .map(|candidate| (agreement(sample, candidate), candidate))
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    match best {
        Some((score, delimiter)) if score > 0.0 => delimiter,
        _ => Delimiter::Byte(b','),
    }
}

/// The share of lines with the commonest number of fields; 0 if that number is one.
fn agreement(sample: &[u8], delimiter: Delimiter) -> f64 {
    let mut reader = FieldReader::new(sample, delimiter);
    let mut counts = Vec::new();
    while counts.len() < SAMPLE_LINES {
        match reader.next("") {
            Ok(Some(record)) => counts.push(record.len()),
            _ => break,
        }
    }
    // The end of the sample may cut a line.
    if counts.len() > 2 {
        counts.pop();
    }
    let first = counts.first().copied();
    counts.sort_unstable();
    let commonest = counts.chunk_by(|one, other| one == other).max_by_key(|same| same.len());
    match commonest {
        // One word above lines of several is a name above a text, not above columns.
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
    fn separators_are_guessed() {
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
    fn what_is_asked_for_holds() {
        let tab = Auto::Is(Delimiter::Byte(b'\t'));
        assert_eq!(choose(tab, b"a,b\n1,2\n"), Delimiter::Byte(b'\t'));
    }
}
