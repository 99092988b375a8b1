//! Records the traffic of any link in a pcap file.
//!
//! Frames are written as raw IP packets with the headers they would have on the wire, so that
//! tcpdump and Wireshark can read them. A failure stops the recording, never the traffic.

use std::fmt;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use delegate::delegate;
use etherparse::PacketBuilder;

use crate::{Caps, Class, Incoming, Link, Outgoing};

/// Magic number of a pcap file with nanosecond timestamps, in the writer's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Link type for packets that start with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;
/// Longest packet.
const SNAP_BYTES: u32 = 65_535;
/// Longest frame that fits into a packet with the longer headers.
const MAX_FRAME_BYTES: usize = 65_535 - 48;
/// TTL or hop limit of recorded packets.
const HOP_LIMIT: u8 = 64;

/// Why a capture could not start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be created.
    #[error("cannot capture to {path}: {source}; check the directory and its permissions")]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// Writing failed; the file is complete up to there, except perhaps for the last packet.
    #[error(
        "capturing to {path} stopped after {packets} packets: {source}; traffic continues; \
         free some space or choose another path"
    )]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Packets written before the failure.
        packets: u64,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

/// Wraps a link and records its traffic.
pub struct Capture<L> {
    inner: L,
    path: PathBuf,
    /// Destination of the packets; `None` after an error.
    output: Option<Box<dyn Write + Send>>,
    failure: Option<CaptureError>,
    epoch_offset_ns: u64,
    packets: u64,
    /// Buffer for one record.
    record: Vec<u8>,
}

/// Creates or truncates a file that only this user may read, because it will contain
/// application data. Refuses symbolic links, which could lead anywhere in a shared directory,
/// and files of other users.
fn private_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        if found.uid() != rustix::process::geteuid().as_raw() {
            let text = "it belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

impl<L: Link> Capture<L> {
    /// Creates the file, or truncates an existing one, and records to it.
    ///
    /// `epoch_offset_ns` is added to the link's timestamps to convert them to nanoseconds since
    /// 1970; 0 keeps virtual times.
    ///
    /// # Errors
    /// [`CaptureError::Create`] if the file cannot be written.
    pub fn create(inner: L, path: &Path, epoch_offset_ns: u64) -> Result<Capture<L>, CaptureError> {
        let failed = |source| CaptureError::Create {
            path: path.to_owned(),
            source,
        };
        let file = private_file(path).map_err(failed)?;
        let output = Box::new(BufWriter::with_capacity(1 << 18, file));
        Ok(Self::to_writer(inner, output, path, epoch_offset_ns))
    }

    /// Records to any writer; `name` is used in messages.
    pub fn to_writer(
        inner: L,
        output: Box<dyn Write + Send>,
        name: &Path,
        epoch_offset_ns: u64,
    ) -> Capture<L> {
        let mut capture = Capture {
            inner,
            path: name.to_owned(),
            output: Some(output),
            failure: None,
            epoch_offset_ns,
            packets: 0,
            record: Vec::with_capacity(1 << 16),
        };
        capture.record.extend(MAGIC.to_ne_bytes());
        // Version 2.4 of the pcap format.
        capture
            .record
            .extend([2_u16, 4].map(u16::to_ne_bytes).concat());
        for word in [0, 0, SNAP_BYTES, LINKTYPE_RAW] {
            capture.record.extend(word.to_ne_bytes());
        }
        capture.write_record();
        capture
    }

    /// Returns the wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Returns the wrapped link, to change it.
    pub fn inner_mut(&mut self) -> &mut L {
        &mut self.inner
    }

    /// Why the recording has stopped, if it has.
    pub fn failure(&self) -> Option<&CaptureError> {
        self.failure.as_ref()
    }

    /// Records one frame, unless it is too long for a packet.
    fn packet(&mut self, now_ns: u64, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.output.is_none() || bytes.is_empty() || bytes.len() > MAX_FRAME_BYTES {
            return;
        }
        let builder = match (from, to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), HOP_LIMIT)
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                PacketBuilder::ipv6(from.ip().octets(), to.ip().octets(), HOP_LIMIT)
            }
            _ => return,
        };
        let builder = builder.udp(from.port(), to.port());
        let time_ns = now_ns.saturating_add(self.epoch_offset_ns);
        // The format has 32-bit seconds; after 2106 they saturate.
        let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let rest_ns = u32::try_from(time_ns % 1_000_000_000).unwrap_or(0);
        let len = u32::try_from(builder.size(bytes.len())).unwrap_or(SNAP_BYTES);
        self.record.clear();
        for word in [seconds, rest_ns, len, len] {
            self.record.extend(word.to_ne_bytes());
        }
        // Fails only for frames that are too long, which were skipped above.
        if builder.write(&mut self.record, bytes).is_ok() {
            self.packets += u64::from(self.write_record());
        }
    }

    fn write_record(&mut self) -> bool {
        let Some(output) = &mut self.output else {
            return false;
        };
        match output.write_all(&self.record) {
            Ok(()) => true,
            Err(error) => {
                self.stop(error);
                false
            }
        }
    }

    /// Stops the recording and logs the reason.
    fn stop(&mut self, source: io::Error) {
        self.output = None;
        let path = self.path.clone();
        let failure = CaptureError::Write {
            path,
            packets: self.packets,
            source,
        };
        tracing::error!("{failure}");
        self.failure = Some(failure);
    }
}

impl<L: Link> Link for Capture<L> {
    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let taken = self.inner.send(now_ns, batch)?;
        if self.output.is_some() {
            for frame in batch.iter().flat_map(|entry| entry.frames()).take(taken) {
                self.packet(now_ns, self.inner.local(frame.class), frame.to, frame.bytes);
            }
        }
        Ok(taken)
    }

    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        let found = self.inner.poll(now_ns, class)?;
        if found > 0 && self.output.is_some() {
            let to = self.inner.local(class);
            let mut bytes = Vec::new();
            for index in 0..found {
                let message = self.inner.message(index);
                let (from, frame_bytes) = (message.from, message.frame_bytes);
                bytes.clear();
                bytes.extend_from_slice(message.bytes);
                for frame in bytes.chunks(frame_bytes.max(1)) {
                    self.packet(now_ns, from, to, frame);
                }
            }
        }
        Ok(found)
    }

    delegate! {
        to self.inner {
            fn caps(&self) -> Caps;
            fn local(&self, class: Class) -> SocketAddr;
            fn locals(&self, class: Class) -> Vec<SocketAddr>;
            fn is_in_use(&self, interface: usize) -> bool;
            fn set_present(&mut self, present: &[IpAddr], destinations: &[IpAddr]) -> Option<Vec<IpAddr>>;
            fn source(&self, class: Class, to: SocketAddr) -> SocketAddr;
            fn refuses_next(&self) -> bool;
            fn message(&self, index: usize) -> Incoming<'_>;
            fn next_deadline_ns(&self) -> Option<u64>;
            fn arm(&mut self) -> bool;
            fn disarm(&mut self);
            fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
        }
    }
}

impl<L> Drop for Capture<L> {
    fn drop(&mut self) {
        if let Some(mut output) = self.output.take()
            && let Err(error) = output.flush()
        {
            tracing::error!(
                "the end of the capture {} is lost: {error}",
                self.path.display()
            );
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for Capture<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Capture");
        out.field("inner", &self.inner).field("path", &self.path);
        out.field("packets", &self.packets).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
