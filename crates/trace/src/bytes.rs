//! Encoding of numbers and texts in trace files.

use serde::{Deserialize, Serialize};

/// The first `most` bytes of a text, or fewer so that no character is split.
#[must_use]
pub fn truncated(text: &str, most: usize) -> &str {
    let ends = (0..=most.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Decodes a text from a file. Control characters are replaced, so that none reaches a terminal.
#[must_use]
pub fn printable(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(text.replace(char::is_control, "\u{fffd}"))
}

/// Appends a text as a field of `BYTES`, truncated or padded with zeros.
pub fn put_field<const BYTES: usize>(into: &mut Vec<u8>, text: &str) {
    let mut field = [0; BYTES];
    let text = truncated(text, BYTES).as_bytes();
    field[..text.len()].copy_from_slice(text);
    into.extend_from_slice(&field);
}

/// Takes a field that `put_field` wrote.
pub fn take_field<const BYTES: usize>(at: &mut &[u8]) -> Option<String> {
    let (field, rest) = at.split_first_chunk::<BYTES>()?;
    *at = rest;
    printable(field.split(|byte| *byte == 0).next()?)
}

/// Appends a value, encoded with postcard.
pub fn put_value<T: Serialize>(into: &mut Vec<u8>, value: &T) {
    let bytes = postcard::to_extend(value, std::mem::take(into));
    *into = bytes.expect("memory takes any bytes");
}

/// Takes a value from the front, if there is one.
pub fn take_value<'a, T: Deserialize<'a>>(bytes: &mut &'a [u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

/// A length as it is stored in files.
#[must_use]
pub fn len_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Appends a little-endian number of 32 bits.
pub fn put32(into: &mut Vec<u8>, value: u32) {
    into.extend_from_slice(&value.to_le_bytes());
}

/// Appends a little-endian number of 64 bits.
pub fn put64(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(&value.to_le_bytes());
}

/// Takes a 32-bit number from the start, if there is one.
#[must_use]
pub fn take32(bytes: &mut &[u8]) -> Option<u32> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*value))
}

/// Takes a number of 64 bits from the truncated, if there is one.
#[must_use]
pub fn take64(bytes: &mut &[u8]) -> Option<u64> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*value))
}
