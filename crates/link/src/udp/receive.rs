//! Fetches datagrams: one with a plain call, or several with `recvmmsg`, with the length of the frames
//! that the kernel has joined into one message (`UDP_GRO`).
//!
//! All buffers are allocated once. Messages are ranges of them, valid until the next call.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::UdpStats;
use super::memory::{Array, Control, Header, Name, Piece};
use crate::{Class, Incoming};

/// Alignment of slots. The kernel copies with `rep movsb`, which is four times slower on some
/// processors (AMD Zen 3) if the destination is less than 32 bytes further into a page than the
/// source. Kernel data often starts at a page, and long allocations 16 bytes after one.
const ALIGNMENT: usize = 64;

/// One message in the buffers.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    len: usize,
    frame_bytes: usize,
    from: SocketAddr,
}

/// The receive buffers of one socket.
pub(super) struct Receiver {
    slot_bytes: usize,
    buffers: Array<u8>,
    /// Offset of the first slot.
    start: usize,
    names: Array<Name>,
    controls: Array<Control>,
    /// Kept alive because the headers point to them.
    _pieces: Array<Piece>,
    headers: Array<Header>,
    messages: Vec<Place>,
}

impl Receiver {
    /// Allocates `slots` buffers of `slot_bytes` each.
    pub(super) fn new(slots: usize, slot_bytes: usize) -> Receiver {
        let buffers = Array::new(vec![0; slots * slot_bytes + ALIGNMENT]);
        let start = buffers.place(0).align_offset(ALIGNMENT);
        let names = Array::new(vec![Name::zeroed(); slots]);
        let controls = Array::new(vec![Control([0; 64]); slots]);
        let pieces = (0..slots).map(|slot| {
            Piece(libc::iovec {
                iov_base: buffers.place(start + slot * slot_bytes).cast(),
                iov_len: slot_bytes,
            })
        });
        let pieces = Array::new(pieces.collect());
        let headers = (0..slots).map(|slot| {
            let mut header = Header::zeroed();
            header.0.msg_hdr.msg_name = names.place(slot).cast();
            header.0.msg_hdr.msg_iov = pieces.place(slot).cast();
            header.0.msg_hdr.msg_iovlen = 1;
            header.0.msg_hdr.msg_control = controls.place(slot).cast();
            reset(&mut header);
            header
        });
        let headers = Array::new(headers.collect());
        Receiver {
            slot_bytes,
            buffers,
            start,
            names,
            controls,
            _pieces: pieces,
            headers,
            messages: Vec::with_capacity(slots),
        }
    }

    /// Maximum messages per call of [`many`](Self::many).
    fn slots(&self) -> usize {
        self.headers.slice().len()
    }

    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    pub(super) fn message(&self, index: usize, class: Class) -> Incoming<'_> {
        let place = &self.messages[index];
        Incoming {
            class,
            from: place.from,
            bytes: &self.buffers.slice()[place.offset..place.offset + place.len],
            frame_bytes: place.frame_bytes,
        }
    }

    /// Fetches at most one datagram with the cheapest call; returns the number of messages.
    #[inline]
    pub(super) fn one(
        &mut self,
        socket: BorrowedFd<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<usize> {
        self.messages.clear();
        let slot = self.start..self.start + self.slot_bytes;
        let buffer = &mut self.buffers.slice_mut()[slot];
        match rustix::net::recvfrom(socket, buffer, RecvFlags::TRUNC) {
            Ok((_, len, from)) => {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                self.keep(0, (len, len), from, stats);
                Ok(self.messages.len())
            }
            Err(error) => ignore_transient(error),
        }
    }

    /// Fetches as many datagrams as there are slots; returns the number of messages.
    pub(super) fn many(
        &mut self,
        socket: BorrowedFd<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<usize> {
        self.messages.clear();
        let count = libc::c_uint::try_from(self.slots()).unwrap_or(1);
        // SAFETY: the headers describe buffers, names and control space of this receiver: alive,
        // with the given lengths (restored after each use below) and not borrowed elsewhere,
        // since `self` is borrowed mutably.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.place(0).cast(),
                count,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(result) else {
            let error = io::Error::last_os_error();
            let error = Errno::from_io_error(&error).ok_or(error)?;
            return ignore_transient(error);
        };
        let count = count.min(self.slots());
        for slot in 0..count {
            let header = self.headers.slice()[slot].0;
            reset(&mut self.headers.slice_mut()[slot]);
            let len = header.msg_len as usize;
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                stats.truncated += 1;
                continue;
            }
            let control_bytes = header.msg_hdr.msg_controllen;
            let segment = segment_bytes(&self.controls.slice()[slot], control_bytes);
            let from = self.names.slice()[slot].address();
            self.keep(slot, (len, segment.unwrap_or(len)), from, stats);
        }
        Ok(self.messages.len())
    }

    /// Adds a message of frames of `frame_bytes` to the list.
    #[inline]
    fn keep(
        &mut self,
        slot: usize,
        (len, frame_bytes): (usize, usize),
        from: Option<SocketAddr>,
        stats: &mut UdpStats,
    ) {
        if len > self.slot_bytes {
            stats.truncated += 1;
            return;
        }
        let (Some(from), true) = (from, len > 0) else {
            stats.empty += 1;
            return;
        };
        let frame_bytes = if frame_bytes == 0 { len } else { frame_bytes };
        self.messages.push(Place {
            offset: self.start + slot * self.slot_bytes,
            len,
            frame_bytes,
            from,
        });
        stats.received_frames += len.div_ceil(frame_bytes) as u64;
        stats.gro_batches += u64::from(len > frame_bytes);
    }
}

