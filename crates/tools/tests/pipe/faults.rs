//! Trees of which something cannot be read or stored, and transfers that are interrupted.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::trees::{places, succeeded, transfer};
use super::{PATIENCE, Running, content, dipole, err, events};

/// Both sides run as this user if the tests run as root.
const NOBODY: u32 = 65_534;

fn without_privileges(command: &mut Command) -> &mut Command {
    match rustix::process::geteuid().is_root() {
        true => command.uid(NOBODY).gid(NOBODY),
        false => command,
    }
}

/// Waits until a file exists.
fn await_file(path: &Path) {
    let started = Instant::now();
    while path.symlink_metadata().is_err() {
        assert!(
            started.elapsed() < PATIENCE,
            "{} does not appear",
            path.display()
        );
        std::thread::yield_now();
    }
}

#[test]
fn unreadable_files_are_reported_and_the_others_arrive() {
    let (folder, from, to) = places();
    std::fs::create_dir(from.join("closed")).unwrap();
    for name in ["a", "b", "closed/c", "d"] {
        std::fs::write(from.join(name), name).unwrap();
    }
    for name in ["b", "closed"] {
        std::fs::set_permissions(from.join(name), Permissions::from_mode(0o000)).unwrap();
    }
    for (open, bits) in [(folder.path(), 0o1777), (&to, 0o777)] {
        std::fs::set_permissions(open, Permissions::from_mode(bits)).unwrap();
    }
    let program = folder.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_dipole"), &program).unwrap();
    let start = |words: &[&str], path: &Path| {
        let template = dipole(folder.path(), &[]);
        let mut command = Command::new(&program);
        for (name, value) in template.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        without_privileges(command.args(words).arg(path)).stdin(std::process::Stdio::null());
        Running::start(&mut command)
    };
    let receiver = start(&["recv", "7", "--out"], &to);
    let sender = start(&["send", "1:7"], &from);
    let (sent, received) = (sender.ends(), receiver.ends());
    std::fs::set_permissions(from.join("closed"), Permissions::from_mode(0o700)).unwrap();
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
        assert!(err(side).contains("2 were not sent"), "{}", err(side));
    }
    for text in [
        "tree/b: opening the file",
        "tree/closed: opening the directory",
    ] {
        assert!(err(&sent).contains(text), "{}", err(&sent));
    }
    for name in ["a", "d"] {
        assert_eq!(
            std::fs::read_to_string(to.join("tree").join(name)).unwrap(),
            name
        );
    }
    assert!(!to.join("tree/b").exists() && !to.join("tree/closed").exists());
}

#[test]
fn nothing_is_written_through_links_and_existing_files_are_replaced() {
    let (folder, from, to) = places();
    std::fs::create_dir(from.join("dir")).unwrap();
    for name in ["dir/secret", "file", "taken", "z"] {
        std::fs::write(from.join(name), "sent").unwrap();
    }
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "precious").unwrap();
    let there = to.join("tree");
    std::fs::create_dir_all(there.join("taken")).unwrap();
    symlink(&outside, there.join("dir")).unwrap();
    symlink(outside.join("precious"), there.join("file")).unwrap();
    symlink(outside.join("new"), there.join("z.part")).unwrap();
    let (sent, received) = transfer(folder.path(), &[from.as_os_str()], (&to, &[]));
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
        assert!(
            err(side).contains("2 were not stored completely"),
            "{}",
            err(side)
        );
    }
    for text in [
        "tree/dir: opening the directory",
        "tree/taken: finishing the file: a directory",
    ] {
        assert!(err(&received).contains(text), "{}", err(&received));
    }
    assert_eq!(
        std::fs::read(outside.join("precious")).unwrap(),
        b"precious"
    );
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    for name in ["file", "z"] {
        assert!(!there.join(name).is_symlink());
        assert_eq!(std::fs::read(there.join(name)).unwrap(), b"sent");
    }
    assert!(!there.join("taken.part").exists());
}

