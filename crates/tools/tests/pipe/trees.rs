//! Directories and many files.

use std::ffi::OsStr;
use std::fs::{File, FileTimes, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use super::{Running, content, dipole, err, events};

/// Sends with these arguments, and receives into `to` with these options.
pub(super) fn transfer(
    folder: &Path,
    send: &[&OsStr],
    (to, recv): (&Path, &[&str]),
) -> (Output, Output) {
    let mut receiver = dipole(folder, &["--json", "recv", "7", "--out"]);
    let receiver = Running::start(receiver.arg(to).args(recv));
    let mut sender = dipole(folder, &["--json", "send", "1:7"]);
    let sender = Running::start(sender.args(send));
    // Its output may be longer than a pipe holds.
    let received = std::thread::spawn(|| receiver.ends());
    (sender.ends(), received.join().unwrap())
}

/// Asserts that both sides have succeeded.
pub(super) fn succeeded((sent, received): &(Output, Output)) {
    assert!(sent.status.success(), "{}", err(sent));
    assert!(received.status.success(), "{}", err(received));
}

/// Two empty directories, `from/tree` and `to`.
pub(super) fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from/tree"), folder.path().join("to"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    (folder, from, to)
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn set_time(path: &Path, at: SystemTime) {
    let file = File::open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(at)).unwrap();
}

/// Names of any bytes, among them the longest one.
fn names() -> Vec<PathBuf> {
    let long = [b'n'; 255];
    [
        &b"two\nlines"[..],
        b"\xff\xfe",
        b"\x1b[2J",
        b" ",
        b"-n",
        b"a.part",
        b"a",
        &long,
    ]
    .iter()
    .map(|name| PathBuf::from(OsStr::from_bytes(name)))
    .collect()
}

#[test]
fn a_tree_arrives_as_it_is() {
    let (folder, from, to) = places();
    std::fs::create_dir_all(from.join("deep/er")).unwrap();
    std::fs::create_dir(from.join("empty")).unwrap();
    for name in names() {
        std::fs::write(from.join("deep").join(&name), name.as_os_str().as_bytes()).unwrap();
    }
    std::fs::write(from.join("large"), content(3_000_003)).unwrap();
    std::fs::hard_link(from.join("large"), from.join("deep/er/linked")).unwrap();
    let modified = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_001);
    for (name, bits) in [("large", 0o640), ("deep/a", 0o4755), ("deep/er", 0o551)] {
        std::fs::set_permissions(from.join(name), Permissions::from_mode(bits)).unwrap();
        set_time(&from.join(name), modified);
    }
    for (name, target) in [
        ("up", "../.."),
        ("absolute", "/etc/passwd"),
        ("nowhere", "no\nfile"),
        ("inside", "deep"),
    ] {
        symlink(target, from.join(name)).unwrap();
    }
    let time = Timespec {
        tv_sec: 1_234_567,
        tv_nsec: 89,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, from.join("up"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    set_time(&from, modified);

    succeeded(&transfer(folder.path(), &[from.as_os_str()], (&to, &[])));
    let there = to.join("tree");
    for name in names() {
        let read = std::fs::read(there.join("deep").join(&name)).unwrap();
        assert_eq!(read, name.as_os_str().as_bytes());
    }
    assert!(std::fs::read(there.join("large")).unwrap() == content(3_000_003));
    // A set-user-ID bit needs --owner.
    for (name, bits) in [("large", 0o640), ("deep/a", 0o755), ("deep/er", 0o551)] {
        assert_eq!(mode(&there.join(name)), bits, "{name}");
        let found = there.join(name).metadata().unwrap();
        assert_eq!(found.modified().unwrap(), modified, "{name}");
    }
    assert_eq!(there.metadata().unwrap().modified().unwrap(), modified);
    let linked = there.join("deep/er/linked").metadata().unwrap();
    assert_eq!(linked.ino(), there.join("large").metadata().unwrap().ino());
    assert!(
        std::fs::read_dir(there.join("empty"))
            .unwrap()
            .next()
            .is_none()
    );
    for name in ["up", "absolute", "nowhere", "inside"] {
        let (here, there) = (from.join(name), there.join(name));
        assert_eq!(
            std::fs::read_link(here).unwrap(),
            std::fs::read_link(there).unwrap()
        );
    }
    let up = there.join("up").symlink_metadata().unwrap();
    assert_eq!((up.mtime(), up.mtime_nsec()), (1_234_567, 89));
    // Incomplete files are gone.
    let left = std::fs::read_dir(there.join("deep")).unwrap();
    assert_eq!(left.count(), names().len() + 1);
}

#[test]
fn many_small_files_share_few_messages() {
    let (folder, from, to) = places();
    for number in 0..2000 {
        let place = from.join(format!("{}", number % 7));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join(number.to_string()), content(number % 90)).unwrap();
    }
    let ended = transfer(folder.path(), &[from.as_os_str()], (&to, &[]));
    succeeded(&ended);
    for number in 0..2000 {
        let read = std::fs::read(to.join(format!("tree/{}/{number}", number % 7))).unwrap();
        assert!(read == content(number % 90), "{number}");
    }
    let (sent, received) = (events(&ended.0), events(&ended.1));
    assert_eq!(received.len(), 2001);
    for told in [&sent[0], &received[2000]] {
        assert_eq!(told["files"], 2000);
        assert!(told["messages"].as_u64().unwrap() < 100, "{told}");
    }
}

