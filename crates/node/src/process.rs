//! What the driver's lock protects: the engine, and the edges of the public API.
//!
//! The engine knows peers and moves messages; [`EdgeTable`] keeps what an edge is while it
//! connects. Both are stepped together.

use std::io;

use dipole_driver::{Polled, Ready, Stepper, WaitKey};
use dipole_engine::{AnyLink, Engine, Message, QueueRef, Reader};
use dipole_link::wait::Sleeper;
use dipole_proto::{Instant, PeerId};

use crate::edges::EdgeTable;
use crate::handlers::{PortTable, PortWork};
use crate::liveness::Verdict;
use crate::queues::QueueTable;
use crate::receives::PostedReceives;
use crate::registry::EdgeTraffic;
use crate::stats::Stats;

/// See the module.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub(crate) engine: Engine,
    pub(crate) edges: EdgeTable,
    pub(crate) queues: QueueTable,
    pub(crate) ports: PortTable,
    pub(crate) receives: PostedReceives,
    /// When it was last stepped.
    stepped_at: Instant,
    /// What had been done when the counters were last shown.
    shown: u64,
}

/// What is done is shown after so long, though nothing more is done.
const SHOW_NS: u64 = 250_000_000;

impl ProcessState {
    pub(crate) fn new(engine: Engine, edges: EdgeTable) -> ProcessState {
        ProcessState {
            engine,
            edges,
            queues: QueueTable::default(),
            ports: PortTable::default(),
            receives: PostedReceives::default(),
            stepped_at: Instant(0),
            shown: 0,
        }
    }

    /// The parts, to be used together.
    pub(crate) fn parts(&mut self) -> (&mut Engine, &mut EdgeTable, &mut QueueTable) {
        (&mut self.engine, &mut self.edges, &mut self.queues)
    }

    /// Posted receives, and what they need.
    pub(crate) fn receiving(&mut self) -> (&mut PostedReceives, &mut Engine, &mut QueueTable) {
        (&mut self.receives, &mut self.engine, &mut self.queues)
    }

    /// Fills what was posted with what has come.
    pub(crate) fn advance_receives(&mut self, now: Instant) {
        let (receives, engine, queues) = self.receiving();
        receives.advance(engine, queues, now);
    }

    /// An endpoint is about to be closed.
    pub(crate) fn close_receives(&mut self, endpoint: u32) {
        let (receives, engine, queues) = self.receiving();
        receives.close_endpoint((engine, queues), endpoint);
    }

    /// A completion queue was closed.
    pub(crate) fn close_queue(&mut self, queue: QueueRef) {
        let (receives, engine, _) = self.receiving();
        receives.close_queue(engine, queue);
    }

    /// Looks only at shared memory for a message to an endpoint at which the caller waits.
    #[inline]
    pub(crate) fn poll_memory_for(&mut self, reader: u32) -> Polled<Message> {
        let polled = self.engine.poll_memory(Some(reader));
        if polled.came() {
            self.advance();
        }
        polled
    }

    /// The same for a reader of an endpoint.
    #[inline]
    pub(crate) fn poll_memory_to(
        &mut self,
        endpoint: u32,
        reader: &mut impl Reader,
    ) -> Polled<usize> {
        let polled = self.engine.poll_memory_to(endpoint, reader);
        if polled.came() {
            self.advance();
        }
        polled
    }

    /// What has gone along all edges.
    pub(crate) fn all_edges(&self) -> Vec<EdgeTraffic> {
        let mut traffic: Vec<EdgeTraffic> = self.engine.edges().collect();
        traffic.extend(self.edges.traffic(&self.engine));
        traffic
    }

    /// Counters at this moment.
    pub(crate) fn stats(&self) -> Stats {
        let engine = &self.engine;
        let peers = engine.machine().peers();
        Stats {
            edges: self.edges.len(),
            traffic: engine.traffic(),
            protocol: *engine.machine().stats(),
            peers: peers.filter(|peer| !engine.shares_memory(*peer)).count(),
            pool_used_bytes: engine.holdings().pool_bytes,
            local: engine.memory_stats(),
            local_peers: engine.memory_peers(),
            free_frames: engine.free_frames(),
            bpf: engine.link().bpf_stats(),
            faults: match engine.link() {
                AnyLink::Fault(fault) => Some(fault.stats()),
                _ => None,
            },
        }
    }

    /// Grows with whatever changes counters or links.
    #[inline]
    fn activity(&self) -> u64 {
        self.engine.activity() + self.engine.link_changes()
    }