#[test]
fn a_file_of_a_tree_that_changes_is_reported_and_the_others_arrive() {
    let (folder, from, to) = places();
    for (name, length) in [("a", 10), ("changing", 20_000_000), ("z", 10)] {
        std::fs::write(from.join(name), content(length)).unwrap();
    }
    let file = File::options()
        .write(true)
        .open(from.join("changing"))
        .unwrap();
    let ended = AtomicBool::new(false);
    let (sent, received) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut time = SystemTime::UNIX_EPOCH;
            while !ended.load(Ordering::Relaxed) {
                time += Duration::from_secs(1);
                file.set_modified(time).unwrap();
            }
        });
        let both = transfer(folder.path(), &[from.as_os_str()], (&to, &[]));
        ended.store(true, Ordering::Relaxed);
        both
    });
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
        assert!(err(side).contains("changing"), "{}", err(side));
        assert!(
            err(side).contains("it changed while it was sent"),
            "{}",
            err(side)
        );
    }
    for name in ["a", "z"] {
        assert_eq!(
            std::fs::read(to.join("tree").join(name)).unwrap(),
            content(10)
        );
    }
    assert_eq!(std::fs::read_dir(to.join("tree")).unwrap().count(), 2);
}

#[test]
fn a_full_disk_is_reported_and_what_fits_arrives() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: mounting a small file system needs root");
        return;
    }
    let (folder, from, to) = places();
    for (name, length) in [("a", 1000), ("large", 9_000_000), ("z", 1000)] {
        std::fs::write(from.join(name), content(length)).unwrap();
    }
    let template = dipole(folder.path(), &[]);
    let mut receiver = Command::new("unshare");
    receiver.args(["--mount", "sh", "-c"]);
    receiver.arg(
        "mount -t tmpfs -o size=2m none \"$2\" && \"$1\" --json recv 7 --out \"$2\"; \
         status=$?; ls \"$2/tree\" >&2; exit $status",
    );
    receiver.args(["sh", env!("CARGO_BIN_EXE_dipole")]).arg(&to);
    for (name, value) in template.get_envs() {
        match value {
            Some(value) => receiver.env(name, value),
            None => receiver.env_remove(name),
        };
    }
    let receiver = Running::start(&mut receiver);
    let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&from));
    let (sent, received) = (sender.ends(), receiver.ends());
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
        let text = "tree/large: writing it: No space left";
        assert!(err(side).contains(text), "{}", err(side));
    }
    assert!(err(&received).ends_with("a\nz\n"), "{}", err(&received));
    assert_eq!(events(&received).last().unwrap()["files"], 2);
}

#[test]
fn a_tree_is_resumed_without_what_is_complete() {
    let (folder, from, to) = places();
    let whole = content(5_000_003);
    for number in 0..50 {
        std::fs::write(from.join(number.to_string()), content(number)).unwrap();
    }
    std::fs::write(from.join("large"), &whole).unwrap();
    std::fs::hard_link(from.join("7"), from.join("seven")).unwrap();
    std::fs::write(from.join("large.part"), "a name like another's").unwrap();
    succeeded(&transfer(folder.path(), &[from.as_os_str()], (&to, &[])));
    let there = to.join("tree");
    let changed = from.join("8");
    std::fs::write(&changed, "eight").unwrap();
    std::fs::set_permissions(from.join("9"), Permissions::from_mode(0o711)).unwrap();
    let mut other = whole[..4_000_000].to_vec();
    other[17] ^= 1;
    // A matching beginning is kept, another one is not.
    for (left, resumed) in [(&whole[..4_000_000], true), (&other, false)] {
        std::fs::remove_file(there.join("large")).unwrap();
        std::fs::remove_file(there.join("seven")).unwrap();
        std::fs::write(there.join("large.part"), left).unwrap();
        let ended = transfer(folder.path(), &[from.as_os_str()], (&to, &["--resume"]));
        succeeded(&ended);
        assert!(std::fs::read(there.join("large")).unwrap() == whole);
        let part = std::fs::read_to_string(there.join("large.part")).unwrap();
        assert_eq!(part, "a name like another's");
        assert_eq!(std::fs::read(there.join("8")).unwrap(), b"eight");
        assert_eq!(there.join("9").metadata().unwrap().mode() & 0o777, 0o711);
        let [seven, first] = ["seven", "7"].map(|name| there.join(name).metadata().unwrap());
        assert_eq!(seven.ino(), first.ino());
        let told = events(&ended.1);
        let bytes = told.last().unwrap()["bytes"].as_u64().unwrap();
        assert_eq!(bytes < 1_100_000, resumed, "{bytes}");
    }
}