#[test]
fn holes_stay_holes() {
    let (folder, from, to) = places();
    let length = 5_u64 << 30;
    for (name, places) in [
        ("empty", &[][..]),
        ("middle", &[3 << 30]),
        ("ends", &[0, length - 6]),
    ] {
        let mut file = File::create(from.join(name)).unwrap();
        file.set_len(length).unwrap();
        for place in places {
            file.seek(SeekFrom::Start(*place)).unwrap();
            file.write_all(b"island").unwrap();
        }
    }
    let before = from.join("ends").metadata().unwrap();
    if before.blocks() * 512 > length / 2 {
        println!("SKIPPED: this file system has no holes");
        return;
    }
    succeeded(&transfer(folder.path(), &[from.as_os_str()], (&to, &[])));
    for (name, places) in [
        ("empty", &[][..]),
        ("middle", &[3 << 30]),
        ("ends", &[0, length - 6]),
    ] {
        let mut file = File::open(to.join("tree").join(name)).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), length);
        assert!(
            found.blocks() * 512 <= 1 << 20,
            "{name}: {} blocks",
            found.blocks()
        );
        for place in places {
            let mut island = [0; 6];
            file.seek(SeekFrom::Start(*place)).unwrap();
            std::io::Read::read_exact(&mut file, &mut island).unwrap();
            assert_eq!(&island, b"island");
        }
    }
}

#[test]
fn holes_of_a_single_file_stay_holes_and_read_as_zeros_in_a_stream() {
    let (folder, from, to) = places();
    let length = 40_000_000;
    let sparse = from.join("sparse");
    let mut file = File::create(&sparse).unwrap();
    file.set_len(length).unwrap();
    file.seek(SeekFrom::Start(length / 2)).unwrap();
    file.write_all(&content(100_000)).unwrap();
    let before = std::fs::read(&sparse).unwrap();
    let blocks = sparse.metadata().unwrap().blocks();
    if blocks * 512 >= length {
        println!("SKIPPED: this file system has no holes");
        return;
    }
    succeeded(&transfer(folder.path(), &[sparse.as_os_str()], (&to, &[])));
    let there = to.join("sparse");
    assert!(std::fs::read(&there).unwrap() == before);
    let stored = there.metadata().unwrap().blocks();
    assert!(stored * 512 <= 1 << 20, "{blocks} blocks became {stored}");
    // Continued within the first hole.
    std::fs::remove_file(&there).unwrap();
    let part = File::create(to.join("sparse.part")).unwrap();
    part.set_len(5_000_001).unwrap();
    drop(part);
    succeeded(&transfer(
        folder.path(),
        &[sparse.as_os_str()],
        (&to, &["--resume"]),
    ));
    assert!(std::fs::read(&there).unwrap() == before);
    assert!(there.metadata().unwrap().blocks() * 512 <= 1 << 20);
    let receiver = Running::start(&mut dipole(folder.path(), &["recv", "7"]));
    let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&sparse));
    let received = std::thread::spawn(|| receiver.ends());
    let sent = sender.ends();
    assert!(sent.status.success(), "{}", err(&sent));
    assert!(received.join().unwrap().stdout == before);
}

#[test]
fn a_dot_means_the_contents_and_equal_names_are_refused() {
    let (folder, from, to) = places();
    std::fs::create_dir(from.join("sub")).unwrap();
    std::fs::write(from.join("sub/x"), "x").unwrap();
    std::fs::write(folder.path().join("sub"), "another").unwrap();
    let bits = mode(&to);
    let dot = from.join(".");
    succeeded(&transfer(folder.path(), &[dot.as_os_str()], (&to, &[])));
    assert_eq!(std::fs::read(to.join("sub/x")).unwrap(), b"x");
    assert_eq!(mode(&to), bits);
    let other = folder.path().join("sub");
    let mut send = dipole(folder.path(), &["send", "1:7"]);
    let sent = Running::start(send.arg(&dot).arg(&other)).ends();
    assert_eq!(sent.status.code(), Some(1));
    assert!(
        err(&sent).contains("would both arrive as `sub`"),
        "{}",
        err(&sent)
    );
    let mut send = dipole(folder.path(), &["send", "1:7", "--lines"]);
    let sent = Running::start(send.arg(&from)).ends();
    assert!(
        err(&sent).contains("is a directory, which has no lines"),
        "{}",
        err(&sent)
    );
}

