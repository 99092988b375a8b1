//! What operations on memory cost beside messages, between two processes of this machine, each
//! on a core of its own:
//!
//! ```text
//! memory_cost shm|udp
//! ```
//!
//! The owner of the region waits for messages and spins, as a server would. Medians of five
//! rounds in microseconds for what is waited for; rates and bandwidth for what is not.

use std::error::Error;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use dipole_link::cpu;
use dipole_node::{
    Address, Config, Edge, Endpoint, EndpointId, Links, Node, NodeId, RegionKey, RegionMemory,
    Rights,
};

const PATIENCE: Duration = Duration::from_secs(60);
const REGION_BYTES: usize = 4 << 20;
const ROUNDS: usize = 5;

fn config(links: &str, directory: &str) -> Result<Config, Box<dyn Error>> {
    let links = match links {
        "shm" => Links::Shm,
        "udp" => Links::Udp,
        _ => return Err("usage: memory_cost shm|udp".into()),
    };
    let config = Config::local(NodeId(1), directory.into());
    Ok(Config { links, ..config })
}

/// Answers messages, and owns the region, until it is told to end by an empty message.
fn own(config: Config) -> Result<(), Box<dyn Error>> {
    cpu::pin_to_core(1)?;
    let node = Node::open(config)?;
    let endpoint = node.endpoint(EndpointId(1))?;
    let region = endpoint.open_region(RegionMemory::new(REGION_BYTES)?, Rights::ALL)?;
    loop {
        let message = endpoint.receive()?;
        match message.len() {
            0 => return Ok(()),
            1 => endpoint.reply(&message, &region.key().0.to_le_bytes())?,
            8 => endpoint.reply(&message, &message)?,
            // A stream is only counted; its last is answered.
            _ if message[0] == 0 => {}
            _ => endpoint.reply(&message, b"received")?,
        }
    }
}

/// The median of some rounds of `count` times each, in microseconds for one.
fn time(count: u32, mut once: impl FnMut()) -> f64 {
    (0..count / 10).for_each(|_| once());
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..count).for_each(|_| once());
            begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn measure(endpoint: &Endpoint, edge: &Edge, key: RegionKey) {
    let ask = |message: &[u8]| {
        edge.send(message).expect("sent");
        endpoint.receive().expect("answered");
    };
    let mut small = [0; 8];
    let trip = time(20_000, || ask(&[1; 8]));
    let get = time(20_000, || {
        edge.get(key, 0, &mut small, PATIENCE).expect("got");
    });
    let add = time(20_000, || {
        edge.fetch_add(key, 0, 1, PATIENCE).expect("done");
    });
    println!("8 B, there and back: message {trip:.2} us, get {get:.2} us, fetch-add {add:.2} us");
    const BATCH: u32 = 10_000;
    let packed = time(20, || {
        for at in 0..BATCH {
            let offset = u64::from(at % 1024) * 8;
            edge.put(key, offset, &[1; 8]).expect("on its way");
        }
        edge.flush(PATIENCE).expect("there");
    });
    println!("8 B puts: {:.2} M/s", f64::from(BATCH) / packed);
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let count = u32::try_from((64 << 20) / bytes).expect("few");
        let data = vec![0; bytes];
        let mut last = data.clone();
        last[0] = 1;
        let mut into = vec![0; bytes];
        let stream = time(1, || {
            (1..count).for_each(|_| edge.send(&data).expect("sent"));
            ask(&last);
        });
        let put = time(1, || {
            (0..count).for_each(|_| edge.put(key, 0, &data).expect("on its way"));
            edge.flush(PATIENCE).expect("there");
        });
        let get = time(1, || {
            (0..count).for_each(|_| edge.get(key, 0, &mut into, PATIENCE).expect("got"));
        });
        let one_put = time(200, || {
            edge.put(key, 0, &data).expect("on its way");
            edge.flush(PATIENCE).expect("there");
        });
        let total = f64::from(count) * bytes as f64 / 1e3;
        println!(
            "{bytes} B: stream {:.2} GB/s, puts {:.2} GB/s, gets {:.2} GB/s; one put and its \
             flush {one_put:.1} us",
            total / stream,
            total / put,
            total / get
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let directory = tempfile::tempdir()?;
    match &arguments[1..] {
        [links, directory] => own(config(links, directory)?),
        [links] => {
            let place = directory.path().to_str().ok_or("a path that is no text")?;
            let config = config(links, place)?;
            let mut owner: Child = Command::new(std::env::current_exe()?)
                .args([links, place])
                .spawn()?;
            cpu::pin_to_core(0)?;
            let node = Node::open(config)?;
            let endpoint = node.endpoint(EndpointId(2))?;
            let edge = endpoint.edge(Address::new(1, 1))?;
            edge.send(&[0])?;
            let key: [u8; 8] = endpoint.receive_timeout(PATIENCE)?[..].try_into()?;
            measure(&endpoint, &edge, RegionKey(u64::from_le_bytes(key)));
            edge.send(&[])?;
            owner.wait()?;
            Ok(())
        }
        _ => Err("usage: memory_cost shm|udp".into()),
    }
}
