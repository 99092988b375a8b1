//! Peers that violate every rule harm only their own connection.

mod common;

use std::fs::{File, Permissions};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use common::{Side, other, pattern, role, seed};
use dipole_link::shm::{CloseReason, ConnId, Hub, PushError, ShmError, ShmOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Resource, Rlimit};

/// Index of this child process.
const NUMBER: &str = "DIPOLE_SHM_TEST_NUMBER";

// Socket messages, as in `shm/control.rs`.
const HELLO: u8 = 1;
const RING: u8 = 2;
const WAKE: u8 = 3;
const NO_DESCRIPTORS: u8 = 5;
const PAGE_BYTES: u64 = 4096;

fn raw_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket")
}

fn raw_connect(socket: &OwnedFd, path: &Path) {
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(socket, &address).expect("a listener");
}

fn connected(path: &Path) -> OwnedFd {
    let socket = raw_socket();
    raw_connect(&socket, path);
    socket
}

/// Sends a raw message; false if the socket is full or closed.
fn say(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags).is_ok()
}

fn is_hung_up(socket: &OwnedFd) -> bool {
    let files = &mut [PollFd::new(socket, PollFlags::empty())];
    rustix::event::poll(files, Some(&Timespec::default())).expect("a socket");
    files[0].revents().contains(PollFlags::HUP)
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let files = &mut [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::event::poll(files, Some(&Timespec::default())).expect("a descriptor") > 0
}

fn greeting() -> Vec<u8> {
    [&[HELLO][..], &[0; 16], b"raw"].concat()
}

fn memory(bytes: u64, seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("raw", flags).expect("memory");
    rustix::fs::ftruncate(&file, bytes).expect("memory");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file.into()
}

fn sealed(bytes: u64) -> File {
    memory(bytes, SealFlags::SHRINK | SealFlags::GROW)
}

/// A peer made by hand that sends a correct greeting: its socket, bell and page.
fn greeted(path: &Path) -> (OwnedFd, File, File) {
    let socket = connected(path);
    let (bell, page) = (sealed(PAGE_BYTES), sealed(PAGE_BYTES));
    assert!(say(&socket, &greeting(), &[bell.as_fd(), page.as_fd()]));
    (socket, bell, page)
}

/// Checks that another hub can connect and its record arrives.
fn still_serves(side: &mut Side) {
    let mut honest = Side::new();
    let conn = honest.hub.connect(&side.path()).expect("a listener");
    let here = side.wait("an honest peer", &mut || (), |side| {
        honest.poll_connections();
        side.try_opened(b"hello")
    });
    honest.opened();
    honest.push(conn, 5, &pattern(5, 500));
    let (from, tag, bytes) = side.receive();
    assert_eq!((from, tag), (here, 5));
    assert!(bytes == pattern(5, 500));
    honest.hub.close(conn);
    side.wait("its end", &mut || (), |side| side.try_closed(here));
}

/// Time after which the test counts as hung.
const LONGEST: Duration = Duration::from_secs(100);
const SCRIBBLERS: u64 = 6;
const CONNECTIONS: u32 = 200;
const HONEST_RECORDS: u64 = 40_000;

/// Shared memory that this process can write: start and end addresses.
fn shared() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let hex = |text| u64::from_str_radix(text, 16).expect("an address");
    maps.lines()
        .filter(|line| line.contains("memfd:dipole") && line.contains(" rw"))
        .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
        .map(|(start, end)| (hex(start), hex(end)))
        .collect()
}

/// A word to write and its address: perhaps the header of the next slot, perhaps anything
/// anywhere.
fn scribble((start, end): (u64, u64), pushed: u64, random: &mut StdRng) -> (u64, u64) {
    let length = match random.random_range(0..4) {
        0 => random.random_range(0..200),
        1 => random.random_range(0..70_000),
        2 => random.random_range(65_530..65_540),
        _ => random.random::<u32>().into(),
    };
    let position = (pushed + random.random_range(0..4)).saturating_sub(2);
    let (slots, first) = match end - start {
        PAGE_BYTES => (8, 256),
        _ => (1024, 128),
    };
    let header = (position + 1) << 32 | length;
    if random.random_bool(0.5) {
        return (start + first + position % slots * 128, header);
    }
    let span = match random.random_bool(0.5) {
        true => (end - start).min(PAGE_BYTES),
        false => end - start,
    };
    let at = start + random.random_range(0..span / 8) * 8;
    let anything = [header, position, u64::MAX, random.random()];
    (at, anything[random.random_range(0..anything.len())])
}

