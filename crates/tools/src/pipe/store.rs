//! Stores the records of a tree: [`Store`].
//!
//! A file that cannot be stored is reported and counted, and the others go on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

use super::destination::is_part_name;
use super::frame::{Sum, TreeOptions};
use super::owners::Owners;
use super::place::{self, Owner, Part};
use super::record::{Facts, Present, Record};
use super::shown::shown;

/// Length of all paths of files that may get further names.
const MAX_LINKED_BYTES: usize = 256 << 20;

/// The receiver's directory and everything below it.
pub(super) struct Store {
    options: TreeOptions,
    /// The receiver's directory, then the directory of each level; `None` if it cannot be used.
    levels: Vec<Option<OwnedFd>>,
    /// Path of the current directory below the receiver's.
    path: Vec<u8>,
    file: Option<Incoming>,
    linked: Vec<Linked>,
    linked_bytes: usize,
    owners: Owners,
    present: Vec<Present>,
    outcome: Outcome,
}

/// Counts of what has been stored.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Complete files, also of an earlier transfer.
    pub(super) files: u64,
    pub(super) failed: u64,
    /// The first failure.
    pub(super) first: String,
}

/// A complete file.
pub(super) struct Stored {
    /// Below the receiver's directory.
    pub(super) path: Vec<u8>,
    pub(super) length_bytes: u64,
}

/// The file of the last `File` record.
struct Incoming {
    name: Vec<u8>,
    facts: Facts,
    length_bytes: u64,
    link: Option<usize>,
    /// `None` if it cannot be stored.
    part: Option<Part>,
}

/// A file that may get further names.
struct Linked {
    /// Below the receiver's directory.
    path: Vec<u8>,
    /// Device and inode, once it is complete.
    id: Option<(u64, u64)>,
}

