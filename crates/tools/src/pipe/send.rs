//! `dipole send`.

mod input;
mod reader;
mod tree;

use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, Sender as Returning, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_naming::key::random_bytes;
use dipole_naming::threads;
use dipole_node::{Address, Endpoint, EndpointId, Node, ReceiveError, SendError};

use super::destination::sum_of;
use super::frame::{Frame, HEADROOM_BYTES, Kind, Sum, TreeOptions};
use super::interrupt::{self, Partner};
use super::progress::{Event, Progress};
use super::record::Present;
use super::shown::shown_path;
use super::walk::Roots;
use super::{LAST_ACK, LOOK, PipeArgs, PipeError, configure, failed, failed_at, spare_endpoint};
use crate::output::{Failure, json};
use input::Input;
use reader::{Piece, Reader};

/// Send files and directories, or a stream, to an endpoint
///
/// `dipole recv` there may be started before or after. Both return 0 only when the receiver has
/// confirmed that everything has arrived, with the same checksum (CRC32C).
///
/// A file or directory arrives under its last name, and the contents of `.` or `PATH/.` in the
/// receiver's directory itself. Files keep their permissions, modification times, hard links and holes;
/// `dipole recv` has options for owners and extended attributes. Symbolic links are sent as links. Named
/// pipes, sockets and devices in directories are not sent. These, unreadable files, and files that change
/// or vanish meanwhile are reported; the others arrive, and the status is 1.
#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// Destination: node and endpoint
    #[arg(value_name = "NID:DPID")]
    to: Address,
    /// Files and directories [default: standard input]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Endpoint to send from [default: a random one]
    #[arg(long, value_name = "DPID")]
    from: Option<EndpointId>,
    /// Seconds for the receiver to appear, to accept more of a tree, and to confirm the end
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    pipe: PipeArgs,
}

/// Interval at which an idle sender sends a keepalive.
const ALIVE: Duration = Duration::from_secs(2);
/// Pieces that are read ahead.
const AHEAD: usize = 4;

/// A report of the receiver.
enum Report {
    /// It is ready, and has this many bytes already, with this CRC32C.
    Ready {
        offset_bytes: u64,
        crc: u32,
    },
    /// The receiver has everything.
    Complete,
    TreeReady(TreeOptions),
    /// Parts of the offered files that it has.
    Present(Vec<Present>),
    TreeComplete {
        failed: u64,
        first: String,
    },
}

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
    let source = Source::find(args, timeout)?;
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
        ("dipole send", source.hint()),
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
        last_report: None,
        limit: None,
    };
    let sent = match source {
        Source::Streams(inputs) => {
            sender.send_streams(inputs, &args.pipe, &mut |event| tell(&event, as_json, out))
        }
        Source::Tree(roots) => sender.send_tree((roots, None), &args.pipe, &mut |event| {
            tell(&event, as_json, out)
        }),
    };
    // The receiver waits for the acknowledgement of its report. One more message carries it, and is
    // retransmitted if it gets lost.
    if matches!(
        sent,
        Ok(()) | Err(Failed::Pipe(PipeError::Incomplete { .. }))
    ) {
        let _ = sender.send(Kind::Alive);
        let _ = endpoint.drain(LAST_ACK);
    }
    match sent {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Failed::Pipe(error)) => Err(error.into()),
        Err(Failed::Output(error)) => Err(error.into()),
    }
}

/// A transfer that failed, or a summary that could not be written.
enum Failed {
    Pipe(PipeError),
    Output(io::Error),
}

/// Prints a summary.
type Tell<'a> = dyn FnMut(Event<'_>) -> io::Result<()> + 'a;

fn tell(event: &Event<'_>, as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    match as_json {
        true => writeln!(out, "{}", json(event)),
        false => Ok(()),
    }
}

/// Origin of the data.
enum Source {
    /// Standard input, or one file that is not part of a tree; or files as lines.
    Streams(Vec<Input>),
    Tree(Roots),
}

impl Source {
    /// Opens or looks at everything first: a wrong name must not leave a partial transfer.
    fn find(args: &SendArgs, timeout: Duration) -> Result<Source, PipeError> {
        let files = &args.files;
        if files.is_empty() {
            let input = Input::standard().map_err(failed("opening standard input"))?;
            return Ok(Source::Streams(vec![input]));
        }
        let is_stream =
            |file: &PathBuf| is_stream(file).map_err(failed_at("opening the file", file));
        if args.pipe.lines {
            if let Some(path) = files.iter().find(|file| file.is_dir()) {
                let path = path.clone();
                return Err(PipeError::LinesOfDirectory { path });
            }
        } else if files.len() > 1 || !is_stream(&files[0])? {
            return Roots::find(files).map(Source::Tree);
        }
        let open = |path: &PathBuf| Input::open(path, timeout);
        files
            .iter()
            .map(open)
            .collect::<Result<_, _>>()
            .map(Source::Streams)
    }

