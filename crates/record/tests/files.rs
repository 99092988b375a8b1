//! Files of a recording: who may read them, how they end, and what happens if they are damaged.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use dipole_proto::time::MILLISECOND;
use dipole_proto::wire::Address;
use dipole_proto::{Config, Instant, Machine};
use dipole_record::{LEAST_BYTES, Options, RecordedMachine, Recording, Step, Steps, recordings};
use proptest::prelude::*;

fn options(directory: &Path) -> Options {
    Options {
        directory: directory.to_path_buf(),
        bytes: LEAST_BYTES,
        since_1970_ns: 1_000,
    }
}

fn machine() -> RecordedMachine {
    let config = Config {
        node: 3,
        ..Config::default()
    };
    Machine::new(config, 77, [5, 6], &[]).into()
}

/// Calls without a network: sessions that never open.
fn call(machine: &mut RecordedMachine, from: u32, count: u32) {
    for number in from..from + count {
        let now = Instant(u64::from(number) * 20 * MILLISECOND);
        machine.open_endpoint(number);
        let home = Address {
            ip: [1; 16],
            port: u16::try_from(number % 400).expect("small"),
        };
        let _full = machine.connect(now, home, 0);
        machine.on_timers(now);
        let _time = machine.next_deadline(now);
        if number > 3 {
            machine.close_endpoint(now, number - 3);
        }
    }
}

fn record(directory: &Path, count: u32) -> PathBuf {
    let mut machine = machine();
    machine
        .record(options(directory), Instant(1))
        .expect("room");
    call(&mut machine, 1, count);
    drop(machine);
    let (found, refused) = recordings(directory).expect("a recording");
    assert!(refused.is_empty(), "{refused:?}");
    let [recording] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((recording.first.node, recording.first.incarnation), (3, 77));
    recording.files.values().next().expect("a file").clone()
}

fn only(directory: &Path) -> Recording {
    let (mut found, _) = recordings(directory).expect("a recording");
    found.pop().expect("one")
}

/// Number of calls until the end, and everything that is wrong.
fn replay(directory: &Path) -> (u64, Vec<String>) {
    let mut steps = Steps::new(only(directory));
    let mut wrong = Vec::new();
    for (_, step) in steps.by_ref() {
        match step {
            Step::Observed(..) | Step::File { .. } => {}
            Step::Differs(difference) => wrong.push(format!("differs: {difference}")),
            Step::Damaged(_, cause) => wrong.push(format!("damaged: {cause}")),
            Step::Partial(bytes) => wrong.push(format!("partial: {bytes}")),
        }
    }
    (steps.inputs(), wrong)
}

#[test]
fn only_the_owner_may_read_a_recording() {
    let place = tempfile::tempdir().expect("a directory");
    let directory = place.path().join("new/deep");
    let file = record(&directory, 10);
    let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(&directory)), (0o600, 0o700));
}

#[test]
fn existing_files_and_links_are_never_overwritten() {
    let place = tempfile::tempdir().expect("a directory");
    let file = record(place.path(), 10);
    fs::remove_file(&file).expect("our file");
    let target = place.path().join("target");
    fs::write(&target, "precious").expect("our file");
    std::os::unix::fs::symlink(&target, &file).expect("a link");
    let error = machine().record(options(place.path()), Instant(1));
    assert_eq!(
        error.expect_err("a link").kind(),
        std::io::ErrorKind::AlreadyExists
    );
    assert_eq!(fs::read_to_string(&target).expect("our file"), "precious");
}

#[test]
fn all_files_together_stay_below_the_limit() {
    let place = tempfile::tempdir().expect("a directory");
    let mut machine = machine();
    machine
        .record(options(place.path()), Instant(1))
        .expect("room");
    let mut files = 0;
    for round in 0..60 {
        call(&mut machine, 1 + round * 1_000, 1_000);
        let entries = fs::read_dir(place.path()).expect("a directory");
        let lengths = entries.map(|it| it.expect("a file").metadata().expect("facts").len());
        let lengths: Vec<u64> = lengths.collect();
        let total: u64 = lengths.iter().sum();
        assert!(total <= LEAST_BYTES + (128 << 10), "{lengths:?}");
        files = files.max(lengths.len());
    }
    drop(machine);
    assert!(files > 2, "{files} files");
    let recording = only(place.path());
    assert!(recording.first.segment > 0, "the oldest was removed");
    let (calls, wrong) = replay(place.path());
    assert!(
        calls > 1_000 && wrong.is_empty(),
        "{calls} calls, {wrong:?}"
    );
}

