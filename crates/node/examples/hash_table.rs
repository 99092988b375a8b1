//! A hash table distributed over several processes: `cargo run --example hash_table`.
//!
//! Each owner process has a part of the table. Insertions are messages to an active port, whose
//! handler writes to a region; lookups read that region without involving the owner. Clients insert
//! concurrently, and the result is compared with an ordinary table. Then one owner is killed:
//! lookups in its part fail with an error, and the other owners serve theirs as before.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use dipole_node::{
    Address, Config, Edge, Endpoint, EndpointId, Node, NodeId, RegionKey, RegionMemory, Rights,
    SendError,
};

const OWNERS: u32 = 4;
const CLIENTS: u64 = 3;
const KEYS_EACH: u64 = 2000;
const SLOTS: usize = 8192;
/// Bytes of a key, which is not 0, and its value.
const SLOT_BYTES: usize = 16;
/// Numbers of the owners' ports and of their regions' endpoints.
const PORTS: u32 = 100;
const REGIONS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(30);
/// The role of a child process, and the directory that all processes share.
const PART: &str = "HASH_TABLE_PART";
const DIRECTORY: &str = "HASH_TABLE_DIRECTORY";

type Failure = Box<dyn Error>;

/// Mixes the bits of a key: the finalizer of SplitMix64.
fn mix(number: u64) -> u64 {
    let x = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// The remainder as an index.
fn modulo(number: u64, count: usize) -> usize {
    usize::try_from(number % count as u64).expect("below a size")
}

fn owner_of(key: u64) -> usize {
    modulo(mix(key), OWNERS as usize)
}

/// The slots in which a key may be stored, in order.
fn places(key: u64) -> impl Iterator<Item = usize> {
    let first = modulo(mix(key) >> 16, SLOTS);
    (0..SLOTS).map(move |step| (first + step) % SLOTS * SLOT_BYTES)
}

fn words(bytes: &[u8]) -> Option<(u64, u64)> {
    let words = bytes.as_chunks::<8>().0;
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    Some((word(0)?, word(1)?))
}

/// The pairs that a client inserts, in order. Each key occurs twice; the second value counts.
fn pairs_of(client: u64) -> impl Iterator<Item = (u64, u64)> {
    let numbers = (0..2).flat_map(|round| (0..KEYS_EACH).map(move |number| (round, number)));
    numbers.map(move |(round, number)| {
        let key = mix(client * KEYS_EACH + number + 1) | 1;
        (key, mix(key + round))
    })
}

/// An owner: replies with the key of its region, or inserts the pairs it is sent.
fn own(node: &Node, rank: u32) -> Result<(), Failure> {
    let only_get = Rights {
        put: false,
        get: true,
        update: false,
    };
    let endpoint = node.endpoint(EndpointId(REGIONS + rank))?;
    let memory = RegionMemory::new(SLOTS * SLOT_BYTES)?;
    let region = endpoint.open_region(memory.clone(), only_get)?;
    let name = region.key().0.to_le_bytes();
    let port = node.open_port(EndpointId(PORTS + rank), move |port, message| {
        let Some((key, _)) = words(&message) else {
            if let Err(error) = port.reply(&message, &name) {
                eprintln!("no answer to {}: {error}", message.source());
            }
            return;
        };
        let has_room =
            |place: &usize| matches!(memory.load(*place), Ok(there) if there == 0 || there == key);
        let place = places(key)
            .find(has_room)
            .expect("the table is large enough");
        memory.write(place, &message).expect("inside");
    })?;
    Ok(port.wait(Duration::MAX)?)
}

/// A client's view of the table.
struct Table {
    client: Endpoint,
    ports: Vec<Edge>,
    regions: Vec<(Edge, RegionKey)>,
}

impl Table {
    fn open(node: &Node) -> Result<Table, Failure> {
        let client = node.endpoint(EndpointId::ANY)?;
        let address = |id| Address::new(node.id().0, id);
        let ports = (0..OWNERS).map(|rank| client.edge(address(PORTS + rank)));
        let mut table = Table {
            ports: ports.collect::<Result<_, _>>()?,
            regions: Vec::new(),
            client,
        };
        for (rank, key) in (0..).zip(table.ask()?) {
            let edge = table.client.edge(address(REGIONS + rank))?;
            table.regions.push((edge, key));
        }
        Ok(table)
    }

    /// Requests the owners' regions. Ports handle messages in order, so all earlier insertions are
    /// complete when they reply.
    fn ask(&self) -> Result<Vec<RegionKey>, Failure> {
        let one = |port: &Edge| {
            port.send_timeout(b"", PATIENCE)?;
            let name = self.client.receive_timeout(PATIENCE)?;
            Ok(RegionKey(u64::from_le_bytes(name[..].try_into()?)))
        };
        self.ports.iter().map(one).collect()
    }

    fn insert(&self, key: u64, value: u64) -> Result<(), SendError> {
        let pair = [key.to_le_bytes(), value.to_le_bytes()].concat();
        self.ports[owner_of(key)].send_timeout(&pair, PATIENCE)
    }

    fn find(&self, key: u64) -> Result<Option<u64>, SendError> {
        let (edge, region) = &self.regions[owner_of(key)];
        for place in places(key) {
            let mut slot = [0; SLOT_BYTES];
            edge.get(*region, place as u64, &mut slot, PATIENCE)?;
            match words(&slot) {
                Some((there, value)) if there == key => return Ok(Some(value)),
                Some((0, _)) => break,
                _ => {}
            }
        }
        Ok(None)
    }
}

/// A client: inserts its pairs and looks them up.
fn insert_all(node: &Node, client: u64) -> Result<(), Failure> {
    let table = Table::open(node)?;
    for (key, value) in pairs_of(client) {
        table.insert(key, value)?;
    }
    table.ask()?;
    let plain: HashMap<u64, u64> = pairs_of(client).collect();
    for (key, value) in plain {
        assert_eq!(table.find(key)?, Some(value), "key {key:x}");
    }
    Ok(())
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Starts another process of this program.
fn start(directory: &Path, part: &str) -> std::io::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1));
    command.env(PART, part).env(DIRECTORY, directory);
    command.spawn().map(Process)
}

