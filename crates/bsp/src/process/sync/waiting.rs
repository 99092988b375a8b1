//! Waiting for ranks of the same node.

use std::time::Duration;

use dipole_link::clock::monotonic_ns;

use super::super::Process;
use super::transmit::rank_list;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{LocalRanks, SyncPhase};
use crate::slow_wait::SlowWaitLog;
use crate::trace::Tracer;

/// How long a rank sleeps for another one of its node before it checks whether that is alive.
const SLEEP: Duration = Duration::from_millis(100);
/// Sleep limit while messages to or from other nodes are expected.
const SLEEP_LISTENING: Duration = Duration::from_millis(10);
const SLEEP_SENDING: Duration = Duration::from_millis(1);

/// A rank of this node reaches a phase of a superstep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    local_rank: usize,
    phase: SyncPhase,
    epoch: u32,
}

impl Event {
    #[inline]
    pub(super) fn new(local_rank: usize, phase: SyncPhase, epoch: u32) -> Event {
        Event {
            local_rank,
            phase,
            epoch,
        }
    }
}

impl<C: Carrier> Process<C> {
    /// Waits for an event. `awaited` replaces the name of the rank in log messages.
    ///
    /// Continues to send and receive messages meanwhile: the rank may depend on other nodes, which
    /// wait for this rank's messages, or for buffers that their messages to this rank occupy.
    #[inline]
    pub(super) fn wait_for(&mut self, event: Event, awaited: Option<&str>) -> Result<(), Failure> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let ranks = shared.ranks();
        let (rank, wait) = (
            ranks.rank(event.local_rank),
            TracedWait::begin(self.trace.as_deref(), ranks, event),
        );
        if !ranks.wait_briefly(event.local_rank, event.phase, event.epoch) {
            self.wait_long(event, awaited)?;
        }
        wait.end(self.trace.as_deref_mut(), rank);
        Ok(())
    }

    #[cold]
    fn wait_long(&mut self, event: Event, awaited: Option<&str>) -> Result<(), Failure> {
        let mut slow_wait = SlowWaitLog::new();
        loop {
            let timeout = self.move_messages()?;
            let Some(shared) = &self.shared else {
                return Ok(());
            };
            let ranks = shared.ranks();
            if ranks.sleep(event.local_rank, event.phase, event.epoch, timeout)? {
                return Ok(());
            }
            if dipole_node::is_cancelled() {
                return Err(Failure::Interrupted);
            }
            // One rank of a node reports the wait for all; its leader those for other nodes.
            let local_rank = event.local_rank;
            if ranks.own() == usize::from(local_rank == 0) && awaited.is_none() {
                let rank = ranks.rank(local_rank);
                self.log_slow_wait(&mut slow_wait, || {
                    // Rank 0 may be waiting for input.
                    let is_prompt = rank == 0 && ranks.is_asleep(local_rank);
                    (!is_prompt).then(|| rank_list(&[rank]))
                });
            }
        }
    }

    /// Sends and receives messages of other nodes. Returns how long that may pause.
    fn move_messages(&mut self) -> Result<Duration, Failure> {
        if self.carrier.is_none() || self.exchange.node_map().nodes() == 1 {
            return Ok(SLEEP);
        }
        let is_sent = self.transmit()?;
        while let Some((from, message)) = self.carrier()?.receive(Duration::ZERO)? {
            self.accept(from, message)?;
        }
        Ok(match is_sent && self.carrier()?.progress()? {
            true => SLEEP_LISTENING,
            false => SLEEP_SENDING,
        })
    }

    /// Logs what this rank waits for, if that has taken long and is worth reporting.
    pub(super) fn log_slow_wait(
        &self,
        slow_wait: &mut SlowWaitLog,
        awaited: impl FnOnce() -> Option<String>,
    ) {
        if let Some(waited) = slow_wait.due()
            && let Some(awaited) = awaited()
        {
            let (rank, call, waited) = (self.rank, self.call, waited.as_secs());
            // Supersteps before the program's first one belong to bsp_begin.
            let superstep = match self.superstep().cast_signed() {
                ..0 => String::new(),
                superstep => format!(", superstep {superstep}"),
            };
            eprintln!("bsp: rank {rank}{superstep}: {call} has waited {waited} s for {awaited}");
        }
    }
}

/// A wait that is traced, if the rank has to wait at all.
struct TracedWait(Option<u64>);

impl TracedWait {
    #[inline]
    fn begin(trace: Option<&Tracer>, ranks: &LocalRanks, event: Event) -> TracedWait {
        let has_reached = || {
            let block = ranks.block(event.local_rank);
            block.has_reached(event.phase, event.epoch).is_ok()
        };
        let waits = trace.is_some() && !has_reached();
        TracedWait(waits.then(monotonic_ns))
    }

    #[inline]
    fn end(self, trace: Option<&mut Tracer>, rank: u32) {
        if let (Some(since_ns), Some(trace)) = (self.0, trace) {
            trace.waited(rank, since_ns);
        }
    }
}
