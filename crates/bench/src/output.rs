//! Output of measurements: tables and remarks for people, or JSON objects, one per line.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// Destination of results and remarks.
pub struct Output<'a> {
    /// Print JSON objects instead of tables; remarks go to standard error.
    pub json: bool,
    /// Print all columns, and lines of any length.
    pub wide: bool,
    /// Standard output.
    pub out: &'a mut dyn Write,
}

impl Output<'_> {
    /// Prints a line for people, which is not part of the JSON output.
    pub fn remark(&mut self, line: &dyn Display) -> io::Result<()> {
        let text = match self.wide {
            true => line.to_string(),
            false => fold(&line.to_string()),
        };
        match self.json {
            true => writeln!(io::stderr(), "{text}"),
            false => writeln!(self.out, "{text}"),
        }
    }

    /// Prints a line of results.
    pub fn print(&mut self, line: &dyn Display) -> io::Result<()> {
        writeln!(self.out, "{line}")
    }

    /// Prints a JSON object.
    pub fn print_json(&mut self, object: &impl Serialize) -> io::Result<()> {
        self.print(&serde_json::to_string(object)?)
    }

    /// Prints records: a JSON object for each, or a table between two texts.
    pub fn print_records<R: Record>(
        &mut self,
        before: &str,
        records: &[R],
        after: &str,
    ) -> io::Result<()> {
        if self.json {
            return records
                .iter()
                .try_for_each(|record| self.print_json(record));
        }
        let mut table = ResultTable::new(R::HEADINGS, R::LABELS, self.wide);
        for record in records {
            table.add_row(record.cells());
        }
        self.print(&format!("{before}{table}{after}"))
    }

    /// Makes printed lines visible to the reader.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A result that is a JSON object and a row of a table.
pub trait Record: Serialize {
    /// Column headings separated by `|`. Columns with `+` are only shown if all are wanted.
    const HEADINGS: &'static str;
    /// Number of leading columns that contain labels instead of numbers.
    const LABELS: usize;

    /// Returns the cells of the row, one per heading.
    fn cells(&self) -> Vec<String>;
}

/// A table that fits a terminal of 80 columns. Columns with `+` before their heading are left out
/// unless all are wanted.
pub struct ResultTable {
    table: Table,
    shown: Vec<bool>,
}

impl ResultTable {
    /// Creates an empty table. Headings are separated by `|`; the first `labels` are over labels.
    #[must_use]
    pub fn new(headings: &str, labels: usize, wide: bool) -> ResultTable {
        let all = headings.split('|').map(|heading| {
            let plain = heading.trim_start_matches('+');
            (plain, wide || plain == heading)
        });
        let (names, shown): (Vec<&str>, Vec<bool>) = all.unzip();
        let names = names.into_iter().zip(&shown);
        let names: Vec<&str> = names
            .filter_map(|(name, is_shown)| is_shown.then_some(name))
            .collect();
        ResultTable {
            table: new_table(&names.join("|"), labels),
            shown,
        }
    }

    /// Adds a row with a cell for every heading.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().zip(&self.shown);
        let cells = cells.filter_map(|(cell, is_shown)| is_shown.then_some(cell));
        self.table.add_row(cells);
    }
}

impl Display for ResultTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// Creates an empty table. Headings are separated by `|`; the first `labels` are over labels.
#[must_use]
pub fn new_table(headings: &str, labels: usize) -> Table {
    let headings: Vec<&str> = headings.split('|').collect();
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(headings);
    for numbers in table.column_iter_mut().skip(labels) {
        numbers.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Breaks lines between words to fit a terminal of 80 columns.
#[must_use]
pub fn fold(text: &str) -> String {
    const COLUMNS: usize = 80;
    let mut folded = String::new();
    let mut used = 0;
    for (index, word) in text.split(' ').enumerate() {
        // A word may end one line of the text and begin the next.
        let first = word.split('\n').next().unwrap_or(word);
        if index > 0 && !word.is_empty() && used + 1 + first.chars().count() > COLUMNS {
            folded += "\n  ";
            used = 2;
        } else if index > 0 {
            folded.push(' ');
            used += 1;
        }
        folded += word;
        used = match word.rsplit_once('\n') {
            Some((_, last)) => last.chars().count(),
            None => used + word.chars().count(),
        };
    }
    folded
}

/// The file of an HTML page, opened before minutes are spent on its contents.
pub struct PageFile {
    path: PathBuf,
    file: File,
}

impl PageFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path) -> io::Result<PageFile> {
        let file = dipole_naming::files::open_output(path);
        Ok(PageFile {
            path: path.to_owned(),
            file: file.map_err(|error| cannot_write(path, &error))?,
        })
    }

    /// Writes the page and prints where it is.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(mut self, page: &str, output: &mut Output<'_>) -> io::Result<()> {
        let written = self.file.set_len(0);
        let written = written.and_then(|()| self.file.write_all(page.as_bytes()));
        written.map_err(|error| cannot_write(&self.path, &error))?;
        output.remark(&format!(
            "figures and tables are in {}",
            self.path.display()
        ))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "cannot write the page to {}: {error}; name a file in a folder that can be written",
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_leaves_out_optional_columns_unless_all_are_wanted() {
        let text = |wide| {
            let mut table = ResultTable::new("name|a|+b", 1, wide);
            table.add_row(["x", "17", "29"].map(str::to_owned));
            table.to_string()
        };
        assert!(text(true).contains("29") && text(true).contains("b"));
        assert!(text(false).contains("17") && !text(false).contains("29"));
    }

    #[test]
    fn lines_are_broken_between_words() {
        let text = format!("  {} end\n{}", "word ".repeat(20).trim(), "a".repeat(90));
        let folded = fold(&text);
        let lines: Vec<&str> = folded.lines().collect();
        assert_eq!(lines.len(), 3, "{folded}");
        assert!(lines[0].starts_with("  word") && lines[0].len() <= 80);
        assert_eq!(lines[1], "  word word word word word end");
        assert_eq!(lines[2].len(), 90, "words are not cut");
        assert_eq!(fold("short\n  and so on"), "short\n  and so on");
    }
}
