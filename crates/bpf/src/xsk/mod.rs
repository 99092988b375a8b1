//! An AF_XDP socket on one queue of an interface: frames out and in through memory shared with
//! the kernel.
//!
//! In copy mode the kernel makes its usual packet of each frame; zero copy is tried when
//! asked for. One process owns the queue: a second such socket on it gets EBUSY.

mod hook;
mod ring;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

pub use hook::XskHook;

use self::ring::{Memory, Piece, Ring, Which};
use super::InterfaceId;
use super::headers::read_udp;
use super::raw::{RawFrame, Sent, Templates, write_frame};

/// Bytes of a piece of the shared memory: a page, the most that the kernel takes.
pub const PIECE_BYTES: usize = 4096;
/// What the kernel keeps free before a frame that comes, and behind it, with a margin.
const KEPT_BYTES: usize = 640;
/// Frames handed out by one poll.
const MAX_POLL: u32 = 64;
/// The kernel sends at most so many frames for one call (its own batch is 32).
const MAX_KICKS: u32 = 64;

/// How to open such a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XskOptions {
    /// The interface's queue.
    pub queue: u32,
    /// Pieces for each direction, a power of two; of [`PIECE_BYTES`] each, locked in memory.
    pub pieces: u32,
    /// Whether frames shall come, too.
    pub receive: bool,
    /// Whether the interface itself may work on the shared memory. Else, and where it can't, the
    /// kernel copies.
    pub zero_copy: bool,
}

impl Default for XskOptions {
    /// Queue 0, 4 MiB for each direction, both directions, copied.
    fn default() -> Self {
        XskOptions {
            queue: 0,
            pieces: 1024,
            receive: true,
            zero_copy: false,
        }
    }
}

/// See the module.
pub struct Xsk {
    socket: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    transmit: Ring<Piece>,
    receive: Option<Ring<Piece>>,
    /// First the pieces to send from, then those to receive into. Unmapped after the rings.
    memory: Memory,
    pieces: u32,
    /// Which of the pieces to send from are ours, and the same as a list.
    sending: Vec<bool>,
    free: Vec<u32>,
    /// Pieces that the last poll offers.
    offered: Vec<u32>,
    /// What the last poll found: who sent it, and where the payload lies.
    found: Vec<(SocketAddr, Range<usize>)>,
    templates: Templates,
    queue: u32,
    zero_copy: bool,
}

impl Xsk {
    /// Opens a socket on an interface's queue. What comes needs a [`XskHook`] besides.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, when the memory may not be locked, when there is no such interface
    /// or queue, or another socket has it (the kernel gives a queue back a moment after
    /// its socket was closed).
    ///
    /// # Panics
    /// When the number of pieces is not a power of two.
    pub fn open(interface: &InterfaceId, options: &XskOptions) -> io::Result<Xsk> {
        if options.zero_copy
            && let Ok(xsk) = Xsk::open_as(interface, options, SocketAddrXdpFlags::XDP_ZEROCOPY)
        {
            return Ok(xsk);
        }
        Xsk::open_as(interface, options, SocketAddrXdpFlags::XDP_COPY).map_err(|cause| {
            let what = format!("open an AF_XDP socket on queue {} of", options.queue);
            interface.cannot(&what, &cause)
        })
    }