fn node(directory: &Path) -> Result<Node, Failure> {
    Ok(Node::open(Config::local(NodeId(1), directory.to_owned()))?)
}

fn run() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path().join("dipole");
    let owners = (0..OWNERS).map(|rank| start(&directory, &format!("own {rank}")));
    let mut owners = owners.collect::<Result<Vec<_>, _>>()?;
    let clients = (0..CLIENTS).map(|client| start(&directory, &format!("insert {client}")));
    for mut client in clients.collect::<Result<Vec<_>, _>>()? {
        assert!(client.0.wait()?.success(), "a client failed");
    }
    let node = node(&directory)?;
    let table = Table::open(&node)?;
    let plain: HashMap<u64, u64> = (0..CLIENTS).flat_map(pairs_of).collect();
    for (key, value) in &plain {
        assert_eq!(table.find(*key)?, Some(*value), "key {key:x}");
        assert_eq!(table.find(key ^ 2)?, plain.get(&(key ^ 2)).copied());
    }
    drop(owners.pop());
    let (mut kept, mut lost) = (0, 0);
    for (key, value) in &plain {
        match table.find(*key) {
            Ok(found) if owner_of(*key) < owners.len() => {
                assert_eq!(found, Some(*value), "key {key:x}");
                kept += 1;
            }
            Err(SendError::PeerGone { target, .. }) if owner_of(*key) == owners.len() => {
                assert_eq!(target.endpoint.0, REGIONS + OWNERS - 1);
                lost += 1;
            }
            other => panic!("key {key:x}: {other:?}"),
        }
    }
    println!(
        "{} keys as in a plain table; an owner killed: {kept} kept, {lost} lost",
        plain.len()
    );
    Ok(())
}

/// Runs the role given in the environment, or the whole example.
///
/// # Errors
/// Any failure.
pub(crate) fn main() -> Result<(), Failure> {
    let Ok(part) = std::env::var(PART) else {
        return run();
    };
    let directory = std::env::var_os(DIRECTORY).ok_or("no directory")?;
    let node = node(Path::new(&directory))?;
    match part.split_once(' ') {
        Some(("own", rank)) => own(&node, rank.parse()?),
        Some(("insert", client)) => insert_all(&node, client.parse()?),
        _ => Err("an unknown part".into()),
    }
}
