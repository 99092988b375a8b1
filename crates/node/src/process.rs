//! State under the driver's lock: the engine, edges of the public API, queues and ports.
//!
//! The engine knows peers and moves messages; [`EdgeTable`] holds edges while they connect. Both
//! are stepped together.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use dipole_driver::{Polled, Ready, Stepper, WaitKey};
use dipole_engine::{AnyLink, Engine, Message, PortRef, QueueRef, Reader, Target};
use dipole_link::wait::{Sleeper, WatchedDescriptors};
use dipole_proto::{Instant, PeerId};

use crate::address::Address;
use crate::edges::{
    Delivery, EdgeRef, EdgeTable, FanOut, OverflowPolicy, RemovedTarget, TargetTable,
};
use crate::error::SendError;
use crate::handlers::{Handler, PortTable, PortWork};
use crate::layer::LayerCounters;
use crate::liveness::Liveness;
use crate::queues::QueueTable;
use crate::receives::PostedReceives;
use crate::registry::EdgeTraffic;
use crate::slots::{Arrival, SlotRef, Slots};
use crate::stats::Stats;
use crate::waits::Waits;

/// Everything that the driver's lock protects.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub(crate) engine: Engine,
    pub(crate) edges: EdgeTable,
    pub(crate) targets: TargetTable,
    pub(crate) queues: QueueTable,
    pub(crate) ports: PortTable,
    pub(crate) receives: PostedReceives,
    pub(crate) layer: LayerCounters,
    waits: Waits,
    /// The engine's descriptors.
    watched: Arc<WatchedDescriptors>,
    /// When the process opened its node, in seconds since 1970.
    started_s: u64,
    /// Time of the last step.
    stepped_at: Instant,
    /// Value of [`activity`](Self::activity) when the counters were last published.
    published: u64,
}

/// Counters are published this long after the last activity.
const PUBLISH_NS: u64 = 250_000_000;

impl ProcessState {
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn new(engine: Engine, edges: EdgeTable) -> io::Result<ProcessState> {
        let watched = WatchedDescriptors::new(&engine.descriptors())?;
        Ok(ProcessState {
            watched,
            engine,
            edges,
            targets: TargetTable::default(),
            queues: QueueTable::default(),
            ports: PortTable::default(),
            receives: PostedReceives::default(),
            layer: LayerCounters::default(),
            waits: Waits::default(),
            started_s: unix_seconds(),
            stepped_at: Instant(0),
            published: 0,
        })
    }

    /// Uses another link for an interface whose address has changed.
    pub(crate) fn move_interface(&mut self, now: Instant, interface: usize, link: AnyLink) {
        self.engine.move_interface(now, interface, link);
        self.advance();
    }

