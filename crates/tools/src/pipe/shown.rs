//! Names of files in messages: [`shown`].

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name of any bytes as text for a terminal: control characters, invisible ones, backslashes and
/// bytes that are not UTF-8 are escaped.
pub(super) fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '"' => text.push(c),
                c => text.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            let _into_memory = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// [`shown`] for a path.
pub(super) fn shown_path(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_do_nothing_to_a_terminal() {
        for (name, expected) in [
            (&b"it's a \"file\""[..], "it's a \"file\""),
            ("b\u{e4}ume/\u{1f333}".as_bytes(), "b\u{e4}ume/\u{1f333}"),
            (b"two\nlines\\", "two\\nlines\\\\"),
            (b"\xff\x1b[2J", "\\xff\\u{1b}[2J"),
            ("\u{9b}2J\u{202e}".as_bytes(), "\\u{9b}2J\\u{202e}"),
        ] {
            assert_eq!(shown(name), expected);
        }
    }
}
