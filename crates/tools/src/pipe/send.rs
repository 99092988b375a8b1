//! `dipole send`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_naming::key::random_bytes;
use dipole_node::{Address, Endpoint, EndpointId, Node, ReceiveError};

use super::frame::{Frame, Kind, Sum};
use super::progress::{Progress, Summary};
use super::{PipeArgs, PipeError, cannot_open, configure, failed, spare_endpoint};
use crate::output::{Failure, json};

/// Send a stream to an endpoint: standard input or a file
#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// Where to: node and endpoint
    #[arg(value_name = "NID:DPID")]
    to: Address,
    /// The file [default: standard input]
    file: Option<PathBuf>,
    /// Endpoint to send from [default: a random one]
    #[arg(long, value_name = "DPID")]
    from: Option<EndpointId>,
    /// How long the receiver may take to be there, and to confirm the end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    pipe: PipeArgs,
}

/// Payload of one message of a stream of bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Longest line.
const LONGEST_LINE_BYTES: u64 = 16 << 20;
/// How often a sender with nothing to send sends a keepalive.
const ALIVE: Duration = Duration::from_secs(2);

/// How long one wait for the receiver's report lasts: too short for the node to warn that
/// nothing arrives, as nothing should before the end.
const POLL: Duration = Duration::from_secs(1);
/// How long the receiver may take to acknowledge our last message, which matters little.
const LAST_ACK: Duration = Duration::from_secs(1);

enum Event {
    /// A piece of the input, or what went wrong with it.
    Piece(io::Result<Vec<u8>>),
    InputEnd,
    /// The receiver has confirmed everything.
    Complete,
    /// The receiver reports a failure.
    Failed(String),
    Lost(ReceiveError),
}

/// Sends; the status is 0 only if the receiver has confirmed everything.
pub(crate) fn send(
    args: &SendArgs,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let summary = try_send(args)?;
    if as_json {
        writeln!(out, "{}", json(&summary))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn try_send(args: &SendArgs) -> Result<Summary<'static>, PipeError> {
    let timeout = Duration::from_secs(args.timeout);
    let mut config = configure(&args.pipe)?;
    config.connect_timeout = timeout;
    config.linger = LAST_ACK;
    let input: Box<dyn Read + Send> = match &args.file {
        Some(path) => Box::new(File::open(path).map_err(cannot_open(path))?),
        None => Box::new(io::stdin()),
    };
    let total_bytes = args
        .file
        .as_ref()
        .and_then(|path| std::fs::metadata(path).ok())
        .filter(|found| found.is_file() && !args.pipe.lines)
        .map(|found| found.len());
    let stream = random_bytes()
        .map(u64::from_le_bytes)
        .map_err(failed("drawing a random number"))?;
    let from = match args.from {
        Some(from) => from,
        None => spare_endpoint()?,
    };

    let node = Node::open(config).map_err(PipeError::Open)?;
    let endpoint = Arc::new(node.endpoint(from).map_err(PipeError::Open)?);
    endpoint.target(args.to).map_err(PipeError::Target)?;

    let (events, inbox) = sync_channel(4);
    std::thread::spawn({
        let (events, lines) = (events.clone(), args.pipe.lines);
        move || read_input(input, lines, &events)
    });
    // While we wait for input this thread waits in the node, which then repeats lost packets.
    let listener = std::thread::spawn({
        let endpoint = Arc::clone(&endpoint);
        move || await_report(&endpoint, stream, &events)
    });
    let mut sender = Sender {
        endpoint: &endpoint,
        to: args.to,
        stream,
        lines: args.pipe.lines,
        timeout,
        sum: Sum::new(),
        progress: Progress::new("sent", total_bytes, args.pipe.progress),
        message: Vec::with_capacity(PIECE_BYTES + 64),
    };
    let outcome = sender.run(&inbox);
    let crc = sender.sum.crc();
    let summary = sender.progress.finish("sent", args.to.to_string(), crc);
    match &outcome {
        Ok(()) | Err(PipeError::Refused { .. }) => {
            // The receiver's report has ended it; now the node can close.
            let _ = listener.join();
            // The receiver waits for the acknowledgement of its report. One more message carries
            // it, and is repeated if it gets lost.
            let _ = sender.send(Kind::Alive);
            let _ = endpoint.drain(LAST_ACK);
        }
        Err(error @ PipeError::File { .. }) => {
            // The receiver need not wait for the rest.
            let _ = sender.send(Kind::Failed(&error.to_string()));
            let _ = endpoint.drain(timeout);
        }
        Err(_) => {}
    }
    outcome.map(|()| summary)
}

struct Sender<'a> {
    endpoint: &'a Endpoint,
    to: Address,
    stream: u64,
    lines: bool,
    timeout: Duration,
    sum: Sum,
    progress: Progress,
    message: Vec<u8>,
}

