//! The file format of an image.
//!
//! ```text
//! magic (8)  length of the header (4)  its checksum (4)  header (postcard)
//! address (8)  length (4)  compressed length (4)  checksum (4)  bytes (LZ4)     repeated
//! address (8)  length (4)  0                      0             zeroed memory   repeated
//! address 0    0           0                      checksum of all chunk heads
//! ```
//!
//! Numbers are little endian, checksums CRC32C. Whatever is damaged is refused before any of it is
//! used. Memory without a chunk is as in the image that this one builds on; in a full image it is
//! zero.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dipole_link::crc32c::crc32c;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::descriptors::OpenFile;
use crate::machine::Machine;
use crate::maps::Mapping;

/// The version is part of it.
const MAGIC: &[u8; 8] = b"dipole\0\x02";
/// Longest header: about a thousand bytes for each mapping or file with the longest path.
const MAX_HEADER_BYTES: usize = 64 << 20;
/// Longest chunk of memory.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// Longest range of zeroed memory: its length has 32 bits.
const ZERO_BYTES: u64 = 1 << 30;
/// The addresses that programs can have on 64-bit systems.
const MAX_ADDRESS: u64 = 1 << 47;
pub(crate) const PAGE_BYTES: usize = 4096;

/// The rank that an image belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number of the set of images, counted from 1.
    pub set: u64,
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
}

/// The image that another one builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// Its set.
    pub(crate) set: u64,
    /// Its number.
    pub(crate) id: u64,
}

/// Content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(u64),
}

/// Registers of the thread, and its entries in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Thread {
    /// Stack pointer, and the address at which it continues.
    pub(crate) stack: u64,
    pub(crate) resume: u64,
    /// Address of thread-local data.
    pub(crate) local_data: u64,
    /// List of robust locks: address and length.
    pub(crate) robust_list: (u64, u64),
    /// Where the kernel writes the number of the processor, and the signature that it demands.
    pub(crate) rseq: Option<(u64, u32)>,
    /// Where the C library keeps the thread's number.
    pub(crate) id_address: u64,
    /// Alternate stack for signals: address, flags and length.
    pub(crate) signal_stack: (u64, u64, u64),
}

/// Addresses of code, data, heap, stack, arguments and environment, for `PR_SET_MM_MAP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    pub(crate) code: (u64, u64),
    pub(crate) data: (u64, u64),
    pub(crate) heap: (u64, u64),
    pub(crate) stack: u64,
    pub(crate) arguments: (u64, u64),
    pub(crate) environment: (u64, u64),
}

/// Action for a signal, as the kernel takes it: handler, flags, restorer and mask.
pub(crate) type SignalAction = [u64; 4];

/// Everything in an image but the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    /// Random number, by which images that build on this one identify it.
    pub(crate) id: u64,
    pub(crate) base: Option<Base>,
    /// Working directory.
    pub(crate) directory: PathBuf,
    /// Short name of the process.
    pub(crate) name: String,
    pub(crate) machine: Machine,
    pub(crate) thread: Thread,
    pub(crate) layout: Layout,
    /// By number, from 1.
    pub(crate) signals: Vec<SignalAction>,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) mappings: Vec<Mapping>,
    /// For each mapping of a file the hash of its content, else 0. By it the next image recognizes what
    /// has not changed: the kernel does not report it for files.
    pub(crate) hashes: Vec<u128>,
    /// Ranges of pages that the child wrote after the fork: here they can differ from those of the
    /// program, so an image that builds on this one must hold them.
    pub(crate) own: Vec<(u64, u64)>,
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file cannot be read.
    #[error("{}: {cause}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The file is not an image, or is damaged.
    #[error("{} is not an intact image: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The part that is wrong.
        what: &'static str,
    },
    /// An image that this one builds on is missing.
    #[error(
        "{} is of no use: it has only the changes since checkpoint {base}, whose image of this rank is \
         missing",
        .path.display()
    )]
    BaseMissing {
        /// The file.
        path: PathBuf,
        /// The set with the missing image.
        base: u64,
    },
    /// An image does not belong to the one that builds on it.
    #[error(
        "{} is of no use: it has only the changes since another image than {}",
        .path.display(),
        .base.display()
    )]
    OtherBase {
        /// The file.
        path: PathBuf,
        /// The file that was found in place of its base.
        base: PathBuf,
    },
    /// Another user could have written the file.
    #[error(
        "{} belongs to another user, or others may write it: an image can run anything, so only \
         the owner's are used",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// Writes an image.
