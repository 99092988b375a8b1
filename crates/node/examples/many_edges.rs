//! How much slower one edge is if many others are open: `many_edges [EDGES] [shm|udp]`.
//!
//! Two nodes in one process play ping-pong on one edge, with and without the others, in alternating
//! rounds; prints the ratio of the medians.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, Edge, Endpoint, EndpointId, Links, Node, NodeId, SendError};

type Error = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 7;
const ROUND_TRIPS: u32 = 20_000;
const FIRST: u32 = 1000;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let edges: u32 = arguments.next().map_or(Ok(10_000), |count| count.parse())?;
    let links = match arguments.next().as_deref() {
        None | Some("shm") => Links::Shm,
        Some("udp") => Links::Udp,
        Some(other) => return Err(format!("{other}: neither shm nor udp").into()),
    };
    let folder = tempfile::tempdir()?;
    let mut config = Config {
        links,
        ..Config::local(NodeId(1), folder.path().to_owned())
    };
    config.max_endpoints = edges + 10;
    let (here, there) = (Node::open(config.clone())?, Node::open(config)?);
    let from = here.endpoint(EndpointId(1))?;
    let to = there.endpoint(EndpointId(2))?;
    let others = (FIRST..FIRST + edges).map(|number| there.endpoint(EndpointId(number)));
    let others: Vec<Endpoint> = others.collect::<Result<_, _>>()?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if let Ok(message) = to.receive_timeout(Duration::from_millis(1)) {
                    while let Err(error) = to.reply(&message, &message) {
                        assert!(matches!(error, SendError::Full { .. }), "{error}");
                    }
                }
            }
        });
        let measured = measure(&from, to.address(), &others);
        done.store(true, Ordering::Relaxed);
        let (alone, loaded) = measured?;
        println!(
            "one-way latency: alone {alone:.0} ns, with {edges} other edges {loaded:.0} ns: x {:.3}",
            loaded / alone
        );
        Ok(())
    })
}

/// Median one-way times in nanoseconds, without and with edges to all `others`.
fn measure(from: &Endpoint, to: Address, others: &[Endpoint]) -> Result<(f64, f64), Error> {
    let edge = from.edge(to)?;
    edge.send(b"first")?;
    from.receive()?;
    let (mut alone, mut loaded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(ping_pong(from, &edge)?);
        let opened: Vec<Edge> = others
            .iter()
            .map(|other| from.edge(other.address()))
            .collect::<Result<_, _>>()?;
        for (opened, other) in opened.iter().zip(others) {
            opened.send(b"hello")?;
            other.receive()?;
        }
        loaded.push(ping_pong(from, &edge)?);
    }
    Ok((median(alone), median(loaded)))
}

fn ping_pong(from: &Endpoint, edge: &Edge) -> Result<f64, Error> {
    let payload = [7; 64];
    let begun = Instant::now();
    for _ in 0..ROUND_TRIPS {
        edge.send(&payload)?;
        from.receive()?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / f64::from(2 * ROUND_TRIPS))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
