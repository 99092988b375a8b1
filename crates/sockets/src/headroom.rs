//! Whether there is memory for another ring: within the process's memory cgroups and the machine.
//!
//! The kernel kills a process whose cgroup is full, and TCP would have slowed down instead. So rings
//! take a small part of what is allowed, and only while much of it is free.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// The rings of a process take at most this part of what it may use.
const LARGEST_PART: u64 = 16;
/// This part stays free for everything else.
const RESERVED_PART: u64 = 4;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Bytes of rings that this process has reserved.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Memory that counts as used by a ring until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation(u64);

impl Reservation {
    /// Reserves memory; `None` if rings should not take that much more.
    pub(crate) fn new(bytes: u64) -> Option<Reservation> {
        let reservation = Reservation(bytes);
        let reserved = RESERVED.fetch_add(bytes, AcqRel) + bytes;
        // Without descriptors this cannot be known; TCP needs none.
        let bounds = bounds().ok()?;
        let fits = |bound: &Bound| bound.admits(bytes, reserved);
        bounds.iter().all(fits).then_some(reservation)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.0, Relaxed);
    }
}

/// A limit of memory, and how much of it is free or easily freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    limit: u64,
    free: u64,
}

impl Bound {
    fn admits(&self, bytes: u64, reserved: u64) -> bool {
        reserved <= self.limit / LARGEST_PART
            && self.free.saturating_sub(bytes) >= self.limit / RESERVED_PART
    }
}

/// The bounds of the machine and of the cgroups around this process.
fn bounds() -> Result<Vec<Bound>, Errno> {
    let mut bounds = Vec::new();
    if let Some(machine) = text("/proc/meminfo")? {
        let bytes = |key| Some(1024 * field(&machine, key)?);
        bounds.extend(
            bytes("MemTotal:")
                .zip(bytes("MemAvailable:"))
                .map(|(limit, free)| Bound { limit, free }),
        );
    }
    if let Some(own) = text("/proc/self/cgroup")? {
        cgroup_bounds(CGROUPS, &own, &mut bounds)?;
    }
    Ok(bounds)
}

/// File names and keys of a version of the cgroup interface.
struct Version {
    limit: &'static str,
    used: &'static str,
    cache: [&'static str; 2],
}

const VERSION_2: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    cache: ["inactive_file", "active_file"],
};
const VERSION_1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};

/// Adds the bounds of the cgroups that `own`, the text of `/proc/self/cgroup`, names, and of their
/// ancestors.
fn cgroup_bounds(root: &str, own: &str, bounds: &mut Vec<Bound>) -> Result<(), Errno> {
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, version) = match controllers {
            "" => (root.to_owned(), VERSION_2),
            named if named.split(',').any(|name| name == "memory") => {
                (format!("{root}/memory"), VERSION_1)
            }
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let group = group.to_str().unwrap_or_default().trim_end_matches('/');
            bounds.extend(cgroup_bound(&format!("{root}{group}"), &version)?);
        }
    }
    Ok(())
}

/// The bound of one cgroup; `None` if it has none.
fn cgroup_bound(folder: &str, version: &Version) -> Result<Option<Bound>, Errno> {
    let mut path = String::new();
    let mut file = |name| {
        path.clear();
        let _never_fails = write!(path, "{folder}/{name}");
        text(&path)
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    // Without a limit it is the word "max", or a number beyond any machine's memory.
    let Some(limit) = file(version.limit)?.as_deref().and_then(number) else {
        return Ok(None);
    };
    let used = file(version.used)?.as_deref().and_then(number);
    let stat = file("memory.stat")?.unwrap_or_default();
    let cache = version.cache.iter().filter_map(|key| field(&stat, key));
    let used = used.unwrap_or(0).saturating_sub(cache.sum());
    Ok(Some(Bound {
        limit,
        free: limit.saturating_sub(used),
    }))
}

/// The number behind a key at the beginning of a line.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(key)).then(|| words.next()?.parse().ok())?
    })
}

/// Reads a small file without the C library, whose calls this library replaces; `None` if it does
/// not exist.
fn text(path: &str) -> Result<Option<String>, Errno> {
    let file = match open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; 16_384];
    let mut length = 0;
    while length < bytes.len() {
        match rustix::io::read(&file, &mut bytes[length..])? {
            0 => break,
            some => length += some,
        }
    }
    bytes.truncate(length);
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(folder: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
    }

    fn found(root: &Path, own: &str) -> Vec<Bound> {
        let mut bounds = Vec::new();
        cgroup_bounds(root.to_str().expect("text"), own, &mut bounds).expect("readable");
        bounds
    }

    #[test]
    fn every_cgroup_around_the_process_counts_without_its_file_cache() {
        let root = tempfile::tempdir().expect("a folder");
        let stat = "anon 1\ninactive_file 200\nactive_file 100\nfile 5000\n";
        group(
            &root.path().join("a"),
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "700\n"),
                ("memory.stat", stat),
            ],
        );
        group(
            &root.path().join("a/b"),
            &[("memory.max", "max\n"), ("memory.current", "9\n")],
        );
        let bound = Bound {
            limit: 1000,
            free: 600,
        };
        assert_eq!(found(root.path(), "0::/a/b\n"), [bound]);
        assert_eq!(found(root.path(), "0::/\n1:cpu:/a\nnonsense\n"), []);
    }

    #[test]
    fn the_first_version_of_the_interface_is_read_too() {
        let root = tempfile::tempdir().expect("a folder");
        // In a container the group's own path is not visible, but the root is the container's.
        group(
            &root.path().join("memory"),
            &[
                ("memory.limit_in_bytes", "4096\n"),
                ("memory.usage_in_bytes", "96\n"),
                (
                    "memory.stat",
                    "total_inactive_file 50\ntotal_active_file 0\n",
                ),
            ],
        );
        let bound = Bound {
            limit: 4096,
            free: 4050,
        };
        let own = "5:cpu,memory:/docker/c0ffee\n";
        assert_eq!(found(root.path(), own), [bound]);
    }

    #[test]
    fn rings_take_a_sixteenth_while_a_quarter_stays_free() {
        let bound = Bound {
            limit: 1600,
            free: 500,
        };
        assert!(bound.admits(100, 100));
        assert!(!bound.admits(100, 101), "more than a sixteenth");
        assert!(!bound.admits(101, 101));
        assert!(!Bound { free: 499, ..bound }.admits(100, 100), "too full");
    }

    #[test]
    fn what_is_dropped_is_available_again() {
        let before = RESERVED.load(Relaxed);
        drop(Reservation::new(u64::MAX / 2));
        assert!(
            Reservation::new(u64::MAX / 2).is_none(),
            "no machine has that"
        );
        assert_eq!(RESERVED.load(Relaxed), before);
    }
}
