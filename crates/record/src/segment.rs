//! The files of a recording. Each begins with the state of the core, so it can be replayed alone.
//!
//! ```text
//! magic [8]  version u16  header length u16  header CRC32C u32  header
//! block: length u32  CRC32C u32  bytes      the state of the core
//! block: length u32  CRC32C u32  bytes      inputs, one after the other
//! ...
//! ```
//!
//! Numbers are little-endian; header, state and inputs are encoded with postcard. A file ends
//! anywhere if the process was killed while it wrote.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use dipole_link::crc32c::crc32c;
use serde::{Deserialize, Serialize};

/// The first bytes of every file.
pub(crate) const MAGIC: &[u8; 8] = b"DIPOLREC";
/// Version of the format. Files of other versions are refused.
pub const FORMAT_VERSION: u16 = 4;
/// Bytes before the header's contents.
pub(crate) const PREFIX_BYTES: usize = 16;
/// Bytes before the contents of a block.
pub(crate) const BLOCK_HEAD_BYTES: usize = 8;

/// Where a file comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentHeader {
    /// Version of Dipole that has written it.
    pub version: String,
    /// Name of the host.
    pub host: String,
    /// Number of the node.
    pub node: u32,
    /// Process id.
    pub pid: u32,
    /// Incarnation of the process.
    pub incarnation: u64,
    /// Number of the file in its recording. Only file 0 begins with the process.
    pub segment: u32,
    /// Time of the state, on the clock of the process.
    pub begins_at: u64,
    /// Offset from times of the process to nanoseconds since 1970.
    pub since_1970_ns: u64,
}

impl SegmentHeader {
    /// The name of the file with this header.
    #[must_use]
    pub fn file_name(&self) -> String {
        let SegmentHeader {
            node, pid, segment, ..
        } = self;
        let life = self.incarnation >> 32;
        format!("node{node}-{pid}-{life:08x}.{segment:06}.dprec")
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    file: File,
    bytes: u64,
}

impl SegmentWriter {
    /// Creates a file that only this user can read, with its header. Fails if it exists, and so
    /// never follows a link.
    pub(crate) fn create(directory: &Path, header: &SegmentHeader) -> io::Result<SegmentWriter> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(directory.join(header.file_name()))?;
        let encoded = postcard::to_allocvec(header).map_err(io::Error::other)?;
        let length = u16::try_from(encoded.len()).map_err(io::Error::other)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(crc32c(&encoded).to_le_bytes());
        bytes.extend(encoded);
        let mut writer = SegmentWriter { file, bytes: 0 };
        writer.write(&bytes)?;
        Ok(writer)
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes a block that begins with room for its head.
    pub(crate) fn write_block(&mut self, block: &mut [u8]) -> io::Result<()> {
        let (head, body) = block.split_at_mut(BLOCK_HEAD_BYTES);
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&crc32c(body).to_le_bytes());
        self.write(block)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}