impl Store {
    pub(super) fn new(directory: OwnedFd, options: TreeOptions) -> Store {
        Store {
            options,
            levels: vec![Some(directory)],
            path: Vec::new(),
            file: None,
            linked: Vec::new(),
            linked_bytes: 0,
            owners: Owners::default(),
            present: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// Stores a record that `Order` has accepted; returns the file that it completed. `working` runs
    /// again and again during long work.
    pub(super) fn apply(
        &mut self,
        record: &Record<'_>,
        working: &mut dyn FnMut(),
    ) -> Option<Stored> {
        match *record {
            Record::Enter { name } => self.enter(name),
            Record::Leave { facts } => self.leave(&facts),
            Record::File { .. } => self.open(record),
            Record::Data {
                offset_bytes,
                bytes,
            } => self.with_part("writing it", |part| part.write(offset_bytes, bytes)),
            Record::Attribute { name, value } => self.set_attribute(name, value),
            Record::Done => return self.finish(),
            Record::Drop { reason } => self.drop_file(reason),
            Record::Symlink {
                name,
                target,
                facts,
            } => {
                let owner = self.owner(&facts);
                self.with_directory(name, "creating the symbolic link", |dir| {
                    place::symlink(dir, (name, target), &facts, owner)
                });
            }
            Record::HardLink { name, link } => self.hard_link(name, link),
            Record::Kept { name, .. } => {
                let found = self.with_directory(name, "looking at it", |dir| {
                    place::find(dir, name).map(|found| found.as_ref().map(place::id_of))
                });
                self.add_linked(name, found.flatten());
            }
            Record::Owner {
                is_group,
                number,
                name,
            } => {
                if self.options.owner {
                    self.owners.add(is_group, number, name);
                }
            }
            Record::Offer {
                name,
                facts,
                length_bytes,
            } => self.offer(name, (&facts, length_bytes), working),
            Record::Answer => {}
        }
        None
    }

    /// The answers to the offers since the last call.
    pub(super) fn take_present(&mut self) -> Vec<Present> {
        std::mem::take(&mut self.present)
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Ends an interrupted transfer; returns the path of the incomplete file that it leaves.
    pub(super) fn abandon(mut self) -> Option<Vec<u8>> {
        let part = self.file.take()?.part?;
        let left = part.abandon(self.directory()?)?;
        Some(self.path_of(&left))
    }

    /// The current directory; `None` if it cannot be used.
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.as_ref().map(AsFd::as_fd)
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match self.path.is_empty() {
            true => name.to_owned(),
            false => [&self.path, &b"/"[..], name].concat(),
        }
    }

    fn owner(&self, facts: &Facts) -> Option<Owner> {
        match self.options.owner {
            true => self.owners.of(facts),
            false => None,
        }
    }

    /// Reports a file of the current directory that could not be stored.
    fn fail(&mut self, name: &[u8], doing: &str, cause: &io::Error) {
        let text = format!("{}: {doing}: {cause}", shown(&self.path_of(name)));
        self.report(text);
    }

    fn report(&mut self, text: String) {
        eprintln!("dipole recv: {text}");
        self.outcome.failed += 1;
        if self.outcome.first.is_empty() {
            self.outcome.first = text;
        }
    }

    /// Runs a step in the current directory; nothing is done in a directory that cannot be used, which
    /// has been reported.
    fn with_directory<T>(
        &mut self,
        name: &[u8],
        doing: &str,
        step: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Option<T> {
        match step(self.directory()?) {
            Ok(value) => Some(value),
            Err(cause) => {
                self.fail(name, doing, &cause);
                None
            }
        }
    }

    /// Runs a step of the open file; removes the file if it fails.
    fn with_part(&mut self, doing: &str, step: impl FnOnce(&mut Part) -> io::Result<()>) {
        let Some(file) = &mut self.file else {
            return;
        };
        let Some(Err(cause)) = file.part.as_mut().map(step) else {
            return;
        };
        let name = file.name.clone();
        let part = file.part.take();
        self.fail(&name, doing, &cause);
        if let (Some(part), Some(dir)) = (part, self.directory()) {
            part.remove(dir);
        }
    }

    fn enter(&mut self, name: &[u8]) {
        let doing = "opening the directory, so nothing below it is stored";
        let entered = self.with_directory(name, doing, |dir| place::enter(dir, name));
        self.levels.push(entered);
        self.path = self.path_of(name);
    }

    fn leave(&mut self, facts: &Facts) {
        let owner = self.owner(facts);
        if let Some(Some(left)) = self.levels.pop()
            && let Err(cause) = place::leave(&left, facts, owner)
        {
            let path = shown(&self.path);
            self.report(format!("{path}: setting the mode, time and owner: {cause}"));
        }
        let above = self.path.iter().rposition(|byte| *byte == b'/');
        self.path.truncate(above.unwrap_or(0));
    }

    fn open(&mut self, record: &Record<'_>) {
        let Record::File {
            name,
            facts,
            length_bytes,
            from_bytes,
            link,
        } = *record
        else {
            return;
        };
        let link = link.map(|_| {
            self.add_linked(name, None);
            self.linked.len() - 1
        });
        let part = self.with_directory(name, "creating the file", |dir| {
            Part::open(dir, name, from_bytes)
        });
        self.file = Some(Incoming {
            name: name.to_owned(),
            facts,
            length_bytes,
            link,
            part,
        });
    }

    /// Adds a file that may get further names. If their paths become too long, it gets none.
    fn add_linked(&mut self, name: &[u8], id: Option<(u64, u64)>) {
        let mut path = self.path_of(name);
        if self.linked_bytes + path.len() > MAX_LINKED_BYTES {
            path = Vec::new();
        }
        self.linked_bytes += path.len();
        self.linked.push(Linked { path, id });
    }

    fn set_attribute(&mut self, name: &[u8], value: &[u8]) {
        // These give privileges, like the set-user-ID bit.
        let is_privilege = !name.starts_with(b"user.") && !name.starts_with(b"system.posix_acl_");
        if !self.options.attributes || (is_privilege && !self.options.owner) {
            return;
        }
        let doing = format!("setting the attribute {}", shown(name));
        let Some(file) = &mut self.file else {
            if let Some(Some(dir)) = self.levels.last()
                && let Err(cause) = place::set_attribute(dir, name, value)
            {
                let path = shown(&self.path);
                self.report(format!("{path}: {doing}: {cause}"));
            }
            return;
        };
        let owner = match self.options.owner {
            true => self.owners.of(&file.facts),
            false => None,
        };
        let set = file.part.as_mut().map_or(Ok(()), |part| {
            part.own(owner)?;
            part.set_attribute(name, value)
        });
        if let Err(cause) = set {
            let name = file.name.clone();
            self.fail(&name, &doing, &cause);
        }
    }

    fn finish(&mut self) -> Option<Stored> {
        let file = self.file.take()?;
        let mut part = file.part?;
        let owner = self.owner(&file.facts);
        if let Err(cause) = part.own(owner) {
            self.fail(&file.name, "setting the owner", &cause);
        }
        let dir = self.directory()?;
        let finished = part.finish(dir, &file.facts, file.length_bytes);
        if let Err(cause) = finished {
            part.remove(dir);
            self.fail(&file.name, "finishing the file", &cause);
            return None;
        }
        if let Some(link) = file.link {
            self.linked[link].id = part.id().ok();
        }
        self.outcome.files += 1;
        Some(Stored {
            path: self.path_of(&file.name),
            length_bytes: file.length_bytes,
        })
    }

    fn drop_file(&mut self, reason: &str) {
        let Some(file) = self.file.take() else {
            return;
        };
        if let (Some(part), Some(dir)) = (file.part, self.directory()) {
            part.remove(dir);
        }
        let reason = super::plain(reason);
        let doing = "reading it at the sender";
        self.fail(&file.name, doing, &io::Error::other(reason));
    }

    fn hard_link(&mut self, name: &[u8], link: u32) {
        let Some(linked) = self.linked.get(link as usize) else {
            return;
        };
        let (path, id) = (linked.path.clone(), linked.id);
        let parent = match id {
            Some(_) if !path.is_empty() => self.parent_of(&path),
            _ => Err(io::Error::other("its first name was not stored")),
        };
        self.with_directory(name, "creating the hard link", |dir| {
            let (parent, first) = parent?;
            let id = id.unwrap_or_default();
            place::hard_link((parent.as_fd(), &first), id, (dir, name))
        });
    }

    /// The directory of a path below the receiver's directory, and the last name of the path.
    fn parent_of(&self, path: &[u8]) -> io::Result<(OwnedFd, Vec<u8>)> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let root = self.levels.first().and_then(Option::as_ref);
        let mut parent = root.ok_or_else(gone)?.try_clone()?;
        let mut names = path.split(|byte| *byte == b'/');
        let last = names.next_back().ok_or_else(gone)?;
        for name in names {
            parent = place::open_directory(parent.as_fd(), name, OFlags::PATH)?;
        }
        Ok((parent, last.to_owned()))
    }

    fn offer(
        &mut self,
        name: &[u8],
        (facts, length_bytes): (&Facts, u64),
        working: &mut dyn FnMut(),
    ) {
        let owner = self.owner(facts);
        let found = self.with_directory(name, "looking for an earlier transfer", |dir| {
            // It may be an incomplete file of another name, which replaces it.
            if is_part_name(name) {
                return Ok(Present::Nothing);
            }
            if place::is_whole(dir, name, (facts, length_bytes), owner)? {
                return Ok(Present::Whole);
            }
            let sum: Sum = place::sum_of_part(dir, name, length_bytes, working)?;
            Ok(match sum.length_bytes() {
                0 => Present::Nothing,
                length_bytes => Present::Part {
                    length_bytes,
                    crc: sum.crc(),
                },
            })
        });
        if found == Some(Present::Whole) {
            self.outcome.files += 1;
        }
        self.present.push(found.unwrap_or(Present::Nothing));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::super::frame::FileId;
    use super::super::record::Order;
    use super::*;

    const FACTS: Facts = Facts {
        mode: 0o644,
        user: 0,
        group: 0,
        modified_s: 1_000_000,
        modified_ns: 5,
    };

    fn store(directory: &Path) -> Store {
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
        Store::new(File::open(directory).unwrap().into(), options)
    }

    fn file(name: &[u8], link: Option<u32>) -> [Record<'_>; 3] {
        let (length_bytes, from_bytes) = (4, 0);
        [
            Record::File {
                name,
                facts: FACTS,
                length_bytes,
                from_bytes,
                link,
            },
            Record::Data {
                offset_bytes: 0,
                bytes: b"evil",
            },
            Record::Done,
        ]
    }

    /// Applies records that must be in order; returns the number of failures.
    fn apply(store: &mut Store, records: &[Record<'_>]) -> u64 {
        let mut order = Order::default();
        for record in records {
            order.check(record).unwrap();
            store.apply(record, &mut || {});
        }
        assert!(order.is_complete());
        store.outcome().failed
    }

    #[test]
    fn a_link_that_the_sender_has_created_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "precious").unwrap();
        let target = outside.as_os_str().as_encoded_bytes();
        let link = |name, target| Record::Symlink {
            name,
            target,
            facts: FACTS,
        };
        let mut records = vec![
            link(b"absolute", target),
            link(b"up", b"../out"),
            link(b"file", b"../out/precious"),
            link(b"f.part", b"../out/new"),
        ];
        for name in [&b"absolute"[..], b"up"] {
            records.push(Record::Enter { name });
            records.extend(file(b"precious", None));
            records.extend(file(b"new", None));
            records.push(link(b"made", b"x"));
            records.push(Record::Leave { facts: FACTS });
        }
        records.extend(file(b"file", None));
        records.extend(file(b"f", None));
        let mut store = store(&inside);
        // Each directory fails once.
        assert_eq!(apply(&mut store, &records), 2);
        assert_eq!(fs::read(outside.join("precious")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read(inside.join("file")).unwrap(), b"evil");
        assert!(!inside.join("file").is_symlink());
    }

    #[test]
    fn a_directory_that_is_exchanged_for_a_link_meanwhile_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        let mut store = store(&inside);
        let mut records = vec![Record::Enter { name: b"d" }];
        records.extend(file(b"first", Some(0)));
        for record in &records {
            store.apply(record, &mut || {});
        }
        fs::rename(inside.join("d"), inside.join("moved")).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("d")).unwrap();
        fs::write(outside.join("first"), "another").unwrap();
        for record in file(b"second", None) {
            store.apply(&record, &mut || {});
        }
        // The path of the first name leads through the link now.
        let name = b"linked";
        store.apply(&Record::HardLink { name, link: 0 }, &mut || {});
        store.apply(&Record::Leave { facts: FACTS }, &mut || {});
        assert_eq!(store.outcome().failed, 1);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read(inside.join("moved/second")).unwrap(), b"evil");
        assert!(!inside.join("moved/linked").exists());
    }

    #[test]
    fn special_files_of_the_receiver_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        let mut store = store(folder.path());
        let mut records = file(b"s", None).to_vec();
        records.extend(file(b"d", None));
        assert_eq!(apply(&mut store, &records), 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(folder.path().join("d").is_dir());
    }

    #[test]
    fn hard_links_replace_files_but_no_directories_and_an_interrupted_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b"), "old").unwrap();
        fs::create_dir(folder.path().join("c")).unwrap();
        let mut store = store(folder.path());
        let mut records = file(b"a", Some(0)).to_vec();
        for name in [b"b", b"b", b"c"] {
            records.push(Record::HardLink { name, link: 0 });
        }
        assert_eq!(apply(&mut store, &records), 1);
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name).metadata().unwrap());
        assert_eq!(a.ino(), b.ino());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        store.apply(&Record::Enter { name: b"e" }, &mut || {});
        for record in &file(b"x", None)[..2] {
            store.apply(record, &mut || {});
        }
        assert_eq!(store.abandon().as_deref(), Some(&b"e/x.part"[..]));
    }
}
