//! Every rank sends every other rank messages with individual contents, and checks each byte that
//! it receives.
//!
//! ```text
//! dipole run -n 4 target/release/examples/all_to_all
//! ```

use std::error::Error;
use std::time::Duration;

use dipole_node::job::Job;
use dipole_node::{Config, EndpointId, Node};

const ROUNDS: u32 = 20;
const LONGEST_BYTES: u32 = 300_000;

/// The unique message of a round from one rank to another.
fn content(from: u32, to: u32, round: u32) -> Vec<u8> {
    let seed = (from * 7919 + to * 104_729 + round * 1_299_709).wrapping_mul(2_654_435_761);
    let length = seed % LONGEST_BYTES;
    (0..length)
        .map(|at| (seed ^ at.wrapping_mul(2_246_822_519)).to_le_bytes()[3])
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::from_env()?;
    let node = Node::open(Config::from_env()?)?;
    let inbox = node.endpoint(job.own_address().endpoint)?;
    // An endpoint sends to all its targets, so there is one endpoint for each rank.
    let spare = job.addresses[0].endpoint.0 + job.size;
    let others: Vec<u32> = (1..job.size)
        .map(|step| (job.rank + step) % job.size)
        .collect();
    let mut outboxes = Vec::new();
    for other in &others {
        let outbox = node.endpoint(EndpointId(spare + job.rank * job.size + other))?;
        outbox.target(job.addresses[*other as usize])?;
        outboxes.push(outbox);
    }

    let mut bytes = 0;
    for round in 0..ROUNDS {
        for (other, outbox) in others.iter().zip(&outboxes) {
            outbox.send(&content(job.rank, *other, round))?;
        }
    }
    let mut rounds_of = vec![0; job.size as usize];
    for _ in 0..ROUNDS * (job.size - 1) {
        let message = inbox.receive()?;
        let from = (message.source().endpoint.0 - spare) / job.size;
        // Messages of one edge arrive in order.
        let round = rounds_of[from as usize];
        rounds_of[from as usize] += 1;
        if message[..] != content(from, job.rank, round)[..] {
            return Err(format!(
                "rank {}: round {round} of rank {from} is not what it sent ({} bytes)",
                job.rank,
                message.len()
            )
            .into());
        }
        bytes += message.len();
    }
    println!(
        "rank {}: {bytes} bytes from {} others, every byte right",
        job.rank,
        others.len()
    );
    drop((inbox, outboxes));
    node.close(Duration::from_secs(10))?;
    Ok(())
}
