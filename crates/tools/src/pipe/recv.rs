//! `dipole recv`.

mod tree;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_naming::threads;
use dipole_node::{
    Address, Edge, Endpoint, EndpointId, GoneReason, LongWait, Message, Node, ReceiveError,
    SendError,
};

use super::destination::{Destination, NamedBy, place_in};
use super::frame::{FileFacts, Frame, FrameError, Kind, Sum};
use super::interrupt::{self, Partner};
use super::progress::{Event, Progress};
use super::shown::{shown, shown_path};
use super::{LAST_ACK, LOOK, PipeArgs, PipeError, configure, failed, spare_endpoint};
use crate::output::{BROKEN_PIPE, Failure, json};

/// Receive files and directories, or a stream, at an endpoint
///
/// A file is named PATH.part until it is complete and its checksum (CRC32C) matches the sender's. Then
/// it gets the sender's permissions and modification time, and its final name; it replaces an existing
/// file or symbolic link of that name. An existing directory is kept, and gets what the sender has in
/// addition.
///
/// Nothing is written outside the directory of `--out`: symbolic links are created, but never followed.
/// A file that cannot be stored is reported; the others arrive, and the status is 1.
#[derive(Args, Debug)]
pub(crate) struct RecvArgs {
    /// The endpoint, with or without this node's number
    #[arg(value_name = "[NID:]DPID")]
    at: At,
    /// Write to this file, or to files in this directory by their senders' names [default: standard output]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Continue to receive, from one sender after the other, until a signal
    #[arg(long)]
    keep: bool,
    /// Continue an earlier transfer: with PATH.part, if the file begins with the same bytes, and without
    /// files of several or of a directory that have the same length and modification time
    #[arg(long, requires = "out")]
    resume: bool,
    /// Keep owners and groups, by name or otherwise by number, and set-user-ID and set-group-ID bits; PATH
    /// must be a directory
    #[arg(long, requires = "out")]
    owner: bool,
    /// Keep user attributes and access control lists, with --owner also capabilities and trusted
    /// attributes; PATH must be a directory
    #[arg(long, requires = "out")]
    xattrs: bool,
    /// Seconds that a live sender may be silent
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    silence: u64,
    #[command(flatten)]
    pipe: PipeArgs,
}

/// Prints a summary.
type Tell<'a> = dyn FnMut(Event<'_>) + 'a;

/// Endpoint or port that receives.
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

/// Messages that may be queued for a slow output.
const WAITING_MESSAGES: usize = 16;
/// Length of one wait for the first message: too short for the node to log it.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// Interval at which a silent sender's liveness is checked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long the confirmation may take to reach the sender.
const CONFIRM: Duration = Duration::from_secs(10);

/// Receives; the status is 0 only if everything is complete.
pub(crate) fn recv(
    args: &RecvArgs,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let mut config = configure(&args.pipe)?;
    config.connect_timeout = CONFIRM;
    config.linger = LAST_ACK;
    let endpoint = match args.at {
        At::Here(endpoint) => endpoint,
        At::Full(address) if address.node == config.node => address.endpoint,
        At::Full(asked) => {
            let own = config.node;
            return Err(PipeError::NotOurNode { asked, own }.into());
        }
    };
    let node = Arc::new(Node::open(config).map_err(PipeError::Open)?);
    let endpoint = node.endpoint(endpoint).map_err(PipeError::Open)?;
    let reply = node.endpoint(spare_endpoint()?).map_err(PipeError::Open)?;
    let reply = Arc::new(reply);
    let partner = Partner::default();
    interrupt::watch(
        Arc::downgrade(&node),
        Arc::downgrade(&reply),
        Arc::clone(&partner),
        match &args.out {
            Some(_) => (
                "dipole recv",
                "; a file that has begun is in NAME.part, and `dipole recv --resume` continues it",
            ),
            None => ("dipole recv", ""),
        },
    )
    .map_err(failed("catching signals"))?;
    let listener = Listener {
        args,
        node: &node,
        endpoint: &endpoint,
        reply: &reply,
        partner,
        rejected: HashSet::new(),
    };
    receive_all(listener, as_json, out)
}

