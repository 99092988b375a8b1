//! Prints what the job prints, on a thread of its own, so that a slow reader stops no host.

use std::io::{stderr, stdout};
use std::sync::mpsc::{Receiver, Sender};

use serde_json::json;

use super::Event;
use crate::Stream;
use crate::budget::Budget;
use crate::output::{Printer, Style};

pub(super) enum Print {
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    Message(String),
    Event(serde_json::Value),
    /// The last message.
    Done {
        status: Option<u8>,
    },
}

/// Prints until [`Print::Done`]'s sender is gone.
pub(super) fn print_all(
    style: Style,
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
                let result = if broken {
                    Ok(())
                } else {
                    printer.output(rank, stream, &bytes)
                };
                budget.give(bytes.len());
                result
            }
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
        if result.is_err() && !broken {
            broken = true;
            let _ = events.send(Event::OutputBroken);
        }
    }
    let _ = events.send(Event::Printed);
}
