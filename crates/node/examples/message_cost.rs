//! Messages between two processes' nodes on one thread, for `crates/lab/scripts/message_cost.py`, which
//! counts what each costs between the functions below.
//!
//! ```text
//! message_cost shm|udp [BYTES]
//! ```

use std::error::Error;
use std::hint::black_box;

use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId};

/// Warm-up messages, after which sockets are connected and rings exist.
const FIRST: u32 = 100;
const COUNTED: u32 = 100;

#[inline(never)]
fn send(from: &Endpoint, payload: &[u8]) {
    from.send(black_box(payload)).expect("it is there");
}

#[inline(never)]
fn receive(at: &Endpoint, length: usize) {
    let message = at.receive().expect("it comes");
    assert_eq!(message.len(), length);
}

#[inline(never)]
fn between() {
    black_box(());
}

fn main() -> Result<(), Box<dyn Error>> {
    let links = match std::env::args().nth(1).as_deref() {
        Some("shm") => Links::Shm,
        Some("udp") => Links::Udp,
        _ => return Err("usage: message_cost shm|udp [BYTES]".into()),
    };
    let length = std::env::args()
        .nth(2)
        .map_or(Ok(64), |bytes| bytes.parse())?;
    let payload = vec![7; length];
    let directory = tempfile::tempdir()?;
    let mut config = Config::local(NodeId(1), directory.path().to_owned());
    config.links = links;
    let nodes = [Node::open(config.clone())?, Node::open(config)?];
    let one = nodes[0].endpoint(EndpointId(1))?;
    let two = nodes[1].endpoint(EndpointId(2))?;
    std::thread::scope(|scope| {
        // Both sides must take part in the connection setup.
        let there = scope.spawn(|| {
            two.target(Address::new(1, 1))
                .map(|()| receive(&two, length))
        });
        one.target(Address::new(1, 2))?;
        send(&one, &payload);
        there.join().expect("no panic")
    })?;
    // The load address, for tools that read this program's symbols.
    println!("{:#x}", between as fn() as usize);
    for round in 0..FIRST + COUNTED {
        for (from, to) in [(&one, &two), (&two, &one)] {
            send(from, &payload);
            receive(to, length);
            if round >= FIRST {
                between();
            }
        }
    }
    Ok(())
}
