//! Writes the inputs of one process into a ring of files.
//!
//! Inputs are collected in memory and written when 64 KiB are full, before the process sleeps, and
//! at the first step 10 ms after the last write. A kill loses at most what came since. Files are
//! changed between two steps of the engine, when no packet is being handled.

use std::collections::VecDeque;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use dipole_proto::time::MILLISECOND;
use dipole_proto::{Instant, Machine, Transmit};

use crate::check::Check;
use crate::frames::FrameLog;
use crate::image::ImageBuffer;
use crate::input::{Input, Sending};
use crate::segment::{BLOCK_HEAD_BYTES, SegmentHeader, SegmentWriter};

/// Bytes of all files of a process, if the user does not choose otherwise.
pub const DEFAULT_BYTES: u64 = 256 << 20;
/// The smallest limit.
pub const LEAST_BYTES: u64 = 1 << 20;
/// Files into which the limit is divided. The oldest is removed when another one begins.
const SEGMENTS: u64 = 8;
/// Inputs in memory.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest time between two writes while the process makes steps.
const FLUSH_NS: u64 = 10 * MILLISECOND;
/// The same while the steps have nothing to do.
const IDLE_FLUSH_NS: u64 = 250 * MILLISECOND;

/// Where and how much to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Directory of the files. It is created with mode 0700 if it does not exist.
    pub directory: PathBuf,
    /// Limit for all files of a process together.
    pub bytes: u64,
    /// Offset from times of the core to nanoseconds since 1970.
    pub since_1970_ns: u64,
}

/// The recording of one process.
#[derive(Debug)]
pub struct Recorder {
    options: Options,
    header: SegmentHeader,
    writer: SegmentWriter,
    /// Earlier files and their lengths, oldest first.
    earlier: VecDeque<(PathBuf, u64)>,
    snapshot_bytes: u64,
    /// A block: room for its head, then inputs.
    buffer: Vec<u8>,
    /// Time of the last input that depends on the time.
    written_at: Instant,
    /// The last step, if it only noted the time and is not in the buffer.
    idle_at: Option<Instant>,
    /// The result of `next_deadline`, if nothing has changed it since.
    deadline: Option<Check>,
    flushed_at: Instant,
    pub(crate) images: ImageBuffer,
    pub(crate) frames: FrameLog,
    /// The last packet that `poll_transmit` or `transmit_train` has returned.
    pub(crate) last_transmit: Option<Transmit>,
    has_failed: bool,
}