    /// Lets sleeping threads wait for the present descriptors, as soon as they are woken.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn watch_descriptors(&self) -> io::Result<()> {
        self.watched.replace(&self.engine.descriptors())
    }

    /// Makes an open edge a target of its endpoint; closes the edge of an earlier target with the
    /// same address.
    pub(crate) fn add_target(&mut self, source: u32, to: Address, edge: EdgeRef) {
        if let Some(old) = self.targets.add(source, to, edge) {
            self.retire(&old);
        }
        self.choose_fast_target(source);
    }

    /// Removes a target and closes its edge.
    pub(crate) fn remove_target(&mut self, source: u32, to: Address) {
        if let Some(removed) = self.targets.remove(source, to) {
            self.retire(&removed);
        }
        self.choose_fast_target(source);
    }

    fn retire(&mut self, removed: &RemovedTarget) {
        let (engine, queues) = (&mut self.engine, &mut self.queues);
        if removed.is_loss_known {
            self.edges.close(engine, queues, removed.edge);
            return;
        }
        let (edge, is_loss) = (removed.edge, removed.is_lossless);
        let unsent = self.edges.retire((engine, queues), edge, is_loss);
        self.targets.count_dropped(unsent);
    }

    /// Sets what happens to messages while a target has no room; false if there is no such target.
    pub(crate) fn set_overflow_policy(
        &mut self,
        source: u32,
        to: Address,
        policy: OverflowPolicy,
    ) -> bool {
        let is_target = self.targets.set_policy(source, to, policy);
        self.choose_fast_target(source);
        is_target
    }

    fn choose_fast_target(&mut self, source: u32) {
        let target = self.targets.only(source, &self.edges);
        self.engine.set_fast_target(source, target);
    }

    /// Queues a message for all targets of an endpoint, or for none.
    ///
    /// # Errors
    /// A target is lost, or the endpoint has no targets; nothing was queued.
    pub(crate) fn fan_out(
        &mut self,
        source: u32,
        message: &mut FanOut<'_>,
        now: Instant,
    ) -> Result<Delivery, SendError> {
        let parts = (&mut self.engine, &mut self.edges, &mut self.queues);
        self.targets.send(parts, source, message, now)
    }

    /// The targets of an endpoint that are not lost.
    ///
    /// # Errors
    /// A target is lost and this has not been reported before, or all targets are lost.
    pub(crate) fn live_targets(&mut self, source: u32) -> Result<Vec<Target>, SendError> {
        self.targets.live((&self.engine, &self.edges), source)
    }

    /// Edges to targets of an endpoint on which messages wait for room.
    pub(crate) fn queued_edges(&self, source: u32) -> Vec<(EdgeRef, Address)> {
        let mut edges = self.targets.edges_of(source);
        edges.retain(|(edge, _)| self.edges.has_posts(*edge));
        edges
    }

    /// Engine, edges and queues, borrowed together.
    pub(crate) fn parts(&mut self) -> (&mut Engine, &mut EdgeTable, &mut QueueTable) {
        (&mut self.engine, &mut self.edges, &mut self.queues)
    }

    /// Posted receives and what they need, borrowed together.
    pub(crate) fn receiving(&mut self) -> (&mut PostedReceives, &mut Engine, &mut QueueTable) {
        (&mut self.receives, &mut self.engine, &mut self.queues)
    }

    /// Fills posted receives with messages that have arrived.
    pub(crate) fn advance_receives(&mut self, now: Instant) {
        let (receives, engine, queues) = self.receiving();
        receives.advance(engine, queues, now);
    }

    /// Cancels an endpoint's posted receives before it is closed.
    pub(crate) fn close_receives(&mut self, endpoint: u32) {
        let (receives, engine, queues) = self.receiving();
        receives.close_endpoint((engine, queues), endpoint);
    }

    /// Drops the posted receives of a queue that was closed.
    pub(crate) fn close_queue(&mut self, queue: QueueRef) {
        let (receives, engine, _) = self.receiving();
        receives.close_queue(engine, queue);
    }

    /// Opens a port on an endpoint.
    pub(crate) fn open_port(
        &mut self,
        endpoint: u32,
        handler: Handler,
        slots: Option<Slots>,
    ) -> PortRef {
        let port = self.ports.open(endpoint, handler, slots);
        self.engine.set_port(endpoint, port);
        if let Some((_, slots)) = self.ports.slots(port) {
            slots.offer(&mut self.engine, endpoint, port);
        }
        port
    }

    /// Takes the next message of a port. Without a message or a free slot, the port is listed again
    /// when it gets one.
    fn take_arrival(&mut self, endpoint: u32, port: PortRef, now: Instant) -> Option<Arrival> {
        let Some((_, slots)) = self.ports.slots(port) else {
            let message = self.engine.take(now, endpoint);
            if message.is_none() {
                self.engine.port_returned(endpoint, port);
            }
            return message.map(Arrival::Message);
        };
        let arrival = slots.take(&mut self.engine, (endpoint, port), now);
        if arrival.is_none() && !slots.is_starved() {
            self.engine.port_returned(endpoint, port);
        }
        arrival
    }

    /// Frees a slot of a port.
    pub(crate) fn release_slot(&mut self, slot: SlotRef) {
        if let Some((endpoint, slots)) = self.ports.slots(slot.port) {
            slots.release(&mut self.engine, endpoint, slot);
        }
    }

    /// Polls shared memory for a message to the endpoint `reader`.
    #[inline]
    pub(crate) fn poll_memory_for(&mut self, reader: u32) -> Polled<Message> {
        let polled = self.engine.poll_memory(Some(reader));
        if polled.made_progress() {
            self.advance();
        }
        polled
    }

    /// Polls shared memory and passes the endpoint's messages to `reader`.
    #[inline]
    pub(crate) fn poll_memory_to(
        &mut self,
        endpoint: u32,
        reader: &mut impl Reader,
    ) -> Polled<usize> {
        let polled = self.engine.poll_memory_to(endpoint, reader);
        if polled.made_progress() {
            self.advance();
        }
        polled
    }

    pub(crate) fn all_edges(&self) -> Vec<EdgeTraffic> {
        self.edges.traffic(&self.engine)
    }

    /// Returns the current counters.
    pub(crate) fn stats(&self) -> Stats {
        let engine = &self.engine;
        let peers = engine.machine().peers();
        Stats {
            edges: self.edges.len(),
            target_dropped: self.targets.dropped_messages(),
            traffic: engine.traffic(),
            protocol: *engine.machine().stats(),
            peers: peers.filter(|peer| !engine.shares_memory(*peer)).count(),
            pool_used_bytes: engine.holdings().pool_bytes,
            local: engine.memory_stats(),
            local_peers: engine.memory_peers(),
            free_frames: engine.free_frames(),
            waits: self.waits,
            started_s: self.started_s,
            bpf: engine.link().bpf_stats(),
            faults: match engine.link() {
                AnyLink::Fault(fault) => Some(fault.stats()),
                _ => None,
            },
            shortages: (engine.is_injecting())
                .then(|| engine.injected_shortages() + self.edges.injected_shortages()),
        }
    }

    /// Grows with every change of counters or links.
    #[inline]
    fn activity(&self) -> u64 {
        let engine = self.engine.activity() + self.engine.link_changes();
        engine.wrapping_add(self.layer.activity())
    }

    /// Makes peers prove their membership again after a cluster key was withdrawn.
    pub(crate) fn renew_proofs(&mut self, now: Instant) {
        self.engine.renew_proofs(now);
    }

    /// Applies what the liveness probe reported about a silent peer. The frames it held become
    /// free if it is gone.
    pub(crate) fn judge(&mut self, now: Instant, peer: PeerId, liveness: Liveness) {
        self.engine.judge(now, peer, liveness);
        self.advance();
    }

    /// Ends the sessions with the process that has an endpoint on another node, because it has failed.
    pub(crate) fn give_up_process(&mut self, now: Instant, endpoint: Address) {
        for peer in self.edges.remote_peers_at(&self.engine, endpoint) {
            self.engine.judge(now, peer, Liveness::Ended);
        }
        self.advance();
    }

    /// Continues connecting edges and pending operations, and adds messages to completion queues.
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
        self.queues.collect_finished(&mut self.engine);
        self.edges.advance(&mut self.engine, &mut self.queues, now);
        if !self.receives.is_empty() {
            self.advance_receives(now);
        }
        self.queues.collect_messages(&mut self.engine);
        self.queues.collect_departures(&mut self.engine);
    }
}

