//! Standard output: how results are printed, and how failures of a command are reported.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, ContentArrangement, Row, Table};
use serde::Serialize;

/// Status that shells report for a program that SIGPIPE ended.
pub(crate) const BROKEN_PIPE: u8 = 128 + 13;

/// Fewer characters for each column of a table, with its border, are hard to read.
const MIN_COLUMN: usize = 9;

/// An empty table with these headings.
pub(crate) fn table(headings: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(headings);
    table
}

/// Columns that results may use: of the terminal, or of `COLUMNS` for other outputs; `None` without
/// a limit.
pub(crate) fn columns() -> Option<usize> {
    let found: Option<usize> = match io::stdout().is_terminal() {
        true => ratatui::crossterm::terminal::size()
            .map(|(columns, _)| columns.into())
            .ok(),
        false => std::env::var("COLUMNS").ok()?.parse().ok(),
    };
    found.filter(|columns| *columns > 0)
}

/// A table that is at most `columns` wide: with narrower cells, or, if these would be unreadable,
/// with one line for each cell.
pub(crate) fn fit(table: &Table, columns: Option<usize>) -> String {
    let text = table.to_string();
    let Some(columns) = columns.filter(|columns| width(&text) > *columns) else {
        return text;
    };
    let mut narrow = table.clone();
    narrow.set_content_arrangement(ContentArrangement::Dynamic);
    narrow.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
    let cells = |row: &Row| row.cell_iter().map(Cell::content).collect::<Vec<_>>();
    let headings = table.header().map(cells).unwrap_or_default();
    let readable = columns / headings.len().max(1) >= MIN_COLUMN;
    let text = narrow.to_string();
    if readable && width(&text) <= columns {
        return text;
    }
    let mut lines = Vec::new();
    for row in table.row_iter().map(cells) {
        let named = headings.iter().zip(row);
        lines.extend(named.map(|(heading, cell)| format!("{heading}: {cell}")));
        lines.push(String::new());
    }
    wrap(&lines.join("\n"), Some(columns))
}

/// Breaks lines that are longer than `columns`, between words where that is possible.
pub(crate) fn wrap(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns.filter(|columns| width(text) > *columns) else {
        return text.to_owned();
    };
    let mut wrapped: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut rest: Vec<char> = line.chars().collect();
        while rest.len() > columns {
            let space = rest[..=columns].iter().rposition(|c| *c == ' ');
            // A table or an indented word stays whole at the beginning of its line.
            let at = space.filter(|at| rest[..*at].iter().any(|c| *c != ' '));
            let tail = rest.split_off(at.unwrap_or(columns));
            wrapped.push(rest.iter().collect());
            rest = tail.into_iter().skip(usize::from(at.is_some())).collect();
        }
        wrapped.push(rest.iter().collect());
    }
    wrapped.join("\n")
}

fn width(text: &str) -> usize {
    let widths = text.lines().map(|line| line.chars().count());
    widths.max().unwrap_or(0)
}

/// True if a stream is a terminal that shows colours, unless `NO_COLOR` is set.
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && allows_colours(|name| std::env::var_os(name))
}

fn allows_colours(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = variable("TERM").is_some_and(|name| name == "dumb");
    !is_refused && !is_dumb
}

/// A value as one line of JSON, without its line break.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("printed values have text keys and serialise without fail")
}

/// Standard output or a substitute; remembers why writing failed.
pub(crate) struct Output<W> {
    to: W,
    failure: Option<io::Error>,
}

impl<W: Write> Output<W> {
    pub(crate) fn new(to: W) -> Output<W> {
        Output { to, failure: None }
    }