/// Opens one connection after another: sends some correct records, then writes random words to
/// all shared memory that this process can write.
fn be_hostile(path: &Path, random: &mut StdRng) {
    let memory = File::options()
        .write(true)
        .open("/proc/self/mem")
        .expect("/proc");
    for _ in 0..CONNECTIONS {
        let mut side = Side::greeting(b"scribbler");
        let conn = side.hub.connect(path).expect("a listener");
        // Its own bell will be overwritten, so it cannot sleep.
        side.wait_awake("an answer", |side| side.try_opened(b"hello"));
        let (correct, scribbles) = (random.random_range(0..60), random.random_range(0..60));
        let longest = [100, 2000, 40_000][random.random_range(0..3)];
        let (mut ranges, mut pushed) = (Vec::new(), 0);
        for round in 0..correct + scribbles {
            let length = random.random_range(0..longest);
            let result = side.hub.push(conn, random.random(), &pattern(1, length));
            pushed += u64::from(result.is_ok());
            side.hub.wake_peer(conn);
            if round < correct {
                continue;
            }
            if ranges.is_empty() || round % 16 == 0 {
                ranges = shared();
            }
            let range = ranges[random.random_range(0..ranges.len())];
            let (at, word) = scribble(range, pushed, random);
            if memory.write_all_at(&word.to_ne_bytes(), at).is_err() {
                // The hub has closed the connection meanwhile.
                ranges.clear();
            }
            side.hub.poll(16, &mut |_, _, _| None);
            let _ = side.hub.is_read(conn);
            let _ = side.hub.answers(conn);
            if random.random_bool(0.05) {
                side.poll_connections();
                side.hub.arm();
            }
            if random.random_bool(0.2) {
                std::thread::yield_now();
            }
        }
    }
}

/// Runs one child of the next test: number 0 is honest, the others are hostile.
fn run_child(path: &Path) {
    let number: u64 = std::env::var(NUMBER)
        .expect("set")
        .parse()
        .expect("a number");
    if number > 0 {
        be_hostile(path, &mut StdRng::seed_from_u64(seed() + number));
        return;
    }
    let mut side = Side::greeting(b"honest");
    let conn = side.connect(path);
    for number in 0..HONEST_RECORDS {
        side.push(conn, number, &pattern(number, (number % 700) as usize));
    }
    side.flush(conn);
}

#[test]
fn peers_that_overwrite_shared_memory_harm_only_themselves() {
    let name = "peers_that_overwrite_shared_memory_harm_only_themselves";
    if let Some(path) = role() {
        run_child(&path);
        return;
    }
    let mut random = StdRng::seed_from_u64(seed());
    let mut side = Side::new();
    let mut children: Vec<_> = (0..=SCRIBBLERS)
        .map(|number| {
            other(name, &side)
                .env(NUMBER, number.to_string())
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("another process")
        })
        .collect();
    let running = |children: &mut Vec<Child>| {
        let still = |child: &mut Child| child.try_wait().expect("a child").is_none();
        children.iter_mut().any(still)
    };
    let (mut honest, mut next) = (None::<ConnId>, 0);
    let (mut opened, mut ended) = (0, 0);
    let begun = Instant::now();
    // Wait until all children have connected and ended, and all their events are processed.
    while opened <= SCRIBBLERS || ended < opened || running(&mut children) {
        assert!(begun.elapsed() < LONGEST, "{next} honest records so far");
        side.poll();
        side.poll_connections();
        while let Some((conn, peer)) = side.take_opened() {
            opened += 1;
            if peer.greeting == b"honest" {
                honest = Some(conn);
            }
        }
        while side.take_closed().is_some() {
            ended += 1;
        }
        while let Some((conn, tag, bytes)) = side.take_record() {
            if Some(conn) == honest {
                assert_eq!(tag, next);
                assert!(bytes == pattern(next, (next % 700) as usize), "{next}");
                next += 1;
                continue;
            }
            // Answers go to where the hostile side claims to have read.
            let length = random.random_range(0..300);
            match side.hub.push(conn, 1, &pattern(1, length)) {
                Ok(()) | Err(PushError::Gone) => {}
                Err(PushError::Full) => side.hub.want_room(conn),
                Err(error) => panic!("{error:?}"),
            }
            side.hub.wake_peer(conn);
        }
        // Sleep for a moment, so that wake-ups are sent, too.
        if side.hub.arm() {
            std::thread::yield_now();
        }
        side.hub.disarm();
    }
    assert_eq!(next, HONEST_RECORDS);
    println!("{:?}", side.hub.stats());
    assert!(side.hub.stats().violations > 0, "no violation was detected");
    for (number, child) in children.iter_mut().enumerate() {
        let status = child.wait().expect("a status");
        assert!(status.success(), "child {number}: {status}");
    }
    still_serves(&mut side);
}

