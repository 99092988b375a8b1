//! `dipole send`.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender as Returning, SyncSender, channel, sync_channel,
};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_naming::key::random_bytes;
use dipole_node::{Address, Endpoint, EndpointId, Node, ReceiveError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};

use super::destination::sum_of;
use super::frame::{FileFacts, Frame, HEADROOM_BYTES, Kind, Sum};
use super::interrupt::{self, Partner};
use super::progress::{Progress, Summary};
use super::{LAST_ACK, LOOK, PipeArgs, PipeError, configure, failed, failed_at, spare_endpoint};
use crate::output::{Failure, json};

/// Send files, or a stream, to an endpoint
///
/// `dipole recv` there may be started before or after. Both return 0 only when the receiver has
/// confirmed that everything has arrived, with the same checksum (CRC32C). Symbolic links are followed;
/// a file that changes meanwhile is an error. For a directory, pipe `tar` into it.
#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// Destination: node and endpoint
    #[arg(value_name = "NID:DPID")]
    to: Address,
    /// The files [default: standard input]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Endpoint to send from [default: a random one]
    #[arg(long, value_name = "DPID")]
    from: Option<EndpointId>,
    /// Seconds for the receiver to appear, and to confirm the end
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    pipe: PipeArgs,
}

/// Payload of one message of a stream of bytes.
const PIECE_BYTES: usize = 256 << 10;
const LONGEST_LINE_BYTES: u64 = 16 << 20;
/// Interval at which an idle sender sends a keepalive.
const ALIVE: Duration = Duration::from_secs(2);
/// Pieces that are read ahead.
const AHEAD: usize = 4;

/// A part of the input, in a buffer that is returned to the reading thread.
struct Piece {
    /// Room for the header of a message, the payload, and possibly spare room.
    buffer: Vec<u8>,
    payload_bytes: usize,
    /// CRC32C of the input up to the end of this piece.
    crc: u32,
}

/// A report of the receiver.
enum Report {
    /// It is ready, and has this many bytes already, with this CRC32C.
    Ready { offset_bytes: u64, crc: u32 },
    /// The receiver has everything.
    Complete,
}

/// Result of the reading thread; `None` is the end of the input.
type Reading = io::Result<Option<Piece>>;

/// Sends; the status is 0 only if the receiver has confirmed everything.
pub(crate) fn send(
    args: &SendArgs,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let timeout = Duration::from_secs(args.timeout);
    let mut config = configure(&args.pipe)?;
    config.connect_timeout = timeout;
    config.linger = LAST_ACK;
    let inputs = inputs(&args.files, timeout)?;
    let stream = random_bytes()
        .map(u64::from_le_bytes)
        .map_err(failed("drawing a random number"))?;
    let from = match args.from {
        Some(from) => from,
        None => spare_endpoint()?,
    };

    let node = Arc::new(Node::open(config).map_err(PipeError::Open)?);
    let endpoint = Arc::new(node.endpoint(from).map_err(PipeError::Open)?);
    let partner = Partner::default();
    interrupt::watch(
        Arc::downgrade(&node),
        Arc::downgrade(&endpoint),
        Arc::clone(&partner),
        "",
    )
    .map_err(failed("catching signals"))?;
    endpoint.target(args.to).map_err(PipeError::Target)?;

    let mut sender = Sender {
        node: &node,
        endpoint: &endpoint,
        to: args.to,
        stream,
        lines: args.pipe.lines,
        timeout,
        partner,
        sent_bytes: 0,
        crc: Sum::new().crc(),
        progress: Progress::new("sent", None, false),
        message: Vec::new(),
        last: Instant::now(),
    };
    let count = inputs.len();
    for (input, number) in inputs.into_iter().zip(1..) {
        let length_bytes = input.length_bytes.filter(|_| !args.pipe.lines);
        sender.progress = Progress::new("sent", length_bytes, args.pipe.progress);
        let name = input.name();
        let outcome = sender.send_one(input, number < count);
        let outcome = outcome.map_err(|error| sender.reported_before(error));
        let summary = sender
            .progress
            .finish("sent", args.to.to_string(), name, sender.crc);
        if let Err(error) = outcome {
            sender.give_up(&error);
            return Err(error.into());
        }
        tell(&summary, as_json, out)?;
    }
    // The receiver waits for the acknowledgement of its report. One more message carries it, and is
    // retransmitted if it gets lost.
    let _ = sender.send(Kind::Alive);
    let _ = endpoint.drain(LAST_ACK);
    Ok(ExitCode::SUCCESS)
}

fn tell(summary: &Summary<'_>, as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    match as_json {
        true => writeln!(out, "{}", json(summary)),
        false => Ok(()),
    }
}

