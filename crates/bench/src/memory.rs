//! Operations on the other side's memory: `dipole-put`, `dipole-get` and `dipole-atomic`.
//!
//! The following side opens a region, sends its key and waits for messages, spinning as a server
//! would. The leading side works on the region: one operation after the other as round trips (a put
//! with its flush), or many: puts until their flush, gets one by one, a bounded number of posted
//! updates. Operations use changing offsets in the region, which is at least [`SLOT_BYTES`] long. In
//! the end the owner checks puts, the reader checks gets, and updates are counted.

use std::io;
use std::time::Instant;

use dipole_node::{
    Edge, Endpoint, EndpointId, Node, Operation, Region, RegionKey, RegionMemory, Rights,
};

use crate::channel::{broken, timed_out};
use crate::control::{Job, Outcome};
use crate::dipole::{check_carrier, endpoints, failed, open_node};
use crate::peers::Meet;
use crate::pingpong::{GIVE_UP, LEAST_ROUND_TRIPS, WARM_UP_ROUND_TRIPS};
use crate::statistics::nanoseconds;
use crate::statistics::{RoundTrips, as_float};
use crate::subject::Subject;
use crate::work::{Kind, Role, Workload};

/// Part of the region that short operations use in turns.
const SLOT_BYTES: usize = 8 << 10;
/// Initial contents of the region, and contents of puts.
const BEFORE: u8 = 0xa5;
const PUT: u8 = 0x5a;
/// Limit of posted updates, as in a program that does not wait for each.
const UPDATES_AT_ONCE: u64 = 256;
/// Short operations between two readings of the clock.
const OPERATIONS_PER_LOOK: u64 = 64;

/// Measures as either side.
pub(crate) fn measure(job: &Job, meet: Meet) -> io::Result<Outcome> {
    let node = open_node(job, |_| ())?;
    let (own, other) = endpoints(job);
    let endpoint = node.endpoint(EndpointId(own)).map_err(failed)?;
    meet(Vec::new())?;
    let outcome = match job.role {
        Role::Lead => {
            let to = dipole_node::Address::new(job.other_node, other);
            let edge = endpoint.edge(to).map_err(failed)?;
            lead(&node, &endpoint, &edge, job)?
        }
        Role::Follow => follow(&endpoint, job)?,
    };
    check_carrier(Some(job.carrier), &node.stats())?;
    drop(endpoint);
    node.close(GIVE_UP).map_err(failed)?;
    Ok(outcome)
}

fn region_bytes(work: &Workload) -> usize {
    work.size_bytes.next_multiple_of(8).max(SLOT_BYTES)
}

/// Owns the region: replies to the first message with its key, and to the second with its count.
fn follow(endpoint: &Endpoint, job: &Job) -> io::Result<Outcome> {
    let work = &job.work;
    let memory = RegionMemory::new(region_bytes(work)).map_err(failed)?;
    // Updates start at zero.
    if job.subject != Subject::DipoleAtomic {
        let filled = memory.fill(0, memory.bytes(), |bytes| bytes.fill(BEFORE));
        filled.map_err(failed)?;
    }
    let region = endpoint.open_region(memory, Rights::ALL).map_err(failed)?;
    let asked = endpoint.receive_timeout(GIVE_UP).map_err(failed)?;
    let key = region.key().0.to_le_bytes();
    endpoint.reply(&asked, &key).map_err(failed)?;
    let cpu_before_ns = work.cpu_time_ns();
    let limit = 2 * work.duration + 2 * GIVE_UP;
    let ended = endpoint.receive_timeout(limit).map_err(failed)?;
    let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
    let (numbers, _) = ended.as_chunks();
    let &[operations, put_bytes] = numbers else {
        return Err(broken(format!(
            "{} bytes instead of two numbers",
            ended.len()
        )));
    };
    let [operations, put_bytes] = [operations, put_bytes].map(u64::from_le_bytes);
    check_put(&region, usize::try_from(put_bytes).unwrap_or(usize::MAX))?;
    endpoint.reply(&ended, &[]).map_err(failed)?;
    Ok(Outcome {
        cpu_ns_per_message: as_float(cpu_ns) / as_float(operations.max(1)),
        ..Outcome::default()
    })
}

/// Checks that the region begins with what was put.
fn check_put(region: &Region, bytes: usize) -> io::Result<()> {
    let is_put = |found: &[u8]| found.iter().all(|&byte| byte == PUT);
    match region.memory().show(0, bytes, is_put).map_err(failed)? {
        true => Ok(()),
        false => Err(broken(format!(
            "not all of the first {bytes} bytes of the region are what was put there"
        ))),
    }
}

fn lead(node: &Node, endpoint: &Endpoint, edge: &Edge, job: &Job) -> io::Result<Outcome> {
    let ask = |what: &[u8]| {
        edge.send_timeout(what, GIVE_UP).map_err(failed)?;
        endpoint.receive_timeout(GIVE_UP).map_err(failed)
    };
    let key = ask(&[])?;
    let key: [u8; 8] = key[..]
        .try_into()
        .map_err(|_| broken(format!("{} bytes instead of a key", key.len())))?;
    let key = RegionKey(u64::from_le_bytes(key));
    let slots = (SLOT_BYTES / job.work.size_bytes.next_multiple_of(8)).max(1) as u64;
    let mut work = Operations {
        edge,
        key,
        subject: job.subject,
        slots,
        count: 0,
        data: vec![PUT; job.work.size_bytes],
    };
    let (outcome, cpu_ns) = match (job.subject, job.work.kind) {
        (Subject::DipoleAtomic, Kind::Rate) => post_updates(node, &mut work, &job.work)?,
        (_, Kind::Pingpong) => one_by_one(&mut work, &job.work)?,
        _ => many(&mut work, &job.work)?,
    };
    let put = match job.subject {
        Subject::DipolePut => {
            work.slots.min(work.count) * job.work.size_bytes.next_multiple_of(8) as u64
        }
        _ => 0,
    };
    ask(&[work.count, put].map(u64::to_le_bytes).concat())?;
    Ok(Outcome {
        cpu_ns_per_message: as_float(cpu_ns) / as_float(work.count.max(1)),
        ..outcome
    })
}

