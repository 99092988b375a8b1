//! Active ports through the public API.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use dipole_node::{
    ActivePort, Address, Config, Endpoint, EndpointId, Links, Message, Node, NodeId, PortContext,
    PortError, SendError,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];

fn node(directory: &TempDir, links: Links) -> Node {
    let config = Config::local(NodeId(1), directory.path().join("dipole"));
    Node::open(Config { links, ..config }).expect("a node on loopback")
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Two nodes with a common directory, which exists as long as the first result.
fn two_nodes(links: Links) -> (TempDir, Node, Node) {
    let directory = directory();
    let (here, there) = (node(&directory, links), node(&directory, links));
    (directory, here, there)
}

fn endpoint(node: &Node, id: u32) -> Endpoint {
    node.endpoint(EndpointId(id)).expect("a free endpoint")
}

fn port(
    node: &Node,
    id: u32,
    handler: impl FnMut(&PortContext, Message) + Send + 'static,
) -> ActivePort {
    node.open_port(EndpointId(id), handler)
        .expect("a free endpoint")
}

fn targeting(node: &Node, id: u32, to: u32) -> Endpoint {
    let from = endpoint(node, id);
    from.target(Address::new(1, to)).expect("it exists");
    from
}

fn number(message: &[u8]) -> u64 {
    u64::from_le_bytes(message[..8].try_into().expect("a number"))
}

/// A counter for a handler, and its owner's reference to it.
fn counter() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let counter = Arc::new(AtomicUsize::new(0));
    (Arc::clone(&counter), counter)
}

fn holds(port: &ActivePort, condition: impl FnMut() -> bool) {
    assert!(port.wait_until(PATIENCE, condition).expect("it lives"));
}

#[test]
fn a_handler_runs_once_per_message_in_the_order_of_the_edge() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&numbers);
        let port = port(&there, 2, move |_, message| {
            assert_eq!(message.source(), Address::new(1, 1));
            kept.lock().expect("no panic").push(number(&message));
        });
        let from = targeting(&here, 1, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..5000_u64 {
                    // Long messages are assembled from pieces.
                    let mut payload = vec![0; if number % 500 == 7 { 100_000 } else { 8 }];
                    payload[..8].copy_from_slice(&number.to_le_bytes());
                    from.send(&payload).expect("sent");
                }
            });
            holds(&port, || port.handled() == 5000);
        });
        let numbers = numbers.lock().expect("no panic");
        assert!(numbers.iter().copied().eq(0..5000));
    }
}

#[test]
fn handlers_run_even_if_their_process_makes_no_calls() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (sender, handled) = channel();
        let _port = port(&there, 2, move |context, message| {
            context.reply(&message, b"seen").expect("it is there");
            sender.send(message.to_vec()).expect("the test waits");
        });
        let from = targeting(&here, 1, 2);
        from.send(b"hello").expect("sent");
        let message = handled.recv_timeout(PATIENCE).expect("handled");
        assert_eq!(message, b"hello");
        let answer = from.receive_timeout(PATIENCE).expect("answered");
        assert_eq!(&*answer, b"seen");
    }
}

#[test]
fn handlers_run_on_threads_that_wait_for_other_events() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let waiting = endpoint(&there, 3);
        let to_itself = targeting(&there, 4, 3);
        let _port = port(&there, 2, move |_, message| {
            to_itself.send(&message).expect("sent");
        });
        let from = targeting(&here, 1, 2);
        for _ in 0..100 {
            from.send(b"on").expect("sent");
            let message = waiting.receive_timeout(PATIENCE).expect("handed on");
            assert_eq!(&*message, b"on");
        }
    }
}

#[test]
fn ports_can_play_ping_pong_in_their_handlers() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let _server = port(&there, 2, |context, message| {
            context.reply(&message, &message).expect("it is there");
        });
        let (rounds, counted) = counter();
        let client = port(&here, 1, move |context, message| {
            if counted.fetch_add(1, Ordering::Relaxed) < 999 {
                context.reply(&message, b"again").expect("it is there");
            }
        });
        let edge = client.edge(Address::new(1, 2)).expect("usable");
        edge.send(b"first").expect("sent");
        holds(&client, || rounds.load(Ordering::Relaxed) == 1000);
    }
}

#[test]
fn unreliable_messages_are_handled_by_ports() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let port = port(&there, 2, |_, _| {});
        let from = targeting(&here, 1, 2);
        let begun = Instant::now();
        while port.handled() < 10 && begun.elapsed() < PATIENCE {
            from.send_unreliable(b"maybe").expect("a frame");
            port.wait(Duration::from_millis(1)).expect("it lives");
        }
        assert!(port.handled() >= 10);
    }
}