/// Receives from one sender, or from one after the other.
fn receive_all(
    mut listener: Listener<'_>,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let args = listener.args;
    loop {
        let mut told = Ok(());
        let outcome = listener.transfer(&mut |event| {
            let tried = match &args.out {
                Some(_) if as_json => writeln!(out, "{}", json(&event)),
                // Standard output carries the stream itself.
                None if as_json => writeln!(io::stderr(), "{}", json(&event)),
                _ => Ok(()),
            };
            if told.is_ok() {
                told = tried;
            }
        });
        told?;
        match outcome {
            // The reader of our output has left.
            Err(PipeError::File { cause, .. })
                if args.out.is_none() && cause.kind() == ErrorKind::BrokenPipe =>
            {
                return Ok(ExitCode::from(BROKEN_PIPE));
            }
            Err(error) if !args.keep => return Err(error.into()),
            Err(error) => eprintln!("dipole recv: {error}"),
            Ok(()) if !args.keep => return Ok(ExitCode::SUCCESS),
            Ok(()) => {}
        }
    }
}

/// Receives from one sender after the other.
struct Listener<'a> {
    args: &'a RecvArgs,
    node: &'a Node,
    endpoint: &'a Endpoint,
    /// Endpoint from which replies are sent.
    reply: &'a Endpoint,
    partner: Partner,
    rejected: HashSet<(Address, u64)>,
}

impl Listener<'_> {
    /// Receives everything that one sender sends.
    fn transfer(&mut self, tell: &mut Tell<'_>) -> Result<(), PipeError> {
        let begin = self.await_begin()?;
        let frame = Frame::parse(&begin).expect("it was parsed before");
        let (source, stream) = (begin.source(), frame.stream);
        let own = Some((source, stream));
        let back = self.reply.edge(source).map_err(PipeError::Send)?;
        *self.partner.lock().unwrap_or_else(PoisonError::into_inner) = own;
        let mut transfer = Transfer {
            listener: self,
            back,
            source,
            stream,
            last: Instant::now(),
            asked: Instant::now(),
            gone: None,
        };
        let outcome = transfer.run(begin, tell);
        let back = transfer.back;
        // A sender that is gone or has given up needs no report.
        if let Err(error) = &outcome
            && !matches!(
                error,
                PipeError::Cut { .. } | PipeError::Refused { .. } | PipeError::Incomplete { .. }
            )
        {
            let _ = report(&back, stream, 0, Kind::Failed(&error.to_string()));
        }
        *self.partner.lock().unwrap_or_else(PoisonError::into_inner) = None;
        outcome
    }

    /// Waits for a sender to begin.
    fn await_begin(&mut self) -> Result<Message, PipeError> {
        let (mut long, is_watched) = (LongWait::new(), io::stderr().is_terminal());
        loop {
            let receive = || self.endpoint.receive_timeout(IDLE_WAIT);
            let received = match is_watched {
                true => long.part(receive),
                false => receive(),
            };
            let message = match received {
                Ok(message) => message,
                Err(ReceiveError::TimedOut { .. }) => continue,
                Err(error) => return Err(PipeError::Receive(error)),
            };
            let from = message.source();
            match Frame::parse(&message).map(|frame| frame.kind) {
                Ok(Kind::Begin { .. } | Kind::Tree) => return Ok(message),
                // The end of an earlier transfer.
                Ok(_) => {}
                Err(cause) => return Err(PipeError::Frame { from, cause }),
            }
        }
    }

    fn reject(&mut self, from: Address, stream: u64) {
        if self.rejected.insert((from, stream)) {
            eprintln!("dipole recv: endpoint {from} sends too; only the first is received");
            let reason = Kind::Failed("it receives from another sender now");
            let _ = self
                .reply
                .edge(from)
                .map_err(PipeError::Send)
                .and_then(|back| report(&back, stream, 0, reason).map_err(PipeError::Send));
        }
    }
}

