//! Channels for event loops: connections over which lists of buffers travel, long ones without
//! copies. `dipole._dask` uses them.
//!
//! All channels between two endpoints share a link. Nothing here waits: one descriptor becomes
//! readable when [`Channels::poll`] has events. Calls keep the interpreter's lock, because they take
//! microseconds and getting it back may take milliseconds; no thread of the library waits for it while
//! it holds a lock of its own.

mod frame;
mod link;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipole_node::{
    Address, Bytes, Completion, CompletionQueue, Endpoint, EndpointId, Message, Node, SendError,
};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};

use crate::buffer::Buffer;
use crate::error::{raise, raise_as};
use crate::names::AddressPair;
use crate::process;
pub(crate) use link::forget_sent;
use link::{Arriving, Lent, Link, release_sent};
use wire::{Head, Piece};

/// Buffers from this length on are sent as messages of their own, without copies.
const SEPARATE_BYTES: usize = 32 << 10;
/// Completions taken per call of `poll`.
const MAX_TAKEN: usize = 256;

/// An event of `poll`: its kind, the number of the channel, and what belongs to it.
type Event = (&'static str, u64, Py<PyAny>);

/// All channels of an event loop.
#[pyclass(module = "dipole", frozen)]
pub(crate) struct Channels {
    node: Node,
    queue: CompletionQueue,
    descriptor: OwnedFd,
    state: Mutex<State>,
}

/// An endpoint of this process.
struct OwnEndpoint {
    endpoint: Endpoint,
    /// It accepts new channels.
    listens: bool,
}

struct Channel {
    link: u64,
    /// The peer's number; `None` until it has accepted.
    remote: Option<u64>,
}

#[derive(Default)]
struct State {
    endpoints: HashMap<u32, OwnEndpoint>,
    links: HashMap<u64, Link>,
    /// Links by own endpoint and the other one.
    link_ends: HashMap<(u32, Address), u64>,
    channels: HashMap<u64, Channel>,
    last_number: u64,
    /// The endpoint of outgoing channels.
    own: u32,
    /// Events that occurred outside of `poll`.
    ended: Vec<(u64, String)>,
}

fn is_separate(buffer: &[u8]) -> bool {
    buffer.len() >= SEPARATE_BYTES
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The link between two endpoints, opened if necessary.
    fn link(&mut self, own: u32, to: Address, queue: &CompletionQueue) -> Result<u64, SendError> {
        if let Some(number) = self.link_ends.get(&(own, to)) {
            return Ok(*number);
        }
        let Some(from) = self.endpoints.get(&own) else {
            return Err(SendError::Ended);
        };
        let edge = from.endpoint.edge(to)?;
        edge.attach(queue);
        let number = self.next_number();
        self.links.insert(number, Link::new(edge, own, to));
        self.link_ends.insert((own, to), number);
        Ok(number)
    }

    fn send(&mut self, link: u64, bytes: Bytes) -> Result<(), SendError> {
        let found = self.links.get_mut(&link).ok_or(SendError::Ended)?;
        found.send(bytes, link)
    }

    /// Sends a short message that need not arrive; a failure ends the link.
    fn send_or_fail(&mut self, link: u64, bytes: Vec<u8>) {
        if let Err(fault) = self.send(link, bytes.into()) {
            self.fail(link, &fault.to_string());
        }
    }

    fn add_channel(&mut self, link: u64, remote: Option<u64>) -> u64 {
        let number = self.next_number();
        self.channels.insert(number, Channel { link, remote });
        if let Some(link) = self.links.get_mut(&link) {
            link.channels.push(number);
        }
        number
    }

    fn remove_channel(&mut self, number: u64) -> Option<Channel> {
        let channel = self.channels.remove(&number)?;
        if let Some(link) = self.links.get_mut(&channel.link) {
            link.channels.retain(|other| *other != number);
            if let Some(arriving) = &mut link.arriving {
                arriving.channel = arriving.channel.filter(|of| *of != number);
            }
            let own = link.own;
            self.close_unused(own);
        }
        Some(channel)
    }

    /// Closes an endpoint that no longer listens, after its last channel.
    fn close_unused(&mut self, own: u32) {
        let is_used = own == self.own
            || self.endpoints.get(&own).is_none_or(|it| it.listens)
            || (self.links.values()).any(|link| link.own == own && !link.channels.is_empty());
        if is_used {
            return;
        }
        self.links.retain(|_, link| link.own != own);
        self.link_ends.retain(|(of, _), _| *of != own);
        self.endpoints.remove(&own);
    }

    /// Ends all channels of a link.
    fn fail(&mut self, link: u64, cause: &str) {
        let Some(failed) = self.links.remove(&link) else {
            return;
        };
        self.link_ends.remove(&(failed.own, failed.to));
        for channel in failed.channels {
            self.channels.remove(&channel);
            self.ended.push((channel, cause.to_owned()));
        }
        self.close_unused(failed.own);
    }
}

/// Turns completions into events.
struct Poll<'a, 'py> {
    py: Python<'py>,
    queue: &'a CompletionQueue,
    state: &'a mut State,
    events: Vec<Event>,
}

impl Poll<'_, '_> {
    fn push(&mut self, kind: &'static str, channel: u64, value: impl Into<Py<PyAny>>) {
        self.events.push((kind, channel, value.into()));
    }

    fn receive(&mut self, own: u32, message: Message) -> PyResult<()> {
        let from = message.source();
        let known = self.state.link_ends.get(&(own, from)).copied();
        if let Some(link) = known.and_then(|number| self.state.links.get_mut(&number)) {
            link.peer = Some(message.peer());
            if link.arriving.is_some() {
                return self.receive_separate(known.unwrap_or(0), message);
            }
        }
        let peer = message.peer();
        match (wire::parse(&message), known) {
            (Some(Head::Open { from: remote }), _) => {
                let listens = self.state.endpoints.get(&own).is_some_and(|it| it.listens);
                let Ok(link) = self.state.link(own, from, self.queue) else {
                    return Ok(());
                };
                if let Some(link) = self.state.links.get_mut(&link) {
                    link.peer = Some(peer);
                }
                if !listens {
                    self.state.send_or_fail(link, wire::close(remote));
                    return Ok(());
                }
                let channel = self.state.add_channel(link, Some(remote));
                self.state.send_or_fail(link, wire::accept(remote, channel));
                let ends = (own, from.node.0, from.endpoint.0).into_pyobject(self.py)?;
                self.push("opened", channel, ends.into_any());
            }
            (Some(Head::Accept { to, from: remote }), Some(link)) => {
                match self
                    .state
                    .channels
                    .get_mut(&to)
                    .filter(|it| it.link == link)
                {
                    Some(channel) => {
                        channel.remote = Some(remote);
                        self.push("accepted", to, self.py.None());
                    }
                    // The connection was given up meanwhile.
                    None => self.state.send_or_fail(link, wire::close(remote)),
                }
            }
            (Some(Head::Close { to }), Some(link)) => {
                let is_its = self
                    .state
                    .channels
                    .get(&to)
                    .is_some_and(|it| it.link == link);
                if is_its {
                    self.state.remove_channel(to);
                    let cause = format!("{from} has closed the connection");
                    self.state.ended.push((to, cause));
                    self.push_ended()?;
                }
            }
            (Some(Head::Data { to, buffers }), Some(link)) => {
                self.receive_data(link, to, buffers)?;
            }
            (None, Some(link)) => {
                let cause = format!("{from} has sent an invalid message");
                self.state.fail(link, &cause);
            }
            (_, None) => {}
        }
        Ok(())
    }

    fn receive_data(&mut self, link: u64, to: u64, pieces: Vec<Piece<'_>>) -> PyResult<()> {
        let is_its = self
            .state
            .channels
            .get(&to)
            .is_some_and(|it| it.link == link);
        let (mut buffers, mut missing) = (Vec::with_capacity(pieces.len()), VecDeque::new());
        for (at, piece) in pieces.into_iter().enumerate() {
            match piece {
                Piece::Inline(bytes) => {
                    buffers.push(PyByteArray::new(self.py, bytes).into_any().unbind());
                }
                Piece::Separate(length) => {
                    missing.push_back((at, length));
                    buffers.push(self.py.None());
                }
            }
        }
        let arriving = Arriving {
            channel: is_its.then_some(to),
            buffers,
            missing,
        };
        if arriving.missing.is_empty() {
            return self.deliver(arriving);
        }
        if let Some(link) = self.state.links.get_mut(&link) {
            link.arriving = Some(arriving);
        }
        Ok(())
    }

    /// A message that is a single buffer.
    fn receive_separate(&mut self, number: u64, message: Message) -> PyResult<()> {
        let Some(link) = self.state.links.get_mut(&number) else {
            return Ok(());
        };
        let Some(mut arriving) = link.arriving.take() else {
            return Ok(());
        };
        match arriving.missing.pop_front() {
            Some((at, length)) if length == message.len() => {
                if arriving.channel.is_some() {
                    arriving.buffers[at] = frame::Frame::view(self.py, message)?.unbind();
                }
            }
            _ => {
                let cause = format!("{} has sent an invalid message", link.to);
                self.state.fail(number, &cause);
                return Ok(());
            }
        }
        if arriving.missing.is_empty() {
            return self.deliver(arriving);
        }
        link.arriving = Some(arriving);
        Ok(())
    }

    fn deliver(&mut self, arrived: Arriving) -> PyResult<()> {
        if let Some(channel) = arrived.channel {
            let buffers = PyList::new(self.py, arrived.buffers)?;
            self.push("data", channel, buffers.into_any());
        }
        Ok(())
    }

    /// Adds the channels that have ended. Data that arrived before come first.
    fn push_ended(&mut self) -> PyResult<()> {
        for (channel, cause) in std::mem::take(&mut self.state.ended) {
            let cause = cause.into_pyobject(self.py)?;
            self.push("ended", channel, cause.into_any());
        }
        Ok(())
    }
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an endpoint whose messages appear as events.
    fn open(&self, py: Python<'_>, id: EndpointId, listens: bool) -> PyResult<u32> {
        let opened = py.detach(|| self.node.endpoint(id));
        let endpoint = opened.map_err(|fault| raise(py, &fault))?;
        endpoint.attach(&self.queue);
        let number = endpoint.address().endpoint.0;
        let own = OwnEndpoint { endpoint, listens };
        self.lock().endpoints.insert(number, own);
        Ok(number)
    }
}

#[pymethods]
impl Channels {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Channels> {
        let node = process::node(py)?;
        let made = py.detach(|| {
            let queue = node.completion_queue();
            let descriptor = queue.export();
            descriptor.map(|descriptor| (queue, descriptor))
        });
        let (queue, descriptor) = made.map_err(|fault| raise(py, &fault))?;
        queue
            .watch_departures()
            .map_err(|fault| raise(py, &fault))?;
        let channels = Channels {
            node,
            queue,
            descriptor,
            state: Mutex::new(State::default()),
        };
        let own = channels.open(py, EndpointId::ANY, false)?;
        channels.lock().own = own;
        Ok(channels)
    }

    /// The descriptor that is readable while `poll` has events.
    fn fileno(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Endpoint number of outgoing channels.
    #[getter]
    fn own(&self) -> u32 {
        self.lock().own
    }

    /// Accepts channels at an endpoint; returns its number.
    #[pyo3(signature = (dpid=None))]
    fn listen(&self, py: Python<'_>, dpid: Option<u32>) -> PyResult<u32> {
        self.open(py, dpid.map_or(EndpointId::ANY, EndpointId), true)
    }

    /// Accepts no more channels at an endpoint. Those that exist go on.
    fn stop(&self, dpid: u32) {
        let mut state = self.lock();
        if let Some(own) = state.endpoints.get_mut(&dpid) {
            own.listens = false;
            state.close_unused(dpid);
        }
    }

    /// Requests a channel; returns its number. The event "accepted" or "ended" follows.
    fn connect(&self, py: Python<'_>, to: AddressPair) -> PyResult<u64> {
        let mut state = self.lock();
        let own = state.own;
        let opened = state.link(own, to.into(), &self.queue);
        let link = opened.map_err(|fault| raise(py, &fault))?;
        let channel = state.add_channel(link, None);
        state.send_or_fail(link, wire::open(channel));
        Ok(channel)
    }

    /// Sends buffers over a channel; returns their length. Those from 32 KiB on are not copied
    /// first and must not change until they are released. Raises PeerGone or Closed if the channel has ended.
    fn write(
        &self,
        py: Python<'_>,
        channel: u64,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        release_sent(py);
        let borrowed = buffers.iter().map(Buffer::readable);
        let borrowed: Vec<Buffer> = borrowed.collect::<PyResult<_>>()?;
        let mut state = self.lock();
        let known = state.channels.get(&channel);
        let Some((link, remote)) = known.and_then(|it| Some((it.link, it.remote?))) else {
            let text = "the connection is closed".to_owned();
            return Err(raise_as(py, "Closed", text));
        };
        let bytes: Vec<&[u8]> = borrowed.iter().map(Buffer::bytes).collect();
        let length = bytes.iter().map(|buffer| buffer.len()).sum();
        let head = wire::data(remote, &bytes, is_separate);
        let mut sent = state.send(link, head.into());
        let separate = borrowed.into_iter().filter(|it| is_separate(it.bytes()));
        for buffer in separate {
            let bytes = Bytes::from_owner(Lent::new(buffer));
            sent = sent.and_then(|()| state.send(link, bytes));
        }
        match sent {
            Ok(()) => Ok(length),
            Err(fault) => {
                state.fail(link, &fault.to_string());
                Err(raise(py, &fault))
            }
        }
    }

    /// Ends a channel; what was written still arrives.
    fn close(&self, channel: u64) {
        let mut state = self.lock();
        let known = state.channels.get(&channel);
        if let Some((link, remote)) = known.map(|it| (it.link, it.remote)) {
            if let Some(remote) = remote {
                state.send_or_fail(link, wire::close(remote));
            }
            state.remove_channel(channel);
        }
    }

    /// The events since the last call: "opened" (with the listening endpoint and the address of the
    /// other), "accepted", "data" (with the buffers), and "ended" (with the reason).
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<Event>> {
        release_sent(py);
        let mut taken = Vec::new();
        let mut count = self.queue.take_many(&mut taken, MAX_TAKEN);
        let mut state = self.lock();
        let mut departed = Vec::new();
        let mut poll = Poll {
            py,
            queue: &self.queue,
            state: &mut state,
            events: Vec::with_capacity(taken.len()),
        };
        while !taken.is_empty() {
            for entry in taken.drain(..) {
                match entry {
                    Completion::Received { endpoint, message } => {
                        poll.receive(endpoint.0, message)?;
                    }
                    Completion::Failed { context, error } => {
                        poll.state.fail(context, &error.to_string());
                    }
                    Completion::Departed { departure } => departed.push(departure),
                    _ => {}
                }
            }
            // What a process has sent before it ended comes first.
            if !departed.is_empty() {
                count = self.queue.take_many(&mut taken, MAX_TAKEN);
            }
        }
        count.map_err(|fault| raise(py, &fault))?;
        for departure in departed {
            let gone = |link: &Link| link.peer == Some(departure.peer);
            let links = poll.state.links.iter().filter(|(_, link)| gone(link));
            let numbers: Vec<u64> = links.map(|(number, _)| *number).collect();
            for number in numbers {
                poll.state.fail(number, &departure.reason.to_string());
            }
        }
        poll.push_ended()?;
        let events = poll.events;
        advance(&mut state);
        drop(state);
        release_sent(py);
        Ok(events)
    }

    /// Checks that silent processes of other nodes live; returns false if no peer is on another node. To be
    /// called about once a second.
    fn watch(&self) -> bool {
        let mut state = self.lock();
        let node = self.node.id();
        let distant = state.links.iter().filter(|(_, link)| link.to.node != node);
        let mut failed = Vec::new();
        let mut is_any = false;
        for (number, link) in distant {
            is_any = true;
            match link.edge.watch() {
                Ok(()) | Err(SendError::Full { .. }) => {}
                Err(fault) => failed.push((*number, fault.to_string())),
            }
        }
        for (number, cause) in failed {
            state.fail(number, &cause);
        }
        is_any
    }
}

/// Continues links whose edges had no room.
fn advance(state: &mut State) {
    let waiting = state.links.iter_mut().filter(|(_, link)| link.is_waiting());
    let mut failed = Vec::new();
    for (number, link) in waiting {
        if let Err(fault) = link.advance(*number) {
            failed.push((*number, fault.to_string()));
        }
    }
    for (number, cause) in failed {
        state.fail(number, &cause);
    }
}
