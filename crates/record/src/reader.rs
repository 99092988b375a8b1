//! Reads the files of a recording. Bytes from a file are not trusted.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use dipole_link::crc32c::crc32c;
use dipole_proto::Machine;
use rustix::fs::OFlags;

use crate::segment::{BLOCK_HEAD_BYTES, FORMAT_VERSION, MAGIC, PREFIX_BYTES, SegmentHeader};

/// Why a file cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum DamagedFile {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// It is a directory, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// It does not begin like a recording.
    #[error("it is not a recording of Dipole")]
    NotARecording,
    /// Another version has written it.
    #[error(
        "it has format {found}, this program reads format {FORMAT_VERSION}; use the version of dipole that has written it"
    )]
    Version {
        /// Its format.
        found: u16,
    },
    /// It ends before the state of the core is complete.
    #[error("it ends within its first {0} bytes, before the state of the core is complete")]
    NoState(u64),
    /// Bytes have changed since they were written.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Position of the damaged block.
        at: u64,
        /// Description of the damage.
        what: &'static str,
    },
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After a whole block.
    Whole,
    /// Within a block, because the process was killed or the disk was full. So many bytes are lost.
    Partial(u64),
}

/// Reads one file.
#[derive(Debug)]
pub struct SegmentReader<R> {
    input: R,
    at: u64,
    /// Bytes that are left.
    left: u64,
    header: SegmentHeader,
    end: Option<End>,
}

impl SegmentReader<BufReader<File>> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`DamagedFile`].
    pub fn open(path: &Path) -> Result<SegmentReader<BufReader<File>>, DamagedFile> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(DamagedFile::NotAFile);
        }
        SegmentReader::new(BufReader::new(file), facts.len())
    }
}

impl<R: Read> SegmentReader<R> {
    /// Reads the header of a file of this length.
    ///
    /// # Errors
    /// [`DamagedFile`].
    pub fn new(mut input: R, length: u64) -> Result<SegmentReader<R>, DamagedFile> {
        let prefix: [u8; PREFIX_BYTES] = match length {
            0..16 => return Err(DamagedFile::NotARecording),
            _ => take(&mut input)?,
        };
        let (magic, rest) = prefix.split_at(MAGIC.len());
        let [v0, v1, l0, l1, c0, c1, c2, c3] = rest else {
            return Err(DamagedFile::NotARecording);
        };
        if magic != MAGIC {
            return Err(DamagedFile::NotARecording);
        }
        let found = u16::from_le_bytes([*v0, *v1]);
        if found != FORMAT_VERSION {
            return Err(DamagedFile::Version { found });
        }
        let bytes = u16::from_le_bytes([*l0, *l1]);
        let mut left = length - PREFIX_BYTES as u64;
        if u64::from(bytes) > left {
            return Err(DamagedFile::NoState(length));
        }
        let mut encoded = vec![0; usize::from(bytes)];
        input.read_exact(&mut encoded)?;
        left -= u64::from(bytes);
        let damaged = |what| DamagedFile::Damaged { at: 0, what };
        if crc32c(&encoded) != u32::from_le_bytes([*c0, *c1, *c2, *c3]) {
            return Err(damaged("the checksum of its header is wrong"));
        }
        let header = postcard::from_bytes(&encoded);
        Ok(SegmentReader {
            input,
            at: length - left,
            left,
            header: header.map_err(|_| damaged("its header cannot be decoded"))?,
            end: None,
        })
    }

    /// Where the file comes from.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// How the file ends, once everything was read.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Reads the state with which the file begins.
    ///
    /// # Errors
    /// [`DamagedFile`].
    pub fn state(&mut self) -> Result<(Machine, Vec<u8>), DamagedFile> {
        let at = self.at;
        let bytes = self.block()?.ok_or(DamagedFile::NoState(at))?;
        let what = "the state of the core cannot be decoded";
        let decoded = postcard::from_bytes(&bytes);
        let machine = decoded.map_err(|_| DamagedFile::Damaged { at, what })?;
        Ok((machine, bytes))
    }

    /// Reads the next block; `None` at the end.
    ///
    /// # Errors
    /// [`DamagedFile`].
    pub fn block(&mut self) -> Result<Option<Vec<u8>>, DamagedFile> {
        if self.left == 0 || self.end.is_some() {
            self.end.get_or_insert(End::Whole);
            return Ok(None);
        }
        let at = self.at;
        if self.left < BLOCK_HEAD_BYTES as u64 {
            return self.ends_early();
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = take(&mut self.input)?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let after = self.left - BLOCK_HEAD_BYTES as u64;
        // Zeros are what some file systems leave after a crash of the machine.
        if u64::from(length) > after || length == 0 {
            return self.ends_early();
        }
        let mut bytes = Vec::new();
        let wanted = u64::from(length);
        let found = (&mut self.input).take(wanted).read_to_end(&mut bytes)?;
        if found as u64 != wanted {
            return self.ends_early();
        }
        self.left = after - wanted;
        self.at = at + BLOCK_HEAD_BYTES as u64 + wanted;
        if crc32c(&bytes) != u32::from_le_bytes([c0, c1, c2, c3]) {
            self.end = Some(End::Partial(self.left + wanted));
            let what = "the checksum of a block is wrong";
            return Err(DamagedFile::Damaged { at, what });
        }
        Ok(Some(bytes))
    }

    fn ends_early(&mut self) -> Result<Option<Vec<u8>>, DamagedFile> {
        self.end = Some(End::Partial(self.left));
        self.left = 0;
        Ok(None)
    }
}

fn take<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}
