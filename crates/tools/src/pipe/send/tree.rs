//! `dipole send` of files and directories.

use std::sync::PoisonError;
use std::sync::mpsc::{RecvTimeoutError, Sender as ToThread, channel, sync_channel};
use std::time::{Duration, Instant};

use super::super::frame::{Frame, Kind, TreeOptions};
use super::super::progress::{Event, Progress};
use super::super::record::Present;
use super::super::walk::{Batch, Channels, Roots, Step, Totals, Walk};
use super::super::{LOOK, PipeArgs, PipeError, failed, raise_descriptor_limit, running_kernel};
use super::{AHEAD, Failed, Report, Sender, Tell};

/// The receiver may be busy for this long even if `--timeout` is shorter.
const LEAST_LIMIT: Duration = Duration::from_secs(1);
/// Stack of the walking thread, for all levels of directories.
const STACK_BYTES: usize = 16 << 20;

impl Sender<'_> {
    /// Sends everything; the receiver's options are given if it has stated them already.
    pub(super) fn send_tree(
        &mut self,
        (roots, options): (Roots, Option<TreeOptions>),
        args: &PipeArgs,
        tell: &mut Tell<'_>,
    ) -> Result<(), Failed> {
        self.progress = Progress::new("sent", None, args.progress);
        self.limit = Some(self.timeout.max(LEAST_LIMIT));
        let outcome = self.transfer_tree(roots, options);
        let (files, failed) = match &outcome {
            Ok((totals, failed, _)) => (totals.files, failed + totals.skipped),
            Err(_) => (0, 0),
        };
        let to = self.to.to_string();
        let summary = self.progress.finish_tree("sent", to, (files, failed));
        let (totals, failed, first) =
            outcome.map_err(|error| Failed::Pipe(self.give_up(error, true)))?;
        tell(Event::Tree(summary)).map_err(Failed::Output)?;
        match totals.skipped + failed {
            0 => Ok(()),
            _ => Err(Failed::Pipe(PipeError::Incomplete {
                to: self.to,
                skipped: totals.skipped,
                failed,
                first,
            })),
        }
    }

    /// Sends everything; returns what was sent, and how much the receiver could not store with the first
    /// reason.
    fn transfer_tree(
        &mut self,
        roots: Roots,
        options: Option<TreeOptions>,
    ) -> Result<(Totals, u64, String), PipeError> {
        raise_descriptor_limit();
        let options = match options {
            Some(options) => options,
            None => self.begin_tree()?,
        };
        let now = Some((self.to, self.stream));
        *self.partner.lock().unwrap_or_else(PoisonError::into_inner) = now;
        self.progress.begin(0);
        let (returning, returned) = channel();
        let (answering, answers) = channel();
        let (to_send, steps) = sync_channel(AHEAD);
        let channels = Channels {
            steps: to_send,
            returned,
            answers,
        };
        let walk = Walk::new(channels, options, running_kernel());
        let walking = std::thread::Builder::new().stack_size(STACK_BYTES);
        walking
            .spawn(move || walk.run(&roots))
            .map_err(failed("starting a thread"))?;
        let mut last = Instant::now();
        let totals = loop {
            match steps.recv_timeout(LOOK) {
                Ok(Step::Batch(batch)) => {
                    let buffer = self.send_batch(batch, &answering)?;
                    // A walk that has ended needs no buffer.
                    let _unused = returning.send(buffer);
                }
                Ok(Step::Working) => self.keep_alive()?,
                Ok(Step::End(totals)) => break totals,
                Err(RecvTimeoutError::Timeout) => {
                    if last.elapsed() >= self.timeout.max(LEAST_LIMIT) {
                        let seconds = last.elapsed().as_secs();
                        return Err(PipeError::Stalled { seconds });
                    }
                    self.keep_alive()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let panicked = std::io::Error::other("the thread that reads them panicked");
                    return Err(failed("reading the files")(panicked));
                }
            }
            last = Instant::now();
            if self.report(Duration::ZERO)?.is_some() {
                return Err(PipeError::OutOfTurn { to: self.to });
            }
        };
        self.send(Kind::TreeEnd {
            skipped: totals.skipped,
        })?;
        match self.await_report()? {
            Report::TreeComplete { failed, first } => Ok((totals, failed, first)),
            _ => Err(PipeError::OutOfTurn { to: self.to }),
        }
    }

    /// Announces a tree; returns what the receiver wants of it.
    fn begin_tree(&mut self) -> Result<TreeOptions, PipeError> {
        self.send(Kind::Tree)?;
        match self.await_report()? {
            Report::TreeReady(options) => Ok(options),
            _ => Err(PipeError::OutOfTurn { to: self.to }),
        }
    }

    /// Sends a batch, and passes the receiver's answer on if the batch ends with offers; returns its buffer.
    fn send_batch(
        &mut self,
        mut batch: Batch,
        answering: &ToThread<Vec<Present>>,
    ) -> Result<Vec<u8>, PipeError> {
        let frame = Frame {
            stream: self.stream,
            offset_bytes: self.sent_bytes,
            kind: Kind::Batch {
                crc: batch.crc,
                records: &[],
            },
        };
        let records_bytes = batch.buffer.len() - super::HEADROOM_BYTES;
        self.transmit(frame.around(&mut batch.buffer))?;
        self.sent_bytes += records_bytes as u64;
        self.progress.add(records_bytes);
        if batch.offers > 0 {
            match self.await_report()? {
                Report::Present(present) if present.len() == batch.offers => {
                    // A walk that has ended needs no answer.
                    let _unused = answering.send(present);
                }
                _ => return Err(PipeError::OutOfTurn { to: self.to }),
            }
        }
        Ok(batch.buffer)
    }
}
