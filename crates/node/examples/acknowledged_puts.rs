//! Could Dipole speed up byte streams between nodes? Puts into the reader's memory, each
//! acknowledged once it is read, compared with TCP. `docs/design/sockets.md` §9.
//!
//! ```text
//! acknowledged_puts tcp read  ADDRESS BYTES MIB          acknowledged_puts tcp write ADDRESS BYTES MIB
//! acknowledged_puts put read  NID:DPID BYTES MIB WINDOW  acknowledged_puts put write NID:DPID BYTES MIB WINDOW
//! ```
//!
//! Up to WINDOW puts may be unacknowledged. The reader prints `ready` when writing may begin.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, EndpointId, Node, RegionKey, RegionMemory, Rights};

/// Size of the reader's memory.
const MEMORY: usize = 4 << 20;

fn number(words: &[String], at: usize) -> Result<usize, Box<dyn Error>> {
    Ok(words.get(at).map_or("1", String::as_str).parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [way, role, place, ..] = &words[..] else {
        return Err("tcp|put read|write PLACE BYTES MIB [WINDOW]".into());
    };
    let (bytes, mib) = (number(&words, 3)?, number(&words, 4)?);
    let window = number(&words, 5)?;
    if bytes == 0 || bytes > MEMORY {
        return Err(format!("BYTES is 1 to {MEMORY}").into());
    }
    let (count, slots) = ((mib << 20) / bytes, MEMORY / bytes);
    let (data, mut into) = (vec![7_u8; bytes], vec![0_u8; bytes]);
    let begun;
    match (way.as_str(), role.as_str()) {
        ("tcp", "read") => {
            let listener = TcpListener::bind(place)?;
            println!("ready");
            let (mut stream, _) = listener.accept()?;
            begun = Instant::now();
            for _ in 0..count {
                stream.read_exact(&mut into)?;
            }
            stream.write_all(&[1])?;
        }
        ("tcp", "write") => {
            let mut stream = TcpStream::connect(place)?;
            begun = Instant::now();
            for _ in 0..count {
                stream.write_all(&data)?;
            }
            stream.read_exact(&mut into[..1])?;
        }
        ("put", "read") => {
            let node = Node::open(Config::from_env()?)?;
            let endpoint = node.endpoint(place.parse::<Address>()?.endpoint)?;
            let memory = RegionMemory::new(MEMORY)?;
            let region = endpoint.open_region(memory, Rights::ALL)?;
            println!("ready");
            let question = endpoint.receive()?;
            endpoint.reply(&question, &region.key().0.to_le_bytes())?;
            begun = Instant::now();
            for number in 0..count {
                let put = endpoint.receive()?;
                region.memory().read(number % slots * bytes, &mut into)?;
                endpoint.reply(&put, &[1])?;
            }
            node.close(Duration::from_secs(1))?;
        }
        ("put", "write") => {
            let node = Node::open(Config::from_env()?)?;
            let endpoint = node.endpoint(EndpointId::ANY)?;
            let edge = endpoint.edge(place.parse()?)?;
            edge.send(b"which region?")?;
            let key = endpoint.receive()?;
            let key = RegionKey(u64::from_le_bytes(key[..].try_into()?));
            begun = Instant::now();
            let mut answered = 0;
            for number in 0..count {
                let offset = u64::try_from(number % slots * bytes)?;
                edge.put_notify(key, offset, &data, u64::try_from(number)?)?;
                while number + 1 - answered >= window.min(slots) {
                    endpoint.receive()?;
                    answered += 1;
                }
            }
            while answered < count {
                endpoint.receive()?;
                answered += 1;
            }
        }
        _ => return Err("tcp|put read|write PLACE BYTES MIB [WINDOW]".into()),
    }
    let seconds = begun.elapsed().as_secs_f64();
    let megabytes = u32::try_from(count * bytes / 1_000_000)?;
    let rate = f64::from(megabytes) / 1e3 / seconds;
    println!("{way} {role} {bytes} bytes, window {window}: {rate:.2} GB/s");
    Ok(())
}
