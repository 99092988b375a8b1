//! Files that users name: what is read, and where output goes.

#![allow(missing_docs, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use dipole_naming::files::{self, MAX_TEXT_BYTES};
use dipole_naming::hosts::Hosts;

#[test]
fn pipes_devices_and_endless_files_are_refused_at_once_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    let long = folder.path().join("long");
    std::fs::File::create(&long)
        .unwrap()
        .set_len(MAX_TEXT_BYTES + 1)
        .unwrap();
    for (path, found) in [
        (pipe.as_path(), "a pipe"),
        (Path::new("/dev/zero"), "a device"),
        (folder.path(), "a directory"),
        (long.as_path(), "longer than 16777216 bytes"),
    ] {
        let error = files::read_text(path).unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
        let error = Hosts::load(path).unwrap_err().to_string();
        let name = path.display().to_string();
        assert!(error.contains(found) && error.contains(&name), "{error}");
    }
    let binary = folder.path().join("binary");
    std::fs::write(&binary, [0xff, 0xfe, b'1']).unwrap();
    let error = files::read_text(&binary).unwrap_err().to_string();
    assert!(error.contains("UTF-8"), "{error}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "\u{feff}1 127.0.0.1\r\n").unwrap();
    assert_eq!(Hosts::load(&file).unwrap().count(), 1);
}

#[test]
fn output_replaces_own_files_and_follows_own_links_only() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("old"), "something long").unwrap();
    files::write(&at("old"), b"new").unwrap();
    assert_eq!(std::fs::read(at("old")).unwrap(), b"new");
    symlink(at("old"), at("own")).unwrap();
    writeln!(files::create(&at("own")).unwrap(), "by link").unwrap();
    assert_eq!(std::fs::read(at("old")).unwrap(), b"by link\n");
    // Only root can make a link of another user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    symlink(at("old"), at("planted")).unwrap();
    std::os::unix::fs::lchown(at("planted"), Some(12345), None).unwrap();
    let error = files::create(&at("planted")).unwrap_err().to_string();
    assert!(error.contains("uid 12345"), "{error}");
    std::fs::write(at("theirs"), "kept").unwrap();
    std::os::unix::fs::chown(at("theirs"), Some(12345), None).unwrap();
    assert!(files::create(&at("theirs")).is_err());
    assert_eq!(std::fs::read(at("old")).unwrap(), b"by link\n");
    assert_eq!(std::fs::read(at("theirs")).unwrap(), b"kept");
    // A directory may be a planted link, too.
    std::fs::create_dir(at("folder")).unwrap();
    symlink(at("folder"), at("planted folder")).unwrap();
    std::os::unix::fs::lchown(at("planted folder"), Some(12345), None).unwrap();
    let error = files::create(&at("planted folder/new")).unwrap_err();
    assert!(error.to_string().contains("uid 12345"), "{error}");
    assert!(!at("folder/new").exists());
}

#[test]
fn files_whose_content_is_trusted_must_not_be_writable_by_everyone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    files::write(&file, b"content").unwrap();
    let set = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    // With the umask 002 files are writable by the user's own group.
    set(0o664);
    assert_eq!(files::read_trusted(&file, 7).unwrap(), b"content");
    assert!(files::read_trusted(&file, 6).is_err(), "it is too long");
    set(0o666);
    let error = files::read_trusted(&file, 7).unwrap_err().to_string();
    assert!(error.contains("chmod o-w"), "{error}");
    if rustix::process::geteuid().is_root() {
        set(0o600);
        std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
        let error = files::read_trusted(&file, 7).unwrap_err().to_string();
        assert!(error.contains("uid 12345"), "{error}");
    }
}
