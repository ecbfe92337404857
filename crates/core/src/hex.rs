//! Bytes as hexadecimal text.

/// Two lower-case digits per byte.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of `encode`; `None` for other text.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_other_text_is_refused() {
        let bytes = [0, 7, 0x80, 0xff];
        assert_eq!(encode(&bytes), "000780ff");
        assert_eq!(decode("000780ff").unwrap(), bytes);
        assert_eq!((decode(""), decode("0"), decode("zz")), (Some(Vec::new()), None, None));
    }
}
