//! Writes the memory of a process that stands still.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::image::{Base, CHUNK_BYTES, Header, Image, PAGE_BYTES, Writer};
use crate::maps::{self, Mapping};
use crate::ranges::Ranges;
use crate::scratch::Scratch;

/// Bytes of compressed data between two writes.
const WRITE_BYTES: usize = 1 << 20;

/// Takes pages of a mapped file, with their address.
type TakePages<'a> = &'a mut dyn FnMut(u64, Option<&[u8]>) -> io::Result<()>;

/// A process that stands still, and its memory.
pub(crate) struct Frozen {
    memory: File,
    pages: File,
    mappings: Vec<Mapping>,
}

impl Frozen {
    /// Opens the memory of a process, without that of the writer.
    pub(crate) fn open(process: i32, scratch: &Scratch) -> io::Result<Frozen> {
        let folder = PathBuf::from(format!("/proc/{process}"));
        let text = fs::read_to_string(folder.join("maps"))?;
        let mappings =
            maps::parse(&text).ok_or_else(|| io::Error::other("unknown form of maps"))?;
        if let Some(shared) = mappings
            .iter()
            .find(|it| it.is_shared && !it.is_of_kernel() && !it.is_read_only_file())
        {
            return Err(io::Error::other(format!(
                "the program has mapped shared memory ({} at {:x}), which images do not hold",
                shared.name, shared.start
            )));
        }
        let private = mappings.into_iter().filter(|it| !it.is_of_kernel());
        Ok(Frozen {
            memory: File::open(folder.join("mem"))?,
            pages: File::open(folder.join("pagemap"))?,
            mappings: scratch.exclude(private.collect()),
        })
    }

    /// Reads the content of a mapped file. Pages behind the end of the file have none.
    fn read_file(
        &self,
        mapping: &Mapping,
        bytes: &mut [u8],
        take: TakePages<'_>,
    ) -> io::Result<()> {
        let mut start = mapping.start;
        while start < mapping.end {
            let left = usize::try_from(mapping.end - start).unwrap_or(CHUNK_BYTES);
            let part = &mut bytes[..left.min(CHUNK_BYTES)];
            match self.memory.read_exact_at(part, start) {
                Ok(()) => take(start, Some(part))?,
                Err(_) => {
                    for at in (start..).step_by(PAGE_BYTES).take(part.len() / PAGE_BYTES) {
                        let page = &mut part[..PAGE_BYTES];
                        let is_read = self.memory.read_exact_at(page, at).is_ok();
                        take(at, is_read.then_some(page))?;
                    }
                }
            }
            start += part.len() as u64;
        }
        Ok(())
    }

    /// Hashes the mapped files. The hash of other memory is 0.
    fn hashes(&self, bytes: &mut [u8]) -> io::Result<Vec<u128>> {
        let hash = |mapping: &Mapping| {
            if !mapping.is_file {
                return Ok(0);
            }
            let mut hasher = SipHasher13::new();
            self.read_file(mapping, bytes, &mut |address, content| {
                hasher.write_u64(address);
                hasher.write(content.unwrap_or_default());
                Ok(())
            })?;
            Ok(hasher.finish128().as_u128())
        };
        self.mappings.iter().map(hash).collect()
    }
}

/// Writes an image: a full one, or one that builds on the one in a file. Since that one the program
/// has not written at some addresses.
pub(crate) fn write(
    frozen: &Frozen,
    header: &mut Header,
    base: Option<(Base, PathBuf, Ranges)>,
    to: File,
) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK_BYTES];
    header.mappings.clone_from(&frozen.mappings);
    header.hashes = frozen.hashes(&mut bytes)?;
    let (mut unchanged, mut former) = (Ranges::default(), None);
    if let Some((base, path, ranges)) = base {
        let image = Image::open(&path).map_err(io::Error::other)?;
        if image.header.id != base.id {
            return Err(io::Error::other(
                "the image on which it builds was replaced",
            ));
        }
        header.base = Some(base);
        let own = header
            .own
            .iter()
            .chain(&image.header.own)
            .copied()
            .collect();
        (unchanged, former) = (ranges.without(&own), Some(image.header));
    }
    let to = BufWriter::with_capacity(WRITE_BYTES, to);
    let mut writer = MemoryWriter {
        writer: Writer::begin(to, header)?,
        names_zeros: header.base.is_some(),
    };
    for (mapping, hash) in header.mappings.iter().zip(&header.hashes) {
        if mapping.is_file {
            if !former
                .as_ref()
                .is_some_and(|former| has_file(former, mapping, *hash))
            {
                frozen.read_file(mapping, &mut bytes, &mut |start, content| match content {
                    Some(content) => writer.run(start, content),
                    None => writer.zeros(start, PAGE_BYTES as u64),
                })?;
            }
            continue;
        }
        let mut runs = Runs::new(mapping, &frozen.pages, &unchanged);
        while let Some(run) = runs.next()? {
            match run.kind {
                Kind::Unchanged => {}
                Kind::Zero => writer.zeros(run.start, run.length)?,
                Kind::Content => {
                    let length = usize::try_from(run.length).map_err(io::Error::other)?;
                    let content = &mut bytes[..length];
                    frozen.memory.read_exact_at(content, run.start)?;
                    writer.run(run.start, content)?;
                }
            }
        }
    }
    writer.writer.end()?;
    Ok(())
}

