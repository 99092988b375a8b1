//! Streams to the outside, and the interfaces that hold them.

use std::borrow::Borrow;
use std::ffi::{c_char, c_int, c_void};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use dipole_node::{Endpoint, EndpointId, Timeout};
use dipole_streams::{
    Destinations, Interface, InterfaceConfig, Layout, Ranks, Stream, StreamError,
};

use crate::failure::Failure;
use crate::guard::{self, call};
use crate::handle::{self, Handle};
use crate::numbers::Numbered;
use crate::options::Address;
use crate::process::{self, lock};

/// The streams that C programs hold.
pub(crate) static STREAMS: Numbered<Mutex<Option<Stream<Held>>>> = Numbered::new(
    |process| &process.streams,
    |number| Failure::NotAStream { number },
);

/// The interfaces that C programs hold.
pub(crate) static INTERFACES: Numbered<OpenInterface> = Numbered::new(
    |process| &process.interfaces,
    |number| Failure::NotAnInterface { number },
);

/// The endpoint of a stream's rank.
#[derive(Debug)]
pub(crate) struct Held(Arc<Handle>);

impl Borrow<Endpoint> for Held {
    fn borrow(&self) -> &Endpoint {
        &self.0.endpoint
    }
}

/// An interface, served by a thread until it is told to end.
#[derive(Debug)]
pub(crate) struct OpenInterface {
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for OpenInterface {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// `struct dp_layout`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamLayout {
    /// Among which bytes are dealt out.
    pub ranks: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Bytes of a block, or, with owners, of a record.
    pub block: u64,
    /// The rank of each record, or null: blocks in turn.
    pub owners: *const u32,
    /// How many owners there are.
    pub records: usize,
}

impl StreamLayout {
    /// # Safety
    /// `owners` is null or points to so many numbers.
    unsafe fn checked(self) -> Result<Layout, Failure> {
        let positive = |what, found: u64| match found {
            0 => Err(Failure::BadNumber {
                what,
                found: 0,
                expected: "a number above 0",
            }),
            _ => Ok(()),
        };
        positive("ranks", self.ranks.into())?;
        positive("block", self.block)?;
        if self.reserved != 0 {
            return Err(Failure::BadNumber {
                what: "reserved",
                found: self.reserved.into(),
                expected: "0",
            });
        }
        if self.owners.is_null() && self.records == 0 {
            return Ok(Layout::block_cyclic(self.ranks, self.block));
        }
        // SAFETY: by contract.
        let owners = unsafe { guard::array("owners", self.owners, self.records) }?;
        Ok(Layout::by_key(self.ranks, self.block, owners.to_vec()))
    }
}

/// # Safety
/// `layout` is null or points to a layout, whose owners are as many as it says.
unsafe fn layout(layout: *const StreamLayout) -> Result<Layout, Failure> {
    // SAFETY: by contract.
    let layout = unsafe { guard::array("layout", layout, 1) }?;
    // SAFETY: by contract.
    unsafe { layout[0].checked() }
}

/// A text that is needed.
///
/// # Safety
/// That of [`guard::text`].
unsafe fn text<'a>(what: &'static str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: by contract.
    unsafe { guard::text(what, text) }?.ok_or(Failure::Null { what })
}

fn with<A>(
    number: c_int,
    body: impl FnOnce(&mut Stream<Held>) -> Result<A, StreamError>,
) -> Result<A, Failure> {
    STREAMS.with(number, |stream| match lock(stream).as_mut() {
        Some(stream) => Ok(body(stream)?),
        None => Err(Failure::NotAStream { number }),
    })
}

/// Serves streams at an endpoint, on a thread of its own; the interface's number.
///
/// # Safety
/// `destinations` points to `count` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_interface_open(
    dpid: u32,
    streams: c_int,
    destinations: *const *const c_char,
    count: c_int,
) -> c_int {
    call("dp_interface_open", || {
        let most_streams = guard::count(streams)?;
        let count = if count == 0 { 0 } else { guard::count(count)? };
        // SAFETY: by contract.
        let given = unsafe { guard::array("destinations", destinations, count) }?;
        let mut allowed: Vec<SocketAddr> = Vec::new();
        for place in given {
            // SAFETY: by contract.
            let place = unsafe { text("destinations", *place) }?;
            let found = place.to_socket_addrs();
            allowed.extend(found.map_err(|_| Failure::BadText {
                what: "destinations",
                found: place.to_owned(),
                expected: "host:port, of a host that can be found",
            })?);
        }
        let config = InterfaceConfig {
            destinations: match given.is_empty() {
                true => Destinations::Any,
                false => Destinations::Only(allowed),
            },
            most_streams: u32::try_from(most_streams).unwrap_or(u32::MAX),
            ..InterfaceConfig::default()
        };
        let node = process::current().node()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let (tell, told) = mpsc::channel();
        let serve = move || match Interface::open(&node, EndpointId(dpid), config) {
            Err(error) => _ = tell.send(Some(error)),
            Ok(interface) => {
                let _ = tell.send(None);
                // It ends early only with its node, whose other calls say why.
                let _ended = interface.serve(|| ends.load(Ordering::Relaxed));
            }
        };
        let thread = std::thread::Builder::new().name("dipole-interface".into());
        let thread = thread.spawn(serve).map_err(|cause| Failure::Descriptor {
            doing: "starting the interface's thread",
            cause,
        })?;
        if let Ok(Some(error)) = told.recv() {
            return Err(error.into());
        }
        INTERFACES.enter(OpenInterface {
            is_over,
            thread: Mutex::new(Some(thread)),
        })
    })
}

