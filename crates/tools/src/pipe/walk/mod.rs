//! Walks through files and directories on a thread next to the sending one, and reads them.

mod listing;
mod packer;

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, SyncSender};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::destination::sum_of;
use super::extents::{extent, is_sparse, read_at};
use super::frame::TreeOptions;
use super::owners::name_of;
use super::record::{
    Facts, MAX_DEPTH, MAX_LINKED, MAX_OFFERS, MAX_OWNERS, NAME_BYTES, Present, Record, VALUE_BYTES,
};
use super::shown::shown;
use listing::Item;
pub(super) use listing::Roots;
pub(super) use packer::{Batch, Step};
use packer::{Packer, Stopped};

/// Counts of what was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) files: u64,
    /// Entries that could not be sent, each with a message.
    pub(super) skipped: u64,
}

/// The walking thread.
pub(super) struct Walk {
    packer: Packer,
    options: TreeOptions,
    /// Answers to offers.
    answers: Receiver<Vec<Present>>,
    /// CRC32C of the running kernel's random number.
    kernel: u32,
    /// Numbers of files with further names, by device and inode.
    links: HashMap<(u64, u64), u32>,
    /// Users and groups whose names were sent.
    owners: HashSet<(bool, u32)>,
    /// Path of the current directory, for messages.
    path: Vec<u8>,
    depth: u32,
    totals: Totals,
}

/// Channels to and from the sending thread.
pub(super) struct Channels {
    pub(super) steps: SyncSender<Step>,
    pub(super) returned: Receiver<Vec<u8>>,
    pub(super) answers: Receiver<Vec<Present>>,
}

impl Walk {
    pub(super) fn new(channels: Channels, options: TreeOptions, kernel: u32) -> Walk {
        Walk {
            packer: Packer::new(channels.steps, channels.returned),
            options,
            answers: channels.answers,
            kernel,
            links: HashMap::new(),
            owners: HashSet::new(),
            path: Vec::new(),
            depth: 0,
            totals: Totals::default(),
        }
    }

    /// Reads everything, up to the end or until the sending thread has ended.
    pub(super) fn run(mut self, roots: &Roots) {
        let _stopped = self.roots(roots);
    }