impl Sender<'_> {
    fn run(&mut self, inbox: &Receiver<Event>) -> Result<(), PipeError> {
        self.progress.begin();
        let mut confirmed_by: Option<Instant> = None;
        loop {
            let event = match confirmed_by {
                Some(until) => inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
                None => inbox.recv_timeout(ALIVE),
            };
            match event {
                Ok(Event::Piece(piece)) => {
                    let piece = piece.map_err(failed("reading the input"))?;
                    self.send(if self.lines {
                        Kind::Line(&piece)
                    } else {
                        Kind::Bytes(&piece)
                    })?;
                    self.sum.add(&piece);
                    self.progress.add(piece.len());
                }
                Ok(Event::InputEnd) => {
                    self.send(Kind::End {
                        crc: self.sum.crc(),
                    })?;
                    confirmed_by = Some(Instant::now() + self.timeout);
                }
                Ok(Event::Complete) if confirmed_by.is_some() => return Ok(()),
                Ok(Event::Complete) => {}
                Ok(Event::Failed(reason)) => {
                    return Err(PipeError::Refused {
                        to: self.to,
                        reason,
                    });
                }
                Ok(Event::Lost(error)) => return Err(PipeError::Receive(error)),
                Err(RecvTimeoutError::Timeout) if confirmed_by.is_none() => {
                    self.send(Kind::Alive)?;
                }
                Err(_) => return Err(PipeError::Unconfirmed { to: self.to }),
            }
        }
    }

    fn send(&mut self, kind: Kind<'_>) -> Result<(), PipeError> {
        Frame {
            kind,
            stream: self.stream,
            offset_bytes: self.sum.length_bytes(),
        }
        .write(&mut self.message);
        self.endpoint.send(&self.message).map_err(PipeError::Send)
    }
}

fn read_input(input: Box<dyn Read + Send>, lines: bool, events: &SyncSender<Event>) {
    let mut input = BufReader::with_capacity(PIECE_BYTES, input);
    loop {
        let piece = if lines {
            next_line(&mut input)
        } else {
            next_piece(&mut input)
        };
        let (event, more) = match piece {
            Ok(Some(piece)) => (Event::Piece(Ok(piece)), true),
            Ok(None) => (Event::InputEnd, false),
            Err(cause) => (Event::Piece(Err(cause)), false),
        };
        if events.send(event).is_err() || !more {
            return;
        }
    }
}

/// Whatever has arrived, so that small amounts are not held back.
fn next_piece(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    loop {
        match input.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(bytes) => {
                let piece = bytes.to_vec();
                input.consume(piece.len());
                return Ok(Some(piece));
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = input
        .by_ref()
        .take(LONGEST_LINE_BYTES + 1)
        .read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 > LONGEST_LINE_BYTES {
        return Err(io::Error::other(format!(
            "a line of more than {LONGEST_LINE_BYTES} bytes; leave out --lines"
        )));
    }
    Ok(Some(line))
}

fn await_report(endpoint: &Endpoint, stream: u64, events: &SyncSender<Event>) {
    loop {
        let event = match endpoint.receive_timeout(POLL) {
            Err(ReceiveError::TimedOut { .. }) => continue,
            Ok(message) => match Frame::parse(&message) {
                Ok(frame) if frame.stream == stream => match frame.kind {
                    Kind::Complete => Event::Complete,
                    Kind::Failed(reason) => Event::Failed(reason.to_owned()),
                    _ => continue,
                },
                _ => continue,
            },
            Err(error) => Event::Lost(error),
        };
        let last = !matches!(event, Event::Piece(_) | Event::InputEnd);
        if events.send(event).is_err() || last {
            return;
        }
    }
}