    /// How to continue after an interruption.
    fn hint(&self) -> &'static str {
        let is_stream = matches!(self, Source::Streams(inputs) if inputs.iter().any(|input| input.facts().is_none()));
        match is_stream {
            true => "",
            false => {
                "; to continue, start `dipole recv --resume` at the receiver and send the same again"
            }
        }
    }
}

/// True for a file that is sent alone: a regular one, or a pipe or device, also through links, such as
/// those of a shell's process substitution.
fn is_stream(file: &Path) -> io::Result<bool> {
    let found = std::fs::symlink_metadata(file)?;
    if !found.is_symlink() {
        return Ok(!found.is_dir());
    }
    let leads_to_file = std::fs::metadata(file).map_or(true, |to| to.is_file() || to.is_dir());
    if leads_to_file {
        eprintln!(
            "dipole send: {} is a symbolic link and is sent as one; to send the file, give its own path",
            shown_path(file)
        );
    }
    Ok(!leads_to_file)
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
    /// Time of the receiver's last message.
    last_report: Option<Instant>,
    /// How long the receiver may accept nothing. A receiver of a stream may wait for its reader.
    limit: Option<Duration>,
}

impl Sender<'_> {
    fn send_streams(
        &mut self,
        inputs: Vec<Input>,
        args: &PipeArgs,
        tell: &mut Tell<'_>,
    ) -> Result<(), Failed> {
        let count = inputs.len();
        for (input, number) in inputs.into_iter().zip(1..) {
            let length_bytes = input.length_bytes.filter(|_| !args.lines);
            self.progress = Progress::new("sent", length_bytes, args.progress);
            let name = input.name();
            let is_file = input.facts().is_some();
            let outcome = match self.begin_one(&input, number < count) {
                Ok(Report::Ready { offset_bytes, crc }) => {
                    self.send_one(input, (offset_bytes, crc))
                }
                // It keeps more of a file than a stream has.
                Ok(Report::TreeReady(options)) if is_file => {
                    let path: Vec<_> = input.path.into_iter().collect();
                    let roots = Roots::find(&path).map_err(Failed::Pipe)?;
                    return self.send_tree((roots, Some(options)), args, tell);
                }
                Ok(_) => Err(PipeError::OutOfTurn { to: self.to }),
                Err(error) => Err(error),
            };
            let to = self.to.to_string();
            let summary = self.progress.finish("sent", to, name, self.crc);
            outcome.map_err(|error| Failed::Pipe(self.give_up(error, is_file)))?;
            tell(Event::Stream(summary)).map_err(Failed::Output)?;
        }
        Ok(())
    }

    /// Announces an input; returns what the receiver replies.
    fn begin_one(&mut self, input: &Input, more: bool) -> Result<Report, PipeError> {
        (self.sent_bytes, self.crc) = (0, Sum::new().crc());
        self.send(Kind::Begin {
            file: input.facts(),
            lines: self.lines,
            more,
        })?;
        self.await_report()
    }

    /// Sends an input of which the receiver has a beginning of this length with this CRC32C.
    fn send_one(
        &mut self,
        mut input: Input,
        (offset_bytes, crc): (u64, u32),
    ) -> Result<(), PipeError> {
        let now = Some((self.to, self.stream));
        *self.partner.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let original = input.original()?;
        let (returning, returned) = channel();
        let (read, pieces) = sync_channel(AHEAD);
        let sum = self.begin(&mut input, offset_bytes, crc)?;
        let is_sparse = input.is_sparse && !self.lines;
        let reader = Reader {
            sparse_bytes: input.length_bytes.filter(|_| is_sparse),
            sum,
            from: input.from,
            returned,
            read,
        };
        let lines = self.lines;
        threads::start("dipole-read", move || reader.read(lines))
            .map_err(failed("reading the input"))?;
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
        original
            .as_ref()
            .map_or(Ok(()), |original| original.check())?;
        self.send(Kind::End { crc: self.crc })?;
        match self.await_report()? {
            Report::Complete => Ok(()),
            _ => Err(PipeError::OutOfTurn { to: self.to }),
        }
    }

    /// The receiver's next report, if it arrives within this time; other messages do not extend that.
    fn report(&mut self, within: Duration) -> Result<Option<Report>, PipeError> {
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
    fn parse(&mut self, message: &[u8]) -> Result<Option<Report>, PipeError> {
        let frame = match Frame::parse(message) {
            Ok(frame) if frame.stream == self.stream => frame,
            _ => return Ok(None),
        };
        self.last_report = Some(Instant::now());
        let offset_bytes = frame.offset_bytes;
        match frame.kind {
            Kind::Ready { crc } => Ok(Some(Report::Ready { offset_bytes, crc })),
            Kind::Complete => Ok(Some(Report::Complete)),
            Kind::TreeReady(options) => Ok(Some(Report::TreeReady(options))),
            Kind::Present(present) => {
                let present = postcard::from_bytes(present);
                let out_of_turn = |_| PipeError::OutOfTurn { to: self.to };
                present
                    .map(|present| Some(Report::Present(present)))
                    .map_err(out_of_turn)
            }
            Kind::TreeComplete { failed, first } => Ok(Some(Report::TreeComplete {
                failed,
                first: first.to_owned(),
            })),
            Kind::Failed(reason) => Err(PipeError::Refused {
                to: self.to,
                reason: reason.to_owned(),
            }),
            _ => Ok(None),
        }
    }

    /// The receiver's next report; the receiver must exist or appear within this time. While it works, for
    /// example on checksums, it sends keepalives.
    fn await_report(&mut self) -> Result<Report, PipeError> {
        let started = Instant::now();
        loop {
            if let Some(report) = self.report(LOOK)? {
                return Ok(report);
            }
            let since = self.last_report.map_or(started, |last| last.max(started));
            if since.elapsed() >= self.timeout {
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
        if piece.hole_bytes > 0 {
            let length_bytes = piece.hole_bytes;
            self.send(Kind::Hole { length_bytes })?;
            self.sent_bytes += length_bytes;
            self.crc = piece.crc;
            self.progress.add_hole(length_bytes);
            return Ok(());
        }
        let used = &mut piece.buffer[..HEADROOM_BYTES + piece.payload_bytes];
        let frame = Frame {
            stream: self.stream,
            offset_bytes: self.sent_bytes,
            kind: Kind::empty_piece(self.lines),
        };
        self.transmit(frame.around(used))?;
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
            let mut alive = Ok(());
            let same = sum_of(&mut input.from, there_bytes, &mut || {
                if alive.is_ok() {
                    alive = self.keep_alive();
                }
            });
            alive?;
            let same = same.and_then(|sum| {
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
    fn reported_before(&mut self, error: PipeError) -> PipeError {
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

    /// Notifies the receiver, which need not wait for the rest; returns the error with what is known about
    /// its cause, and about continuing if files were being sent.
    fn give_up(&mut self, error: PipeError, is_file: bool) -> PipeError {
        let has_begun = self.last_report.is_some();
        let error = self.reported_before(error);
        match &error {
            PipeError::File { .. } | PipeError::Changed { .. } | PipeError::Stalled { .. } => {
                let _ = self.send(Kind::Failed(&error.to_string()));
                let _ = self.endpoint.drain(self.timeout);
            }
            PipeError::Refused { .. } => {
                let _ = self.send(Kind::Alive);
                let _ = self.endpoint.drain(LAST_ACK);
            }
            _ => {}
        }
        let is_lost = matches!(
            error,
            PipeError::Send(_) | PipeError::Unconfirmed { .. } | PipeError::Unaccepted { .. }
        );
        match has_begun && is_file && is_lost {
            true => PipeError::Interrupted {
                cause: Box::new(error),
            },
            false => error,
        }
    }

    fn send(&mut self, kind: Kind<'_>) -> Result<(), PipeError> {
        let mut message = std::mem::take(&mut self.message);
        Frame {
            kind,
            stream: self.stream,
            offset_bytes: self.sent_bytes,
        }
        .write(&mut message);
        let sent = self.transmit(&message);
        self.message = message;
        sent
    }

    fn transmit(&mut self, message: &[u8]) -> Result<(), PipeError> {
        self.last = Instant::now();
        let sent = match self.limit {
            None => self.endpoint.send(message),
            Some(limit) => self.endpoint.send_timeout(message, limit),
        };
        sent.map_err(|error| match (error, self.limit) {
            (SendError::TimedOut { .. }, Some(limit)) => PipeError::Unaccepted {
                to: self.to,
                seconds: limit.as_secs(),
            },
            (error, _) => PipeError::Send(error),
        })
    }
}