pub(crate) struct Writer<W> {
    to: W,
    /// Checksum over the heads of all chunks.
    heads: u32,
    compressed: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins an image with its header.
    pub(crate) fn begin(mut to: W, header: &Header) -> io::Result<Writer<W>> {
        let bytes = postcard::to_stdvec(header).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        to.write_all(MAGIC)?;
        to.write_all(&length.to_le_bytes())?;
        to.write_all(&crc32c(&bytes).to_le_bytes())?;
        to.write_all(&bytes)?;
        Ok(Writer {
            to,
            heads: 0,
            compressed: vec![0; lz4_flex::block::get_maximum_output_size(CHUNK_BYTES)],
        })
    }

    /// Writes a chunk of at most [`CHUNK_BYTES`].
    pub(crate) fn chunk(&mut self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let length = lz4_flex::block::compress_into(bytes, &mut self.compressed)
            .map_err(io::Error::other)?;
        let head = Head {
            address,
            length: u32::try_from(bytes.len()).map_err(io::Error::other)?,
            compressed: u32::try_from(length).map_err(io::Error::other)?,
            checksum: crc32c(&self.compressed[..length]),
        };
        let head = head.encode();
        self.heads = add(self.heads, &head);
        self.to.write_all(&head)?;
        self.to.write_all(&self.compressed[..length])
    }

    /// Writes that memory is zero.
    pub(crate) fn zeros(&mut self, address: u64, length: u64) -> io::Result<()> {
        let mut at = 0;
        while at < length {
            let part = (length - at).min(ZERO_BYTES);
            let head = Head {
                address: address + at,
                length: u32::try_from(part).map_err(io::Error::other)?,
                ..Head::default()
            };
            let head = head.encode();
            self.heads = add(self.heads, &head);
            self.to.write_all(&head)?;
            at += part;
        }
        Ok(())
    }

    /// Ends the image.
    pub(crate) fn end(mut self) -> io::Result<W> {
        let last = Head {
            checksum: self.heads,
            ..Head::default()
        };
        self.to.write_all(&last.encode())?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Extends a checksum over the heads before.
fn add(heads: u32, head: &[u8; HEAD_BYTES]) -> u32 {
    let mut both = [0; HEAD_BYTES + 4];
    both[..4].copy_from_slice(&heads.to_le_bytes());
    both[4..].copy_from_slice(head);
    crc32c(&both)
}

const HEAD_BYTES: usize = 20;

/// Head of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    address: u64,
    length: u32,
    compressed: u32,
    checksum: u32,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.compressed.to_le_bytes());
        bytes[16..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Head {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        Head {
            address: u64::from(word(0)) | u64::from(word(4)) << 32,
            length: word(8),
            compressed: word(12),
            checksum: word(16),
        }
    }
}

/// An image whose header has been read and checked.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    from: BufReader<File>,
    pub(crate) header: Header,
}

impl Image {
    /// Opens an image.
    ///
    /// # Errors
    /// The file cannot be read, is not an intact image, or could be another user's.
    pub fn open(path: &Path) -> Result<Image, ImageError> {
        let read = |cause| ImageError::Read {
            path: path.to_owned(),
            cause,
        };
        // Opening a pipe must not wait for its writer.
        let mut options = File::options();
        options.read(true);
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(path).map_err(read)?;
        let status = file.metadata().map_err(read)?;
        let own = rustix::process::geteuid().as_raw();
        if status.uid() != own || status.mode() & 0o022 != 0 {
            return Err(ImageError::Foreign {
                path: path.to_owned(),
            });
        }
        let mut from = BufReader::with_capacity(CHUNK_BYTES, file);
        let header = read_header(&mut from).map_err(|cause| refused(path, cause))?;
        Ok(Image {
            path: path.to_owned(),
            from,
            header,
        })
    }