/// The operation on the region.
struct Operations<'a> {
    edge: &'a Edge,
    key: RegionKey,
    subject: Subject,
    slots: u64,
    count: u64,
    /// Contents of puts, or results of gets.
    data: Vec<u8>,
}

impl Operations<'_> {
    fn flush(&self) -> io::Result<()> {
        self.edge.flush(GIVE_UP).map_err(failed)
    }

    fn begin(&mut self) -> io::Result<()> {
        let slot_bytes = self.data.len().next_multiple_of(8) as u64;
        let offset = self.count % self.slots * slot_bytes;
        self.count += 1;
        match self.subject {
            Subject::DipoleGet => {
                let got = (self.edge).get(self.key, offset, &mut self.data, GIVE_UP);
                got.map_err(failed)?;
                let ends = (self.data[0], self.data[self.data.len() - 1]);
                match ends {
                    (BEFORE, BEFORE) => Ok(()),
                    _ => Err(broken(format!(
                        "a get at offset {offset} returned {ends:02x?}"
                    ))),
                }
            }
            Subject::DipoleAtomic => {
                let was = self.edge.fetch_add(self.key, 0, 1, GIVE_UP);
                match was.map_err(failed)? {
                    was if was + 1 == self.count => Ok(()),
                    was => Err(broken(format!("update {} found {was}", self.count))),
                }
            }
            _ => {
                let put = self.edge.put(self.key, offset, &self.data);
                put.map_err(failed)
            }
        }
    }

    /// Executes an operation and waits for its end.
    fn whole(&mut self) -> io::Result<()> {
        self.begin()?;
        match self.subject {
            Subject::DipolePut => self.flush(),
            _ => Ok(()),
        }
    }
}

fn one_by_one(operations: &mut Operations<'_>, work: &Workload) -> io::Result<(Outcome, u64)> {
    for _ in 0..WARM_UP_ROUND_TRIPS {
        operations.whole()?;
    }
    let mut trips = RoundTrips::default();
    let cpu_before_ns = work.cpu_time_ns();
    let start = Instant::now();
    let mut before = start;
    while trips.count() < LEAST_ROUND_TRIPS || before.duration_since(start) < work.duration {
        operations.whole()?;
        let after = Instant::now();
        trips.record(nanoseconds(after.duration_since(before)));
        before = after;
    }
    let outcome = Outcome {
        one_way: Some(trips.one_way()),
        percentiles: trips.percentiles(),
        ..Outcome::default()
    };
    Ok((outcome, work.cpu_time_ns() - cpu_before_ns))
}

/// Executes operations until the time is up, and waits until all are complete.
fn many(operations: &mut Operations<'_>, work: &Workload) -> io::Result<(Outcome, u64)> {
    operations.whole()?;
    throughput(operations, work, |operations, start| {
        let looks_every = if work.size_bytes < SLOT_BYTES {
            OPERATIONS_PER_LOOK
        } else {
            1
        };
        loop {
            for _ in 0..looks_every {
                operations.begin()?;
            }
            if start.elapsed() >= work.duration {
                return operations.flush();
            }
        }
    })
}

/// Posts updates, with a bounded number in progress.
fn post_updates(
    node: &Node,
    operations: &mut Operations<'_>,
    work: &Workload,
) -> io::Result<(Outcome, u64)> {
    let counter = node.completion_counter();
    operations.edge.attach_counter(&counter);
    operations.whole()?;
    let mut posted = 0;
    let wait = |count: u64| {
        let done = counter.wait(count, GIVE_UP).map_err(failed)?;
        match done {
            None => Err(timed_out("waiting for updates", GIVE_UP)),
            Some(counts) if counts.failed > 0 => {
                Err(broken(format!("{} updates failed", counts.failed)))
            }
            Some(_) => Ok(()),
        }
    };
    let key = operations.key;
    let measured = throughput(operations, work, |operations, start| {
        let update = Operation::FetchAdd {
            key,
            offset: 0,
            value: 1,
        };
        while start.elapsed() < work.duration {
            for _ in 0..OPERATIONS_PER_LOOK {
                let post = operations.edge.post(update, &[], posted);
                post.map_err(failed)?;
                posted += 1;
            }
            wait(posted.saturating_sub(UPDATES_AT_ONCE - OPERATIONS_PER_LOOK))?;
        }
        operations.count += posted;
        wait(posted)
    })?;
    // One further update waits for all previous ones.
    operations.whole()?;
    Ok(measured)
}

fn throughput(
    operations: &mut Operations<'_>,
    work: &Workload,
    run: impl FnOnce(&mut Operations<'_>, Instant) -> io::Result<()>,
) -> io::Result<(Outcome, u64)> {
    let before = operations.count;
    let cpu_before_ns = work.cpu_time_ns();
    let start = Instant::now();
    run(operations, start)?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
    let per_second = as_float(operations.count - before) / seconds.max(1e-9);
    let outcome = Outcome {
        messages_per_s: Some(per_second),
        bytes_per_s: Some(per_second * as_float(work.size_bytes as u64)),
        ..Outcome::default()
    };
    Ok((outcome, cpu_ns))
}
