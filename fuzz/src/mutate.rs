//! Mutations of bytes and texts.

use crate::random::Random;

/// Boundary values.
const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    1 << 20,
    1 << 24,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    u64::MAX >> 1,
    u64::MAX,
];

/// Tokens that parsers often handle wrongly.
const TOKENS: [&str; 40] = [
    "0",
    "-1",
    "1",
    "1e-300",
    "1e308",
    "-1e308",
    "NaN",
    "inf",
    "2147483648",
    "4294967296",
    "16777216",
    "16777217",
    "9223372036854775807",
    "18446744073709551616",
    "0.5",
    "1e9",
    "[]",
    "{}",
    "\"\"",
    "\"",
    "''",
    "null",
    "true",
    "\u{e9}",
    "\u{1f600}",
    "\u{0}",
    "\\u0000",
    ",",
    "\n",
    "\r\n",
    "\t",
    ";",
    ":",
    "#",
    "=",
    "[",
    "]",
    "{",
    "}",
    " ",
];

/// Makes one to four mutations.
pub fn bytes(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..count(random) {
        mutate_once(random, bytes, others);
    }
}

/// The number of mutations. Mostly one: files with more are refused earlier.
fn count(random: &mut Random) -> usize {
    if random.percent(60) { 1 } else { 2 + random.below(3) }
}

fn mutate_once(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    if bytes.is_empty() {
        bytes.extend(random.next().to_le_bytes());
        return;
    }
    let at = random.below(bytes.len());
    let few = 1 + random.below(16);
    let end = (at + few).min(bytes.len());
    match random.below(11) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = *random.pick(&NUMBERS) as u8,
        2 => {
            let number = random.pick(&NUMBERS).to_le_bytes();
            let width = [2, 4, 8][random.below(3)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        3 => {
            let number = random.pick(&NUMBERS).to_be_bytes();
            let width = [2, 4, 8][random.below(3)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[8 - width..]);
        }
        4 => drop(bytes.drain(at..end)),
        5 => {
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        6 => bytes.truncate(at),
        7 => drop(bytes.splice(at..=at, varint(*random.pick(&NUMBERS)))),
        8 => drop(bytes.splice(at..at, random.next().to_le_bytes())),
        9 => {
            let other = random.pick(others);
            let cut = random.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[cut.min(other.len())..]);
        }
        _ => {
            let word = random.pick(&TOKENS).as_bytes();
            bytes.splice(at..end, word.iter().copied());
        }
    }
}

/// LEB128, as in Protocol Buffers.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Mostly a boundary value, else any number.
pub fn number(random: &mut Random) -> u64 {
    if random.percent(80) { *random.pick(&NUMBERS) } else { random.next() >> random.below(64) }
}

/// Makes one to four mutations of words and lines, or sometimes of bytes.
pub fn text(random: &mut Random, text: &mut Vec<u8>, others: &[Vec<u8>]) {
    if random.percent(25) {
        return bytes(random, text, others);
    }
    for _ in 0..count(random) {
        match random.below(6) {
            0..3 => {
                let (begin, end) = word_at(text, random.below(text.len()));
                let word = random.pick(&TOKENS).as_bytes().to_vec();
                text.splice(begin..end, word);
            }
            3 => {
                // A word of another sample.
                let other = random.pick(others);
                let (begin, end) = word_at(other, random.below(other.len()));
                let (from, to) = word_at(text, random.below(text.len()));
                text.splice(from..to, other[begin..end].iter().copied());
            }
            4 => {
                let (begin, end) = line_at(text, random.below(text.len()));
                let line = text[begin..end].to_vec();
                if random.percent(50) {
                    text.splice(begin..begin, line);
                } else {
                    text.drain(begin..end);
                }
            }
            _ => {
                let at = random.below(text.len() + 1);
                text.insert(at.min(text.len()), [0xe9, 0xff, 0, b'"', 0x1a][random.below(5)]);
            }
        }
    }
}

/// The word at an offset.
fn word_at(text: &[u8], at: usize) -> (usize, usize) {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | 0x80..);
    let at = at.min(text.len());
    let begin = text[..at].iter().rposition(|byte| !inside(byte)).map_or(0, |before| before + 1);
    let end = text[at..].iter().position(|byte| !inside(byte)).map_or(text.len(), |after| at + after);
    (begin, end)
}

fn line_at(text: &[u8], at: usize) -> (usize, usize) {
    let at = at.min(text.len());
    let begin = text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |before| before + 1);
    let end =
        text[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |newline| at + newline + 1);
    (begin, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_deterministic() {
        let others = [b"1,2\n3,4\n".to_vec(), Vec::new()];
        let changed = |case| {
            let mut random = Random::of(7, case);
            let mut sample = b"a,b,label\n1,2,x\n3,4,y\n".to_vec();
            text(&mut random, &mut sample, &others);
            bytes(&mut random, &mut sample, &others);
            sample
        };
        let all: Vec<_> = (0..2000).map(changed).collect();
        assert_eq!(all, (0..2000).map(changed).collect::<Vec<_>>());
        assert!(all.iter().collect::<std::collections::HashSet<_>>().len() > 1500);
    }
}