    /// The rank and the set that the image belongs to.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.header.identity
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the rest of the image. Returns the bytes of memory in it.
    ///
    /// # Errors
    /// The image is damaged.
    pub fn verify(mut self) -> Result<u64, ImageError> {
        let mut bytes = 0;
        self.read_chunks(&mut |_, content| {
            if let Content::Bytes(chunk) = content {
                bytes += chunk.len() as u64;
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Reads all chunks of memory, with their addresses.
    pub(crate) fn read_chunks(
        &mut self,
        take: &mut dyn FnMut(u64, Content<'_>) -> io::Result<()>,
    ) -> Result<(), ImageError> {
        read_chunks(&mut self.from, &self.header, take).map_err(|cause| refused(&self.path, cause))
    }
}

/// Why a part cannot be used.
enum Refusal {
    Read(io::Error),
    Damaged(&'static str),
}

impl From<io::Error> for Refusal {
    fn from(cause: io::Error) -> Refusal {
        match cause.kind() {
            io::ErrorKind::UnexpectedEof => Refusal::Damaged("its end is missing"),
            _ => Refusal::Read(cause),
        }
    }
}

fn refused(path: &Path, cause: Refusal) -> ImageError {
    let path = path.to_owned();
    match cause {
        Refusal::Read(cause) => ImageError::Read { path, cause },
        Refusal::Damaged(what) => ImageError::Damaged { path, what },
    }
}

fn read_header(from: &mut impl Read) -> Result<Header, Refusal> {
    let mut head = [0; 16];
    from.read_exact(&mut head)?;
    if &head[..8] != MAGIC {
        return Err(Refusal::Damaged(
            "it does not begin like an image of this version",
        ));
    }
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&head[at..at + 4]);
        u32::from_le_bytes(word)
    };
    let length = word(8) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(Refusal::Damaged("its header is too long"));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length || crc32c(&bytes) != word(12) {
        return Err(Refusal::Damaged("the checksum of its header is wrong"));
    }
    let header: Header =
        postcard::from_bytes(&bytes).map_err(|_| Refusal::Damaged("its header is malformed"))?;
    check(&header).map_err(Refusal::Damaged)?;
    Ok(header)
}

/// Checks what later code relies on: pages in order, that do not overlap.
fn check(header: &Header) -> Result<(), &'static str> {
    let mut end = 0;
    for mapping in &header.mappings {
        let is_page = |address: u64| address.is_multiple_of(PAGE_BYTES as u64);
        if mapping.start < end.max(PAGE_BYTES as u64)
            || mapping.end <= mapping.start
            || mapping.end > MAX_ADDRESS
            || !is_page(mapping.start)
            || !is_page(mapping.end)
        {
            return Err("its mappings are not in order");
        }
        end = mapping.end;
    }
    let kernel = &header.machine.kernel_maps;
    if kernel
        .iter()
        .any(|it| it.start >= it.end || it.end > MAX_ADDRESS)
    {
        return Err("its mappings of the kernel are malformed");
    }
    let overlaps = |it: &Mapping| {
        let mut others = header.mappings.iter();
        others.any(|other| it.start < other.end && other.start < it.end)
    };
    if kernel.iter().any(overlaps) {
        return Err("its mappings overlap the kernel's");
    }
    let identity = header.identity;
    if identity.rank >= identity.size {
        return Err("its rank does not exist");
    }
    if header.base.is_some_and(|base| base.set >= identity.set) {
        return Err("it builds on an image that is not older");
    }
    if header.hashes.len() != header.mappings.len() {
        return Err("hashes are missing");
    }
    Ok(())
}

fn read_chunks(
    from: &mut impl Read,
    header: &Header,
    take: &mut dyn FnMut(u64, Content<'_>) -> io::Result<()>,
) -> Result<(), Refusal> {
    let most = lz4_flex::block::get_maximum_output_size(CHUNK_BYTES);
    let (mut compressed, mut bytes) = (vec![0; most], vec![0; CHUNK_BYTES]);
    let (mut heads, mut end) = (0, 0);
    loop {
        let mut encoded = [0; HEAD_BYTES];
        from.read_exact(&mut encoded)?;
        let head = Head::decode(&encoded);
        if head.address == 0 {
            let mut rest = [0];
            return match from.read(&mut rest)? {
                _ if head.checksum != heads || head.length != 0 || head.compressed != 0 => {
                    Err(Refusal::Damaged("chunks are missing"))
                }
                0 => Ok(()),
                _ => Err(Refusal::Damaged("bytes follow its end")),
            };
        }
        heads = add(heads, &encoded);
        let (length, stored) = (head.length as usize, head.compressed as usize);
        let is_zero = stored == 0 && header.base.is_some();
        let longest = match is_zero {
            true => usize::try_from(ZERO_BYTES).unwrap_or(CHUNK_BYTES),
            false => CHUNK_BYTES,
        };
        if length == 0 || length > longest || stored > most {
            return Err(Refusal::Damaged("the length of a chunk is wrong"));
        }
        let last = head.address.checked_add(length as u64);
        let is_inside =
            |it: &Mapping| it.start <= head.address && last.is_some_and(|last| last <= it.end);
        if head.address < end || !header.mappings.iter().any(is_inside) {
            return Err(Refusal::Damaged("a chunk is outside of its memory"));
        }
        end = last.unwrap_or(u64::MAX);
        if is_zero {
            let pages = head.address | u64::from(head.length);
            if head.checksum != 0 || !pages.is_multiple_of(PAGE_BYTES as u64) {
                return Err(Refusal::Damaged("a chunk without content is malformed"));
            }
            take(head.address, Content::Zeros(u64::from(head.length)))?;
            continue;
        }
        from.read_exact(&mut compressed[..stored])?;
        if crc32c(&compressed[..stored]) != head.checksum {
            return Err(Refusal::Damaged("the checksum of a chunk is wrong"));
        }
        let written = lz4_flex::block::decompress_into(&compressed[..stored], &mut bytes[..length]);
        if !written.is_ok_and(|written| written == length) {
            return Err(Refusal::Damaged("a chunk cannot be decompressed"));
        }
        take(head.address, Content::Bytes(&bytes[..length]))?;
    }
}

/// Reads an image from memory; for fuzzers.
#[doc(hidden)]
#[must_use]
pub fn is_intact(mut bytes: &[u8]) -> bool {
    let Ok(header) = read_header(&mut bytes) else {
        return false;
    };
    read_chunks(&mut bytes, &header, &mut |_, _| Ok(())).is_ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn header() -> Header {
        let mapping = Mapping::anonymous;
        Header {
            identity: Identity {
                set: 1,
                rank: 2,
                size: 4,
            },
            id: 7,
            base: None,
            directory: "/".into(),
            name: "program".to_owned(),
            machine: Machine::current().expect("proc is mounted"),
            thread: Thread::default(),
            layout: Layout::default(),
            signals: vec![[0; 4]; 64],
            files: Vec::new(),
            mappings: vec![mapping(0x1000, 0x9000), mapping(0x20_0000, 0x60_0000)],
            hashes: vec![0; 2],
            own: Vec::new(),
        }
    }

    fn image(chunks: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer::begin(Vec::new(), &header()).expect("memory");
        for (address, bytes) in chunks {
            writer.chunk(*address, bytes).expect("memory");
        }
        writer.end().expect("memory")
    }

    #[test]
    fn an_image_reads_back_as_written() {
        let noise = (0..CHUNK_BYTES).map(|at| u8::try_from(at * at % 251).unwrap_or(0));
        let chunks = [(0x1000, vec![5; 0x2000]), (0x20_0000, noise.collect())];
        let bytes = image(&chunks);
        let mut from = &bytes[..];
        let read = read_header(&mut from).unwrap_or_else(|_| panic!("intact"));
        assert_eq!(read, header());
        let mut found = Vec::new();
        let whole = read_chunks(&mut from, &read, &mut |address, content| {
            if let Content::Bytes(bytes) = content {
                found.push((address, bytes.to_vec()));
            }
            Ok(())
        });
        assert!(whole.is_ok());
        assert_eq!(found, chunks);
    }

    #[test]
    fn memory_outside_of_the_mappings_is_refused() {
        for chunks in [
            vec![(0x8000, vec![1; 0x2000])],
            vec![(0x2000, vec![1; 0x1000]), (0x1000, vec![1; 0x1000])],
            vec![(0xa000, vec![1; 16])],
        ] {
            assert!(!is_intact(&image(&chunks)));
        }
        let mut header = header();
        header.mappings.swap(0, 1);
        assert!(check(&header).is_err());
    }

    #[test]
    fn zeroed_memory_belongs_to_images_that_build_on_others() {
        let base = Base { set: 1, id: 3 };
        for (set, base, is_accepted) in [
            (2, Some(base), true),
            (2, None, false),
            (1, Some(base), false),
        ] {
            let mut header = header();
            (header.identity.set, header.base) = (set, base);
            let mut writer = Writer::begin(Vec::new(), &header).expect("memory");
            writer.chunk(0x1000, &[1; 0x1000]).expect("memory");
            writer.zeros(0x20_0000, 0x40_0000).expect("memory");
            assert_eq!(is_intact(&writer.end().expect("memory")), is_accepted);
        }
    }

    #[test]
    fn an_image_that_another_user_could_have_written_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), image(&[])).expect("written");
        assert!(Image::open(file.path()).is_ok());
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(file.path(), open).expect("own file");
        let refused = Image::open(file.path()).expect_err("others may write it");
        assert!(matches!(refused, ImageError::Foreign { .. }), "{refused}");
    }

    proptest! {
        #[test]
        fn a_damaged_image_is_refused(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut bytes = image(&[(0x1000, (0..=255).cycle().take(0x3000).collect())]);
            prop_assert!(is_intact(&bytes));
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(!is_intact(&bytes));
            bytes[at] ^= 1 << bit;
            bytes.truncate(at);
            prop_assert!(!is_intact(&bytes));
        }

        #[test]
        fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(!is_intact(&bytes));
        }
    }
}