#[test]
fn a_receiver_that_is_killed_again_and_again_completes_the_tree() {
    let (folder, from, to) = places();
    for number in 0..300 {
        std::fs::write(from.join(number.to_string()), content(number)).unwrap();
        std::fs::write(from.join(format!("l{number}")), content(200_000)).unwrap();
    }
    let there = to.join("tree");
    let count = || std::fs::read_dir(&there).map_or(0, Iterator::count);
    for least in [1, 200, 400] {
        let mut receiver = dipole(folder.path(), &["recv", "7", "--resume", "--out"]);
        let mut receiver = Running::start(receiver.arg(&to));
        let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&from));
        let started = Instant::now();
        while count() < least {
            assert!(started.elapsed() < PATIENCE, "nothing arrives");
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(receiver.child()), Signal::KILL).unwrap();
        let (sent, received) = (sender.ends(), receiver.ends());
        // It may have completed everything before the signal.
        if !sent.status.success() {
            assert!(!received.status.success());
            assert!(
                err(&sent).contains("dipole recv --resume"),
                "{}",
                err(&sent)
            );
        }
    }
    succeeded(&transfer(
        folder.path(),
        &[from.as_os_str()],
        (&to, &["--resume"]),
    ));
    for number in 0..300 {
        assert!(std::fs::read(there.join(number.to_string())).unwrap() == content(number));
        assert!(std::fs::read(there.join(format!("l{number}"))).unwrap() == content(200_000));
    }
    assert_eq!(count(), 600);
}

#[test]
fn a_receiver_that_stops_is_noticed_in_time_and_both_sides_name_the_option_that_continues() {
    let (folder, from, to) = places();
    std::fs::write(from.join("large"), vec![7; 100_000_000]).unwrap();
    let mut receiver = Running::start(dipole(folder.path(), &["recv", "7", "--out"]).arg(&to));
    let mut send = dipole(folder.path(), &["send", "1:7", "--timeout", "2"]);
    let sender = Running::start(send.arg(&from));
    await_file(&to.join("tree"));
    let pid = Pid::from_child(receiver.child());
    dipole_testbed::stop(receiver.child());
    let sent = sender.ends();
    kill_process(pid, Signal::CONT).unwrap();
    let received = receiver.ends();
    for side in [&sent, &received] {
        assert_eq!(side.status.code(), Some(1), "{}", err(side));
        assert!(err(side).contains("--resume"), "{}", err(side));
    }
    assert!(!to.join("tree/large").exists());
}

#[test]
fn a_sender_that_is_interrupted_leaves_complete_files_and_names_the_option() {
    let (folder, from, to) = places();
    std::fs::write(from.join("a"), "a").unwrap();
    std::fs::write(from.join("large"), vec![7; 100_000_000]).unwrap();
    let receiver = Running::start(dipole(folder.path(), &["recv", "7", "--out"]).arg(&to));
    let mut sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&from));
    await_file(&to.join("tree/a"));
    kill_process(Pid::from_child(sender.child()), Signal::INT).unwrap();
    for side in [sender.ends(), receiver.ends()] {
        assert!(!side.status.success(), "{}", err(&side));
        assert!(err(&side).contains("--resume"), "{}", err(&side));
    }
    assert_eq!(std::fs::read(to.join("tree/a")).unwrap(), b"a");
}
