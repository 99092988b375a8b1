//! `bare-udp-spin` and `bare-udp-block`: connected UDP sockets, one `send` and one `recv` per message,
//! where `recv` waits or not.
//!
//! Work: the kernel copies each message in and out once and computes checksums. A careful program does
//! this for low latency. There is no header, acknowledgement or retransmission, so this is a limit for
//! everything reliable over UDP sockets. In streams the flow control of [`super::datagrams`] prevents
//! losses.

use std::io;

use super::Meet;
use crate::channel::{Channel, SendMode, broken};
use crate::control::Job;
use crate::peers::buffer::Buffer;
use crate::peers::datagrams::Datagrams;
use crate::work::Kind;

pub(crate) struct Udp {
    datagrams: Datagrams,
    buffer: Buffer,
}

impl Udp {
    pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Self> {
        let work = &job.work;
        let windowed = (work.kind != Kind::Pingpong).then_some((work.size_bytes, work.size_bytes));
        let datagrams = Datagrams::bind(job.own, !job.subject.blocks(), windowed)?;
        datagrams.connect(job.other, meet)?;
        Ok(Self {
            datagrams,
            buffer: Buffer::new(work.size_bytes.max(64)),
        })
    }
}

impl Channel for Udp {
    fn try_send(&mut self, payload: &[u8], _manner: SendMode) -> io::Result<bool> {
        self.datagrams.try_send(payload)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        match self.datagrams.try_receive(&mut self.buffer)? {
            None => Ok(None),
            Some(received) if received == length => Ok(Some(consume(&self.buffer[..length]))),
            Some(received) => Err(broken(format!(
                "received a datagram of {received} bytes, expected {length}"
            ))),
        }
    }
}
