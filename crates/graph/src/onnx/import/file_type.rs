//! Detects by magic numbers what a file is that is not an ONNX file.

const MAGIC_NUMBERS: [(&[u8], &str); 9] = [
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x89HDF", "an HDF5 file, as Keras writes"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"GGUF", "a GGUF file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"\x89PNG", "an image"),
    (b"PAR1", "a Parquet file"),
];

/// The type of a file; `None` if it may be a damaged ONNX file.
pub fn detect(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return Some("empty");
    }
    if let Some((_, what)) = MAGIC_NUMBERS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(what);
    }
    if bytes.get(8) == Some(&b'{') && bytes[..8].iter().rev().take(4).all(|byte| *byte == 0) {
        return Some("a safetensors file");
    }
    if bytes.get(4..8) == Some(b"TFL3") {
        return Some("a TensorFlow Lite file");
    }
    let head = &bytes[..bytes.len().min(512)];
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    (head.iter().all(is_text)
        && std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true))
    .then_some("text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_detected_by_magic_numbers() {
        assert_eq!(detect(b""), Some("empty"));
        assert_eq!(detect(b"PK\x03\x04rest"), Some("a zip archive, as torch.save writes"));
        assert_eq!(detect(b"\x10\0\0\0\0\0\0\0{\"a\""), Some("a safetensors file"));
        assert_eq!(detect(b"import torch\n"), Some("text"));
        // An ONNX file starts with its IR version.
        assert_eq!(detect(b"\x08\x09\x12\x07"), None);
        assert_eq!(detect(b"\x1c\0\0\0TFL3"), Some("a TensorFlow Lite file"));
    }
}