#[test]
fn a_file_that_ends_anywhere_is_replayed_to_its_last_whole_block() {
    let place = tempfile::tempdir().expect("a directory");
    let file = record(place.path(), 40);
    let whole = fs::read(&file).expect("our file");
    let (all, wrong) = replay(place.path());
    assert!(wrong.is_empty(), "{wrong:?}");
    let mut counts = Vec::new();
    for length in (0..whole.len()).rev().step_by(7) {
        fs::write(&file, &whole[..length]).expect("our file");
        let (found, refused) = recordings(place.path()).expect("a file");
        if found.is_empty() {
            assert_eq!(refused.len(), 1, "at {length}");
            continue;
        }
        let (calls, wrong) = replay(place.path());
        counts.push(calls);
        let is_named = |text: &String| {
            text.starts_with("partial: ") || text.contains("before the state of the core")
        };
        assert!(wrong.iter().all(is_named), "at {length}: {wrong:?}");
    }
    assert!(counts.is_sorted_by(|one, other| one >= other));
    assert!(
        counts.iter().any(|calls| *calls > all / 2),
        "{counts:?} of {all}"
    );
}

#[test]
fn files_that_are_no_recordings_are_named() {
    let place = tempfile::tempdir().expect("a directory");
    let none = recordings(place.path()).expect_err("no files").to_string();
    assert!(none.contains("DIPOLE_RECORD="), "{none}");
    fs::write(place.path().join("a.dprec"), "something else altogether").expect("our file");
    fs::create_dir(place.path().join("b.dprec")).expect("our directory");
    let fifo = place.path().join("c.dprec");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo").success());
    let mut other = b"DIPOLREC".to_vec();
    other.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    fs::write(place.path().join("d.dprec"), other).expect("our file");
    let (found, refused) = recordings(place.path()).expect("files");
    assert!(found.is_empty());
    let texts: Vec<String> = refused.iter().map(|(_, cause)| cause.to_string()).collect();
    assert_eq!(texts[0], "it is not a recording of Dipole");
    assert_eq!(texts[1], "it is not a regular file");
    assert_eq!(texts[2], "it is not a regular file");
    assert!(texts[3].contains("format 9"), "{texts:?}");
}

#[test]
fn a_full_disk_stops_the_recording_and_nothing_else() {
    // Every write to this device fails like on a full disk; here the first one.
    let place = tempfile::tempdir().expect("a directory");
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount a small file system");
        return;
    }
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(place.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot mount a tmpfs");
        return;
    }
    let mut machine = machine();
    let begun = machine.record(options(place.path()), Instant(1));
    call(&mut machine, 1, 30_000);
    let (is_recorded, replayed) = (machine.is_recorded(), replay(place.path()));
    drop(machine);
    let unmounted = std::process::Command::new("umount")
        .arg("-l")
        .arg(place.path())
        .status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    begun.expect("room for the first file");
    assert!(!is_recorded, "the disk was full");
    let (calls, wrong) = replayed;
    assert!(calls > 100, "{calls}");
    assert!(
        wrong.iter().all(|text| text.starts_with("partial")),
        "{wrong:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_byte_is_reported_with_its_position(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let place = tempfile::tempdir().expect("a directory");
        let file = record(place.path(), 20);
        let mut bytes = fs::read(&file).expect("our file");
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(&file, &bytes).expect("our file");
        let (found, refused) = recordings(place.path()).expect("a file");
        let wrong = match found.is_empty() {
            true => refused.iter().map(|(_, cause)| cause.to_string()).collect(),
            false => replay(place.path()).1,
        };
        prop_assert_eq!(wrong.len(), 1, "byte {}: {:?}", at, wrong);
        prop_assert!(!wrong[0].starts_with("differs"), "{:?}", wrong);
    }
}