impl Recorder {
    /// Begins to record a core in its present state.
    ///
    /// # Errors
    /// The directory or the first file cannot be created or written.
    pub fn create(options: Options, machine: &Machine, now: Instant) -> io::Result<Recorder> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&options.directory)?;
        let host = rustix::system::uname();
        let header = SegmentHeader {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: host.nodename().to_string_lossy().into_owned(),
            node: machine.config().node,
            pid: std::process::id(),
            incarnation: machine.incarnation(),
            segment: 0,
            begins_at: now.0,
            since_1970_ns: options.since_1970_ns,
        };
        let (writer, snapshot_bytes) = begin_segment(&options, &header, machine)?;
        let mut recorder = Recorder {
            options,
            header,
            writer,
            earlier: VecDeque::new(),
            snapshot_bytes,
            buffer: Vec::with_capacity(BUFFER_BYTES * 2),
            written_at: now,
            idle_at: None,
            deadline: None,
            flushed_at: now,
            images: ImageBuffer::default(),
            frames: FrameLog::default(),
            last_transmit: None,
            has_failed: false,
        };
        recorder.buffer.resize(BLOCK_HEAD_BYTES, 0);
        Ok(recorder)
    }

    /// True if it has stopped, because it cannot write.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Adds an input that depends on the time.
    pub(crate) fn push_at(&mut self, now: Instant, input: &Input<'_>) {
        self.append_idle_step();
        self.set_time(now);
        self.push(input);
    }

    /// Adds an input.
    pub(crate) fn push(&mut self, input: &Input<'_>) {
        self.append_idle_step();
        self.deadline = None;
        self.encode(input);
        if self.buffer.len() >= BUFFER_BYTES {
            self.write();
        }
    }

    /// Adds the last step, if it only noted the time.
    fn append_idle_step(&mut self) {
        if let Some(idle_at) = self.idle_at.take() {
            self.set_time(idle_at);
            self.encode(&Input::Timers);
        }
    }

    /// Adds the time, if it has changed. Calls with a time that the caller read earlier set it back.
    fn set_time(&mut self, now: Instant) {
        if now != self.written_at {
            let advance = now.0.wrapping_sub(self.written_at.0).cast_signed();
            self.written_at = now;
            self.encode(&Input::Time(advance));
        }
    }

    fn encode(&mut self, input: &Input<'_>) {
        let buffer = std::mem::take(&mut self.buffer);
        match postcard::to_extend(input, buffer) {
            Ok(buffer) => self.buffer = buffer,
            Err(cause) => {
                self.buffer = vec![0; BLOCK_HEAD_BYTES];
                self.stop_after(Err(io::Error::other(cause)));
            }
        }
    }

    /// Notes a step before the machine makes it. Begins another file if this one is full.
    pub(crate) fn step(&mut self, machine: &Machine, now: Instant) {
        if self.writer.bytes() >= self.segment_bytes() && !self.has_failed {
            let rotated = self.rotate(machine, now);
            self.stop_after(rotated);
        }
        if machine.is_idle_at(now) {
            self.idle_at = Some(now);
        } else {
            self.push_at(now, &Input::Timers);
        }
        let pause_ns = match self.buffer.len() > BLOCK_HEAD_BYTES {
            true => FLUSH_NS,
            false => IDLE_FLUSH_NS,
        };
        if now.since(self.flushed_at) >= pause_ns {
            self.flush(now);
        }
    }

    /// Notes a deadline. The process may sleep until then, so everything is written.
    pub(crate) fn next_deadline(&mut self, result: &Option<Instant>, now: Instant) {
        let check = Check::of(result);
        if self.deadline != Some(check) {
            self.push(&Input::NextDeadline(check));
            self.deadline = Some(check);
        }
        if self.buffer.len() > BLOCK_HEAD_BYTES {
            self.flush(now);
        }
    }

    /// The answers of the frame pool in the present call.
    pub(crate) fn sending(&self) -> Sending<'static> {
        Sending {
            answers: self.frames.answers().to_vec().into(),
            notices: self.frames.notices(),
        }
    }

    /// Length at which a file is full. It has at least as many inputs as state.
    fn segment_bytes(&self) -> u64 {
        (self.options.bytes / SEGMENTS).max(2 * self.snapshot_bytes)
    }

    fn flush(&mut self, now: Instant) {
        self.append_idle_step();
        self.flushed_at = now;
        self.write();
    }

    fn write(&mut self) {
        if self.buffer.len() > BLOCK_HEAD_BYTES && !self.has_failed {
            // A child process must not write into the file of its parent.
            if std::process::id() == self.header.pid {
                let written = self.writer.write_block(&mut self.buffer);
                self.stop_after(written);
            } else {
                self.has_failed = true;
            }
        }
        self.buffer.truncate(BLOCK_HEAD_BYTES);
    }

    fn rotate(&mut self, machine: &Machine, now: Instant) -> io::Result<()> {
        self.flush(now);
        let path = self.options.directory.join(self.header.file_name());
        self.earlier.push_back((path, self.writer.bytes()));
        let total = |earlier: &VecDeque<(PathBuf, u64)>| -> u64 {
            earlier.iter().map(|(_, bytes)| bytes).sum()
        };
        while total(&self.earlier) + self.segment_bytes() > self.options.bytes
            && let Some((oldest, _)) = self.earlier.pop_front()
        {
            match std::fs::remove_file(oldest) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
                _ => {}
            }
        }
        self.header.segment += 1;
        self.header.begins_at = now.0;
        self.written_at = now;
        self.deadline = None;
        self.last_transmit = None;
        self.frames.forget();
        let (writer, bytes) = begin_segment(&self.options, &self.header, machine)?;
        (self.writer, self.snapshot_bytes) = (writer, bytes);
        Ok(())
    }

    /// Stops recording after an error, and reports it once.
    fn stop_after(&mut self, result: io::Result<()>) {
        let Err(cause) = result else {
            return;
        };
        self.has_failed = true;
        let directory = self.options.directory.display();
        let SegmentHeader { node, pid, .. } = self.header;
        eprintln!(
            "dipole: process {pid} of node {node} goes on, but is no longer recorded: cannot write \
             to {directory} (DIPOLE_RECORD): {cause}"
        );
    }

    /// Writes everything, and that the recording is complete.
    fn close(&mut self) {
        self.push(&Input::Closed);
        self.write();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

/// Creates a file with the state of the core. Returns also the length of the state.
fn begin_segment(
    options: &Options,
    header: &SegmentHeader,
    machine: &Machine,
) -> io::Result<(SegmentWriter, u64)> {
    let mut snapshot = vec![0; BLOCK_HEAD_BYTES];
    snapshot = postcard::to_extend(machine, snapshot).map_err(io::Error::other)?;
    let bytes = snapshot.len() as u64;
    if bytes > options.bytes / 4 {
        let (limit, needed) = (options.bytes >> 20, ((4 * bytes) >> 20) + 1);
        return Err(io::Error::other(format!(
            "the limit of {limit} MiB (DIPOLE_RECORD_BYTES) is too small for this process, which \
             needs {needed} MiB"
        )));
    }
    let mut writer = SegmentWriter::create(&options.directory, header)?;
    if let Err(cause) = writer.write_block(&mut snapshot) {
        // A file without a state is of no use.
        let _still_there = std::fs::remove_file(options.directory.join(header.file_name()));
        return Err(cause);
    }
    Ok((writer, bytes))
}
