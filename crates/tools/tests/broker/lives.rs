//! A broker that is killed, with and without a service manager that stores its descriptors.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use dipole_link::{Class, Link};
use rustix::io::FdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::scene::{ALICE, BOB, CAROL, Scene, now_ns, numbers, wait_for};

/// Sends numbers to a link, which must receive all of them in order.
fn talk(scene: &Scene, link: &mut dipole_bpf::Bpf) {
    let (peer, _) = scene.peer();
    let at = link.local(Class::Small);
    for number in 0..50_u64 {
        peer.send_to(&number.to_le_bytes(), at).expect("sent");
    }
    assert_eq!(numbers(link, 50), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_broker_that_is_killed_leaves_nothing_and_the_next_fills_the_same_ring() {
    let Some(mut scene) = Scene::with_broker() else {
        return;
    };
    let mut link = scene.link(ALICE);
    let mut raw = scene.link(CAROL);
    assert!(raw.sends_raw());
    talk(&scene, &mut link);
    assert_eq!((link.stats().from_ring, link.stats().from_socket), (50, 0));
    scene.kill_broker();
    assert_eq!(scene.attached(), [], "the kernel has taken it away");
    talk(&scene, &mut link);
    assert_eq!((link.stats().from_ring, link.stats().from_socket), (50, 50));
    wait_for("no raw frames any more", || {
        spin(&scene, CAROL, &mut raw);
        (!raw.sends_raw()).then_some(())
    });
    let mut broker = scene.command();
    scene.start(&mut broker);
    wait_for("the ring again", || {
        spin(&scene, ALICE, &mut link);
        spin(&scene, CAROL, &mut raw);
        let interfaces = &scene.status()["interfaces"];
        let users = interfaces[0]["users"].as_array().map_or(0, Vec::len);
        (users == 2 && raw.sends_raw()).then_some(())
    });
    talk(&scene, &mut link);
    assert_eq!(
        (link.stats().from_ring, link.stats().from_socket),
        (100, 50)
    );
    talk(&scene, &mut raw);
}

/// Polls as the link's user until the link has checked its grant, which it does regularly.
fn spin(scene: &Scene, uid: u32, link: &mut dipole_bpf::Bpf) {
    scene.being(uid, || {
        for _ in 0..1 << 18 {
            let found = link.poll(now_ns(), Class::Small).expect("a link");
            assert_eq!(found, 0, "no process sends");
        }
    });
}

/// Plays the service manager: receives notifications and keeps descriptors.
struct Manager {
    kept: Arc<Mutex<Vec<(String, OwnedFd)>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    fn new(scene: &Scene) -> Manager {
        let socket = UnixDatagram::bind(scene.path("notify")).expect("our own folder");
        let nap = Some(Duration::from_millis(20));
        socket.set_read_timeout(nap).expect("a socket");
        let kept = Arc::<Mutex<Vec<(String, OwnedFd)>>>::default();
        let ends = Arc::<AtomicBool>::default();
        let thread = std::thread::spawn({
            let (kept, ends) = (Arc::clone(&kept), Arc::clone(&ends));
            move || {
                while !ends.load(Ordering::Relaxed) {
                    attend(&socket, &kept);
                }
            }
        });
        Manager {
            kept,
            ends,
            thread: Some(thread),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(String, OwnedFd)>> {
        self.kept.lock().expect("no panic")
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.kept().iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Waits until it has stored this number of the broker's descriptors.
    fn has(&self, wanted: usize) {
        wait_for("descriptors in keeping", || {
            let names = self.names();
            let granted = names.iter().filter(|name| name.starts_with("broker-"));
            (granted.count() == wanted).then_some(())
        });
    }

    /// Starts the broker with the stored descriptors, in a different order.
    fn start(&self, scene: &mut Scene) {
        let mut command = scene.command();
        command.env("NOTIFY_SOCKET", scene.path("notify"));
        let mut first = 600;
        let mut names = Vec::new();
        let handed: Vec<OwnedFd> = (self.kept().iter().rev().zip(0..))
            .map(|((name, file), index)| {
                names.push(name.clone());
                let number = first + index;
                let copy = rustix::io::fcntl_dupfd_cloexec(file, number).expect("a number");
                if index == 0 {
                    first = copy.as_raw_fd();
                }
                assert_eq!(copy.as_raw_fd(), first + index, "one after the other");
                rustix::io::fcntl_setfd(&copy, FdFlags::empty()).expect("a descriptor");
                copy
            })
            .collect();
        command.env("LISTEN_FDS", handed.len().to_string());
        command.env("LISTEN_FDS_FIRST_FD", first.to_string());
        command.env("LISTEN_FDNAMES", names.join(":"));
        scene.start(&mut command);
        drop(handed);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn attend(socket: &UnixDatagram, kept: &Mutex<Vec<(String, OwnedFd)>>) {
    let mut text = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let Ok(received) = recvmsg(socket, &mut into, &mut ancillary, flags) else {
        return;
    };
    let text = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
    let Some(name) = name else { return };
    let mut kept = kept.lock().expect("no panic");
    if text.contains("FDSTOREREMOVE=1") {
        kept.retain(|(of, _)| of != name);
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            kept.extend(files.map(|one| (name.to_owned(), one)));
        }
    }
}

#[test]
fn rings_are_filled_while_a_broker_is_started_again_and_those_of_the_dead_are_swept() {
    let Some(mut scene) = Scene::set() else {
        return;
    };
    let manager = Manager::new(&scene);
    manager.start(&mut scene);
    let mut link = scene.link(BOB);
    let dying = scene.link(ALICE);
    let raw = scene.link(CAROL);
    talk(&scene, &mut link);
    // The list of live grants, the program, and the guard.
    manager.has(1 + 4 + 3);
    scene.kill_broker();
    assert_eq!(scene.attached().len(), 2, "program and guard");

    // The ring is filled without a broker.
    talk(&scene, &mut link);
    assert_eq!((link.stats().from_ring, link.stats().from_socket), (100, 0));
    drop(dying);
    drop(raw);
    manager.start(&mut scene);
    talk(&scene, &mut link);
    assert_eq!((link.stats().from_ring, link.stats().from_socket), (150, 0));
    // The link requests again, and the ring is counted once.
    wait_for("one user", || {
        spin(&scene, BOB, &mut link);
        let status = scene.status();
        let users = status["interfaces"][0]["users"].as_array()?.clone();
        (users.len() == 1 && users[0]["uid"] == BOB && status["rings"] == 1).then_some(())
    });
    // The guard is detached with its last socket.
    manager.has(1 + 4);
    assert_eq!(scene.attached().len(), 1, "the program");
    // Unclaimed rings are removed, the claimed one stays.
    wait_for("the sweep", || {
        let text = scene.said();
        text.contains("was not claimed").then_some(())
    });
    talk(&scene, &mut link);
    assert_eq!((link.stats().from_ring, link.stats().from_socket), (200, 0));
    drop(link);
    wait_for("nothing attached", || {
        scene.attached().is_empty().then_some(())
    });
    manager.has(1);

    // The ring of a process that dies while no broker runs is removed with its program.
    let last = scene.link(ALICE);
    manager.has(1 + 4);
    scene.kill_broker();
    drop(last);
    assert_eq!(scene.attached().len(), 1);
    manager.start(&mut scene);
    wait_for("nothing attached", || {
        scene.attached().is_empty().then_some(())
    });
    manager.has(1);
}