#[test]
fn memory_that_is_unsealed_or_of_the_wrong_kind_is_refused() {
    let mut side = Side::new();
    let path = side.path();
    let null = File::open("/dev/null").expect("a file");
    let good = || sealed(PAGE_BYTES);
    let half_sealed = || memory(PAGE_BYTES, SealFlags::GROW);
    let unsealed = || memory(PAGE_BYTES, SealFlags::empty());
    let refused: Vec<(&str, Vec<File>)> = vec![
        ("no descriptors", vec![]),
        ("one descriptor", vec![good()]),
        ("a device", vec![good(), null]),
        ("unsealed memory", vec![good(), unsealed()]),
        ("memory that may shrink", vec![good(), half_sealed()]),
        ("an unsealed bell", vec![unsealed(), good()]),
        ("short memory", vec![good(), sealed(4095)]),
        ("no memory", vec![good(), sealed(0)]),
        ("long memory", vec![good(), sealed(8192)]),
    ];
    let mut broken = 0;
    for (what, files) in &refused {
        let socket = connected(&path);
        let files: Vec<_> = files.iter().map(File::as_fd).collect();
        assert!(say(&socket, &greeting(), &files));
        side.wait(what, &mut || (), |_| is_hung_up(&socket).then_some(()));
        broken += 1;
        assert_eq!(side.hub.stats().violations, broken, "{what}");
    }
    assert!(side.take_opened().is_none());
    still_serves(&mut side);
}

#[test]
fn a_malformed_message_on_the_socket_ends_that_connection() {
    let mut side = Side::new();
    let path = side.path();
    let too_long = [&greeting()[..], &[7; 64]].concat();
    let first: [&[u8]; 6] = [
        &[9],
        &[HELLO, 1, 2],
        &[RING],
        &[RING, 0],
        &too_long,
        &[0; 300],
    ];
    for bytes in first {
        let socket = connected(&path);
        assert!(say(&socket, bytes, &[]));
        side.wait("the end", &mut || (), |_| is_hung_up(&socket).then_some(()));
    }
    assert_eq!(side.hub.stats().violations, 6);
    assert!(side.take_opened().is_none() && side.take_closed().is_none());
    for bytes in first {
        let (socket, ..) = greeted(&path);
        side.opened();
        assert!(say(&socket, bytes, &[]));
        assert!(matches!(side.closed(), CloseReason::Violation { .. }));
    }
    let (socket, bell, page) = greeted(&path);
    side.opened();
    assert!(say(&socket, &greeting(), &[bell.as_fd(), page.as_fd()]));
    assert!(matches!(side.closed(), CloseReason::Violation { .. }));
    // A record that announces a ring that was never sent.
    let (_socket, _, page) = greeted(&path);
    side.opened();
    page.write_all_at(&u64::MAX.to_le_bytes(), 264)
        .expect("memory");
    page.write_all_at(&(1_u64 << 32).to_le_bytes(), 256)
        .expect("memory");
    assert!(matches!(side.closed(), CloseReason::Violation { .. }));
    // A record that is too long.
    let (_socket, _, page) = greeted(&path);
    side.opened();
    page.write_all_at(&(1_u64 << 32 | 113).to_le_bytes(), 256)
        .expect("memory");
    assert!(matches!(side.closed(), CloseReason::Violation { .. }));
    still_serves(&mut side);
}

#[test]
fn descriptors_attached_to_any_message_do_not_pile_up() {
    let mut side = Side::new();
    let (socket, bell, page) = greeted(&side.path());
    side.opened();
    let files: Vec<_> = (0..8)
        .map(|at| {
            if at % 2 == 0 {
                bell.as_fd()
            } else {
                page.as_fd()
            }
        })
        .collect();
    let inode = |file: BorrowedFd<'_>| rustix::fs::fstat(file).expect("a file").st_ino;
    let own = [inode(bell.as_fd()), inode(page.as_fd())];
    let mut sent = 0;
    while sent < 2000 {
        while sent < 2000 && say(&socket, &[WAKE], &files) {
            sent += 1;
        }
        side.poll_connections();
    }
    side.wait("silence", &mut || (), |side| {
        (!is_readable(side.hub.descriptor())).then_some(())
    });
    let held = std::fs::read_dir("/proc/self/fd")
        .expect("/proc")
        .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
        .filter(|found| own.contains(&std::os::unix::fs::MetadataExt::ino(found)));
    // Only ours is left; the kernel's socket queue holds none.
    assert_eq!(held.count(), 2);
    still_serves(&mut side);
}

