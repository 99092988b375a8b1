//! Posted receives: memory for an endpoint's next messages, which are stored there in order while
//! the owner does something else.
//!
//! The memory of the first [`MAX_OFFERED`] receives is offered to the engine, so that long
//! messages are assembled there; other messages are copied. Protected by the driver's lock, and
//! bounded to [`MAX_POSTED`] receives per endpoint.

use std::collections::VecDeque;

use dipole_engine::{Context, Engine, QueueRef};
use dipole_link::Region as RegionMemory;
use dipole_proto::Instant;

use crate::address::{Address, EndpointId};
use crate::queues::{Completion, QueueTable};

use crate::error::ReceiveError;

/// Posted receives per endpoint.
const MAX_POSTED: usize = 1024;
/// Receives whose memory is offered to the engine: as many as long messages may be in flight.
const MAX_OFFERED: usize = 16;

#[derive(Debug)]
pub(crate) struct PostedReceive {
    pub(crate) memory: RegionMemory,
    pub(crate) context: Context,
    pub(crate) queue: QueueRef,
}

impl PostedReceive {
    fn filled(self, endpoint: u32, taken: Result<(usize, Address), usize>) -> Completion {
        let PostedReceive {
            memory, context, ..
        } = self;
        match taken {
            Ok((length, source)) => Completion::Filled {
                context,
                endpoint: EndpointId(endpoint),
                source,
                length,
                memory,
            },
            Err(needed) => Completion::NotFilled {
                context,
                error: ReceiveError::TooShort {
                    needed,
                    given: memory.bytes(),
                },
                memory,
            },
        }
    }

    fn failed(self, error: ReceiveError) -> Completion {
        Completion::NotFilled {
            context: self.context,
            error,
            memory: self.memory,
        }
    }
}

/// All posted receives of a process.
#[derive(Debug, Default)]
pub(crate) struct PostedReceives(Vec<(u32, VecDeque<PostedReceive>)>);

impl PostedReceives {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn post(
        &mut self,
        endpoint: u32,
        receive: PostedReceive,
    ) -> Result<(), ReceiveError> {
        let known = self.0.iter().position(|(of, _)| *of == endpoint);
        let at = known.unwrap_or_else(|| {
            self.0.push((endpoint, VecDeque::new()));
            self.0.len() - 1
        });
        let (_, waiting) = &mut self.0[at];
        if waiting.len() >= MAX_POSTED {
            return Err(ReceiveError::TooManyPosted { limit: MAX_POSTED });
        }
        waiting.push_back(receive);
        Ok(())
    }

    /// Fills posted receives with messages that have arrived, and offers memory for later ones.
    pub(crate) fn advance(&mut self, engine: &mut Engine, queues: &mut QueueTable, now: Instant) {
        for (endpoint, waiting) in &mut self.0 {
            while let Some((at, taken)) =
                engine.take_posted(now, *endpoint, |at| waiting.get(at).map(|it| &it.memory))
                && let Some(receive) = waiting.remove(at)
            {
                let queue = receive.queue;
                queues.push(engine, Some(queue), receive.filled(*endpoint, taken));
            }
            if engine.offered(*endpoint) < waiting.len().min(MAX_OFFERED) {
                for receive in waiting.iter().take(MAX_OFFERED) {
                    engine.offer_posted(*endpoint, &receive.memory);
                }
            }
        }
        self.0.retain(|(_, waiting)| !waiting.is_empty());
        // Send credit that the senders may be waiting for.
        if engine.has_transmit()
            && let Err(cause) = engine.transmit(now)
        {
            // The next thread that steps the engine gets the error, too.
            tracing::warn!("cannot send credit after a posted receive: {cause}");
        }
    }

    /// Removes those receives of an endpoint that match, oldest first.
    fn withdraw(
        &mut self,
        engine: &mut Engine,
        endpoint: u32,
        mut is_it: impl FnMut(&PostedReceive) -> bool,
    ) -> VecDeque<PostedReceive> {
        let Some((_, waiting)) = self.0.iter_mut().find(|(of, _)| *of == endpoint) else {
            return VecDeque::new();
        };
        let (taken, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(waiting).into_iter().partition(&mut is_it);
        *waiting = left;
        for receive in &taken {
            engine.withdraw(endpoint, &receive.memory);
        }
        self.0.retain(|(_, waiting)| !waiting.is_empty());
        taken
    }

    pub(crate) fn cancel(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        endpoint: u32,
        context: Context,
    ) -> bool {
        let mut found = false;
        let is_it = |receive: &PostedReceive| {
            let is_first = !found && receive.context == context;
            found |= is_first;
            is_first
        };
        let taken = self.withdraw(engine, endpoint, is_it);
        for receive in taken {
            let queue = receive.queue;
            let completion = receive.failed(ReceiveError::Cancelled);
            queues.push(engine, Some(queue), completion);
        }
        found
    }

    /// Cancels the receives of an endpoint before it is closed.
    pub(crate) fn close_endpoint(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        endpoint: u32,
    ) {
        for receive in self.withdraw(engine, endpoint, |_| true) {
            let queue = receive.queue;
            queues.push(engine, Some(queue), receive.failed(ReceiveError::Ended));
        }
    }

    /// Removes the receives of a queue that was closed, since nothing would report them.
    pub(crate) fn close_queue(&mut self, engine: &mut Engine, queue: QueueRef) {
        let endpoints: Vec<u32> = self.0.iter().map(|(endpoint, _)| *endpoint).collect();
        for endpoint in endpoints {
            drop(self.withdraw(engine, endpoint, |it| it.queue == queue));
        }
    }
}