#[test]
fn a_handler_that_panics_closes_its_port_and_both_sides_get_an_error() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let port = port(&there, 2, |_, message| {
            assert!(message.is_empty(), "not so long");
        });
        let from = targeting(&here, 1, 2);
        from.send(b"").expect("sent");
        from.send(b"x").expect("sent");
        let error = port.wait(PATIENCE).expect_err("it panicked");
        assert!(
            matches!(&error, PortError::Panicked { message, .. } if message == "not so long"),
            "{error}"
        );
        assert!(port.check().is_err());
        let begun = Instant::now();
        let refused = loop {
            match from.send(b"") {
                Ok(()) if begun.elapsed() < PATIENCE => std::thread::yield_now(),
                refused => break refused,
            }
        };
        assert!(
            matches!(refused, Err(SendError::Refused { .. })),
            "{refused:?}"
        );
        // The number is free again before the old port is dropped. Messages sent before the
        // sender got the error may still arrive there.
        let (handled, counted) = counter();
        let again = self::port(&there, 2, move |_, message| {
            if message.source() == Address::new(1, 3) {
                assert_eq!(&*message, b"again");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        targeting(&here, 3, 2).send(b"again").expect("sent");
        holds(&again, || handled.load(Ordering::Relaxed) == 1);
        drop(port);
    }
}

#[test]
fn closing_a_port_waits_for_its_handler_which_never_runs_again() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let inside = Arc::new(Barrier::new(2));
        let done = Arc::new(AtomicBool::new(false));
        let (met, finished) = (Arc::clone(&inside), Arc::clone(&done));
        let port = port(&there, 2, move |_, message| {
            if number(&message) == 0 {
                met.wait();
                // Long enough for the owner to start closing.
                std::thread::sleep(Duration::from_millis(20));
                finished.store(true, Ordering::Relaxed);
            }
        });
        let from = targeting(&here, 1, 2);
        for number in 0..100_u64 {
            from.send(&number.to_le_bytes()).expect("sent");
        }
        inside.wait();
        drop(port);
        assert!(done.load(Ordering::Relaxed));
    }
}

#[test]
fn a_handlers_state_is_dropped_with_its_port() {
    let directory = directory();
    let node = node(&directory, Links::Shm);
    let owned = Arc::new(());
    let kept = Arc::clone(&owned);
    let port = port(&node, 2, move |_, _| {
        let _kept = &kept;
    });
    assert_eq!(Arc::strong_count(&owned), 2);
    drop(port);
    assert_eq!(Arc::strong_count(&owned), 1);
}

#[test]
fn a_handler_may_drop_its_own_port_and_the_last_handle_of_its_node() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let place: Arc<Mutex<Option<(ActivePort, Node)>>> = Arc::default();
        let own = Arc::clone(&place);
        let (sender, dropped) = channel();
        let port = port(&there, 2, move |_, _| {
            drop(own.lock().expect("no panic").take());
            sender.send(()).expect("the test waits");
        });
        *place.lock().expect("no panic") = Some((port, there));
        let from = targeting(&here, 1, 2);
        from.send(b"bye").expect("sent");
        dropped.recv_timeout(PATIENCE).expect("dropped");
        let begun = Instant::now();
        while from.send(b"").is_ok() {
            assert!(begun.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn a_handler_may_close_its_port() {
    let directory = directory();
    let node = node(&directory, Links::Shm);
    let port = port(&node, 2, |context, _| context.close());
    targeting(&node, 1, 2).send(b"last").expect("sent");
    let closed = port.wait(PATIENCE).expect_err("closed");
    assert!(matches!(closed, PortError::Closed { .. }), "{closed}");
}

#[test]
fn a_handler_may_wait_while_others_run() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        // A chain of ports: each one sends a request to the next and waits for the reply in its
        // handler.
        let depth = 6_u32;
        let mut ports = Vec::new();
        for id in 0..depth {
            let asking = endpoint(&there, 100 + id);
            ports.push(port(&there, id, move |context, message| {
                let sum = if id + 1 == depth {
                    1
                } else {
                    let next = Address::new(1, id + 1);
                    asking.send_to(next, b"?").expect("it exists");
                    number(&asking.receive_timeout(PATIENCE).expect("answered")) + 1
                };
                context
                    .reply(&message, &u64::to_le_bytes(sum))
                    .expect("it is there");
            }));
        }
        let from = targeting(&here, 1000, 0);
        for _ in 0..10 {
            from.send(b"?").expect("sent");
            let answer = from.receive_timeout(PATIENCE).expect("answered");
            assert_eq!(number(&answer), u64::from(depth));
        }
    }
}