#[test]
fn a_peer_that_never_reads_its_socket_does_not_block_the_hub() {
    let mut side = Side::new();
    let (socket, bell, _page) = greeted(&side.path());
    let conn = side.opened();
    for epoch in 0..5000_u64 {
        // A new sleep each time.
        bell.write_all_at(&(2 * epoch + 1).to_le_bytes(), 0)
            .expect("memory");
        side.hub.wake_peer(conn);
    }
    // The socket has no room for the large ring either.
    assert_eq!(side.hub.push(conn, 1, &[1; 5000]), Err(PushError::Full));
    still_serves(&mut side);
    drop(socket);
    assert_eq!(side.closed(), CloseReason::HungUp);
}

#[test]
fn connections_without_a_greeting_are_limited_and_block_no_others() {
    const SILENT: usize = 600;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let more = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, more).expect("up to what is allowed");
    let mut side = Side::new();
    let path = side.path();
    let mut sockets = Vec::new();
    for _ in 0..SILENT {
        sockets.push(connected(&path));
        side.poll_connections();
    }
    let alive = sockets.iter().filter(|socket| !is_hung_up(socket)).count();
    assert_eq!(alive, 256);
    assert!(!is_hung_up(&sockets[SILENT - 1]), "the youngest stays");
    still_serves(&mut side);
    // One of them sends its greeting late.
    let (bell, page) = (sealed(PAGE_BYTES), sealed(PAGE_BYTES));
    assert!(say(
        &sockets[SILENT - 1],
        &greeting(),
        &[bell.as_fd(), page.as_fd()]
    ));
    side.opened();
}

#[test]
fn without_descriptors_peers_are_rejected_and_the_hub_stays_idle() {
    if role().is_none() {
        // The limit applies to the whole process.
        let side = Side::new();
        let name = "without_descriptors_peers_are_rejected_and_the_hub_stays_idle";
        let status = other(name, &side).status().expect("another process");
        assert!(status.success());
        return;
    }
    let mut side = Side::new();
    let path = side.path();
    let sockets: Vec<_> = (0..10).map(|_| raw_socket()).collect();
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let set = |current| {
        let maximum = limit.maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a limit");
    };
    // The lowest free descriptor exceeds the limit.
    let next = side.hub.descriptor().try_clone_to_owned().expect("room");
    let lowest_free = std::os::fd::AsRawFd::as_raw_fd(&next);
    drop(next);
    set(Some(u64::try_from(lowest_free).expect("a descriptor")));
    for socket in &sockets {
        raw_connect(socket, &path);
    }
    for _ in 0..3 {
        side.poll_connections();
    }
    assert!(sockets.iter().all(is_hung_up), "left waiting");
    assert!(!is_readable(side.hub.descriptor()), "would never sleep");
    set(limit.current);
    still_serves(&mut side);
}

/// Lowers the limit of descriptors of this process so that `free` more can be opened.
fn leave_descriptors(free: u64) {
    let held: Vec<_> = (0..=free).map(|_| raw_socket()).collect();
    let last = held.last().map(std::os::fd::AsRawFd::as_raw_fd);
    let last = last.and_then(|last| u64::try_from(last).ok());
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: last,
        maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, limit).expect("a lower limit");
}

#[test]
fn a_side_without_descriptors_for_the_memory_is_named_as_the_reason() {
    let name = "a_side_without_descriptors_for_the_memory_is_named_as_the_reason";
    let lacks = |at_peer| CloseReason::NoDescriptors { at_peer };
    // The limit applies to the whole process.
    let Some(path) = role() else {
        let mut side = Side::new();
        let mut child = other(name, &side).spawn().expect("another process");
        side.opened();
        assert_eq!(side.closed(), lacks(true));
        assert!(child.wait().expect("a child").success());
        assert_eq!(side.hub.stats().violations, 0);
        still_serves(&mut side);
        return;
    };
    let mut side = Side::new();
    let (bell, page) = (sealed(PAGE_BYTES), sealed(PAGE_BYTES));
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // The accepted socket takes one, and the page and the bell are two more.
    for free in [1, 2] {
        let client = connected(&side.path());
        assert!(say(&client, &greeting(), &[bell.as_fd(), page.as_fd()]));
        leave_descriptors(free);
        for _ in 0..3 {
            side.poll_connections();
        }
        rustix::process::setrlimit(Resource::Nofile, limit).expect("the previous limit");
        let mut bytes = [0; 9];
        let received = rustix::net::recv(&client, &mut bytes, RecvFlags::DONTWAIT);
        assert_eq!(
            (received.expect("a reason").0, bytes[0]),
            (1, NO_DESCRIPTORS)
        );
        assert!(is_hung_up(&client), "{free}");
    }
    // The socket and the memory that is sent are two; no more is left for the peer's bell.
    leave_descriptors(2);
    side.hub.connect(&path).expect("room");
    let _last = raw_socket();
    assert_eq!(side.closed(), lacks(false));
    assert_eq!(side.hub.stats().violations, 0);
}

