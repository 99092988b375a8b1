//! Prints the job's output on a thread of its own, so that a slow reader does not block hosts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};

use serde_json::json;

use super::Event;
use crate::budget::Budget;
use crate::output::{Printer, Style};
use crate::{RunError, Stream};

/// One file for each output of each rank.
pub(super) struct Files {
    directory: PathBuf,
    open: BTreeMap<(u32, Stream), File>,
}

impl Files {
    pub(super) fn new(directory: PathBuf) -> Result<Files, RunError> {
        match std::fs::create_dir_all(&directory) {
            Ok(()) => Ok(Files {
                directory,
                open: BTreeMap::new(),
            }),
            Err(cause) => Err(RunError::OutputDir { directory, cause }),
        }
    }

    fn started(&mut self, rank: u32) -> io::Result<()> {
        for (stream, ending) in [(Stream::Stdout, "out"), (Stream::Stderr, "err")] {
            if let std::collections::btree_map::Entry::Vacant(none) =
                self.open.entry((rank, stream))
            {
                let path = self.directory.join(format!("{rank}.{ending}"));
                none.insert(dipole_naming::files::create(&path)?);
            }
        }
        Ok(())
    }

    fn write(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.started(rank)?;
        match self.open.get_mut(&(rank, stream)) {
            Some(file) => file.write_all(bytes),
            None => Ok(()),
        }
    }
}

pub(super) enum Print {
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// The rank has started.
    Started(u32),
    Message(String),
    Event(serde_json::Value),
    /// Last message: the outcome of the job.
    Done {
        status: Option<u8>,
    },
}

/// Prints until the sender is closed after [`Print::Done`].
pub(super) fn print_all(
    style: Style,
    mut files: Option<Files>,
    to_print: &Receiver<Print>,
    budget: &Budget,
    events: &Sender<Event>,
) {
    let mut printer = Printer::new(style, stdout(), stderr());
    let mut broken = false;
    for print in to_print {
        let result = match print {
            Print::Output {
                rank,
                stream,
                bytes,
            } => {
                let result = match &mut files {
                    _ if broken => Ok(()),
                    Some(files) => files.write(rank, stream, &bytes),
                    None => printer.output(rank, stream, &bytes),
                };
                budget.give(bytes.len());
                result
            }
            Print::Started(rank) => match &mut files {
                Some(files) if !broken => files.started(rank),
                _ => Ok(()),
            },
            Print::Message(text) => {
                // If standard error is closed there is no other way to report it.
                let _ =
                    std::io::Write::write_fmt(&mut stderr(), format_args!("dipole run: {text}\n"));
                Ok(())
            }
            Print::Event(event) => printer.event(&event.to_string()),
            Print::Done { status } => printer.finish().and_then(|()| match style {
                Style::Json => {
                    let done = json!({"event": "done", "status": status.unwrap_or(0)});
                    printer.event(&done.to_string())
                }
                _ => Ok(()),
            }),
        };
        if let Err(cause) = result
            && !broken
        {
            broken = true;
            let _ = events.send(Event::OutputBroken(cause));
        }
    }
    let _ = events.send(Event::Printed);
}