    /// A cluster key was withdrawn.
    pub(crate) fn renew_proofs(&mut self, now: Instant) {
        self.engine.renew_proofs(now);
    }

    /// What has become known of a silent peer. Frames that it held may be what others wait for.
    pub(crate) fn judge(&mut self, now: Instant, peer: PeerId, verdict: Verdict) {
        self.engine.judge(now, peer, verdict);
        self.advance();
    }

    /// Goes on with edges that connect and operations that wait, and notes messages for
    /// completion queues.
    #[inline]
    fn advance(&mut self) {
        let has_finished = self.engine.has_finished();
        let has_posted = self.edges.is_waiting() || !self.receives.is_empty();
        if has_finished || has_posted || self.queues.is_watching() {
            self.advance_waiting();
        }
    }

    #[cold]
    fn advance_waiting(&mut self) {
        let now = self.stepped_at;
        self.queues.note_finished(&mut self.engine);
        self.edges.advance(&mut self.engine, &mut self.queues, now);
        if !self.receives.is_empty() {
            self.advance_receives(now);
        }
        self.queues.note_messages(&mut self.engine);
    }
}

impl Stepper for ProcessState {
    type Work = PortWork;

    #[inline]
    fn has_work(&self) -> bool {
        self.engine.has_port_message()
    }

    /// Credit that the sender waits for leaves with what is taken.
    fn take_work(&mut self, now: Instant) -> Option<PortWork> {
        loop {
            let (endpoint, port, message) = self.engine.take_for_port(now)?;
            if let Some(handler) = self.ports.begin(port) {
                if self.engine.has_transmit()
                    && let Err(cause) = self.engine.transmit(now)
                {
                    // Whoever steps next is told.
                    tracing::debug!("credit was not sent: {cause}");
                }
                return Some(PortWork {
                    endpoint,
                    port,
                    handler,
                    message: Some(message),
                });
            }
        }
    }

    fn finish_work(&mut self, work: PortWork) -> Option<PortWork> {
        let PortWork {
            endpoint,
            port,
            handler,
            message,
        } = work;
        self.engine.port_returned(endpoint, port);
        self.engine.ready().notify(WaitKey::Port(port.0));
        let handler = self.ports.finish(port, handler)?;
        Some(PortWork {
            endpoint,
            port,
            handler,
            message,
        })
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        Sleeper::new(&self.engine.descriptors())
    }

    fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        self.stepped_at = now;
        let came = self.engine.step(now, look_everywhere)?;
        self.advance();
        Ok(came)
    }

    #[inline]
    fn poll_memory(&mut self) -> bool {
        let came = self.engine.poll_memory(None).came();
        if came {
            self.advance();
        }
        came
    }

    #[inline]
    fn expects_memory(&self) -> bool {
        self.engine.expects_memory()
    }

    fn is_polled(&self) -> bool {
        self.edges.is_waiting()
            || !self.receives.is_empty()
            || self.queues.has_exports()
            || !self.ports.is_empty()
            || self.engine.has_exports()
    }

    #[inline]
    fn look(&mut self, now: Instant, calls: u32) -> io::Result<bool> {
        self.engine.look(now, calls)
    }

    #[inline]
    fn expects_bulk(&self) -> bool {
        self.engine.expects_bulk()
    }

    #[inline]
    fn take_found(&mut self, now: Instant) -> io::Result<bool> {
        let came = self.engine.take_found(now)?;
        self.advance();
        Ok(came)
    }

    #[inline]
    fn flush_deferred(&mut self) {
        self.engine.push_records();
    }

    fn arm(&mut self) -> bool {
        self.engine.arm()
    }

    fn disarm(&mut self) {
        self.engine.disarm();
    }

    #[inline]
    fn take_woken(&mut self) -> bool {
        self.engine.take_woken()
    }

    fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let edges = self.edges.next_deadline();
        let show = (self.activity() != self.shown).then(|| now.after(SHOW_NS));
        let engine = self.engine.next_deadline(now);
        engine.into_iter().chain(edges).chain(show).min()
    }

    #[inline]
    fn ready(&mut self) -> &mut Ready {
        self.engine.ready()
    }

    #[inline]
    fn publish(&mut self) {
        self.advance();
        self.engine.publish();
    }

    fn tick(&mut self) {
        self.edges.forget_gone(&mut self.engine);
        self.shown = self.activity();
        self.engine.tick();
    }

    #[inline]
    fn take_served(&mut self) -> bool {
        self.engine.take_served()
    }

    fn waited_long(&mut self, now: Instant) {
        self.engine.waited_long(now);
    }
}