    fn checked<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            let copy = io::Error::new(error.kind(), error.to_string());
            self.failure.get_or_insert(copy);
        })
    }

    /// Reports the result of `command` on `errors`, as JSON if requested; returns the status.
    ///
    /// If the reader of the output has left, the command ends quietly.
    pub(crate) fn report(
        mut self,
        command: &str,
        done: Result<ExitCode, Failure>,
        as_json: bool,
        errors: &mut impl Write,
    ) -> ExitCode {
        let flushed = self.to.flush();
        let _remembered = self.checked(flushed);
        let (text, status) = match (self.failure, done) {
            (Some(cause), _) if cause.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::from(BROKEN_PIPE);
            }
            (Some(cause), _) => (format!("cannot write to standard output: {cause}"), 1),
            (None, Ok(status)) => return status,
            (None, Err(failure)) => (failure.error.to_string(), failure.status),
        };
        // If standard error is closed, too, only the status is left.
        let _unread = match as_json {
            true => {
                let event = serde_json::json!({"event": "error", "command": command, "text": text});
                writeln!(errors, "{event}")
            }
            false => writeln!(errors, "dipole {command}: {text}"),
        };
        ExitCode::from(status)
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        self.checked(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.checked(flushed)
    }
}

/// Why a command failed, and its exit status.
pub(crate) struct Failure {
    error: Box<dyn Error>,
    status: u8,
}

impl Failure {
    pub(crate) fn with_status(status: u8, error: impl Into<Box<dyn Error>>) -> Failure {
        let error = error.into();
        Failure { error, status }
    }
}

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::with_status(1, error)
    }
}

#[cfg(test)]
mod tests {
    fn sample() -> Table {
        let mut table = table([
            "pid",
            "command",
            "messages sent",
            "messages received",
            "waited",
        ]);
        table.add_row([
            "4711",
            "a-program-with-a-long-name --and options",
            "12",
            "13",
            "1.5",
        ]);
        table.add_row(["4712", "short", "1234567", "3", "0"]);
        table
    }

    #[test]
    fn tables_fit_40_80_and_200_columns_with_all_their_cells() {
        for columns in [40, 60, 80, 200] {
            let text = fit(&sample(), Some(columns));
            assert!(width(&text) <= columns, "{columns}\n{text}");
            for part in ["4711", "4712", "1234567", "waited", "1.5"] {
                assert!(text.contains(part), "{part} in {columns}\n{text}");
            }
        }
        assert_eq!(fit(&sample(), None), sample().to_string());
        assert!(fit(&sample(), Some(40)).contains("messages sent: 1234567"));
    }

    #[test]
    fn long_lines_break_between_words_and_short_ones_stay() {
        let text = "short\n  an indented line that is longer\nunbreakable-text-of-30-characters\n";
        let wrapped = wrap(text, Some(20));
        let expected =
            "short\n  an indented line\nthat is longer\nunbreakable-text-of-\n30-characters";
        assert_eq!(wrapped, expected);
        assert_eq!(wrap(text, Some(40)), text);
    }

    use super::*;

    /// A failure with this kind.
    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reported(kind: io::ErrorKind, as_json: bool) -> (ExitCode, String) {
        let (mut out, mut errors) = (Output::new(Broken(kind)), Vec::new());
        let done = writeln!(out, "a table").map(|()| ExitCode::SUCCESS);
        let status = out.report("graph", done.map_err(Failure::from), as_json, &mut errors);
        (status, String::from_utf8(errors).unwrap())
    }

    #[test]
    fn colours_are_shown_unless_a_variable_refuses_them() {
        let allowed = |set: &[(&str, &str)]| {
            allows_colours(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        assert!(allowed(&[]));
        assert!(allowed(&[("NO_COLOR", ""), ("TERM", "xterm")]));
        assert!(!allowed(&[("NO_COLOR", "1")]));
        assert!(!allowed(&[("TERM", "dumb")]));
    }

    #[test]
    fn a_reader_that_has_left_ends_a_command_quietly_and_a_full_disk_is_named() {
        let (status, text) = reported(io::ErrorKind::BrokenPipe, false);
        assert_eq!((status, &*text), (ExitCode::from(BROKEN_PIPE), ""));
        let (status, text) = reported(io::ErrorKind::StorageFull, false);
        assert_eq!(status, ExitCode::FAILURE);
        assert!(
            text.starts_with("dipole graph: cannot write to standard output: "),
            "{text}"
        );
    }

    #[test]
    fn with_json_an_error_is_one_object() {
        let (_, text) = reported(io::ErrorKind::StorageFull, true);
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&event["event"], &event["command"]),
            (&"error".into(), &"graph".into())
        );
        assert!(event["text"].as_str().unwrap().starts_with("cannot write"));
    }
}
