//! Passes a token around all ranks of a job; each rank adds its number and checks the rest.
//!
//! ```text
//! dipole run -n 4 target/release/examples/ring
//! ```

use std::error::Error;
use std::time::Duration;

use dipole_node::job::Job;
use dipole_node::{Config, Node};

const ROUNDS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::from_env()?;
    let node = Node::open(Config::from_env()?)?;
    let endpoint = node.endpoint(job.own_address().endpoint)?;
    let next = job.addresses[(job.rank as usize + 1) % job.addresses.len()];
    let previous = (job.rank + job.size - 1) % job.size;
    endpoint.target(next)?;

    // After r full rounds the token has passed every rank r times.
    let round_sum: u64 = (0..u64::from(job.size)).sum();
    let before_us: u64 = (0..u64::from(job.rank)).sum();
    for round in 0..ROUNDS {
        if job.rank == 0 {
            endpoint.send(&(round * round_sum).to_le_bytes())?;
        }
        let message = endpoint.receive()?;
        let token = u64::from_le_bytes(message[..].try_into()?);
        let expected = round * round_sum + if job.rank == 0 { round_sum } else { before_us };
        if token != expected || job.rank_of(message.source()) != Some(previous) {
            return Err(format!(
                "round {round}: {token} from {}, expected {expected} from rank {previous}",
                message.source()
            )
            .into());
        }
        if job.rank != 0 {
            endpoint.send(&(token + u64::from(job.rank)).to_le_bytes())?;
        }
    }
    if job.rank == 0 {
        println!(
            "{ROUNDS} rounds through {} ranks, every token right",
            job.size
        );
    }
    drop(endpoint);
    node.close(Duration::from_secs(10))?;
    Ok(())
}
