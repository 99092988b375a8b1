//! Files to send: those of the command line, and the contents of directories.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use super::super::shown::shown;
use super::super::{PipeError, failed_at};

/// A file, directory or link to send.
pub(super) struct Item {
    /// Its path from the directory that contains it, or from the current one.
    pub(super) at: Vec<u8>,
    /// Its name at the receiver.
    pub(super) name: Vec<u8>,
    /// As the directory states it.
    pub(super) kind: FileType,
}

/// The contents of a directory, sorted by name: `x` comes before `x.part`, the name of an incomplete
/// `x`.
pub(super) fn contents(dir: BorrowedFd<'_>) -> io::Result<Vec<Item>> {
    let mut items = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            items.push(Item {
                at: name.to_owned(),
                name: name.to_owned(),
                kind: entry.file_type(),
            });
        }
    }
    items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

/// Name of a file of the command line at the receiver; `None` for a directory that is named as `.`,
/// `..` or `/`, or ends in `/.`, whose contents arrive in the receiver's directory itself.
fn arrival_name(path: &Path) -> Option<&[u8]> {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/');
    let bytes = &bytes[..end.map_or(0, |end| end + 1)];
    match bytes.ends_with(b"/.") {
        true => None,
        false => path.file_name().map(OsStrExt::as_bytes),
    }
}

/// Files of the command line, and the directories of which only the contents are sent.
#[derive(Default)]
pub(in super::super) struct Roots {
    pub(super) named: Vec<Item>,
    pub(super) unnamed: Vec<PathBuf>,
}

impl Roots {
    /// Looks at every path first: a wrong one must not leave a partial transfer, and two files must not
    /// have the same name at the receiver.
    pub(in super::super) fn find(paths: &[PathBuf]) -> Result<Roots, PipeError> {
        let mut roots = Roots::default();
        let mut names: HashMap<Vec<u8>, PathBuf> = HashMap::new();
        let mut add = |name: &[u8], path: PathBuf| match names.insert(name.to_owned(), path.clone())
        {
            Some(first) => Err(PipeError::SameName {
                name: shown(name),
                first,
                second: path,
            }),
            None => Ok(()),
        };
        for path in paths {
            let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
            let found = found.map_err(|cause| failed_at("opening the file", path)(cause.into()))?;
            if let Some(name) = arrival_name(path) {
                add(name, path.clone())?;
                roots.named.push(Item {
                    at: path.as_os_str().as_bytes().to_owned(),
                    name: name.to_owned(),
                    kind: FileType::from_raw_mode(found.st_mode),
                });
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let listed = rustix::fs::open(path, flags, Mode::empty())
                .map_err(io::Error::from)
                .and_then(|dir| contents(std::os::fd::AsFd::as_fd(&dir)));
            for item in listed.map_err(failed_at("opening the directory", path))? {
                add(
                    &item.name,
                    path.join(std::ffi::OsStr::from_bytes(&item.name)),
                )?;
            }
            roots.unnamed.push(path.clone());
        }
        roots.named.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_arrives_with_its_last_name_and_a_dot_means_contents() {
        for (path, name) in [
            ("a", Some("a")),
            ("/x/a", Some("a")),
            ("x/a/", Some("a")),
            ("x/..a", Some("..a")),
            ("x/.", None),
            ("x/./", None),
            (".", None),
            ("./", None),
            ("..", None),
            ("x/..", None),
            ("/", None),
        ] {
            assert_eq!(
                arrival_name(Path::new(path)),
                name.map(str::as_bytes),
                "{path}"
            );
        }
    }
}
