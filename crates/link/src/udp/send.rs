//! Passes frames to a socket: one with `sendto`, several with one `sendmmsg`, runs to one
//! destination joined into one message (`UDP_SEGMENT`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::UdpStats;
use super::memory::{Array, Control, Header, Name, Piece};
use crate::Outgoing;

/// Maximum messages per call.
const MESSAGES: usize = 64;
/// Maximum pieces of memory per call.
const PIECES: usize = 1024;
/// Frames per message that every kernel with `UDP_SEGMENT` accepts.
const SEGMENTS: usize = 64;
/// Bytes that fit into one segmented message with both IP versions.
const SEGMENTED_BYTES: usize = 65_535 - 20 - 8 - 20;

/// How far a run of frames got.
pub(super) enum Progress {
    /// This many were taken; the next may follow.
    Taken(usize),
    /// This many were taken, then the socket was full.
    Full(usize),
    /// This many were taken, then a message of `frames` frames was refused.
    Refused {
        taken: usize,
        frames: usize,
        error: Errno,
    },
}

/// The send buffers; shared by both sockets, since they are in use only during a call.
pub(super) struct Sender {
    names: Array<Name>,
    controls: Array<Control>,
    pieces: Array<Piece>,
    headers: Array<Header>,
    /// Frames in each message.
    frames: [usize; MESSAGES],
}

impl Sender {
    pub(super) fn new() -> Sender {
        let names = Array::new(vec![Name::zeroed(); MESSAGES]);
        let controls = Array::new(vec![segment_control(0); MESSAGES]);
        let pieces = Array::new(vec![Piece::EMPTY; PIECES]);
        let headers = Array::new(vec![Header::zeroed(); MESSAGES]);
        Sender {
            names,
            controls,
            pieces,
            headers,
            frames: [0; MESSAGES],
        }
    }