    fn open_as(
        interface: &InterfaceId,
        options: &XskOptions,
        mode: SocketAddrXdpFlags,
    ) -> io::Result<Xsk> {
        let pieces = options.pieces;
        assert!(pieces.is_power_of_two(), "{pieces} pieces");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        let bytes = 2 * pieces as usize * PIECE_BYTES;
        let memory = Memory::new(bytes)?;
        let shared = XdpUmemReg {
            addr: memory.address(),
            len: bytes as u64,
            chunk_size: 4096,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, shared)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, pieces)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, pieces)?;
        sockopt::set_xdp_tx_ring_size(&socket, pieces)?;
        if options.receive {
            sockopt::set_xdp_rx_ring_size(&socket, pieces)?;
        }
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let fd = socket.as_fd();
        let receive = match options.receive {
            true => Some(Ring::map(fd, Which::Receive, &offsets, pieces)?),
            false => None,
        };
        let mut xsk = Xsk {
            fill: Ring::map(fd, Which::Fill, &offsets, pieces)?,
            completion: Ring::map(fd, Which::Completion, &offsets, pieces)?,
            transmit: Ring::map(fd, Which::Transmit, &offsets, pieces)?,
            receive,
            memory,
            pieces,
            sending: vec![false; pieces as usize],
            free: (0..pieces).collect(),
            offered: Vec::with_capacity(MAX_POLL as usize),
            found: Vec::with_capacity(MAX_POLL as usize),
            templates: Templates::default(),
            queue: options.queue,
            zero_copy: false,
            socket,
        };
        for piece in pieces..2 * pieces {
            xsk.fill.put(piece - pieces, place(piece));
        }
        xsk.fill.publish(pieces);
        let flags = mode | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let address = SocketAddrXdp::new(flags, interface.index, options.queue);
        bind(&xsk.socket, &address)?;
        let mode = sockopt::xdp_options(&xsk.socket)?;
        xsk.zero_copy = mode.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok(xsk)
    }

    /// True when the interface works on the shared memory itself.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// The interface's queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Puts a frame where [`flush`](Self::flush) sends it from.
    pub fn put(&mut self, frame: &RawFrame<'_>) -> Sent {
        if self.free.is_empty() {
            self.reap();
        }
        if self.free.is_empty() || self.transmit.room() == 0 {
            return Sent::Full;
        }
        let Some(piece) = self.write(frame) else {
            return Sent::NotThisWay;
        };
        self.transmit.put(0, piece);
        self.transmit.publish(1);
        Sent::Taken
    }

    /// Sends what has been put, by one system call for some dozens of frames. Never waits. Frames
    /// taken while the interface is down leave when it is up again.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        self.kick()?;
        self.reap();
        Ok(())
    }

    /// A frame in a piece of its own.
    fn write(&mut self, frame: &RawFrame<'_>) -> Option<Piece> {
        let payload_bytes = frame.payload[0].len() + frame.payload[1].len();
        if payload_bytes > frame.route.longest_payload() {
            return None;
        }
        let (template, identification) = self.templates.of(&frame.route, frame.from, frame.to)?;
        let length = template.bytes() + payload_bytes;
        if length > PIECE_BYTES {
            return None;
        }
        let index = self.free.pop()?;
        self.sending[index as usize] = true;
        let at = index as usize * PIECE_BYTES;
        let room = self.memory.bytes_mut(at, length);
        write_frame(template, identification, frame.payload, room);
        Some(Piece {
            at: place(index),
            length: u32::try_from(length).ok()?,
            options: 0,
        })
    }

    /// Makes the kernel send what waits.
    fn kick(&mut self) -> io::Result<()> {
        for _ in 0..MAX_KICKS {
            if self.transmit.waiting() == 0 || !self.transmit.needs_wakeup() {
                break;
            }
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                // More than one batch waits.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                // What waits goes with the next call.
                Err(Errno::NOBUFS | Errno::BUSY | Errno::NETDOWN | Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes back the pieces of frames that have been sent.
    fn reap(&mut self) {
        let count = self.completion.filled();
        for ahead in 0..count {
            let index = self.completion.peek(ahead) / PIECE_BYTES as u64;
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            // Entries that make no sense are passed over, here and in `poll`.
            if let Some(sending) = self.sending.get_mut(index as usize)
                && std::mem::take(sending)
            {
                self.free.push(index);
            }
        }
        self.completion.release(count);
    }

    /// Fetches what has come, without waiting; returns how many frames
    /// [`frame`](Self::frame) now offers. The former ones are gone.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn poll(&mut self) -> io::Result<usize> {
        self.give_back();
        let Some(receive) = &mut self.receive else {
            return Ok(0);
        };
        let count = receive.filled().min(MAX_POLL);
        let pieces = self.pieces;
        for ahead in 0..count {
            let piece = receive.peek(ahead);
            let Some((index, range)) = place_of(piece, pieces) else {
                continue;
            };
            self.offered.push(index);
            let start = range.start;
            if let Some((from, inner)) = read_udp(self.memory.bytes(start, range.len())) {
                let payload = start + inner.start..start + inner.end;
                self.found.push((from, payload));
            }
        }
        receive.release(count);
        if count == 0 && self.fill.needs_wakeup() {
            match recv(&self.socket, &mut [0_u8; 0][..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NETDOWN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.found.len())
    }

    /// Gives back what the last poll offered; true if something else has come meanwhile.
    pub(super) fn is_waiting(&mut self) -> bool {
        self.give_back();
        self.receive.as_ref().is_some_and(|ring| ring.filled() > 0)
    }

    fn give_back(&mut self) {
        self.found.clear();
        // As many as were taken out: there is always room for those.
        let room = self.fill.room();
        let mut put = 0;
        while put < room
            && let Some(index) = self.offered.pop()
        {
            self.fill.put(put, place(index));
            put += 1;
        }
        self.fill.publish(put);
    }

    /// The `index`-th frame of the last poll: who sent it, and its payload. Its checksum has
    /// been checked by the interface at most.
    ///
    /// # Panics
    /// When `index` is not below what `poll` returned.
    #[must_use]
    pub fn frame(&self, index: usize) -> (SocketAddr, &[u8]) {
        let (from, range) = &self.found[index];
        (*from, self.memory.bytes(range.start, range.len()))
    }
}

impl AsFd for Xsk {
    /// Becomes readable when something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Xsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xsk")
            .field("socket", &self.socket)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// Where a piece lies in the memory.
fn place(index: u32) -> u64 {
    u64::from(index) * PIECE_BYTES as u64
}

/// Which piece to receive into an entry lies in, and where; `None` for one that lies
/// elsewhere or reaches into the next.
fn place_of(entry: Piece, pieces: u32) -> Option<(u32, Range<usize>)> {
    let index = u32::try_from(entry.at / PIECE_BYTES as u64).ok()?;
    let start = usize::try_from(entry.at).ok()?;
    let end = start.checked_add(usize::try_from(entry.length).ok()?)?;
    let last = usize::try_from(index).ok()?.checked_add(1)? * PIECE_BYTES;
    let is_inside = (pieces..2 * pieces).contains(&index) && end <= last;
    is_inside.then_some((index, start..end))
}

/// Bytes of the longest frame that comes in one piece.
#[must_use]
pub const fn longest_received_frame() -> usize {
    PIECE_BYTES - KEPT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, length: u32) -> Piece {
        Piece {
            at,
            length,
            options: 0,
        }
    }

    #[test]
    fn only_entries_inside_one_piece_to_receive_into_are_believed() {
        let place = |at, length| place_of(entry(at, length), 4);
        assert_eq!(place(4 * 4096 + 256, 60), Some((4, 16640..16700)));
        assert_eq!(place(8 * 4096 - 1, 1), Some((7, 32767..32768)));
        for (at, length) in [
            (0, 60),
            (4 * 4096 - 1, 1),
            (5 * 4096 - 60, 61),
            (8 * 4096, 1),
            (8 * 4096 - 1, 2),
            (u64::MAX, 1),
            (4 * 4096, u32::MAX),
        ] {
            assert_eq!(place(at, length), None, "{length} bytes at {at}");
        }
    }
}
