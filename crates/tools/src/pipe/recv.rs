//! `dipole recv`.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_node::{
    Address, Endpoint, EndpointId, GoneReason, Message, Node, ReceiveError, SendError,
};

use super::frame::{Frame, FrameError, Kind, Sum};
use super::progress::{Progress, Summary};
use super::{PipeArgs, PipeError, cannot_open, configure, failed, spare_endpoint};
use crate::output::{Failure, json};

/// Receive one stream at an endpoint: to standard output or a file
#[derive(Args, Debug)]
pub(crate) struct RecvArgs {
    /// The endpoint, with or without this node's number
    #[arg(value_name = "[NID:]DPID")]
    at: At,
    /// Write to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long a stream that has begun may be silent, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    silence: u64,
    #[command(flatten)]
    pipe: PipeArgs,
}

/// An endpoint of this node.
#[derive(Clone, Copy, Debug)]
enum At {
    Here(EndpointId),
    Full(Address),
}

impl FromStr for At {
    type Err = dipole_node::AddressError;

    fn from_str(text: &str) -> Result<At, Self::Err> {
        if text.contains(':') {
            text.parse().map(At::Full)
        } else {
            text.parse().map(At::Here)
        }
    }
}

/// Messages that may wait for a slow output.
const WAITING_MESSAGES: usize = 16;
/// How long the node works before a full output is tried again.
const STEP: Duration = Duration::from_millis(5);
/// How long one wait for the first message lasts: too short for the node to warn of it.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// How long the confirmation may take to reach the sender.
const CONFIRM: Duration = Duration::from_secs(10);

/// Receives; the status is 0 only if the stream is whole.
pub(crate) fn recv(
    args: &RecvArgs,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let summary = try_recv(args)?;
    match &args.out {
        Some(_) if as_json => writeln!(out, "{}", json(&summary))?,
        // Standard output has the stream itself.
        None if as_json => writeln!(io::stderr(), "{}", json(&summary))?,
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn try_recv(args: &RecvArgs) -> Result<Summary<'static>, PipeError> {
    let mut config = configure(&args.pipe)?;
    config.connect_timeout = CONFIRM;
    let endpoint = match args.at {
        At::Here(endpoint) => endpoint,
        At::Full(address) if address.node == config.node => address.endpoint,
        At::Full(asked) => {
            return Err(PipeError::NotOurNode {
                asked,
                own: config.node,
            });
        }
    };
    let node = Node::open(config).map_err(PipeError::Open)?;
    let endpoint = node.endpoint(endpoint).map_err(PipeError::Open)?;
    let reply = node.endpoint(spare_endpoint()?).map_err(PipeError::Open)?;
    let output: Box<dyn Write + Send> = match &args.out {
        Some(path) => Box::new(File::create(path).map_err(cannot_open(path))?),
        None => Box::new(io::stdout()),
    };
    let (to_write, pieces) = sync_channel(WAITING_MESSAGES);
    let writer = std::thread::spawn(move || write_output(output, &pieces));
    let mut receiver = Transfer {
        endpoint: &endpoint,
        reply: &reply,
        lines: args.pipe.lines,
        silence: Duration::from_secs(args.silence),
        source: None,
        sum: Sum::new(),
        progress: Progress::new("received", None, args.pipe.progress),
        rejected: HashSet::new(),
    };
    let outcome = receiver.run(to_write, writer);
    let Some((source, stream)) = receiver.source else {
        return Err(outcome.err().unwrap_or(PipeError::Unconfirmed {
            to: endpoint.address(),
        }));
    };
    let crc = receiver.sum.crc();
    let summary = receiver
        .progress
        .finish("received", source.to_string(), crc);
    match outcome {
        Ok(()) => match report(&reply, source, stream, None) {
            // Our stream is complete; a sender that has read that may close at once.
            Ok(())
            | Err(PipeError::Send(SendError::PeerGone {
                reason: Some(GoneReason::Closed),
                ..
            })) => {}
            Err(error) => {
                eprintln!(
                    "dipole recv: the sender may not know that everything has arrived: {error}"
                )
            }
        },
        Err(error) => {
            // A sender that is gone or has given up itself needs no report.
            if !matches!(error, PipeError::Silent { .. } | PipeError::Refused { .. }) {
                let _ = report(&reply, source, stream, Some(&error.to_string()));
            }
            return Err(error);
        }
    }
    Ok(summary)
}

struct Transfer<'a> {
    endpoint: &'a Endpoint,
    /// Sends answers, and keeps the node working while the output is slow.
    reply: &'a Endpoint,
    lines: bool,
    silence: Duration,
    source: Option<(Address, u64)>,
    sum: Sum,
    progress: Progress,
    rejected: HashSet<(Address, u64)>,
}

