//! Frames that land in a ring of slots and are worked on by several threads:
//! `cargo run --example frames -- serve 7` receives, `cargo run --example frames -- send 7 100`
//! sends 100 frames of 1 MiB and prints how many came back as complete.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dipole_node::{Address, Config, EndpointId, Landed, Node, SlotMessage, Slots};

const USAGE: &str = "usage: frames serve PORT | frames send PORT COUNT";
const FRAME: usize = 1 << 20;
const SLOTS: usize = 8;
const WORKERS: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let node = Node::open(Config::from_env()?)?;
    match arguments[..] {
        ["serve", port] => serve(&node, EndpointId(port.parse()?)),
        ["send", port, count] => send(&node, EndpointId(port.parse()?), count.parse()?),
        _ => Err(USAGE.into()),
    }
}

fn serve(node: &Node, id: EndpointId) -> Result<(), Box<dyn std::error::Error>> {
    let (to_workers, frames) = mpsc::channel::<SlotMessage>();
    let frames = Arc::new(Mutex::new(frames));
    for _ in 0..WORKERS {
        let frames = Arc::clone(&frames);
        std::thread::spawn(move || {
            loop {
                let Ok(next) = frames.lock().map(|frames| frames.recv()) else {
                    return;
                };
                let Ok(frame) = next else { return };
                // The slot is free for another frame when `frame` is dropped.
                if let Err(error) = work(&frame) {
                    eprintln!("frame of {}: {error}", frame.source());
                }
            }
        });
    }
    let slots = Slots::new(FRAME, SLOTS)?;
    let port = node.open_port_into(id, slots, move |port, landed| match landed {
        Landed::InSlot(frame) => {
            // Fails only if all workers have ended.
            let _handed_over = to_workers.send(frame);
        }
        Landed::Outside(message) => {
            let (length, from) = (message.len(), message.source());
            eprintln!("{from} sent {length} bytes, which is longer than a slot");
            let _best_effort = port.reply(&message, &u64::MAX.to_le_bytes());
        }
    })?;
    eprintln!("receiving frames at {}", port.address());
    Ok(port.wait(Duration::MAX)?)
}

/// Adds up the bytes of a frame, in place, and replies with the sum.
fn work(frame: &SlotMessage) -> Result<(), Box<dyn std::error::Error>> {
    let sum = frame.show(|bytes| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>())?;
    frame.reply(&sum.to_le_bytes())?;
    Ok(())
}

fn send(node: &Node, id: EndpointId, count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let client = node.endpoint(EndpointId::ANY)?;
    let server = Address {
        node: node.id(),
        endpoint: id,
    };
    for _ in 0..count {
        // Waits while all slots are taken and the receiver has no room left.
        client.send_to(server, &vec![1; FRAME])?;
    }
    let mut complete = 0;
    for _ in 0..count {
        let sum = client.receive()?;
        complete += u64::from(u64::from_le_bytes(sum[..].try_into()?) == FRAME as u64);
    }
    println!("{complete} of {count} frames are complete");
    Ok(())
}