/// The connection with one sender.
struct Transfer<'a, 'b> {
    listener: &'a mut Listener<'b>,
    /// Edge to the sender.
    back: Edge,
    source: Address,
    stream: u64,
    /// Time of the last message.
    last: Instant,
    /// Time of the last liveness check.
    asked: Instant,
    /// Why the sender is gone; earlier messages may still be queued.
    gone: Option<String>,
}

impl Transfer<'_, '_> {
    fn run(&mut self, begin: Message, tell: &mut Tell<'_>) -> Result<(), PipeError> {
        let args = self.listener.args;
        match self.parsed(&begin)?.kind {
            Kind::Tree => return self.receive_tree(tell),
            // A stream does not have these properties of a file.
            Kind::Begin {
                file: Some(_),
                lines: false,
                ..
            } if args.owner || args.xattrs => return self.receive_tree(tell),
            _ => {}
        }
        let mut begin = begin;
        loop {
            let more = self.receive_one(&begin, tell)?;
            if !more {
                return Ok(());
            }
            begin = self.next(0)?;
        }
    }

    /// Receives one file or stream; returns whether another follows.
    fn receive_one(&mut self, begin: &Message, tell: &mut Tell<'_>) -> Result<bool, PipeError> {
        let (source, args) = (self.source, self.listener.args);
        let Kind::Begin { file, lines, more } = self.parsed(begin)?.kind else {
            return Err(self.unexpected(begin));
        };
        if lines != args.pipe.lines {
            return Err(PipeError::Mode {
                from: source,
                lines: args.pipe.lines,
            });
        }
        let mut destination = self.open(file.as_ref(), more)?;
        let have = match (&mut destination, &file) {
            (Some(destination), Some(file)) if args.resume => {
                destination.sum(file.length_bytes, &mut || self.keep_alive())?
            }
            _ => Sum::new(),
        };
        let total_bytes = file.filter(|_| !lines).map(|file| file.length_bytes);
        let mut progress = Progress::new("received", total_bytes, args.pipe.progress);
        let outcome = self.content(have, destination.as_mut(), lines, &mut progress);
        let name = file.map(|file| String::from_utf8_lossy(file.name).into_owned());
        let crc = outcome.as_ref().map_or(0, Sum::crc);
        let summary = progress.finish("received", source.to_string(), name, crc);
        let sum = match (outcome, destination) {
            (Ok(sum), Some(destination)) => destination.finish(file.as_ref()).map(|()| sum),
            (Ok(sum), None) => Ok(sum),
            (Err(error), destination) => {
                let left = destination.and_then(Destination::abandon);
                if let Some((part, bytes)) = left {
                    let how = match file {
                        Some(_) => "; with --resume the next transfer continues there",
                        None => "",
                    };
                    eprintln!(
                        "dipole recv: {bytes} bytes are in {}{how}",
                        shown_path(&part)
                    );
                }
                Err(error)
            }
        }?;
        let told = report(&self.back, self.stream, sum.length_bytes(), Kind::Complete);
        tell(Event::Stream(summary));
        self.confirmed(told, more)?;
        Ok(more)
    }

    /// Result of the last report: the sender may have ended when it had read that.
    fn confirmed(&self, told: Result<(), SendError>, more: bool) -> Result<(), PipeError> {
        match told {
            // Everything is stored; a sender that has read the confirmation may close at once.
            Err(SendError::PeerGone {
                reason: Some(GoneReason::Closed),
                ..
            })
            | Ok(()) => {}
            Err(error) if more => return Err(PipeError::Send(error)),
            Err(error) => eprintln!(
                "dipole recv: the sender may not know that everything has arrived: {error}"
            ),
        }
        Ok(())
    }

    /// Destination of a file or stream; `None` is standard output.
    fn open(
        &self,
        file: Option<&FileFacts<'_>>,
        more: bool,
    ) -> Result<Option<Destination>, PipeError> {
        let from = self.source;
        let args = self.listener.args;
        let Some(out) = &args.out else {
            return Ok(None);
        };
        let (path, named_by) = match (out.is_dir(), file) {
            (true, Some(file)) => {
                let place = place_in(out, file.name).ok_or_else(|| PipeError::Name {
                    from,
                    name: shown(file.name),
                })?;
                (place, NamedBy::Sender)
            }
            (true, None) => return Err(PipeError::Nameless { from }),
            (false, _) if more => return Err(PipeError::Several { from }),
            (false, _) => (out.clone(), NamedBy::Receiver),
        };
        Destination::open(&path, named_by, args.resume).map(Some)
    }

