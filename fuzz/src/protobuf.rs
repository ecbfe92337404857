//! Protocol Buffers messages as trees, so that mutations keep enclosing lengths valid.

use crate::mutate::{self, varint};
use crate::random::Random;

/// Nesting depth up to which messages are parsed.
const MAX_DEPTH: usize = 6;

#[derive(Clone, Debug, PartialEq)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Varint(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// Mutates some fields of a message, at any depth.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let Some(mut message) = read(bytes, 0) else { return mutate::bytes(random, bytes, others) };
    for _ in 0..1 + random.below(4) {
        mutate_message(random, &mut message, others);
    }
    *bytes = write(&message);
}

fn mutate_message(random: &mut Random, message: &mut Vec<Field>, others: &[Vec<u8>]) {
    if message.is_empty() {
        return;
    }
    let at = random.below(message.len());
    match random.below(12) {
        0 => drop(message.remove(at)),
        1 => {
            let copy = message[at].clone();
            message.insert(random.below(message.len()), copy);
        }
        2 => {
            let other = random.below(message.len());
            message.swap(at, other);
        }
        3 => message[at].number = 1 + random.below(20) as u64,
        4 => {
            // Replaces a value by another: names become those of other nodes.
            let other = message[random.below(message.len())].value.clone();
            message[at].value = other;
        }
        _ => match &mut message[at].value {
            Value::Message(inner) => mutate_message(random, inner, others),
            Value::Varint(value) => *value = mutate::number(random),
            Value::Fixed(value) => {
                let number = mutate::number(random).to_le_bytes();
                let width = value.len();
                value.copy_from_slice(&number[..width]);
            }
            Value::Bytes(value) => {
                if value.len() <= 64 && value.is_ascii() && random.percent(50) {
                    mutate::text(random, value, others);
                } else {
                    mutate::bytes(random, value, others);
                }
            }
        },
    }
}

fn read(bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut rest = bytes;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = take_varint(&mut rest)?;
        let value = match key & 7 {
            0 => Value::Varint(take_varint(&mut rest)?),
            1 => Value::Fixed(take(&mut rest, 8)?.to_vec()),
            5 => Value::Fixed(take(&mut rest, 4)?.to_vec()),
            2 => {
                let length = take_varint(&mut rest)?;
                let inner = take(&mut rest, usize::try_from(length).ok()?)?;
                // Printable bytes are treated as a name.
                let is_text = inner.iter().all(|byte| (0x20..0x7f).contains(byte));
                match (!is_text && depth < MAX_DEPTH).then(|| read(inner, depth + 1)).flatten() {
                    Some(message) if !message.is_empty() => Value::Message(message),
                    _ => Value::Bytes(inner.to_vec()),
                }
            }
            _ => return None,
        };
        if key >> 3 == 0 {
            return None;
        }
        fields.push(Field { number: key >> 3, value });
    }
    Some(fields)
}

fn write(message: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Field { number, value } in message {
        let (kind, body) = match value {
            Value::Varint(number) => (0, varint(*number)),
            Value::Fixed(value) => (if value.len() == 8 { 1 } else { 5 }, value.clone()),
            Value::Bytes(value) => (2, [varint(value.len() as u64), value.clone()].concat()),
            Value::Message(inner) => {
                let inner = write(inner);
                (2, [varint(inner.len() as u64), inner].concat())
            }
        };
        bytes.extend(varint(number << 3 | kind));
        bytes.extend(body);
    }
    bytes
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_written_as_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/graph/tests/onnx/mlp-ts.onnx");
        let bytes = std::fs::read(path).unwrap();
        let message = read(&bytes, 0).unwrap();
        assert_eq!(write(&message), bytes);
        let mut random = Random::of(1, 2);
        let mut changed = bytes.clone();
        mutate(&mut random, &mut changed, std::slice::from_ref(&bytes));
        assert_ne!(changed, bytes);
    }
}