/// Source of the data: a file or standard input.
struct Input {
    /// The name as it was given; `None` for standard input.
    path: Option<PathBuf>,
    from: File,
    /// If it is a regular file.
    length_bytes: Option<u64>,
    mode: u32,
    modified_ns: i64,
}

/// Opens a file. A named pipe is waited for until a process writes to it.
fn open_within(path: &Path, timeout: Duration) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let from = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&from)?.st_mode);
    if kind == FileType::Fifo {
        let mut wanted = [PollFd::new(&from, PollFlags::IN)];
        let most = Timespec::try_from(timeout).ok();
        if rustix::io::retry_on_intr(|| poll(&mut wanted, most.as_ref()))? == 0 {
            let seconds = timeout.as_secs();
            let text = format!("no process wrote to this pipe within {seconds} s (--timeout)");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
    let flags = rustix::fs::fcntl_getfl(&from)?;
    rustix::fs::fcntl_setfl(&from, flags - OFlags::NONBLOCK)?;
    Ok(from.into())
}

fn modified_ns(found: &Metadata) -> i64 {
    let seconds = found.mtime().saturating_mul(1_000_000_000);
    seconds.saturating_add(found.mtime_nsec())
}

impl Input {
    fn open(path: &Path, timeout: Duration) -> Result<Input, PipeError> {
        let open = || {
            let from = open_within(path, timeout)?;
            let found = from.metadata()?;
            if found.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok((from, found))
        };
        let (from, found) = open().map_err(failed_at("opening the file", path))?;
        Ok(Input {
            path: Some(path.to_owned()),
            from,
            length_bytes: found.is_file().then_some(found.len()),
            mode: found.mode() & 0o777,
            modified_ns: modified_ns(&found),
        })
    }

    fn standard() -> io::Result<Input> {
        let from = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned()?;
        Ok(Input {
            path: None,
            from: from.into(),
            length_bytes: None,
            mode: 0,
            modified_ns: 0,
        })
    }

    /// Prepares to find out later whether a regular file has changed since it was opened.
    fn original(&self) -> Result<Option<Original>, PipeError> {
        let (Some(length_bytes), Some(path)) = (self.length_bytes, &self.path) else {
            return Ok(None);
        };
        let file = self.from.try_clone().map_err(failed("reading the input"))?;
        Ok(Some(Original {
            path: path.clone(),
            file,
            length_bytes,
            modified_ns: self.modified_ns,
        }))
    }

    fn name(&self) -> Option<String> {
        let path = self.path.as_ref()?;
        Some(path.display().to_string())
    }

    /// Metadata of a regular file for the receiver.
    fn facts(&self) -> Option<FileFacts<'_>> {
        Some(FileFacts {
            name: self.path.as_ref()?.file_name()?.as_bytes(),
            mode: self.mode,
            modified_ns: self.modified_ns,
            length_bytes: self.length_bytes?,
        })
    }
}

/// A regular file as it was when it was opened.
struct Original {
    path: PathBuf,
    file: File,
    length_bytes: u64,
    modified_ns: i64,
}

impl Original {
    /// Fails if the file has changed: what was read may be no state that it ever had.
    fn check(&self) -> Result<(), PipeError> {
        let found = self.file.metadata();
        let found = found.map_err(failed_at("looking at the file", &self.path))?;
        let is_same = found.len() == self.length_bytes && modified_ns(&found) == self.modified_ns;
        let file = self.path.clone();
        is_same.then_some(()).ok_or(PipeError::Changed { file })
    }
}

/// Refuses files that would have the same name at the receiver.
fn check_names(files: &[PathBuf]) -> Result<(), PipeError> {
    let mut names = HashMap::new();
    for file in files {
        let Some(name) = file.file_name() else {
            continue;
        };
        if let Some(first) = names.insert(name, file) {
            return Err(PipeError::SameName {
                name: name.to_string_lossy().into_owned(),
                first: first.clone(),
                second: file.clone(),
            });
        }
    }
    Ok(())
}

/// Opens all inputs first: a wrong name must not leave a partial transfer.
fn inputs(files: &[PathBuf], timeout: Duration) -> Result<Vec<Input>, PipeError> {
    check_names(files)?;
    match files {
        [] => {
            let input = Input::standard().map_err(failed("opening standard input"))?;
            Ok(vec![input])
        }
        files => files
            .iter()
            .map(|path| Input::open(path, timeout))
            .collect(),
    }
}