    /// Receives and writes the content after a begin message, up to its end.
    fn content(
        &mut self,
        have: Sum,
        destination: Option<&mut Destination>,
        lines: bool,
        progress: &mut Progress,
    ) -> Result<Sum, PipeError> {
        let ready = Kind::Ready { crc: have.crc() };
        report(&self.back, self.stream, have.length_bytes(), ready).map_err(PipeError::Send)?;
        let mut sum = have;
        let from = self.next(sum.length_bytes())?;
        let frame = self.parsed(&from)?;
        match frame.kind {
            Kind::From if frame.offset_bytes == sum.length_bytes() => {}
            Kind::From if frame.offset_bytes == 0 => sum = Sum::new(),
            Kind::From => return Err(self.misplaced(&sum, frame.offset_bytes)),
            _ => return Err(self.unexpected(&from)),
        }
        progress.begin(sum.length_bytes());
        let output = match destination {
            Some(destination) => {
                let is_regular = destination.is_regular();
                let file: io::Result<File> = destination.begin_at(sum.length_bytes());
                let file = file.map_err(failed("writing the output"))?;
                match is_regular {
                    true => Output::File(file),
                    false => Output::Stream(Box::new(file)),
                }
            }
            None => Output::Stream(Box::new(io::stdout())),
        };
        let (to_write, pieces) = sync_channel(WAITING_MESSAGES);
        let writer = threads::start("dipole-write", move || write_output(output, &pieces))
            .map_err(failed("writing the output"))?;
        loop {
            let message = self.next(sum.length_bytes())?;
            let frame = self.parsed(&message)?;
            if frame.offset_bytes != sum.length_bytes() {
                return Err(self.misplaced(&sum, frame.offset_bytes));
            }
            match frame.kind {
                Kind::Bytes(payload) | Kind::Line(payload)
                    if matches!(frame.kind, Kind::Line(_)) == lines =>
                {
                    sum.add(payload);
                    progress.add(payload.len());
                }
                Kind::Hole { length_bytes }
                    if !lines && frame.offset_bytes.checked_add(length_bytes).is_some() =>
                {
                    sum.add_zeros(length_bytes);
                    progress.add_hole(length_bytes);
                }
                Kind::End { crc } => {
                    if crc != sum.crc() {
                        return Err(PipeError::Damaged {
                            from: self.source,
                            expected_bytes: frame.offset_bytes,
                            found_bytes: sum.length_bytes(),
                        });
                    }
                    drop(to_write);
                    return written(writer).map(|()| sum);
                }
                _ => return Err(self.unexpected(&message)),
            }
            // The node makes progress on its own while the output is slow.
            if to_write.send(message).is_err() {
                let broken = || failed("writing the output")(ErrorKind::BrokenPipe.into());
                return Err(written(writer).err().unwrap_or_else(broken));
            }
        }
    }

    /// The sender's next message other than a keepalive, with the number of bytes received so far.
    fn next(&mut self, bytes: u64) -> Result<Message, PipeError> {
        let cut = |from, why| PipeError::Cut { from, bytes, why };
        loop {
            let message = match self.listener.endpoint.receive_timeout(LOOK) {
                Ok(message) => message,
                Err(ReceiveError::TimedOut { .. }) => {
                    if let Some(why) = self.gone.take() {
                        return Err(cut(self.source, why));
                    }
                    let silence = self.last.elapsed();
                    if silence > Duration::from_secs(self.listener.args.silence) {
                        let why = format!("nothing was received for {} s", silence.as_secs());
                        return Err(cut(self.source, why));
                    }
                    self.ask();
                    continue;
                }
                Err(error) => return Err(PipeError::Receive(error)),
            };
            let from = message.source();
            let Ok(frame) = Frame::parse(&message) else {
                // A stranger cannot end a stream that has begun.
                if from != self.source {
                    continue;
                }
                return Err(self.unexpected(&message));
            };
            if (from, frame.stream) != (self.source, self.stream) {
                self.listener.reject(from, frame.stream);
                continue;
            }
            self.last = Instant::now();
            match frame.kind {
                Kind::Alive => {}
                Kind::Failed(reason) => {
                    return Err(PipeError::Refused {
                        to: from,
                        reason: reason.to_owned(),
                    });
                }
                _ => return Ok(message),
            }
        }
    }

