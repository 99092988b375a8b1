//! Round trips by active ports: the handlers of the two sides reply to each other.
//!
//! The leading side measures in its handler, from the arrival of one reply to the next. The main
//! threads wait and thereby run the handlers. Contents are as in [`crate::pingpong`].

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use dipole_node::{ActivePort, Address, Edge, EndpointId, Message, Node};

use crate::channel::{broken, timed_out};
use crate::control::{Job, Outcome};
use crate::dipole::{check_carrier, endpoints, failed, open_node};
use crate::peers::Meet;
use crate::pingpong::{GIVE_UP, LEAST_ROUND_TRIPS, STOP, WARM_UP_ROUND_TRIPS, read_stamp, stamp};
use crate::statistics::nanoseconds;
use crate::statistics::{RoundTrips, as_float};
use crate::subject::Subject;
use crate::work::Role;

/// Number of ports that are open but unused.
const IDLE_PORTS: u32 = 10_000;
/// Number of the first unused port.
const FIRST_IDLE: u32 = 100;

/// Measures as either side.
pub(crate) fn measure(job: &Job, meet: Meet) -> io::Result<Outcome> {
    let node = open_node(job, |config| {
        config.max_endpoints = config.max_endpoints.max(2 * IDLE_PORTS + 1000);
    })?;
    let (own, other) = endpoints(job);
    let idle = match job.subject {
        Subject::DipolePorts => open_idle(&node, job)?,
        _ => Vec::new(),
    };
    // The handler's edge begins at a separate endpoint, which must exist before the port.
    let from = node.endpoint(EndpointId::ANY).map_err(failed)?;
    let edge = from.edge(Address::new(job.other_node, other));
    let edge = Arc::new(edge.map_err(failed)?);
    let (port, ended) = match job.role {
        Role::Lead => lead(&node, own, Arc::clone(&edge), job)?,
        Role::Follow => follow(&node, own, Arc::clone(&edge), job)?,
    };
    meet(Vec::new())?;
    if job.role == Role::Lead {
        let mut first = vec![0x5a; job.work.size_bytes];
        stamp(&mut first, 0);
        edge.send_timeout(&first, GIVE_UP).map_err(failed)?;
    }
    let limit = job.work.duration + 2 * GIVE_UP;
    let mut outcome = None;
    let done = port.wait_until(limit, || {
        outcome = ended.try_recv().ok();
        outcome.is_some()
    });
    if !done.map_err(failed)? {
        return Err(timed_out("playing ping-pong by ports", limit));
    }
    let outcome = outcome.unwrap_or_else(|| Err(broken("a handler was dropped".to_owned())))?;
    check_carrier(Some(job.carrier), &node.stats())?;
    drop((port, idle, edge, from));
    node.close(GIVE_UP).map_err(failed)?;
    Ok(outcome)
}

fn open_idle(node: &Node, job: &Job) -> io::Result<Vec<ActivePort>> {
    // Both sides may be on one node.
    let (first, _) = job.role.own_and_other(FIRST_IDLE, FIRST_IDLE + IDLE_PORTS);
    let first = job.first_endpoint + first;
    let ports = (first..first + IDLE_PORTS).map(|id| node.open_port(EndpointId(id), |_, _| ()));
    ports.collect::<Result<_, _>>().map_err(failed)
}

type Ended = Receiver<io::Result<Outcome>>;

fn lead(node: &Node, own: u32, edge: Arc<Edge>, job: &Job) -> io::Result<(ActivePort, Ended)> {
    let (sender, ended) = channel();
    let work = job.work.clone();
    let (mut trips, mut sequence) = (RoundTrips::default(), 0_u64);
    let mut payload = vec![0x5a; work.size_bytes];
    stamp(&mut payload, 0);
    let (mut begun, mut before, mut cpu_before_ns) = (Instant::now(), Instant::now(), 0);
    let mut answer = move |message: &Message| -> io::Result<Option<Outcome>> {
        check(message, &payload)?;
        if payload[0] & STOP != 0 {
            return Ok(Some(Outcome {
                one_way: Some(trips.one_way()),
                percentiles: trips.percentiles(),
                cpu_ns_per_message: as_float(work.cpu_time_ns() - cpu_before_ns)
                    / as_float(2 * trips.count()),
                ..Outcome::default()
            }));
        }
        sequence += 1;
        let mut mark = u8::try_from(sequence % u64::from(STOP)).expect("less than 128");
        if sequence > WARM_UP_ROUND_TRIPS {
            let now = Instant::now();
            if sequence == WARM_UP_ROUND_TRIPS + 1 {
                (begun, cpu_before_ns) = (now, work.cpu_time_ns());
            } else {
                trips.record(nanoseconds(now.duration_since(before)));
            }
            before = now;
            let lasted = now.duration_since(begun);
            if trips.count() >= LEAST_ROUND_TRIPS && lasted >= work.duration {
                mark |= STOP;
            }
        }
        stamp(&mut payload, mark);
        edge.send(&payload).map_err(failed)?;
        Ok(None)
    };
    let port = node.open_port(EndpointId(own), move |_, message| {
        if let Some(done) = answer(&message).transpose() {
            // The main thread waits for it.
            let _heard = sender.send(done);
        }
    });
    Ok((port.map_err(failed)?, ended))
}

fn follow(node: &Node, own: u32, edge: Arc<Edge>, job: &Job) -> io::Result<(ActivePort, Ended)> {
    let (sender, ended) = channel();
    let work = job.work.clone();
    let mut payload = vec![0xa5; work.size_bytes];
    let (mut echoed, cpu_before_ns) = (0_u64, work.cpu_time_ns());
    let mut echo = move |message: &Message| -> io::Result<Option<Outcome>> {
        let mark = read_stamp(message).ok_or_else(damaged)?;
        stamp(&mut payload, mark);
        edge.send(&payload).map_err(failed)?;
        echoed += 1;
        if mark & STOP == 0 {
            return Ok(None);
        }
        let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
        Ok(Some(Outcome {
            cpu_ns_per_message: as_float(cpu_ns) / as_float(2 * echoed),
            ..Outcome::default()
        }))
    };
    let port = node.open_port(EndpointId(own), move |_, message| {
        if let Some(done) = echo(&message).transpose() {
            let _heard = sender.send(done);
        }
    });
    Ok((port.map_err(failed)?, ended))
}

/// Checks that the reply has the contents that were sent.
fn check(message: &[u8], sent: &[u8]) -> io::Result<()> {
    match message.len() == sent.len() && read_stamp(message) == read_stamp(sent) {
        true => Ok(()),
        false => Err(damaged()),
    }
}

fn damaged() -> io::Error {
    broken("a message by ports carries another mark than was sent".to_owned())
}
