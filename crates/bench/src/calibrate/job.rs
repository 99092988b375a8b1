//! Calibration between the two processes of a job, and so of the network between their nodes.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use dipole_model::{PointToPoint, Wire};
use dipole_node::job::Job;
use dipole_node::{Address, Config, Endpoint, Node};

use super::{CalibrateError, Link, MessagesArgs, copies, parameters, save, show, side, wire};
use crate::conditions::progress_bar;
use crate::dipole::{SPIN, failed};
use crate::machine;
use crate::machine::Cores;
use crate::output::Output;
use crate::pingpong::GIVE_UP;
use crate::work::{Carrier, Role, name_of};

/// Time limit for the other process to start and to measure copies.
const PATIENCE: Duration = Duration::from_secs(60);
/// Location of the processes in the profile.
const PLACES: [&str; 2] = ["node", "nodes"];

/// Measures as one of the two processes. Rank 0 prints, and both save.
pub(super) fn calibrate(
    arguments: &MessagesArgs,
    (rounds, each): (u32, Duration),
    output: &mut Output<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    let job = Job::from_env().map_err(|error| CalibrateError::NoJob(error.to_string()))?;
    if job.size != 2 {
        return Err(CalibrateError::NotTwo(job.size).into());
    }
    let mut config = Config::from_env()?;
    config.spin = SPIN;
    let node = Node::open(config)?;
    let endpoint = node.endpoint(job.own_address().endpoint)?;
    let (role, other) = match job.rank {
        0 => (Role::Lead, job.addresses[1]),
        _ => (Role::Follow, job.addresses[0]),
    };
    endpoint.target(other)?;
    let copies = copies::measure(Cores::choose()?, arguments.quick)?;
    // Wait until both are ready.
    endpoint.send(&[])?;
    drop(endpoint.receive_timeout(PATIENCE)?);
    let progress = progress_bar(u64::from(rounds));
    let samples = side::rounds((&node, &endpoint), role, rounds, each, || progress.inc(1))?;
    progress.finish_and_clear();
    let carrier = carrier(&node);
    let found = match role {
        Role::Lead => {
            let place = PLACES[usize::from(other.node != job.own_address().node)];
            let found = parameters::of(place, &samples, None);
            let found = found.ok_or_else(|| CalibrateError::Incomplete {
                link: name_of(carrier),
            })?;
            let found = PointToPoint {
                wire: wire(&node, carrier, arguments.wire_mbit),
                ..found
            };
            tell(&endpoint, &found)?;
            found
        }
        Role::Follow => heard(&endpoint, other)?,
    };
    let link = Link {
        carrier,
        found,
        choices: None,
        rounds: samples,
    };
    if role == Role::Lead {
        output.remark(&format!(
            "{}; from node {} to node {}",
            machine::description(),
            job.own_address().node,
            other.node
        ))?;
        show(std::slice::from_ref(&link), &copies, output)?;
    }
    if !arguments.quick {
        let file = save(&link, &copies)?;
        if role == Role::Lead {
            output.remark(&format!("saved in {} on each node", file.display()))?;
        }
    }
    endpoint.drain(GIVE_UP)?;
    drop(endpoint);
    node.close(GIVE_UP)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the link that has carried the messages.
fn carrier(node: &Node) -> Carrier {
    let stats = node.stats();
    match stats.local.is_some_and(|local| local.records_out > 0) {
        true => Carrier::Shm,
        false if stats.bpf.is_some() => Carrier::Bpf,
        false => Carrier::Udp,
    }
}

/// Returns the network that has carried the messages, if it was one.
fn wire(node: &Node, carrier: Carrier, given_mbit: Option<u64>) -> Option<Wire> {
    if carrier == Carrier::Shm {
        return None;
    }
    let known = wire::of_address(node.ports().small.ip());
    match (known, given_mbit) {
        (known, None) => known,
        (known, Some(mbit)) => Some(Wire {
            mbit,
            mtu_bytes: known.map_or(1500, |known| known.mtu_bytes),
            delay_ns: 0.0,
        }),
    }
}

fn tell(endpoint: &Endpoint, found: &PointToPoint) -> Result<(), Box<dyn Error>> {
    let text = serde_json::to_vec(found)?;
    Ok(endpoint.send(&text)?)
}

fn heard(endpoint: &Endpoint, from: Address) -> Result<PointToPoint, Box<dyn Error>> {
    let text = endpoint.receive_timeout(PATIENCE).map_err(failed)?;
    serde_json::from_slice(&text)
        .map_err(|cause| format!("{from} returned no parameters: {cause}").into())
}
