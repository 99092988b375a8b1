//! Round trips of short messages next to a stream of long ones between the same two processes.
//!
//! Each side has a thread for each, both on the side's core, and two connections; for Dipole, two
//! endpoints of one node. [`crate::pingpong`] measures the same round trips alone. Threads wait like
//! those of a program: they spin for a bounded time and then sleep.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::channel::{Channel, SendMode, until, until_done};
use crate::control::{Job, Outcome};
use crate::pingpong;
use crate::pingpong::{GIVE_UP, STOP};
use crate::statistics::as_float;
use crate::work::{Role, Workload};

/// Length of a message of the stream.
const BULK_BYTES: usize = 1 << 20;

/// Measures as either side.
pub(crate) fn drive<C: Channel + Send>(
    (mut small, mut bulk): (C, C),
    job: &Job,
) -> io::Result<Outcome> {
    let work = &job.work;
    let mut outcome = match job.role {
        Role::Lead => lead(&mut small, &mut bulk, work)?,
        Role::Follow => follow(&mut small, &mut bulk, work)?,
    };
    // Finish both before one of them closes the node that they may share.
    drop(bulk);
    small.finish(&mut outcome)?;
    Ok(outcome)
}

fn lead<C: Channel + Send>(small: &mut C, bulk: &mut C, work: &Workload) -> io::Result<Outcome> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| send_until(bulk, &ended));
        let asked = pingpong::lead(small, work);
        ended.store(true, Ordering::Relaxed);
        let sent = sending
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (mut outcome, bytes_per_s) = (asked?, sent?);
        outcome.bytes_per_s = Some(bytes_per_s);
        (outcome.remarks).push(format!("concurrent stream: {:.2} GB/s", bytes_per_s * 1e-9));
        Ok(outcome)
    })
}

/// Sends until the other thread stops it, and then a last message. Returns bytes per second.
fn send_until<C: Channel>(bulk: &mut C, ended: &AtomicBool) -> io::Result<f64> {
    let mut payload = vec![0; BULK_BYTES];
    let (start, mut count) = (Instant::now(), 0_u64);
    while payload[0] & STOP == 0 {
        if ended.load(Ordering::Relaxed) {
            payload[0] = STOP;
        }
        until_done("sending long messages", GIVE_UP, || {
            bulk.try_send(&payload, SendMode::Now)
        })?;
        count += 1;
    }
    until_done("flushing", GIVE_UP, || bulk.try_flush())?;
    Ok(as_float(count * BULK_BYTES as u64) / start.elapsed().as_secs_f64())
}

fn follow<C: Channel + Send>(small: &mut C, bulk: &mut C, work: &Workload) -> io::Result<Outcome> {
    thread::scope(|scope| {
        let receiving = scope.spawn(|| -> io::Result<()> {
            let mut last = false;
            while !last {
                last = until("receiving long messages", GIVE_UP, || {
                    bulk.try_receive(BULK_BYTES, |message| message[0] & STOP != 0)
                })?;
            }
            Ok(())
        });
        let answered = pingpong::follow(small, work);
        let received = receiving
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        received.and(answered)
    })
}