/// The time in seconds since 1970.
fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

impl Stepper for ProcessState {
    type Work = PortWork;

    #[inline]
    fn has_work(&self) -> bool {
        self.engine.has_port_message()
    }

    /// Also sends the credit that the message's sender may be waiting for.
    fn take_work(&mut self, now: Instant) -> Option<PortWork> {
        loop {
            let (endpoint, port) = self.engine.next_port()?;
            // Nothing runs the handler of a listed port; it is missing if the port was closed.
            let Some(handler) = self.ports.begin(port) else {
                continue;
            };
            let Some(arrival) = self.take_arrival(endpoint, port, now) else {
                drop(self.ports.finish(port, handler));
                continue;
            };
            if self.engine.has_transmit()
                && let Err(cause) = self.engine.transmit(now)
            {
                // The next thread that steps gets the error.
                tracing::debug!("credit was not sent: {cause}");
            }
            return Some(PortWork {
                endpoint,
                port,
                handler,
                arrival: Some(arrival),
            });
        }
    }

    fn finish_work(&mut self, work: PortWork) -> Option<PortWork> {
        let PortWork {
            endpoint,
            port,
            handler,
            arrival,
        } = work;
        self.engine.port_returned(endpoint, port);
        self.engine.ready().notify(WaitKey::Port(port.0));
        let handler = self.ports.finish(port, handler)?;
        Some(PortWork {
            endpoint,
            port,
            handler,
            arrival,
        })
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        Sleeper::on(Arc::clone(&self.watched))
    }

    fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        self.stepped_at = now;
        let progress = self.engine.step(now, look_everywhere)?;
        self.advance();
        Ok(progress)
    }

    #[inline]
    fn poll_memory(&mut self) -> bool {
        let progress = self.engine.poll_memory(None).made_progress();
        if progress {
            self.advance();
        }
        progress
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
    fn spin_poll(&mut self, now: Instant, calls: u32) -> io::Result<bool> {
        self.engine.spin_poll(now, calls)
    }

    #[inline]
    fn expects_bulk(&self) -> bool {
        self.engine.expects_bulk()
    }

    #[inline]
    fn take_polled(&mut self, now: Instant) -> io::Result<bool> {
        let progress = self.engine.take_polled(now)?;
        self.advance();
        Ok(progress)
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
        let publish = (self.activity() != self.published).then(|| now.after(PUBLISH_NS));
        let engine = self.engine.next_deadline(now);
        engine.into_iter().chain(edges).chain(publish).min()
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
        self.published = self.activity();
        self.engine.tick();
    }

    #[inline]
    fn take_served(&mut self) -> bool {
        self.engine.take_served()
    }

    #[inline]
    fn waited(&mut self, duration_ns: u64) {
        self.waits.count(duration_ns);
    }

    fn waited_long(&mut self, now: Instant) {
        self.engine.waited_long(now);
    }
}