struct Sender<'a> {
    node: &'a Node,
    endpoint: &'a Endpoint,
    to: Address,
    stream: u64,
    lines: bool,
    timeout: Duration,
    partner: Partner,
    /// Bytes of this input that have been sent, or were present before, with their CRC32C.
    sent_bytes: u64,
    crc: u32,
    progress: Progress,
    message: Vec<u8>,
    /// Time of the last message.
    last: Instant,
}

impl Sender<'_> {
    fn send_one(&mut self, mut input: Input, more: bool) -> Result<(), PipeError> {
        (self.sent_bytes, self.crc) = (0, Sum::new().crc());
        self.send(Kind::Begin {
            file: input.facts(),
            lines: self.lines,
            more,
        })?;
        let Report::Ready { offset_bytes, crc } = self.await_report()? else {
            return Err(PipeError::OutOfTurn { to: self.to });
        };
        let now = Some((self.to, self.stream));
        *self.partner.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let original = input.original()?;
        let (returning, returned) = channel();
        let (read, pieces) = sync_channel(AHEAD);
        let reader = Reader {
            sum: self.begin(&mut input, offset_bytes, crc)?,
            from: input.from,
            returned,
            read,
        };
        let lines = self.lines;
        std::thread::spawn(move || reader.read(lines));
        loop {
            match pieces.recv_timeout(LOOK) {
                Ok(piece) => match piece.map_err(failed("reading the input"))? {
                    Some(piece) => self.send_piece(piece, &returning)?,
                    None => break,
                },
                Err(RecvTimeoutError::Timeout) => self.keep_alive()?,
                Err(RecvTimeoutError::Disconnected) => {
                    let panicked = io::Error::other("the thread that reads it panicked");
                    return Err(failed("reading the input")(panicked));
                }
            }
            if self.report(Duration::ZERO)?.is_some() {
                return Err(PipeError::OutOfTurn { to: self.to });
            }
        }
        original.as_ref().map_or(Ok(()), Original::check)?;
        self.send(Kind::End { crc: self.crc })?;
        match self.await_report()? {
            Report::Complete => Ok(()),
            Report::Ready { .. } => Err(PipeError::OutOfTurn { to: self.to }),
        }
    }

    /// The receiver's next report, if it arrives within this time; other messages do not extend it.
    fn report(&self, within: Duration) -> Result<Option<Report>, PipeError> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let message = match self.endpoint.receive_timeout(left) {
                Ok(message) => message,
                Err(ReceiveError::TimedOut { .. }) => return Ok(None),
                Err(error) => return Err(PipeError::Receive(error)),
            };
            if let Some(report) = self.parse(&message)? {
                return Ok(Some(report));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// The content of a message, if it is a report of this receiver.
    fn parse(&self, message: &[u8]) -> Result<Option<Report>, PipeError> {
        let frame = match Frame::parse(message) {
            Ok(frame) if frame.stream == self.stream => frame,
            _ => return Ok(None),
        };
        let offset_bytes = frame.offset_bytes;
        match frame.kind {
            Kind::Ready { crc } => Ok(Some(Report::Ready { offset_bytes, crc })),
            Kind::Complete => Ok(Some(Report::Complete)),
            Kind::Failed(reason) => Err(PipeError::Refused {
                to: self.to,
                reason: reason.to_owned(),
            }),
            _ => Ok(None),
        }
    }

    /// The receiver's next report; the receiver must exist or appear within this time.
    fn await_report(&mut self) -> Result<Report, PipeError> {
        let until = Instant::now() + self.timeout;
        loop {
            if let Some(report) = self.report(LOOK)? {
                return Ok(report);
            }
            if until <= Instant::now() {
                return Err(PipeError::Unconfirmed { to: self.to });
            }
            self.keep_alive()?;
        }
    }

    /// Sends a keepalive if nothing was sent for long. If the receiver's process is gone, this is an error.
    fn keep_alive(&mut self) -> Result<(), PipeError> {
        match !self.node.take_departures().is_empty() || self.last.elapsed() >= ALIVE {
            true => self.send(Kind::Alive),
            false => Ok(()),
        }
    }

    fn send_piece(
        &mut self,
        mut piece: Piece,
        returning: &Returning<Vec<u8>>,
    ) -> Result<(), PipeError> {
        let used = &mut piece.buffer[..HEADROOM_BYTES + piece.payload_bytes];
        let message = Frame::around(self.lines, self.stream, self.sent_bytes, used);
        self.last = Instant::now();
        self.endpoint.send(message).map_err(PipeError::Send)?;
        self.sent_bytes += piece.payload_bytes as u64;
        self.crc = piece.crc;
        self.progress.add(piece.payload_bytes);
        // A reader that has finished needs no buffer.
        let _unused = returning.send(piece.buffer);
        Ok(())
    }

    /// Skips what the receiver has, if this file begins with the same bytes; returns their checksum.
    fn begin(&mut self, input: &mut Input, there_bytes: u64, crc: u32) -> Result<Sum, PipeError> {
        let mut sum = Sum::new();
        if there_bytes > 0 {
            let failed = failed("reading the input");
            let same = sum_of(&mut input.from, there_bytes).and_then(|sum| {
                if sum.length_bytes() == there_bytes && sum.crc() == crc {
                    return Ok(Some(sum));
                }
                input.from.rewind().map(|()| None)
            });
            if let Some(same) = same.map_err(failed)? {
                sum = same;
            }
        }
        (self.sent_bytes, self.crc) = (sum.length_bytes(), sum.crc());
        self.progress.begin(self.sent_bytes);
        self.send(Kind::From)?;
        Ok(sum)
    }

    /// The reason that a failed receiver sent before it ended, if it did.
    fn reported_before(&self, error: PipeError) -> PipeError {
        if !matches!(error, PipeError::Send(_)) {
            return error;
        }
        let until = Instant::now() + LAST_ACK;
        loop {
            match self.report(until.saturating_duration_since(Instant::now())) {
                Ok(Some(_)) if Instant::now() < until => {}
                Err(refused @ PipeError::Refused { .. }) => return refused,
                _ => return error,
            }
        }
    }

    /// Notifies the receiver, which need not wait for the rest.
    fn give_up(&mut self, error: &PipeError) {
        match error {
            PipeError::File { .. } | PipeError::Changed { .. } => {
                let _ = self.send(Kind::Failed(&error.to_string()));
                let _ = self.endpoint.drain(self.timeout);
            }
            PipeError::Refused { .. } => {
                let _ = self.send(Kind::Alive);
                let _ = self.endpoint.drain(LAST_ACK);
            }
            _ => {}
        }
    }

    fn send(&mut self, kind: Kind<'_>) -> Result<(), PipeError> {
        Frame {
            kind,
            stream: self.stream,
            offset_bytes: self.sent_bytes,
        }
        .write(&mut self.message);
        self.last = Instant::now();
        self.endpoint.send(&self.message).map_err(PipeError::Send)
    }
}