/// Ends an interface, after its streams.
#[unsafe(no_mangle)]
pub extern "C" fn dp_interface_close(interface: c_int) -> c_int {
    call("dp_interface_close", || {
        let thread = INTERFACES.with(interface, |open| {
            open.is_over.store(true, Ordering::Relaxed);
            Ok(lock(&open.thread).take())
        })?;
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            return Err(Failure::Panic("an interface's thread panicked".into()));
        }
        INTERFACES.close(interface)?;
        Ok(0)
    })
}

/// How many bytes of a transfer are a rank's.
///
/// # Safety
/// `layout` points to a layout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_layout_part(
    layout: *const StreamLayout,
    rank: u32,
    total: u64,
) -> isize {
    call("dp_layout_part", || {
        // SAFETY: by contract.
        let layout = unsafe { self::layout(layout) }?;
        if let Some(why) = layout.why_not(total) {
            return Err(StreamError::Misuse(why).into());
        }
        length(layout.part(rank, total))
    })
}

fn length(bytes: u64) -> Result<isize, Failure> {
    isize::try_from(bytes).map_err(|_| Failure::BadNumber {
        what: "total",
        found: i64::MAX,
        expected: "fewer bytes than memory can have",
    })
}

/// Opens a stream; its number.
///
/// # Safety
/// `ranks` points to `count` addresses, `to` to a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_open(
    fd: c_int,
    ranks: *const Address,
    count: c_int,
    own: c_int,
    interface: Address,
    to: *const c_char,
    patience_ns: i64,
) -> c_int {
    call("dp_stream_open", || {
        let count = guard::count(count)?;
        // SAFETY: by contract.
        let ranks = unsafe { guard::array("ranks", ranks, count) }?;
        // SAFETY: by contract.
        let to = unsafe { text("to", to) }?;
        let addresses: Result<Vec<_>, _> = ranks.iter().map(|it| it.checked()).collect();
        let own = u32::try_from(own).map_err(|_| Failure::BadNumber {
            what: "own",
            found: own.into(),
            expected: "a rank, from 0 on",
        })?;
        let ranks = Ranks {
            own,
            addresses: addresses?,
        };
        let endpoint = Held(handle::find(fd)?);
        let patience = Timeout::from_nanos(patience_ns).duration();
        let stream = Stream::open(endpoint, ranks, interface.checked()?, to, patience)?;
        STREAMS.enter(Mutex::new(Some(stream)))
    })
}

/// Rank 0 writes bytes as they stand.
///
/// # Safety
/// `bytes` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_write_raw(
    stream: c_int,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    call("dp_stream_write_raw", || {
        // SAFETY: by contract.
        let bytes = unsafe { guard::bytes("bytes", bytes, len) }?;
        with(stream, |stream| stream.write_raw(bytes))?;
        Ok(0)
    })
}

/// Rank 0 reads some bytes; how many, 0 at the end of the stream.
///
/// # Safety
/// `buf` points to `len` bytes that nobody else accesses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_read_raw(stream: c_int, buf: *mut c_void, len: usize) -> isize {
    call("dp_stream_read_raw", || {
        // SAFETY: by contract.
        let place = unsafe { guard::bytes_mut("buf", buf, len) }?;
        let heard = with(stream, |stream| stream.read_raw(place.len()))?;
        let to = place.get_mut(..heard.len());
        let to = to.ok_or_else(|| Failure::Panic("more was heard than there is room".into()))?;
        to.copy_from_slice(&heard);
        Ok(heard.len().cast_signed())
    })
}

/// Rank 0 tells the outside that nothing more comes.
#[unsafe(no_mangle)]
pub extern "C" fn dp_stream_finish(stream: c_int) -> c_int {
    call("dp_stream_finish", || {
        with(stream, Stream::finish)?;
        Ok(0)
    })
}

/// All ranks write their parts.
///
/// # Safety
/// `layout` points to a layout, `part` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_write(
    stream: c_int,
    layout: *const StreamLayout,
    total: u64,
    part: *const c_void,
    len: usize,
) -> c_int {
    call("dp_stream_write", || {
        // SAFETY: by contract.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: by contract.
        let part = unsafe { guard::bytes("part", part, len) }?;
        with(stream, |stream| stream.write(&layout, total, part))?;
        Ok(0)
    })
}

/// All ranks read their parts; how many bytes came for all.
///
/// # Safety
/// `layout` points to a layout, `part` to `len` bytes that nobody else accesses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_read(
    stream: c_int,
    layout: *const StreamLayout,
    total: u64,
    part: *mut c_void,
    len: usize,
) -> isize {
    call("dp_stream_read", || {
        // SAFETY: by contract.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: by contract.
        let part = unsafe { guard::bytes_mut("part", part, len) }?;
        length(total)?;
        let came = with(stream, |stream| stream.read(&layout, total, part))?;
        length(came)
    })
}

/// All ranks close it.
#[unsafe(no_mangle)]
pub extern "C" fn dp_stream_close(stream: c_int) -> c_int {
    call("dp_stream_close", || {
        let open = STREAMS.with(stream, |open| Ok(lock(open).take()))?;
        STREAMS.close(stream)?;
        match open {
            Some(open) => open.close()?,
            None => return Err(Failure::NotAStream { number: stream }),
        }
        Ok(0)
    })
}