/// Restores the header fields that a call overwrites.
fn reset(header: &mut Header) {
    header.0.msg_hdr.msg_namelen = Name::BYTES;
    header.0.msg_hdr.msg_controllen = size_of::<Control>() as _;
    header.0.msg_hdr.msg_flags = 0;
    header.0.msg_len = 0;
}

/// Treats an empty socket, an interrupted call, and errors left by an earlier send to another
/// peer as no frame: the next poll finds the rest.
fn ignore_transient(error: Errno) -> io::Result<usize> {
    match error {
        Errno::AGAIN
        | Errno::INTR
        | Errno::CONNREFUSED
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::NETDOWN
        | Errno::MSGSIZE
        | Errno::NOMEM
        | Errno::NOBUFS => Ok(0),
        error => Err(error.into()),
    }
}

/// Length of the segments that the kernel has joined, if it has.
fn segment_bytes(control: &Control, control_bytes: usize) -> Option<usize> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const VALUE: usize = size_of::<libc::c_int>();
    let mut rest = control.0.get(..control_bytes)?;
    loop {
        let (header, after) = rest.split_at_checked(HEADER)?;
        // SAFETY: the slice is as long as a `cmsghdr`, which consists of integers; the read does
        // not require alignment.
        let header = unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        #[allow(
            clippy::unnecessary_cast,
            reason = "some C libraries have another type"
        )]
        let len = header.cmsg_len as usize;
        if header.cmsg_level == libc::SOL_UDP && header.cmsg_type == libc::UDP_GRO {
            let value = after.get(..VALUE)?;
            let value = libc::c_int::from_ne_bytes(value.try_into().ok()?);
            return usize::try_from(value).ok();
        }
        rest = rest.get(
            len.max(HEADER)
                .next_multiple_of(align_of::<libc::cmsghdr>())..,
        )?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_size_is_found_after_another_control_message() {
        let mut control = Control([0; 64]);
        let mut put = |at: usize, level: i32, kind: i32, value: i32| {
            control.0[at..at + 8].copy_from_slice(&20_u64.to_ne_bytes());
            control.0[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
            control.0[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
            control.0[at + 16..at + 20].copy_from_slice(&value.to_ne_bytes());
        };
        put(0, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 5);
        put(24, libc::SOL_UDP, libc::UDP_GRO, 1472);
        assert_eq!(segment_bytes(&control, 48), Some(1472));
        assert_eq!(segment_bytes(&control, 24), None);
        assert_eq!(segment_bytes(&control, 0), None);
        assert_eq!(segment_bytes(&control, 1000), None);
    }
}