    fn roots(&mut self, roots: &Roots) -> Result<(), Stopped> {
        self.items(CWD, &roots.named)?;
        for path in &roots.unnamed {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let name = path.as_os_str().as_bytes();
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(dir) => {
                    self.path = name.to_owned();
                    self.contents(dir.as_fd())?;
                    self.path.clear();
                }
                Err(cause) => self.skip(name, &opening(cause)),
            }
        }
        self.packer.flush(0)?;
        self.packer.pass(Step::End(self.totals))
    }

    /// Reports an entry of the current directory that is not sent.
    fn skip(&mut self, name: &[u8], why: &str) {
        let path = self.path_of(name);
        eprintln!("dipole send: {}: {why}", shown(&path));
        self.totals.skipped += 1;
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match self.path.as_slice() {
            [] => name.to_owned(),
            [.., b'/'] => [&self.path, name].concat(),
            path => [path, b"/", name].concat(),
        }
    }

    fn contents(&mut self, dir: BorrowedFd<'_>) -> Result<(), Stopped> {
        match listing::contents(dir) {
            Ok(items) => self.items(dir, &items),
            Err(cause) => {
                self.skip(b"", &format!("reading the directory: {cause}"));
                Ok(())
            }
        }
    }

    fn items(&mut self, dir: BorrowedFd<'_>, items: &[Item]) -> Result<(), Stopped> {
        for some in items.chunks(MAX_OFFERS) {
            let mut present = match self.options.resume {
                true => self.offer(dir, some)?,
                false => HashMap::new(),
            };
            for (place, item) in some.iter().enumerate() {
                let present = present.remove(&place).unwrap_or(Present::Nothing);
                self.item(dir, item, present)?;
            }
        }
        Ok(())
    }

    /// Offers the regular files among these; returns the receiver's answers by their place.
    fn offer(
        &mut self,
        dir: BorrowedFd<'_>,
        items: &[Item],
    ) -> Result<HashMap<usize, Present>, Stopped> {
        let mut offered = Vec::new();
        for (place, item) in items.iter().enumerate() {
            if !matches!(item.kind, FileType::RegularFile | FileType::Unknown) {
                continue;
            }
            // A file that cannot be looked at is reported when its turn comes.
            let Ok(found) = stat(dir, item) else {
                continue;
            };
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                let facts = facts_of(&found);
                self.owners(&facts)?;
                self.packer.push(&Record::Offer {
                    name: &item.name,
                    facts,
                    length_bytes: u64::try_from(found.st_size).unwrap_or(0),
                })?;
                offered.push(place);
            }
        }
        if offered.is_empty() {
            return Ok(HashMap::new());
        }
        self.packer.push(&Record::Answer)?;
        self.packer.flush(offered.len())?;
        let answers = self.answers.recv().map_err(|_| Stopped)?;
        Ok(offered.into_iter().zip(answers).collect())
    }

    fn item(&mut self, dir: BorrowedFd<'_>, item: &Item, present: Present) -> Result<(), Stopped> {
        let kind = match item.kind {
            FileType::Unknown => match stat(dir, item) {
                Ok(found) => FileType::from_raw_mode(found.st_mode),
                Err(cause) => {
                    self.skip(&item.at, &opening(cause));
                    return Ok(());
                }
            },
            kind => kind,
        };
        match kind {
            FileType::RegularFile => self.file(dir, item, present),
            FileType::Directory => self.directory(dir, item),
            FileType::Symlink => self.symlink(dir, item),
            kind => {
                self.skip(
                    &item.at,
                    &format!("it is {}, which is not sent", special(kind)),
                );
                Ok(())
            }
        }
    }

    fn directory(&mut self, dir: BorrowedFd<'_>, item: &Item) -> Result<(), Stopped> {
        if self.depth == MAX_DEPTH {
            let why = format!("it is more than {MAX_DEPTH} directories deep, and is not sent");
            self.skip(&item.at, &why);
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(dir, &item.at, flags, Mode::empty()).map(File::from);
        let found = opened.map_err(io::Error::from).and_then(|directory| {
            let found = directory.metadata()?;
            Ok((directory, found))
        });
        let (directory, found) = match found {
            Ok(found) => found,
            Err(cause) => {
                self.skip(&item.at, &format!("opening the directory: {cause}"));
                return Ok(());
            }
        };
        let receiver = &self.options.directory;
        if receiver.kernel == self.kernel
            && (receiver.device, receiver.inode) == (found.dev(), found.ino())
        {
            self.skip(
                &item.at,
                "the receiver writes here; it is not sent to itself",
            );
            return Ok(());
        }
        self.packer.push(&Record::Enter { name: &item.name })?;
        let above = std::mem::take(&mut self.path);
        self.path = match above.as_slice() {
            [] => item.at.clone(),
            above => [above, b"/", &item.at].concat(),
        };
        self.depth += 1;
        self.contents(directory.as_fd())?;
        self.depth -= 1;
        self.attributes(&directory, b"")?;
        self.path = above;
        let facts = self.facts(&found)?;
        self.packer.push(&Record::Leave { facts })
    }

    fn symlink(&mut self, dir: BorrowedFd<'_>, item: &Item) -> Result<(), Stopped> {
        let read = stat(dir, item).and_then(|found| {
            let target = rustix::fs::readlinkat(dir, &item.at, Vec::new())?;
            Ok((found, target))
        });
        let (found, target) = match read {
            Ok(read) => read,
            Err(cause) => {
                self.skip(&item.at, &format!("reading the symbolic link: {cause}"));
                return Ok(());
            }
        };
        let facts = facts_of(&found);
        self.owners(&facts)?;
        self.packer.push(&Record::Symlink {
            name: &item.name,
            target: target.as_bytes(),
            facts,
        })
    }

    fn file(&mut self, dir: BorrowedFd<'_>, item: &Item, present: Present) -> Result<(), Stopped> {
        let opened = open(dir, item).map_err(io::Error::from);
        let (mut file, found) = match opened.and_then(|file| {
            let found = file.metadata()?;
            Ok((file, found))
        }) {
            Ok((file, found)) if found.is_file() => (file, found),
            Ok(_) => {
                self.skip(&item.at, "it was replaced by something else meanwhile");
                return Ok(());
            }
            Err(cause) => {
                let gone = cause.kind() == io::ErrorKind::NotFound;
                let why = match gone {
                    true => "it vanished before it was sent".to_owned(),
                    false => format!("opening the file: {cause}"),
                };
                self.skip(&item.at, &why);
                return Ok(());
            }
        };
        let id = (found.dev(), found.ino());
        let name = item.name.as_slice();
        if let Some(link) = self.links.get(&id) {
            let link = *link;
            return self.packer.push(&Record::HardLink { name, link });
        }
        let link = self.number(&found);
        if present == Present::Whole {
            self.totals.files += 1;
            return link.map_or(Ok(()), |link| {
                self.packer.push(&Record::Kept { name, link })
            });
        }
        let from_bytes = self.same_bytes(&mut file, present)?;
        let facts = self.facts(&found)?;
        self.packer.push(&Record::File {
            name,
            facts,
            length_bytes: found.len(),
            from_bytes,
            link,
        })?;
        let read = match self.data(&file, &found, from_bytes)? {
            Ok(()) => changed(&file, &found),
            Err(cause) => Err(format!("reading it: {cause}")),
        };
        match read {
            Ok(()) => {
                self.attributes(&file, &item.at)?;
                self.totals.files += 1;
                self.packer.push(&Record::Done)
            }
            Err(reason) => {
                self.skip(&item.at, &reason);
                self.packer.push(&Record::Drop { reason: &reason })
            }
        }
    }

    /// Number of a file with further names.
    fn number(&mut self, found: &Metadata) -> Option<u32> {
        let next = u32::try_from(self.links.len()).ok()?;
        if found.nlink() < 2 || next >= MAX_LINKED {
            return None;
        }
        self.links.insert((found.dev(), found.ino()), next);
        Some(next)
    }

    /// Bytes of the receiver's beginning, if the file begins with the same ones; otherwise 0.
    fn same_bytes(&mut self, file: &mut File, present: Present) -> Result<u64, Stopped> {
        let Present::Part { length_bytes, crc } = present else {
            return Ok(0);
        };
        let packer = &self.packer;
        let mut stopped = Ok(());
        let sum = sum_of(file, length_bytes, &mut || {
            if stopped.is_ok() {
                stopped = packer.pass(Step::Working);
            }
        });
        stopped?;
        Ok(match sum {
            Ok(sum) if (sum.length_bytes(), sum.crc()) == (length_bytes, crc) => length_bytes,
            _ => 0,
        })
    }

    /// Sends the data of a file without its holes.
    fn data(
        &mut self,
        file: &File,
        found: &Metadata,
        from_bytes: u64,
    ) -> Result<io::Result<()>, Stopped> {
        let (is_sparse, length_bytes) = (is_sparse(found), found.len());
        let mut position = from_bytes;
        while position < length_bytes {
            let next = match is_sparse {
                true => extent(file, position, length_bytes),
                false => Ok(Some((position, length_bytes))),
            };
            let (begin, end) = match next {
                Ok(Some(extent)) => extent,
                Ok(None) => break,
                Err(cause) => return Ok(Err(cause)),
            };
            position = begin;
            while position < end {
                let read = |buffer: &mut [u8]| read_at(file, buffer, position);
                match self.packer.push_data(position, end - position, read)? {
                    // It is shorter now, which is found later.
                    Ok(0) => return Ok(Ok(())),
                    Ok(bytes) => position += bytes as u64,
                    Err(cause) => return Ok(Err(cause)),
                }
            }
        }
        Ok(Ok(()))
    }

    fn facts(&mut self, found: &Metadata) -> Result<Facts, Stopped> {
        let facts = Facts {
            mode: found.mode() & 0o7777,
            user: found.uid(),
            group: found.gid(),
            modified_s: found.mtime(),
            modified_ns: u32::try_from(found.mtime_nsec()).unwrap_or(0),
        };
        self.owners(&facts)?;
        Ok(facts)
    }

    /// Sends the names of a file's user and group before their first use.
    fn owners(&mut self, facts: &Facts) -> Result<(), Stopped> {
        if !self.options.owner {
            return Ok(());
        }
        for (is_group, number) in [(false, facts.user), (true, facts.group)] {
            if self.owners.len() >= MAX_OWNERS as usize || !self.owners.insert((is_group, number)) {
                continue;
            }
            if let Some(name) = name_of(is_group, number)
                && (1..=NAME_BYTES).contains(&name.len())
            {
                self.packer.push(&Record::Owner {
                    is_group,
                    number,
                    name: name.as_bytes(),
                })?;
            }
        }
        Ok(())
    }

    /// Sends the extended attributes of a file or directory.
    fn attributes(&mut self, file: &File, name: &[u8]) -> Result<(), Stopped> {
        if !self.options.attributes {
            return Ok(());
        }
        let mut names = vec![0; VALUE_BYTES];
        let listed = match rustix::fs::flistxattr(file, names.as_mut_slice()) {
            Ok(listed) => listed,
            // The file system has none.
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(cause) => {
                self.skip(name, &format!("reading its extended attributes: {cause}"));
                return Ok(());
            }
        };
        let mut value = vec![0; VALUE_BYTES];
        for attribute in names[..listed].split(|byte| *byte == 0) {
            let is_sent = [&b"user."[..], b"trusted.", b"system.posix_acl_"]
                .iter()
                .any(|prefix| attribute.starts_with(prefix))
                || attribute == b"security.capability";
            if !is_sent {
                continue;
            }
            match rustix::fs::fgetxattr(file, attribute, value.as_mut_slice()) {
                Ok(length) => self.packer.push(&Record::Attribute {
                    name: attribute,
                    value: &value[..length],
                })?,
                // It was removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(cause) => {
                    let why = format!("reading the attribute {}: {cause}", shown(attribute));
                    self.skip(name, &why);
                }
            }
        }
        Ok(())
    }
}