/// Reads and checksums the input on a thread next to the sending one.
struct Reader {
    from: File,
    sum: Sum,
    /// Buffers whose pieces have been sent.
    returned: Receiver<Vec<u8>>,
    read: SyncSender<Reading>,
}

impl Reader {
    fn read(mut self, lines: bool) {
        let mut line_by_line = lines.then(|| BufReader::with_capacity(PIECE_BYTES, &self.from));
        loop {
            let buffer = self.returned.try_recv().unwrap_or_default();
            let piece = match &mut line_by_line {
                Some(input) => next_line(input, buffer),
                None => next_piece(&mut &self.from, buffer),
            };
            let piece = piece.map(|piece| {
                piece.map(|(buffer, payload_bytes)| {
                    self.sum.add(&buffer[HEADROOM_BYTES..][..payload_bytes]);
                    Piece {
                        buffer,
                        payload_bytes,
                        crc: self.sum.crc(),
                    }
                })
            });
            let more = matches!(piece, Ok(Some(_)));
            if self.read.send(piece).is_err() || !more {
                return;
            }
        }
    }
}

/// A buffer with whatever has arrived, and its length, so that small amounts are not held back.
fn next_piece(input: &mut impl Read, mut buffer: Vec<u8>) -> io::Result<Option<(Vec<u8>, usize)>> {
    buffer.resize(HEADROOM_BYTES + PIECE_BYTES, 0);
    loop {
        match input.read(&mut buffer[HEADROOM_BYTES..]) {
            Ok(0) => return Ok(None),
            Ok(payload_bytes) => return Ok(Some((buffer, payload_bytes))),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

fn next_line(
    input: &mut impl BufRead,
    mut buffer: Vec<u8>,
) -> io::Result<Option<(Vec<u8>, usize)>> {
    buffer.clear();
    buffer.resize(HEADROOM_BYTES, 0);
    let read = input
        .by_ref()
        .take(LONGEST_LINE_BYTES + 1)
        .read_until(b'\n', &mut buffer)?;
    if read == 0 {
        return Ok(None);
    }
    if buffer.last() == Some(&b'\n') {
        buffer.pop();
    } else if read as u64 > LONGEST_LINE_BYTES {
        return Err(io::Error::other(format!(
            "a line of more than {LONGEST_LINE_BYTES} bytes; leave out --lines"
        )));
    }
    let payload_bytes = buffer.len() - HEADROOM_BYTES;
    Ok(Some((buffer, payload_bytes)))
}
