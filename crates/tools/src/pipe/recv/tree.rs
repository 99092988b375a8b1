//! `dipole recv` of files and directories.

use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use super::super::frame::{FileId, Frame, FrameError, Kind, Sum, TreeOptions};
use super::super::progress::{Event, FileArrival, Progress};
use super::super::record::{Order, Record, RecordError};
use super::super::shown::shown;
use super::super::store::Store;
use super::super::{PipeError, failed_at, raise_descriptor_limit, running_kernel};
use super::{CONFIRM, Tell, Transfer, report};

impl Transfer<'_, '_> {
    /// Receives files and directories into the directory of `--out`.
    pub(super) fn receive_tree(&mut self, tell: &mut Tell<'_>) -> Result<(), PipeError> {
        let (from, args) = (self.source, self.listener.args);
        if args.pipe.lines {
            return Err(PipeError::Mode { from, lines: true });
        }
        let Some(out) = args.out.as_ref().filter(|out| out.is_dir()) else {
            return Err(PipeError::Several { from });
        };
        raise_descriptor_limit();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(out, flags, Mode::empty());
        let opening =
            |cause: rustix::io::Errno| failed_at("opening the directory", out)(cause.into());
        let directory = std::fs::File::from(directory.map_err(opening)?);
        let found = directory.metadata();
        let found = found.map_err(failed_at("looking at the directory", out))?;
        let options = TreeOptions {
            resume: args.resume,
            owner: args.owner,
            attributes: args.xattrs,
            directory: FileId {
                kernel: running_kernel(),
                device: found.dev(),
                inode: found.ino(),
            },
        };
        report(&self.back, self.stream, 0, Kind::TreeReady(options)).map_err(PipeError::Send)?;
        let mut store = Store::new(directory.into(), options);
        let mut progress = Progress::new("received", None, args.pipe.progress);
        progress.begin(0);
        let outcome = self.records(&mut store, &mut progress, tell);
        let stored = store.outcome().clone();
        let skipped = *outcome.as_ref().unwrap_or(&0);
        let counts = (stored.files, stored.failed + skipped);
        let summary = progress.finish_tree("received", from.to_string(), counts);
        if let Err(error) = outcome {
            let part = store.abandon();
            let rest = part.map_or_else(String::new, |part| {
                format!("; the beginning of another is in {}", shown(&part))
            });
            eprintln!(
                "dipole recv: {} files are complete{rest}; with --resume the next transfer continues there",
                stored.files
            );
            return Err(error);
        }
        let complete = Kind::TreeComplete {
            failed: stored.failed,
            first: &stored.first,
        };
        let told = report(&self.back, self.stream, 0, complete);
        tell(Event::Tree(summary));
        self.confirmed(told, false)?;
        match stored.failed + skipped {
            0 => Ok(()),
            _ => Err(PipeError::Incomplete {
                to: self.listener.endpoint.address(),
                skipped,
                failed: stored.failed,
                first: stored.first,
            }),
        }
    }

    /// Stores all records; returns how many files the sender did not send.
    fn records(
        &mut self,
        store: &mut Store,
        progress: &mut Progress,
        tell: &mut Tell<'_>,
    ) -> Result<u64, PipeError> {
        let from = self.source;
        let damaged = |cause| PipeError::Tree { from, cause };
        let mut order = Order::default();
        let mut received_bytes = 0;
        loop {
            let message = self.next(received_bytes)?;
            let frame = self.parsed(&message)?;
            if frame.offset_bytes != received_bytes {
                return Err(PipeError::Frame {
                    from,
                    cause: FrameError::Offset {
                        expected_bytes: received_bytes,
                        found_bytes: frame.offset_bytes,
                    },
                });
            }
            let mut rest = match frame.kind {
                Kind::Batch { crc, records } => {
                    let mut sum = Sum::new();
                    sum.add(records);
                    if sum.crc() != crc {
                        return Err(PipeError::Damaged {
                            from,
                            expected_bytes: records.len() as u64,
                            found_bytes: records.len() as u64,
                        });
                    }
                    records
                }
                Kind::TreeEnd { skipped } if order.is_complete() => return Ok(skipped),
                Kind::TreeEnd { .. } => {
                    return Err(damaged(RecordError::Order("the end within a directory")));
                }
                _ => return Err(self.unexpected(&message)),
            };
            received_bytes += rest.len() as u64;
            progress.add(rest.len());
            while !rest.is_empty() {
                let record = Record::take(&mut rest).map_err(damaged)?;
                order.check(&record).map_err(damaged)?;
                if record == Record::Answer {
                    self.answer(store)?;
                    continue;
                }
                if let Some(stored) = store.apply(&record, &mut || self.keep_alive()) {
                    tell(Event::File(FileArrival {
                        event: "file",
                        peer: from.to_string(),
                        file: String::from_utf8_lossy(&stored.path).into_owned(),
                        bytes: stored.length_bytes,
                    }));
                }
            }
            // Storing may have taken long.
            self.last = Instant::now();
        }
    }

    /// Answers the offers.
    fn answer(&mut self, store: &mut Store) -> Result<(), PipeError> {
        let present = postcard::to_stdvec(&store.take_present()).expect("a vector takes all");
        let mut message = Vec::new();
        Frame {
            stream: self.stream,
            offset_bytes: 0,
            kind: Kind::Present(&present),
        }
        .write(&mut message);
        let sent = self.back.send_timeout(&message, CONFIRM);
        sent.map_err(PipeError::Send)
    }
}