    /// Sends the frames of `run`, all of one class and none empty. With `join`, successive frames
    /// with the same destination are sent as one message.
    pub(super) fn run(
        &mut self,
        socket: BorrowedFd<'_>,
        run: &[Outgoing<'_>],
        join: bool,
        stats: &mut UdpStats,
    ) -> Progress {
        if let [frame] = run
            && frame.count() == 1
        {
            return single(socket, frame, stats);
        }
        self.messages(socket, run, (join, false), stats)
    }

    /// Sends a run through a socket connected to the destination of all its frames.
    pub(super) fn run_connected(
        &mut self,
        socket: BorrowedFd<'_>,
        run: &[Outgoing<'_>],
        stats: &mut UdpStats,
    ) -> Progress {
        self.messages(socket, run, (true, true), stats)
    }

    fn messages(
        &mut self,
        socket: BorrowedFd<'_>,
        run: &[Outgoing<'_>],
        (join, connected): (bool, bool),
        stats: &mut UdpStats,
    ) -> Progress {
        let count = self.build(run, join, connected);
        let mut done = 0;
        let mut taken = 0;
        while done < count {
            let left = libc::c_uint::try_from(count - done).unwrap_or(1);
            // SAFETY: `build` has just filled the headers below `count`: names, control space and
            // pieces belong to this sender, and the pieces refer only to frames of `run`, which
            // is borrowed until we return. `done` is below `count`. The kernel reads all of it
            // and writes only `msg_len`.
            let result = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    self.headers.place(done).cast(),
                    left,
                    (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
                )
            };
            let Ok(sent) = usize::try_from(result) else {
                let error = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
                match error {
                    Errno::INTR => continue,
                    error if is_full(error) => return Progress::Full(taken),
                    error => {
                        return Progress::Refused {
                            taken,
                            frames: self.frames[done],
                            error,
                        };
                    }
                }
            };
            for &frames in &self.frames[done..(done + sent).min(count)] {
                taken += frames;
                stats.sent_frames += frames as u64;
                stats.gso_batches += u64::from(frames > 1);
            }
            done += sent;
        }
        Progress::Taken(taken)
    }

    /// Fills messages from the start of `run` until a limit is reached; returns their number.
    /// Messages for a `connected` socket have no name.
    fn build(&mut self, run: &[Outgoing<'_>], join: bool, connected: bool) -> usize {
        let mut messages = 0;
        // Pieces used so far.
        let mut filled = 0;
        let mut rest = run.iter().copied();
        let mut next = rest.next();
        while let Some(first) = next
            && filled < PIECES
            && messages < MESSAGES
        {
            let segment = first.frame_bytes.min(first.bytes.len());
            let most = if join {
                SEGMENTS.min(SEGMENTED_BYTES / segment.max(1)).max(1)
            } else {
                1
            };
            let pieces_before = filled;
            let (mut frames, mut bytes) = (0, 0);
            // Only the last segment may be shorter.
            while let Some(more) = next
                && frames < most
                && filled < PIECES
                && more.to == first.to
                && (frames == 0 || !(first.alone || more.alone))
                && bytes == frames * segment
                && more.bytes.len().min(more.frame_bytes) <= segment
            {
                let is_alike = more.frame_bytes >= segment;
                let count = more.count().min(if is_alike { most - frames } else { 1 });
                let part = more.first(count).bytes;
                self.add_piece(part, (pieces_before, &mut filled));
                frames += count;
                bytes += part.len();
                next = match count < more.count() {
                    true => Some(more.after(count)),
                    false => rest.next(),
                };
            }
            let (name, name_bytes) = match connected {
                true => (ptr::null_mut(), 0),
                false => {
                    let name_bytes = self.names.slice_mut()[messages].set(&first.to);
                    (self.names.place(messages).cast(), name_bytes)
                }
            };
            let joined = frames > 1;
            if joined {
                self.controls.slice_mut()[messages] = segment_control(segment);
            }
            let control: *mut libc::c_void = if joined {
                self.controls.place(messages).cast()
            } else {
                ptr::null_mut()
            };
            let pieces = self.pieces.place(pieces_before).cast();
            let header = &mut self.headers.slice_mut()[messages].0.msg_hdr;
            header.msg_name = name;
            header.msg_namelen = name_bytes;
            header.msg_iov = pieces;
            header.msg_iovlen = (filled - pieces_before) as _;
            header.msg_control = control;
            header.msg_controllen = if joined { CONTROL_BYTES as _ } else { 0 };
            self.frames[messages] = frames;
            messages += 1;
        }
        messages
    }

    /// Adds memory to the message whose pieces begin at `from`. The kernel handles one long piece
    /// faster than several.
    #[inline]
    fn add_piece(&mut self, part: &[u8], (from, filled): (usize, &mut usize)) {
        let pieces = &mut self.pieces.slice_mut()[from..=*filled];
        if let [.., last, _] = pieces
            && last.is_followed_by(part)
        {
            last.0.iov_len += part.len();
            return;
        }
        pieces[pieces.len() - 1] = Piece(libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        *filled += 1;
    }
}

/// Sends one frame with the cheapest call.
#[inline]
fn single(socket: BorrowedFd<'_>, frame: &Outgoing<'_>, stats: &mut UdpStats) -> Progress {
    loop {
        let sent = rustix::net::sendto(socket, frame.bytes, SendFlags::NOSIGNAL, &frame.to);
        match sent {
            Ok(_) => {
                stats.sent_frames += 1;
                return Progress::Taken(1);
            }
            Err(Errno::INTR) => {}
            Err(error) if is_full(error) => return Progress::Full(0),
            Err(error) => {
                return Progress::Refused {
                    taken: 0,
                    frames: 1,
                    error,
                };
            }
        }
    }
}

fn is_full(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)
}

/// Size of the control message with the segment length: header and a `u16`.
const CONTROL_BYTES: usize =
    (size_of::<libc::cmsghdr>() + size_of::<u16>()).next_multiple_of(align_of::<libc::cmsghdr>());

/// A control message that makes the kernel split a message into segments of this size.
fn segment_control(segment: usize) -> Control {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let mut control = Control([0; 64]);
    // SAFETY: plain integers (and padding on some platforms); zero is valid.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_len = (HEADER + size_of::<u16>()) as _;
    header.cmsg_level = libc::SOL_UDP;
    header.cmsg_type = libc::UDP_SEGMENT;
    // SAFETY: the space is longer than a header and aligned for it.
    unsafe { control.0.as_mut_ptr().cast::<libc::cmsghdr>().write(header) };
    // A segment longer than a `u16` is never built: it exceeds a datagram, so the caller has
    // refused the frame.
    let segment = u16::try_from(segment).unwrap_or(u16::MAX);
    control.0[HEADER..HEADER + size_of::<u16>()].copy_from_slice(&segment.to_ne_bytes());
    control
}
