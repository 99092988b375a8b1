//! Output of the launcher: lines of ranks, optionally tagged, never mixed within a line, and its
//! own messages. With `--json` everything is one object per line.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::Stream;

/// A longer line is split, to limit the memory for unfinished lines.
const LONGEST_LINE_BYTES: usize = 64 << 20;

/// How to print the output of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Unmodified bytes, for a single rank.
    Raw,
    /// Print whole lines only.
    Lines,
    /// Whole lines, each with its rank: `[3] line`.
    Tagged,
    /// One JSON object a line.
    Json,
}

#[derive(Serialize)]
struct OutputEvent<'a> {
    event: &'static str,
    rank: u32,
    stream: Stream,
    text: &'a str,
}

/// Prints the output of several ranks.
pub(crate) struct Printer<Out, Err> {
    style: Style,
    stdout: Out,
    stderr: Err,
    unfinished: BTreeMap<(u32, Stream), Vec<u8>>,
}

impl<Out: Write, Err: Write> Printer<Out, Err> {
    pub(crate) fn new(style: Style, stdout: Out, stderr: Err) -> Printer<Out, Err> {
        Printer {
            style,
            stdout,
            stderr,
            unfinished: BTreeMap::new(),
        }
    }

    /// Adds output of a rank and prints the complete lines.
    pub(crate) fn output(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.style == Style::Raw {
            return self.put(stream, bytes);
        }
        let key = (rank, stream);
        let mut line = self.unfinished.remove(&key).unwrap_or_default();
        let mut printed = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if let [whole @ .., b'\n'] = &line[..] {
                self.line(&mut printed, rank, stream, whole);
                line.clear();
            } else if line.len() >= LONGEST_LINE_BYTES {
                self.line(&mut printed, rank, stream, &line);
                line.clear();
            }
        }
        if !line.is_empty() {
            self.unfinished.insert(key, line);
        }
        self.put(stream, &printed)
    }

    /// Prints the lines that have no line end yet.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        for ((rank, stream), rest) in std::mem::take(&mut self.unfinished) {
            let mut printed = Vec::new();
            self.line(&mut printed, rank, stream, &rest);
            self.put(stream, &printed)?;
        }
        Ok(())
    }

    /// Prints an event of the launcher itself.
    pub(crate) fn event(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdout, "{line}")?;
        self.stdout.flush()
    }

    fn line(&self, to: &mut Vec<u8>, rank: u32, stream: Stream, line: &[u8]) {
        match self.style {
            Style::Json => {
                let event = OutputEvent {
                    event: "output",
                    rank,
                    stream,
                    text: &String::from_utf8_lossy(line),
                };
                to.extend_from_slice(&json(&event));
            }
            Style::Tagged => {
                to.extend_from_slice(format!("[{rank}] ").as_bytes());
                to.extend_from_slice(line);
            }
            Style::Raw | Style::Lines => to.extend_from_slice(line),
        }
        to.push(b'\n');
    }

    fn put(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // With JSON everything goes to one stream, to keep the order.
        if stream == Stream::Stdout || self.style == Style::Json {
            self.stdout.write_all(bytes)?;
            self.stdout.flush()
        } else {
            self.stderr.write_all(bytes)?;
            self.stderr.flush()
        }
    }
}

/// A value as a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what we print has text keys and cannot fail to serialise")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(style: Style, pieces: &[(u32, Stream, &str)]) -> (String, String) {
        let mut printer = Printer::new(style, Vec::new(), Vec::new());
        for (rank, stream, text) in pieces {
            printer.output(*rank, *stream, text.as_bytes()).unwrap();
        }
        printer.finish().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(printer.stdout), text(printer.stderr))
    }

    #[test]
    fn lines_of_several_ranks_are_never_mixed_and_carry_their_rank() {
        let pieces = [
            (0, Stream::Stdout, "a"),
            (1, Stream::Stdout, "b\nc"),
            (0, Stream::Stdout, "A\n"),
            (0, Stream::Stderr, "e"),
            (1, Stream::Stdout, "C\n\n"),
        ];
        let (out, err) = printed(Style::Tagged, &pieces);
        assert_eq!(out, "[1] b\n[0] aA\n[1] cC\n[1] \n");
        assert_eq!(err, "[0] e\n");
        assert_eq!(printed(Style::Lines, &pieces).0, "b\naA\ncC\n\n");
        assert_eq!(printed(Style::Raw, &pieces).0, "ab\ncA\nC\n\n");
    }

    #[test]
    fn tags_leave_every_byte_and_a_long_line_as_it_is() {
        let mut line = b"\xff\0\xc3(".to_vec();
        line.resize(3 << 20, b'x');
        let mut printer = Printer::new(Style::Tagged, Vec::new(), Vec::new());
        for piece in line.chunks(1 << 16).chain([&b"\n"[..]]) {
            printer.output(2, Stream::Stdout, piece).unwrap();
        }
        printer.finish().unwrap();
        assert!(printer.stdout == [b"[2] ", &line[..], b"\n"].concat());
    }

    #[test]
    fn json_keeps_one_object_a_line_with_any_output_of_a_rank() {
        let (out, err) = printed(Style::Json, &[(2, Stream::Stderr, "say \"x\"\t\nrest")]);
        assert!(err.is_empty());
        let values: Vec<serde_json::Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(values[0]["text"], "say \"x\"\t");
        assert_eq!(values[0]["stream"], "stderr");
        assert_eq!(
            (&values[1]["rank"], &values[1]["text"]),
            (&2.into(), &"rest".into())
        );
    }
}
