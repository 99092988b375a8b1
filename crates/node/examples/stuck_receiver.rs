//! How one stopped receiver of eight affects the other seven; one thread sends to all of them:
//! `cargo run --release --example stuck_receiver`.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, Edge, Endpoint, EndpointId, Links, Node, NodeId};
use rustix::process::{Pid, Signal, kill_process};

const RECEIVERS: u32 = 8;
const STUCK: usize = 3;
/// Edges to each receiver, as if from several threads.
const EDGES: u32 = 100;
const RUN: Duration = Duration::from_secs(2);
const PART: &str = "STUCK_RECEIVER_PART";
const DIRECTORY: &str = "STUCK_RECEIVER_DIRECTORY";

type Failure = Box<dyn Error>;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn node(directory: &Path, links: Links) -> Result<Node, Failure> {
    let config = Config::local(NodeId(1), directory.to_owned());
    Ok(Node::open(Config { links, ..config })?)
}

fn start(directory: &Path, part: &str) -> Result<Process, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(PART, part).env(DIRECTORY, directory);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().ok_or("no output")?;
    BufReader::new(out).lines().next().ok_or("it ended")??;
    Ok(Process(child))
}

/// Messages per second to the receivers that cannot be stuck.
fn rate(sender: &Endpoint, edges: &[Vec<Edge>], length: usize) -> Result<f64, Failure> {
    let payload = vec![7; length];
    let (begun, mut sent) = (Instant::now(), 0);
    for round in 0.. {
        if begun.elapsed() >= RUN {
            break;
        }
        let mut refused = 0;
        for (at, edges) in edges.iter().enumerate() {
            match edges[round % edges.len()].try_send(&payload) {
                Ok(()) => sent += u32::from(at != STUCK),
                Err(_full) => refused += u32::from(at != STUCK),
            }
        }
        if refused == RECEIVERS - 1 {
            sender.try_receive()?;
        }
    }
    Ok(f64::from(sent) / begun.elapsed().as_secs_f64())
}

fn measure(links: Links, length: usize) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path().join("dipole");
    let node = node(&directory, links)?;
    let receivers = (0..RECEIVERS).map(|id| start(&directory, &format!("{id} {links:?}")));
    let receivers = receivers.collect::<Result<Vec<_>, _>>()?;
    let senders: Vec<Endpoint> = (0..EDGES)
        .map(|id| node.endpoint(EndpointId(1000 + id)))
        .collect::<Result<_, _>>()?;
    let to = |id| {
        senders
            .iter()
            .map(move |from| from.edge(Address::new(1, id)))
    };
    let edges: Vec<Vec<Edge>> = (0..RECEIVERS)
        .map(|id| to(id).collect::<Result<_, _>>())
        .collect::<Result<_, _>>()?;
    for edge in edges.iter().flatten() {
        edge.wait_open(Duration::from_secs(10))?;
    }
    rate(&senders[0], &edges, length)?;
    let before = rate(&senders[0], &edges, length)?;
    kill_process(Pid::from_child(&receivers[STUCK].0), Signal::STOP)?;
    rate(&senders[0], &edges, length)?;
    let after = rate(&senders[0], &edges, length)?;
    println!(
        "{links:?} {length:6} B: {before:9.0} messages/s to seven, {after:9.0} with the eighth stopped"
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let Ok(part) = std::env::var(PART) else {
        for links in [Links::Shm, Links::Udp] {
            for length in [64, 1000, 65_536] {
                measure(links, length)?;
            }
        }
        return Ok(());
    };
    let directory = std::env::var_os(DIRECTORY).ok_or("no directory")?;
    let (id, links) = part.split_once(' ').ok_or("no links")?;
    let links = if links == "Udp" {
        Links::Udp
    } else {
        Links::Shm
    };
    let node = node(Path::new(&directory), links)?;
    let endpoint = node.endpoint(EndpointId(id.parse()?))?;
    println!("up");
    loop {
        endpoint.receive()?;
    }
}
