//! Configuration files of lines: words, `key=value` options, and comments after `#`.
//!
//! Every error is `file:line: found ..., expected ...`. A [`Word`] is a text that can be written
//! into such a line and read back, so a value can never add a line.

use std::fmt;
use std::io;
use std::ops::{Deref, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::files;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the {what} {file}: {cause}")]
    Unreadable {
        /// Kind of file, for example "hosts file".
        what: &'static str,
        /// Path of the file.
        file: PathBuf,
        /// The operating system's error.
        #[source]
        cause: io::Error,
    },
    /// A line is wrong.
    #[error("{file}:{line}: {fault}")]
    Line {
        /// Path of the file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The fault and its line.
        fault: Fault,
    },
    /// It has no lines.
    #[error("{file}: found no line, expected at least one `{expected}`")]
    Empty {
        /// Path of the file.
        file: PathBuf,
        /// Form of an acceptable line.
        expected: &'static str,
    },
}

/// A fault in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(String);

impl Fault {
    /// A word that was found, and what was expected instead.
    #[must_use]
    pub fn new(found: &str, expected: impl fmt::Display) -> Fault {
        let found = excerpt(found);
        Fault(format!("found `{found}`, expected {expected}"))
    }

    /// A fault with this description.
    #[must_use]
    pub fn because(text: String) -> Fault {
        Fault(text)
    }
}

/// The first 80 characters of a text from outside, escaped for an error message.
#[must_use]
pub fn excerpt(text: &str) -> String {
    /// Maximum length of a quoted line, in characters.
    const MOST: usize = 80;
    text.chars()
        .take(MOST)
        .flat_map(char::escape_debug)
        .collect()
}

/// A text without control characters, which could move a terminal's cursor or change its state:
/// they are escaped, except line breaks.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => printable.extend(c.escape_debug()),
            false => printable.push(c),
        }
    }
    printable
}

/// A text that fits in a line: not empty, without white space, control characters and `#`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(String);

impl Word {
    /// The text as a word, if it is one.
    #[must_use]
    pub fn new(text: &str) -> Option<Word> {
        let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != '#';
        (!text.is_empty() && text.chars().all(fits)).then(|| Word(text.to_owned()))
    }
}

impl Deref for Word {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads a file of lines; `what` is its kind in error messages.
///
/// # Errors
/// [`FileError::Unreadable`].
pub fn read(what: &'static str, file: &Path) -> Result<String, FileError> {
    files::read_text(file).map_err(|cause| FileError::Unreadable {
        what,
        file: file.to_owned(),
        cause,
    })
}

/// The lines of a text except empty lines and comments.
pub fn lines<'a>(text: &'a str, file: &'a Path) -> impl Iterator<Item = Line<'a>> {
    let all = text.lines().enumerate().map(move |(index, raw)| Line {
        file,
        number: index + 1,
        rest: raw.split('#').next().unwrap_or_default().trim(),
    });
    all.filter(|line| !line.rest.is_empty())
}

/// A line of a file, parsed word by word.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    file: &'a Path,
    /// Line number, from 1.
    pub number: usize,
    rest: &'a str,
}

impl<'a> Line<'a> {
    /// Parses the next word as a `T`.
    ///
    /// # Errors
    /// The line has ended, or the word is not a `T`.
    pub fn next<T: FromStr>(&mut self, expected: &str) -> Result<T, Fault> {
        let word = self.next_word()?;
        let end = || Fault(format!("found the end of the line, expected {expected}"));
        let word = word.ok_or_else(end)?;
        word.parse().map_err(|_| Fault::new(word, expected))
    }

    /// Parses the other words, each `key=value` with a different key.
    ///
    /// # Errors
    /// A word has another form, or repeats a key.
    pub fn options(mut self, expected: &'static str) -> Result<Vec<KeyValue<'a>>, Fault> {
        let mut options: Vec<KeyValue<'a>> = Vec::new();
        while let Some(word) = self.next_word()? {
            let option = word
                .split_once('=')
                .map(|(key, value)| KeyValue { word, key, value });
            let option = option.ok_or_else(|| Fault::new(word, expected))?;
            if options.iter().any(|earlier| earlier.key == option.key) {
                return Err(Fault::new(
                    word,
                    format_args!("`{}=` only once", option.key),
                ));
            }
            options.push(option);
        }
        Ok(options)
    }

    fn next_word(&mut self) -> Result<Option<&'a str>, Fault> {
        let end = self
            .rest
            .find(char::is_whitespace)
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        match word.chars().any(char::is_control) {
            true => Err(Fault::new(word, "printable text")),
            false => Ok((!word.is_empty()).then_some(word)),
        }
    }

