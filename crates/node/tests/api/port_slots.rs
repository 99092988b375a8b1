//! Ports whose messages land in slots of a buffer.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dipole_node::{
    ActivePort, Address, Config, Endpoint, EndpointId, Landed, Links, Node, NodeId, PortContext,
    RegionError, RegionMemory, Rights, SendError, SlotMessage, Slots,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];
const SLOT: usize = 300_000;

/// Two nodes with a common directory, which exists as long as the first result.
fn two_nodes(links: Links) -> (TempDir, Node, Node) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        Node::open(Config { links, ..config }).expect("a node on loopback")
    };
    let (here, there) = (open(), open());
    (directory, here, there)
}

fn port(
    node: &Node,
    slots: Slots,
    handler: impl FnMut(&PortContext, Landed) + Send + 'static,
) -> ActivePort {
    let port = node.open_port_into(EndpointId(2), slots, handler);
    port.expect("a free endpoint")
}

fn slots(bytes: usize, count: usize) -> Slots {
    Slots::new(bytes, count).expect("memory")
}

fn targeting(node: &Node, id: u32) -> Endpoint {
    let from = node.endpoint(EndpointId(id)).expect("a free endpoint");
    from.target(Address::new(1, 2)).expect("it exists");
    from
}

/// Begins with the number and repeats it in each later byte, so that mixed messages are noticed.
fn numbered(number: u64, length: usize) -> Vec<u8> {
    let mut message = vec![number.to_le_bytes()[0] ^ 0x5a; length.max(8)];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// The number of a message, whose length and bytes must be right.
fn number(message: &[u8]) -> u64 {
    let number = u64::from_le_bytes(message[..8].try_into().expect("a number"));
    assert_eq!(message, numbered(number, message.len()), "message {number}");
    number
}

fn landed(landed: Landed) -> SlotMessage {
    match landed {
        Landed::InSlot(message) => message,
        Landed::Outside(message) => panic!("{} bytes outside", message.len()),
    }
}

fn received<T>(from: &Receiver<T>) -> T {
    from.recv_timeout(PATIENCE).expect("in time")
}

/// Waits until this memory begins with these bytes.
fn await_bytes(memory: &RegionMemory, expected: &[u8]) {
    let begun = Instant::now();
    let is_there = || {
        let same = memory.show(0, expected.len(), |bytes| bytes == expected);
        same.expect("inside")
    };
    while !is_there() {
        assert!(begun.elapsed() < PATIENCE, "the message did not land");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_message_lands_in_a_slot_and_is_handled_once_and_in_order() {
    let lengths = [8, 100_000, 1400, SLOT, 16_000, 9, 40_000, 1000];
    for links in BOTH {
        for count in [1, 2, 3, 40] {
            let (_directory, here, there) = two_nodes(links);
            let numbers = Arc::new(Mutex::new(Vec::new()));
            let kept = Arc::clone(&numbers);
            let port = port(&there, slots(SLOT, count), move |_, message| {
                let message = landed(message);
                assert_eq!(message.source(), Address::new(1, 1));
                assert!(message.slot() < count && message.memory().bytes() == SLOT);
                let number = message.show(number).expect("it is there");
                kept.lock().expect("no panic").push(number);
            });
            let from = targeting(&here, 1);
            for number in 0..400_u64 {
                let length = lengths[usize::try_from(number).expect("small") % lengths.len()];
                from.send(&numbered(number, length)).expect("sent");
            }
            let is_done = || port.handled() == 400;
            assert!(port.wait_until(PATIENCE, is_done).expect("it lives"));
            let numbers = numbers.lock().expect("no panic");
            assert!(
                numbers.iter().copied().eq(0..400),
                "{links:?}, {count} slots"
            );
        }
    }
}

#[test]
fn messages_of_several_senders_share_few_slots_without_mixing() {
    for links in BOTH {
        for count in [1, 2, 3] {
            let (_directory, here, there) = two_nodes(links);
            let (sender, handled) = channel();
            let _port = port(&there, slots(SLOT, count), move |_, message| {
                let message = landed(message);
                let number = message.show(number).expect("it is there");
                sender
                    .send((message.source().endpoint.0, number))
                    .expect("the test waits");
            });
            let senders: Vec<Endpoint> = (11..15).map(|id| targeting(&here, id)).collect();
            std::thread::scope(|scope| {
                for (index, from) in senders.iter().enumerate() {
                    scope.spawn(move || {
                        for number in 0..60_u64 {
                            // Long messages of some senders, short ones of others.
                            let long = (number + index as u64).is_multiple_of(3);
                            let length = if long { 200_000 } else { 500 };
                            from.send(&numbered(number, length)).expect("sent");
                        }
                    });
                }
                let mut next = [0; 4];
                for _ in 0..4 * 60 {
                    let (from, number) = received(&handled);
                    let next = &mut next[from as usize - 11];
                    assert_eq!(number, *next, "sender {from}");
                    *next += 1;
                }
            });
        }
    }
}

#[test]
fn a_message_lies_in_the_slot_before_its_handler_runs() {
    for links in BOTH {
        for length in [100, 3000, 200_000] {
            let (_directory, here, there) = two_nodes(links);
            let memory = RegionMemory::new(1 << 20).expect("memory");
            let ring = Slots::within(&memory, 4096, SLOT, 2).expect("inside");
            let (inside, is_inside) = channel();
            let (resume, resumed): (Sender<()>, _) = channel();
            let (sender, handled) = channel();
            let _port = port(&there, ring, move |_, message| {
                let message = landed(message);
                inside.send(message.slot()).expect("the test waits");
                received(&resumed);
                sender
                    .send((message.slot(), message.len()))
                    .expect("the test waits");
            });
            let from = targeting(&here, 1);
            from.send(&numbered(1, 50)).expect("sent");
            let first = received(&is_inside);
            // The handler is running, and the next message arrives meanwhile.
            let second = numbered(2, length);
            from.send(&second).expect("sent");
            let other = memory
                .part(4096 + (1 - first) * SLOT, SLOT)
                .expect("inside");
            await_bytes(&other, &second);
            for expected in [(first, 50), (1 - first, length)] {
                resume.send(()).expect("the handler waits");
                assert_eq!(received(&handled), expected);
            }
        }
    }
}

#[test]
fn a_sender_waits_while_all_slots_are_taken_and_nothing_is_lost() {
    for links in BOTH {
        for length in [8, 5000, 100_000] {
            let (_directory, here, there) = two_nodes(links);
            let (sender, handled) = channel();
            let port = port(&there, slots(SLOT, 3), move |_, message| {
                sender.send(landed(message)).expect("the test waits");
            });
            let from = targeting(&here, 1);
            let begun = Instant::now();
            let mut sent = 0;
            loop {
                assert!(begun.elapsed() < PATIENCE, "{sent} messages were sent");
                match from.try_send(&numbered(sent, length)) {
                    Ok(()) => sent += 1,
                    // The handler ran for as many messages as there are slots.
                    Err(SendError::Full { by_receiver, .. }) => {
                        if by_receiver && port.handled() == 3 {
                            break;
                        }
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(sent >= 3 && port.handled() == 3);
            // A send that waits returns after the slots were released.
            let last = numbered(sent, length);
            std::thread::scope(|scope| {
                scope.spawn(|| from.send(&last).expect("sent"));
                for expected in 0..=sent {
                    let message = received(&handled);
                    assert_eq!(message.show(number).expect("it is there"), expected);
                }
            });
        }
    }
}

#[test]
fn a_message_longer_than_a_slot_is_handled_outside_and_in_order() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (sender, handled) = channel();
        let _port = port(&there, slots(1000, 2), move |context, message| {
            let seen = match &message {
                Landed::InSlot(message) => (true, message.show(number).expect("it is there")),
                Landed::Outside(message) => (false, number(message)),
            };
            match &message {
                Landed::InSlot(message) => message.reply(b"in a slot"),
                Landed::Outside(message) => context.reply(message, b"outside"),
            }
            .expect("the sender is there");
            sender.send(seen).expect("the test waits");
        });
        let from = targeting(&here, 1);
        for (number, length) in [(0, 1000), (1, 1001), (2, 8), (3, 200_000), (4, 1000)] {
            from.send(&numbered(number, length)).expect("sent");
        }
        for number in 0..5 {
            let is_inside = number % 2 == 0;
            assert_eq!(received(&handled), (is_inside, number));
            let answer = from.receive_timeout(PATIENCE).expect("an answer");
            let expected: &[u8] = if is_inside { b"in a slot" } else { b"outside" };
            assert_eq!(&*answer, expected);
        }
    }
}

#[test]
fn a_slot_may_outlive_its_port_and_its_release_does_not_disturb_the_next_one() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (sender, handled) = channel();
        let open = || {
            let sender = sender.clone();
            port(&there, slots(1000, 1), move |_, message| {
                sender.send(landed(message)).expect("the test waits");
            })
        };
        let first = open();
        targeting(&here, 1).send(&numbered(1, 100)).expect("sent");
        let kept = received(&handled);
        drop(first);
        let _second = open();
        let from = targeting(&here, 3);
        from.send(&numbered(2, 100)).expect("sent");
        let other = received(&handled);
        from.send(&numbered(3, 100)).expect("sent");
        // The only slot of the second port is taken; releasing the first one's does not free it.
        assert_eq!(kept.show(number).expect("it is there"), 1);
        drop(kept);
        assert!(handled.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(other.show(number).expect("it is there"), 2);
        drop(other);
        assert_eq!(received(&handled).show(number).expect("it is there"), 3);
    }
}

#[test]
fn a_handler_that_panics_closes_the_port_and_releases_its_slot() {
    let (_directory, here, there) = two_nodes(Links::Shm);
    let memory = RegionMemory::new(64).expect("memory");
    let ring = Slots::within(&memory, 0, 64, 1).expect("inside");
    let port = port(&there, ring, |_, _| panic!("no"));
    targeting(&here, 1).send(b"message").expect("sent");
    let error = port.wait(PATIENCE).expect_err("it panicked");
    assert!(error.to_string().contains("no"), "{error}");
    drop(port);
    let mut bytes = [0; 7];
    memory.read(0, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"message");
}

#[test]
fn unreliable_messages_land_in_slots_too() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let port = port(&there, slots(100, 4), |_, message| {
            assert_eq!(landed(message).len(), 5);
        });
        let from = targeting(&here, 1);
        let begun = Instant::now();
        while port.handled() < 10 && begun.elapsed() < PATIENCE {
            from.send_unreliable(b"maybe").expect("a frame");
            port.wait(Duration::from_millis(1)).expect("it lives");
        }
        assert!(port.handled() >= 10);
    }
}

#[test]
fn messages_land_in_an_open_region_of_the_port_whose_handler_gets_notices() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let memory = RegionMemory::new(4096).expect("memory");
        let ring = Slots::within(&memory, 1024, 512, 2).expect("inside");
        let (sender, handled) = channel();
        let port = port(&there, ring, move |_, message| {
            let seen = match message {
                Landed::InSlot(message) => Err((message.slot(), message.len())),
                Landed::Outside(message) => Ok(message.notice().expect("a notice").value),
            };
            sender.send(seen).expect("the test waits");
        });
        let region = port
            .open_region(memory.clone(), Rights::ALL)
            .expect("it lives");
        let from = here.endpoint(EndpointId(1)).expect("a free endpoint");
        let edge = from.edge(Address::new(1, 2)).expect("usable");
        edge.send(b"to a slot").expect("sent");
        let (slot, length) = received(&handled).expect_err("no notice");
        edge.put_notify(region.key(), 0, b"to the start", 7)
            .expect("sent");
        assert_eq!(received(&handled), Ok(7));
        // Peers read what landed.
        let mut read = [0; 9];
        let at = 1024 + 512 * slot as u64;
        edge.get(region.key(), at, &mut read, PATIENCE)
            .expect("allowed");
        assert_eq!((&read, length), (b"to a slot", 9));
        let mut start = [0; 12];
        memory.read(0, &mut start).expect("inside");
        assert_eq!(&start, b"to the start");
    }
}

#[test]
fn slots_must_exist_and_lie_inside_their_memory() {
    let memory = RegionMemory::new(1000).expect("memory");
    for (offset, bytes, count) in [(0, 0, 1), (0, 1, 0)] {
        let refused = Slots::within(&memory, offset, bytes, count).expect_err("no slot");
        assert!(matches!(refused, RegionError::NoSlot), "{refused}");
        assert!(Slots::new(bytes, count).is_err());
    }
    for (offset, bytes, count) in [(0, 100, 11), (1, 1000, 1), (0, usize::MAX, 2)] {
        let refused = Slots::within(&memory, offset, bytes, count).expect_err("outside");
        assert!(
            matches!(refused, RegionError::OutOfBounds { .. }),
            "{refused}"
        );
    }
    Slots::within(&memory, 100, 90, 10).expect("inside");
}