#[test]
fn a_handler_that_waits_for_its_own_port_gets_an_error() {
    let directory = directory();
    let node = node(&directory, Links::Shm);
    let place: Arc<Mutex<Option<ActivePort>>> = Arc::default();
    let own = Arc::clone(&place);
    let (sender, told) = channel();
    let port = port(&node, 2, move |_, _| {
        let waited = own
            .lock()
            .expect("no panic")
            .as_ref()
            .map(|port| port.wait(PATIENCE));
        sender.send(waited).expect("the test waits");
    });
    *place.lock().expect("no panic") = Some(port);
    targeting(&node, 1, 2).send(b"x").expect("sent");
    let waited = told.recv_timeout(PATIENCE).expect("it ran");
    assert!(matches!(waited, Some(Err(PortError::WithinHandler { .. }))));
    drop(place.lock().expect("no panic").take());
}

#[test]
fn a_slow_handler_does_not_delay_other_ports_or_waiting_threads() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let release = Arc::new(Barrier::new(2));
        let held = Arc::clone(&release);
        let (entered, inside) = channel();
        let slow = port(&there, 2, move |_, _| {
            entered.send(()).expect("the test waits");
            held.wait();
        });
        let (quick, handled) = counter();
        let quick_port = port(&there, 3, move |_, _| {
            handled.fetch_add(1, Ordering::Relaxed);
        });
        let inbox = endpoint(&there, 4);
        let to_slow = targeting(&here, 11, 2);
        let to_others = targeting(&here, 12, 3);
        to_others.target(Address::new(1, 4)).expect("it exists");
        std::thread::scope(|scope| {
            // One thread leads, the other is parked; either may run the slow handler.
            let waiting = scope.spawn(|| slow.wait_until(PATIENCE, || slow.handled() > 0));
            scope.spawn(|| holds(&quick_port, || quick_port.handled() == 101));
            to_slow.send(b"stay").expect("sent");
            inside.recv_timeout(PATIENCE).expect("it runs");
            for _ in 0..100 {
                to_others.send(b"quick").expect("sent");
                let message = inbox.receive_timeout(PATIENCE).expect("in time");
                assert_eq!(&*message, b"quick");
            }
            let begun = Instant::now();
            while quick.load(Ordering::Relaxed) < 100 && begun.elapsed() < PATIENCE {
                inbox.try_receive().expect("a working link");
            }
            assert_eq!(quick.load(Ordering::Relaxed), 100);
            release.wait();
            assert!(waiting.join().expect("no panic").expect("it lives"));
            to_others.send(b"last").expect("sent");
        });
    }
}

#[test]
fn waiting_threads_share_the_ports_and_no_handler_runs_twice_at_once() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let ports: Vec<_> = (0..4)
            .map(|id| {
                let mut next = 0;
                let inside = AtomicBool::new(false);
                port(&there, id, move |_, message| {
                    assert!(!inside.swap(true, Ordering::Relaxed), "twice at once");
                    assert_eq!(number(&message), next);
                    next += 1;
                    std::hint::black_box(vec![0_u8; 1000]);
                    inside.store(false, Ordering::Relaxed);
                })
            })
            .collect();
        std::thread::scope(|scope| {
            for port in &ports {
                let id = port.address().endpoint.0;
                let from = targeting(&here, 100 + id, id);
                scope.spawn(move || {
                    for number in 0..2000_u64 {
                        from.send(&number.to_le_bytes()).expect("sent");
                    }
                });
                scope.spawn(move || holds(port, || port.handled() == 2000));
            }
        });
        assert!(ports.iter().all(|port| port.check().is_ok()));
    }
}

#[test]
fn ten_thousand_ports_are_open_at_once() {
    let directory = directory();
    let config = Config {
        links: Links::Shm,
        max_endpoints: 20_000,
        ..Config::local(NodeId(1), directory.path().join("dipole"))
    };
    let there = Node::open(config).expect("a node on loopback");
    let here = node(&directory, Links::Shm);
    let (handled, counted) = counter();
    let ports: Vec<_> = (0..10_000)
        .map(|id| {
            let counted = Arc::clone(&counted);
            port(&there, id, move |_, _| {
                counted.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    let from = endpoint(&here, 20_000);
    for id in (0..10_000).step_by(100) {
        from.send_to(Address::new(1, id), b"one").expect("sent");
    }
    let all = || handled.load(Ordering::Relaxed) == 100;
    while !all() {
        ports[0].wait(Duration::from_millis(10)).expect("it lives");
    }
    drop(ports);
}