    /// The error for a fault in this line.
    #[must_use]
    pub fn error(&self, fault: Fault) -> FileError {
        FileError::Line {
            file: self.file.to_owned(),
            line: self.number,
            fault,
        }
    }
}

/// One `key=value` of a line.
#[derive(Clone, Copy, Debug)]
pub struct KeyValue<'a> {
    word: &'a str,
    /// Text before the first `=`.
    pub key: &'a str,
    /// Text after the first `=`.
    pub value: &'a str,
}

impl KeyValue<'_> {
    /// The fault that something else was expected.
    #[must_use]
    pub fn fault(&self, expected: impl fmt::Display) -> Fault {
        Fault::new(self.word, expected)
    }

    /// Parses the value as a number within bounds.
    ///
    /// # Errors
    /// It is not one.
    pub fn number<T>(&self, range: RangeInclusive<T>) -> Result<T, Fault>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let number = self.value.parse().ok();
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let (key, min, max) = (self.key, range.start(), range.end());
                self.fault(format_args!("{key}=N with N from {min} to {max}"))
            })
    }

    /// Parses the value as a word.
    ///
    /// # Errors
    /// It is empty.
    pub fn text(&self, expected: &str) -> Result<Word, Fault> {
        Word::new(self.value).ok_or_else(|| self.fault(expected))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn only(text: &str) -> Line<'_> {
        lines(text, Path::new("file")).next().expect("a line")
    }

    #[test]
    fn values_and_options_are_read_and_comments_and_empty_lines_are_not() {
        let text = "# nothing\n\n \t7 first k=v=w  l=3 # k=x\r\n";
        let mut line = only(text);
        assert_eq!(line.number, 3);
        assert_eq!(line.next::<u32>("a number"), Ok(7));
        assert_eq!(line.next::<String>("a text").as_deref(), Ok("first"));
        let options = line.options("k=V or l=N").unwrap();
        let pairs: Vec<_> = options.iter().map(|one| (one.key, one.value)).collect();
        assert_eq!(pairs, [("k", "v=w"), ("l", "3")]);
        assert_eq!(options[1].number(1..=3_u8), Ok(3));
        assert!(options[1].number(4..=5_u8).is_err());
        assert_eq!(lines(text, Path::new("file")).count(), 1);
    }

    #[test]
    fn a_fault_names_file_line_what_was_found_and_what_was_expected() {
        let mut line = only("\nx");
        let fault = line.next::<u32>("a number").unwrap_err();
        let error = line.error(fault).to_string();
        assert_eq!(error, "file:2: found `x`, expected a number");
        let fault = line.next::<u32>("a number").unwrap_err();
        assert!(fault.to_string().contains("the end of the line"), "{fault}");
        let fault = only("a=1 a=2").options("a=N").unwrap_err();
        assert_eq!(fault.to_string(), "found `a=2`, expected `a=` only once");
    }

    #[test]
    fn control_characters_are_refused_and_never_repeated_to_a_terminal() {
        let fault = only("a=\u{1b}[2J")
            .options("a=TEXT")
            .unwrap_err()
            .to_string();
        assert!(fault.contains("printable text"), "{fault}");
        assert!(!fault.contains('\u{1b}'), "{fault}");
    }

    #[test]
    fn a_text_that_would_not_read_back_is_refused() {
        for bad in [
            "",
            "a b",
            "a\nb",
            "a\rb",
            "a#b",
            "\u{1b}",
            "a\u{2028}b",
            "\u{85}",
        ] {
            assert_eq!(Word::new(bad), None, "{bad:?}");
        }
        assert_eq!(Word::new("me@b=\u{e4}").as_deref(), Some("me@b=\u{e4}"));
    }

    proptest! {
        #[test]
        fn any_value_reads_back_and_adds_no_line(text in any::<String>()) {
            if let Some(word) = Word::new(&text) {
                let file = format!("{word} key={word}\n");
                let all: Vec<Line<'_>> = lines(&file, Path::new("file")).collect();
                prop_assert_eq!(all.len(), 1);
                let mut line = all[0];
                prop_assert_eq!(line.next::<String>("a word"), Ok(text.clone()));
                let options = line.options("key=WORD").unwrap();
                prop_assert_eq!(options[0].text("key=WORD"), Ok(word));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            for mut line in lines(&text, Path::new("file")) {
                let _ = line.next::<u32>("a number");
                let _ = line.options("KEY=VALUE");
            }
        }
    }
}