    /// Checks whether a silent sender is alive.
    fn ask(&mut self) {
        if !self.listener.node.take_departures().is_empty() {
            self.asked = Instant::now() - ASK_EVERY;
        }
        self.keep_alive();
    }

    /// Sends a keepalive if the last one is old.
    fn keep_alive(&mut self) {
        if self.asked.elapsed() < ASK_EVERY {
            return;
        }
        self.asked = Instant::now();
        let mut message = Vec::new();
        Frame {
            stream: self.stream,
            offset_bytes: 0,
            kind: Kind::Alive,
        }
        .write(&mut message);
        match self.back.try_send(&message) {
            Ok(()) | Err(SendError::Full { .. }) => {}
            Err(error) => self.gone = Some(error.to_string()),
        }
    }

    fn parsed<'m>(&self, message: &'m Message) -> Result<Frame<'m>, PipeError> {
        let from = self.source;
        Frame::parse(message).map_err(|cause| PipeError::Frame { from, cause })
    }

    fn unexpected(&self, message: &Message) -> PipeError {
        PipeError::Frame {
            from: self.source,
            cause: FrameError::Malformed {
                length_bytes: message.len(),
            },
        }
    }

    fn misplaced(&self, sum: &Sum, found_bytes: u64) -> PipeError {
        PipeError::Frame {
            from: self.source,
            cause: FrameError::Offset {
                expected_bytes: sum.length_bytes(),
                found_bytes,
            },
        }
    }
}

/// Sends the confirmation, and waits until the sender has it.
fn report(edge: &Edge, stream: u64, offset_bytes: u64, kind: Kind<'_>) -> Result<(), SendError> {
    let mut message = Vec::new();
    Frame {
        stream,
        offset_bytes,
        kind,
    }
    .write(&mut message);
    edge.send_timeout(&message, CONFIRM)?;
    edge.flush(CONFIRM)
}

fn written(writer: JoinHandle<io::Result<()>>) -> Result<(), PipeError> {
    writer
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
        .map_err(failed("writing the output"))
}

/// Where a stream is written.
enum Output {
    /// A file, in which holes are left.
    File(File),
    Stream(Box<dyn Write + Send>),
}

impl Output {
    fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        match self {
            Output::File(file) => file.write_all(payload),
            Output::Stream(stream) => stream.write_all(payload),
        }
    }

    fn write_hole(&mut self, length_bytes: u64) -> io::Result<()> {
        match self {
            Output::File(file) => {
                let length = i64::try_from(length_bytes).map_err(io::Error::other)?;
                let end = file.seek(SeekFrom::Current(length))?;
                file.set_len(end)
            }
            Output::Stream(stream) => {
                io::copy(&mut io::repeat(0).take(length_bytes), stream).map(|_| ())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::File(file) => file.flush(),
            Output::Stream(stream) => stream.flush(),
        }
    }
}

fn write_output(mut output: Output, pieces: &Receiver<Message>) -> io::Result<()> {
    for message in pieces {
        match Frame::parse(&message).map(|frame| frame.kind) {
            Ok(Kind::Bytes(payload)) => output.write(payload)?,
            Ok(Kind::Hole { length_bytes }) => output.write_hole(length_bytes)?,
            Ok(Kind::Line(payload)) => {
                output.write(payload)?;
                output.write(b"\n")?;
            }
            _ => {}
        }
        output.flush()?;
    }
    output.flush()
}