fn open(dir: BorrowedFd<'_>, item: &Item) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, &item.at, flags, Mode::empty()).map(File::from)
}

fn stat(dir: BorrowedFd<'_>, item: &Item) -> rustix::io::Result<rustix::fs::Stat> {
    rustix::fs::statat(dir, &item.at, AtFlags::SYMLINK_NOFOLLOW)
}

fn facts_of(found: &rustix::fs::Stat) -> Facts {
    Facts {
        mode: found.st_mode & 0o7777,
        user: found.st_uid,
        group: found.st_gid,
        modified_s: found.st_mtime,
        modified_ns: u32::try_from(found.st_mtime_nsec).unwrap_or(0),
    }
}

fn opening(cause: Errno) -> String {
    format!("opening it: {}", io::Error::from(cause))
}

/// A kind of file that is not sent.
fn special(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "not a regular file",
    }
}

/// Fails if a file has changed: what was read may be no state that it ever had.
fn changed(file: &File, before: &Metadata) -> Result<(), String> {
    let now = file
        .metadata()
        .map_err(|cause| format!("looking at it: {cause}"))?;
    let is_same = now.len() == before.len()
        && (now.mtime(), now.mtime_nsec()) == (before.mtime(), before.mtime_nsec());
    match is_same {
        true => Ok(()),
        false => Err("it changed while it was sent; send it again".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::super::frame::{FileId, HEADROOM_BYTES};
    use super::super::record::Order;
    use super::*;

    #[test]
    fn a_file_that_vanishes_or_is_exchanged_is_skipped_and_the_others_are_sent() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a", "gone", "link", "z"] {
            std::fs::write(path(name), name).unwrap();
        }
        let roots = Roots::find(&["a", "gone", "link", "z"].map(path)).unwrap();
        std::fs::remove_file(path("gone")).unwrap();
        std::fs::remove_file(path("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path("link")).unwrap();
        let (_returning, returned) = channel();
        let (_answering, answers) = channel();
        let (to_send, steps) = sync_channel(9);
        let channels = Channels {
            steps: to_send,
            returned,
            answers,
        };
        let options = TreeOptions {
            resume: false,
            owner: false,
            attributes: false,
            directory: FileId {
                kernel: 0,
                device: 0,
                inode: 0,
            },
        };
        Walk::new(channels, options, 1).run(&roots);
        let (mut order, mut names, mut totals) = (Order::default(), Vec::new(), None);
        for step in steps {
            match step {
                Step::Batch(batch) => {
                    let mut rest = &batch.buffer[HEADROOM_BYTES..];
                    while !rest.is_empty() {
                        let record = Record::take(&mut rest).unwrap();
                        order.check(&record).unwrap();
                        if let Record::File { name, .. } = record {
                            names.push(name.to_owned());
                        }
                    }
                }
                Step::Working => {}
                Step::End(ended) => totals = Some(ended),
            }
        }
        let totals = totals.unwrap();
        assert_eq!((totals.files, totals.skipped), (2, 2));
        assert!(order.is_complete() && names == [b"a", b"z"]);
    }
}
