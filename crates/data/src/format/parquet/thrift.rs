//! The part of Thrift's compact protocol that page headers need.

/// Maximum nesting of skipped structures.
const MAX_DEPTH: usize = 16;

/// Reads from bytes that may be truncated: every method then returns `None`.
pub(super) struct CompactReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> CompactReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> CompactReader<'a> {
        CompactReader { bytes, position: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let end = self.position.checked_add(usize::try_from(count).ok()?)?;
        let taken = self.bytes.get(self.position..end)?;
        self.position = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Reads an integer field (zigzag).
    pub(super) fn number(&mut self, kind: u8) -> Option<i64> {
        if !(4..=6).contains(&kind) {
            return None;
        }
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Visits the fields of a structure: `visit` reads or skips each value, given its id and type.
    pub(super) fn fields(
        &mut self,
        visit: &mut dyn FnMut(&mut CompactReader<'a>, i64, u8) -> Option<()>,
    ) -> Option<()> {
        let mut field = 0i64;
        loop {
            let header = self.byte()?;
            let kind = header & 0xf;
            if kind == 0 {
                return Some(());
            }
            field = match header >> 4 {
                0 => self.number(4)?,
                step => field.checked_add(step.into())?,
            };
            visit(self, field, kind)?;
        }
    }

    /// Length and element type of a list.
    pub(super) fn list(&mut self) -> Option<(u64, u8)> {
        let header = self.byte()?;
        let count = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
        Some((count, header & 0xf))
    }

    /// Skips the value of a field.
    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            // Booleans are encoded in the field type.
            1 | 2 => {}
            4..=6 => drop(self.varint()?),
            3 => drop(self.byte()?),
            7 => drop(self.take(8)?),
            8 => {
                let length = self.varint()?;
                self.take(length)?;
            }
            9 | 10 => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth + 1))?;
            }
            11 => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.skip_element(kinds >> 4, depth + 1)?;
                    self.skip_element(kinds & 0xf, depth + 1)?;
                }
            }
            12 => self.fields(&mut |reader, _, kind| reader.skip(kind, depth + 1))?,
            13 => drop(self.take(16)?),
            _ => return None,
        }
        Some(())
    }

    /// Booleans in lists take a byte, unlike those of fields.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        if matches!(kind, 1 | 2) { self.byte().map(drop) } else { self.skip(kind, depth) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_are_skipped() {
        let mut bytes = vec![0x11, 0x13, 7, 0x15, 200, 1, 0x17];
        bytes.extend([0; 8]);
        bytes.extend([0x18, 2, b'a', b'b', 0x19, 0x21, 1, 2, 0x1b, 1, 0x58, 2, 1, b'x', 0x1c, 0x15, 2, 0, 0]);
        let mut seen = Vec::new();
        let mut reader = CompactReader::new(&bytes);
        let visited = reader.fields(&mut |reader, field, kind| {
            seen.push((field, kind));
            reader.skip(kind, 0)
        });
        assert_eq!(visited, Some(()));
        assert_eq!(seen, [(1, 1), (2, 3), (3, 5), (4, 7), (5, 8), (6, 9), (7, 11), (8, 12)]);
        assert_eq!(reader.position(), bytes.len());
    }

    #[test]
    fn lengths_beyond_the_end_are_refused() {
        for bytes in [&[0x18, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0x19, 0xf5, 0xff, 0xff, 0x7f], &[0x1c; 99]]
        {
            let mut reader = CompactReader::new(bytes);
            assert_eq!(reader.fields(&mut |reader, _, kind| reader.skip(kind, 0)), None);
        }
    }
}