/// True if an image has this mapping of a file with this content.
fn has_file(header: &Header, mapping: &Mapping, hash: u128) -> bool {
    let at = header
        .mappings
        .partition_point(|it| it.start < mapping.start);
    let is_same = |it: &Mapping| it.is_file && (it.start, it.end) == (mapping.start, mapping.end);
    header.mappings.get(at).is_some_and(is_same) && header.hashes.get(at) == Some(&hash)
}

struct MemoryWriter<W> {
    writer: Writer<W>,
    /// In a full image, memory without content is zero.
    names_zeros: bool,
}

impl<W: Write> MemoryWriter<W> {
    /// Writes a run of pages.
    fn run(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
        let pages: Vec<&[u8]> = bytes.chunks(PAGE_BYTES).collect();
        let mut at = 0;
        for run in pages.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
            let length = run.len() * PAGE_BYTES;
            let start = start + at as u64;
            match is_zero(run[0]) {
                true => self.zeros(start, length as u64)?,
                false => self.writer.chunk(start, &bytes[at..at + length])?,
            }
            at += length;
        }
        Ok(())
    }

    fn zeros(&mut self, start: u64, length: u64) -> io::Result<()> {
        match self.names_zeros {
            true => self.writer.zeros(start, length),
            false => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// As in the base.
    Unchanged,
    /// The memory has no pages.
    Zero,
    Content,
}

/// Pages of the same kind, of at most [`CHUNK_BYTES`] if they have content.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    length: u64,
    kind: Kind,
}

/// The pages of anonymous memory.
struct Runs<'a> {
    next: u64,
    end: u64,
    pages: &'a File,
    entries: Vec<u8>,
    at: usize,
    unchanged: &'a Ranges,
    /// Whether the next page is unchanged, if it has content, and up to which address that is so.
    is_unchanged: (bool, u64),
}

/// The kernel's flags of a page that is in memory, or in swap space.
const PRESENT: u64 = 1 << 63 | 1 << 62;
/// Entries that are read at once.
const ENTRIES: usize = 8192;

impl Runs<'_> {
    fn new<'a>(mapping: &Mapping, pages: &'a File, unchanged: &'a Ranges) -> Runs<'a> {
        Runs {
            next: mapping.start,
            end: mapping.end,
            pages,
            entries: Vec::new(),
            at: 0,
            unchanged,
            is_unchanged: unchanged.at(mapping.start),
        }
    }

    fn next(&mut self) -> io::Result<Option<Run>> {
        let mut run: Option<Run> = None;
        while self.next < self.end {
            let kind = self.kind()?;
            let start = self.next;
            match &mut run {
                None => {
                    run = Some(Run {
                        start,
                        length: 0,
                        kind,
                    });
                }
                Some(run) if run.kind != kind => break,
                Some(run) if kind == Kind::Content && run.length == CHUNK_BYTES as u64 => break,
                Some(_) => {}
            }
            if let Some(run) = &mut run {
                run.length += PAGE_BYTES as u64;
            }
            self.next += PAGE_BYTES as u64;
            self.at += size_of::<u64>();
        }
        Ok(run)
    }

    fn kind(&mut self) -> io::Result<Kind> {
        if self.next >= self.is_unchanged.1 {
            self.is_unchanged = self.unchanged.at(self.next);
        }
        Ok(match (self.has_content()?, self.is_unchanged.0) {
            (false, _) => Kind::Zero,
            (true, true) => Kind::Unchanged,
            (true, false) => Kind::Content,
        })
    }

    fn has_content(&mut self) -> io::Result<bool> {
        if self.at >= self.entries.len() {
            let left = (self.end - self.next) / PAGE_BYTES as u64;
            let count = usize::try_from(left).unwrap_or(ENTRIES).min(ENTRIES);
            self.entries.resize(count * size_of::<u64>(), 0);
            let position = self.next / PAGE_BYTES as u64 * size_of::<u64>() as u64;
            self.pages.read_exact_at(&mut self.entries, position)?;
            self.at = 0;
        }
        let mut entry = [0; size_of::<u64>()];
        (&self.entries[self.at..]).read_exact(&mut entry)?;
        Ok(u64::from_ne_bytes(entry) & PRESENT != 0)
    }
}