/// Runs a test of this program as another user, in its role as the other process.
fn as_nobody(test: &str, side: &Side) {
    const NOBODY: u32 = 65_534;
    // This program may be in a directory that only root can access.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("own");
    let program = folder.path().join("program");
    // Copy in another process: a child that a concurrent test starts would inherit the open
    // copy, and a file that is open for writing cannot be executed.
    let copied = std::process::Command::new("cp")
        .args([&std::env::current_exe().expect("this program"), &program])
        .status();
    assert!(copied.expect("cp").success());
    let asked = other(test, side);
    let mut command = std::process::Command::new(&program);
    command.args(asked.get_args()).uid(NOBODY).gid(NOBODY);
    for (name, value) in asked.get_envs() {
        command.env(name, value.expect("set"));
    }
    let status = command.current_dir("/").status().expect("another process");
    assert!(status.success());
}

/// A side with a socket that everyone can reach; `None` if this process cannot change its user.
fn reachable() -> Option<(tempfile::TempDir, Side)> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can try as another user");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("own");
    let side = Side::at(&folder.path().join("socket"), b"");
    Some((folder, side))
}

#[test]
fn another_user_cannot_connect() {
    if let Some(path) = role() {
        let mut side = Side::new();
        let error = side.hub.connect(&path).expect_err("not allowed");
        assert!(error.to_string().contains("Permission denied"), "{error}");
        return;
    }
    let Some((_folder, mut side)) = reachable() else {
        return;
    };
    as_nobody("another_user_cannot_connect", &side);
    side.poll_connections();
    assert!(side.take_opened().is_none());
    still_serves(&mut side);
}

#[test]
fn both_sides_refuse_another_user_that_file_modes_would_admit() {
    if let Some(path) = role() {
        let mut side = Side::new();
        let error = side.hub.connect(&path).expect_err("another user's");
        assert!(
            matches!(error, ShmError::Foreign { uid: 0, .. }),
            "{error:?}"
        );
        // A client that does not check the listener's user.
        greeted(&path);
        return;
    }
    let Some((_folder, mut side)) = reachable() else {
        return;
    };
    std::fs::set_permissions(side.path(), Permissions::from_mode(0o666)).expect("own");
    as_nobody(
        "both_sides_refuse_another_user_that_file_modes_would_admit",
        &side,
    );
    side.poll_connections();
    assert!(side.take_opened().is_none());
    assert_eq!(side.hub.stats().foreign_users, 2);
    still_serves(&mut side);
}

#[test]
fn a_connection_over_the_limit_is_rejected_until_another_one_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let options = ShmOptions {
        max_connections: 1,
        ..ShmOptions::default()
    };
    let mut narrow = Side::at(&folder.path().join("unused"), b"");
    narrow.hub = Hub::open(&path, b"narrow", &options).expect("a socket");
    let (mut first, mut second) = (Side::new(), Side::new());
    let held = first.hub.connect(&path).expect("a listener");
    narrow.opened();
    first.opened();
    let refused = second.hub.connect(&path).expect("a listener");
    narrow.poll_connections();
    assert_eq!(second.closed_one(), (refused, CloseReason::Full));
    assert_eq!(narrow.hub.stats().rejected, 1);
    let error = narrow.hub.connect(&second.path()).expect_err("the limit");
    assert!(matches!(error, ShmError::TooMany { limit: 1 }), "{error:?}");
    first.push(held, 1, b"still there");
    assert_eq!(narrow.receive().2, b"still there");
    first.hub.close(held);
    assert_eq!(narrow.closed(), CloseReason::HungUp);
    second.hub.connect(&path).expect("a listener");
    narrow.opened();
    second.opened();
}