#[test]
fn owners_and_attributes_are_kept_on_request() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: giving files to others needs root");
        return;
    }
    let (folder, from, to) = places();
    let (file, link) = (from.join("file"), from.join("link"));
    std::fs::write(&file, "x").unwrap();
    symlink("file", &link).unwrap();
    let (user, group) = (Some(Uid::from_raw(54_321)), Some(Gid::from_raw(54_322)));
    for path in [&file, &link, &from] {
        rustix::fs::chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    std::fs::set_permissions(&file, Permissions::from_mode(0o6755)).unwrap();
    let attribute =
        |path: &Path| rustix::fs::setxattr(path, "user.note", b"a\0b", XattrFlags::empty());
    if let Err(cause) = attribute(&file).and_then(|()| attribute(&from)) {
        println!("SKIPPED: extended attributes: {cause}");
        return;
    }
    for (options, kept) in [(&[][..], false), (&["--owner", "--xattrs"], true)] {
        succeeded(&transfer(
            folder.path(),
            &[from.as_os_str()],
            (&to, options),
        ));
        for name in ["tree", "tree/file", "tree/link"] {
            let found = to.join(name).symlink_metadata().unwrap();
            let is_kept = (found.uid(), found.gid()) == (54_321, 54_322);
            assert_eq!(is_kept, kept, "{name}");
            let mut value = [0; 10];
            let read = rustix::fs::lgetxattr(to.join(name), "user.note", &mut value[..]);
            let is_kept = read.is_ok_and(|length| value[..length] == *b"a\0b");
            assert_eq!(is_kept, kept && name != "tree/link", "{name}");
        }
        assert_eq!(
            mode(&to.join("tree/file")),
            if kept { 0o6755 } else { 0o755 }
        );
    }
}

#[test]
fn a_single_link_is_sent_as_a_link_with_a_message() {
    let (folder, from, to) = places();
    let link = from.join("link");
    symlink("nowhere", &link).unwrap();
    let ended = transfer(folder.path(), &[link.as_os_str()], (&to, &[]));
    succeeded(&ended);
    assert!(
        err(&ended.0).contains("is a symbolic link and is sent as one"),
        "{}",
        err(&ended.0)
    );
    assert_eq!(
        std::fs::read_link(to.join("link")).unwrap(),
        Path::new("nowhere")
    );
}

#[test]
fn a_receiver_within_the_tree_is_not_sent_to_itself() {
    let (folder, from, _) = places();
    std::fs::write(from.join("x"), "x").unwrap();
    let to = from.join("received");
    std::fs::create_dir(&to).unwrap();
    let (sent, received) = transfer(folder.path(), &[from.as_os_str()], (&to, &[]));
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
    }
    assert!(
        err(&sent).contains("it is not sent to itself"),
        "{}",
        err(&sent)
    );
    assert_eq!(std::fs::read(to.join("tree/x")).unwrap(), b"x");
    assert!(!to.join("tree/received").exists());
}

#[test]
fn directories_of_many_levels_arrive() {
    let (folder, from, to) = places();
    let root = |path: &Path| std::fs::File::open(path).unwrap();
    // The path is longer than the kernel takes at once.
    let mut here: std::os::fd::OwnedFd = root(&from).into();
    for _ in 0..600 {
        rustix::fs::mkdirat(&here, "directory", Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        here = rustix::fs::openat(&here, "directory", flags, Mode::empty()).unwrap();
    }
    succeeded(&transfer(folder.path(), &[from.as_os_str()], (&to, &[])));
    let mut there: std::os::fd::OwnedFd = root(&to.join("tree")).into();
    for _ in 0..600 {
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        there = rustix::fs::openat(&there, "directory", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn special_files_are_skipped_with_a_message_and_a_status() {
    let (folder, from, to) = places();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(CWD, from.join("a\npipe"), mode).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    std::fs::write(from.join("z"), "z").unwrap();
    let (sent, received) = transfer(folder.path(), &[from.as_os_str()], (&to, &[]));
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
        assert!(err(side).contains("2 were not sent"), "{}", err(side));
    }
    for text in ["a\\npipe: it is a named pipe", "socket: it is a socket"] {
        assert!(err(&sent).contains(text), "{}", err(&sent));
    }
    assert_eq!(std::fs::read(to.join("tree/z")).unwrap(), b"z");
    assert_eq!(std::fs::read_dir(to.join("tree")).unwrap().count(), 1);
}