impl Transfer<'_> {
    /// Receives until the stream has ended and is written.
    fn run(
        &mut self,
        to_write: SyncSender<Message>,
        writer: JoinHandle<io::Result<()>>,
    ) -> Result<(), PipeError> {
        let mut last = Instant::now();
        loop {
            let limit = match self.source {
                Some(_) => self.silence,
                None => IDLE_WAIT,
            };
            let message = match self.endpoint.receive_timeout(limit) {
                Ok(message) => message,
                Err(ReceiveError::TimedOut { .. }) if self.source.is_none() => continue,
                Err(ReceiveError::TimedOut { .. }) => return Err(self.timed_out()),
                Err(error) => return Err(PipeError::Receive(error)),
            };
            let from = message.source();
            let frame = match Frame::parse(&message) {
                Ok(frame) => frame,
                // A stranger cannot end a stream that has begun.
                Err(_) if self.source.is_some_and(|(source, _)| source != from) => continue,
                Err(cause) => return Err(PipeError::Frame { from, cause }),
            };
            let own = *self.source.get_or_insert_with(|| {
                self.progress.begin();
                (from, frame.stream)
            });
            if own != (from, frame.stream) {
                self.reject(from, frame.stream);
                if last.elapsed() > self.silence {
                    return Err(self.timed_out());
                }
                continue;
            }
            last = Instant::now();
            if frame.offset_bytes != self.sum.length_bytes() {
                return Err(PipeError::Frame {
                    from,
                    cause: FrameError::Offset {
                        expected_bytes: self.sum.length_bytes(),
                        found_bytes: frame.offset_bytes,
                    },
                });
            }
            match frame.kind {
                Kind::Bytes(_) | Kind::Line(_)
                    if matches!(frame.kind, Kind::Line(_)) != self.lines =>
                {
                    return Err(PipeError::Mode {
                        from,
                        lines: self.lines,
                    });
                }
                Kind::Bytes(payload) | Kind::Line(payload) => {
                    self.sum.add(payload);
                    self.progress.add(payload.len());
                    if !self.write(&to_write, message) {
                        let broken = || failed("writing the output")(ErrorKind::BrokenPipe.into());
                        return Err(written(writer).err().unwrap_or_else(broken));
                    }
                }
                Kind::End { crc } => {
                    if crc != self.sum.crc() {
                        return Err(PipeError::Damaged {
                            from,
                            expected_bytes: frame.offset_bytes,
                            found_bytes: self.sum.length_bytes(),
                        });
                    }
                    drop(to_write);
                    while !writer.is_finished() {
                        self.step()?;
                    }
                    return written(writer);
                }
                Kind::Failed(reason) => {
                    return Err(PipeError::Refused {
                        to: from,
                        reason: reason.to_owned(),
                    });
                }
                Kind::Alive | Kind::Complete => {}
            }
        }
    }

    /// Passes a message to the writer; false if the writer has failed.
    fn write(&self, to_write: &SyncSender<Message>, message: Message) -> bool {
        let mut message = message;
        loop {
            match to_write.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(back)) => message = back,
            }
            if self.step().is_err() {
                return false;
            }
        }
    }

    /// Lets the node work for a moment, so that the peer sees we are alive.
    fn step(&self) -> Result<(), PipeError> {
        match self.reply.receive_timeout(STEP) {
            Ok(_) | Err(ReceiveError::TimedOut { .. }) => Ok(()),
            Err(error) => Err(PipeError::Receive(error)),
        }
    }

    fn reject(&mut self, from: Address, stream: u64) {
        if self.rejected.insert((from, stream)) {
            eprintln!("dipole recv: endpoint {from} sends too; only the first stream is received");
            let _ = report(self.reply, from, stream, Some("it receives another stream"));
        }
    }

    fn timed_out(&self) -> PipeError {
        let from = self
            .source
            .map_or(self.endpoint.address(), |(source, _)| source);
        PipeError::Silent {
            from,
            seconds: self.silence.as_secs(),
            bytes: self.sum.length_bytes(),
        }
    }
}

/// Reports the outcome to the sender.
fn report(
    reply: &Endpoint,
    to: Address,
    stream: u64,
    broken: Option<&str>,
) -> Result<(), PipeError> {
    let mut message = Vec::new();
    Frame {
        kind: broken.map_or(Kind::Complete, Kind::Failed),
        stream,
        offset_bytes: 0,
    }
    .write(&mut message);
    reply.target(to).map_err(PipeError::Target)?;
    let sent = reply
        .send_timeout(&message, CONFIRM)
        .and_then(|()| reply.drain(CONFIRM));
    reply.untarget(to);
    sent.map_err(PipeError::Send)
}

fn written(writer: JoinHandle<io::Result<()>>) -> Result<(), PipeError> {
    writer
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
        .map_err(failed("writing the output"))
}

fn write_output(mut output: Box<dyn Write + Send>, pieces: &Receiver<Message>) -> io::Result<()> {
    for message in pieces {
        match Frame::parse(&message).map(|frame| frame.kind) {
            Ok(Kind::Bytes(payload)) => output.write_all(payload)?,
            Ok(Kind::Line(payload)) => {
                output.write_all(payload)?;
                output.write_all(b"\n")?;
            }
            _ => {}
        }
        output.flush()?;
    }
    output.flush()
}
