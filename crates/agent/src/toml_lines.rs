//! TOML with line numbers in errors.

use serde::de::DeserializeOwned;

/// The line, from 1, that contains a byte.
pub(super) fn line_at(text: &str, byte: usize) -> usize {
    let before = text.as_bytes().iter().take(byte);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// Parses a text. An error is a line and a message.
pub(super) fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, (usize, String)> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let why = error.message().trim().replace('\n', ", ");
        (line_at(text, at), dipole_naming::lines::printable(&why))
    })
}
