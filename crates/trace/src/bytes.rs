//! Numbers and texts as bytes of a trace.

/// The front of a text that is longer than `most` bytes.
#[must_use]
pub fn front(text: &str, most: usize) -> &str {
    let ends = (0..=most.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A text of a file, which may be anybody's: control characters of it reach no terminal.
#[must_use]
pub fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(text.replace(char::is_control, "\u{fffd}"))
}

/// Appends the front of a text as a field of `BYTES`, filled up with zeros.
pub fn put_field<const BYTES: usize>(into: &mut Vec<u8>, text: &str) {
    let mut field = [0; BYTES];
    let text = front(text, BYTES).as_bytes();
    field[..text.len()].copy_from_slice(text);
    into.extend_from_slice(&field);
}

/// Takes such a field.
pub fn take_field<const BYTES: usize>(at: &mut &[u8]) -> Option<String> {
    let (field, rest) = at.split_first_chunk::<BYTES>()?;
    *at = rest;
    text(field.split(|byte| *byte == 0).next()?)
}

/// A length as it stands in files.
#[must_use]
pub fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Appends a number, little-endian.
pub fn put32(into: &mut Vec<u8>, value: u32) {
    into.extend_from_slice(&value.to_le_bytes());
}

/// The same, of 64 bits.
pub fn put64(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(&value.to_le_bytes());
}

/// A number from the front, if there is one.
#[must_use]
pub fn take32(bytes: &mut &[u8]) -> Option<u32> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*value))
}

/// The same, of 64 bits.
#[must_use]
pub fn take64(bytes: &mut &[u8]) -> Option<u64> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*value))
}
