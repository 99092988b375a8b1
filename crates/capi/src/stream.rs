//! Calls for TCP streams to the outside, and the interfaces that hold them.

use std::borrow::Borrow;
use std::ffi::{c_char, c_int, c_void};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use dipole_node::{Endpoint, EndpointId, Timeout};
use dipole_streams::{
    Callers, Destinations, Interface, InterfaceConfig, InterfaceControl, Layout, Ranks, Stream,
    StreamError,
};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, call};
use crate::handle::{self, Handle};
use crate::numbers::Numbered;
use crate::per_process::lock;
use crate::process::{self, CloseOrder};

/// The streams that C programs hold.
pub(crate) static STREAMS: Numbered<Mutex<Option<Stream<StreamEndpoint>>>> =
    Numbered::new(CloseOrder::Streams, |number| Failure::NotAStream { number });

/// The interfaces that C programs hold.
pub(crate) static INTERFACES: Numbered<OpenInterface> =
    Numbered::new(CloseOrder::Interfaces, |number| Failure::NotAnInterface {
        number,
    });

/// The endpoint of one rank of a stream.
#[derive(Debug)]
pub(crate) struct StreamEndpoint(Arc<Handle>);

impl Borrow<Endpoint> for StreamEndpoint {
    fn borrow(&self) -> &Endpoint {
        &self.0.endpoint
    }
}

/// An interface, served by a thread until it is closed.
#[derive(Debug)]
pub(crate) struct OpenInterface {
    stops: Arc<AtomicBool>,
    control: InterfaceControl,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for OpenInterface {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

/// `struct dp_layout`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamLayout {
    /// The number of ranks that share the bytes.
    pub ranks: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Bytes of a block or, if there are owners, of a record.
    pub block: u64,
    /// The rank of each record; null distributes blocks in turn.
    pub owners: *const u32,
    /// The length of `owners`.
    pub records: usize,
}

impl StreamLayout {
    /// # Safety
    /// `owners` is null or points to `records` numbers.
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
        // SAFETY: the caller guarantees this by contract.
        let owners = unsafe { ffi::array("owners", self.owners, self.records) }?;
        Ok(Layout::by_key(self.ranks, self.block, owners.to_vec()))
    }
}

/// # Safety
/// `layout` is null or points to a valid layout.
pub(crate) unsafe fn layout(layout: *const StreamLayout) -> Result<Layout, Failure> {
    // SAFETY: the caller guarantees this by contract.
    let layout = unsafe { ffi::array("layout", layout, 1) }?;
    // SAFETY: the caller guarantees this by contract.
    unsafe { layout[0].checked() }
}

/// A string argument that must not be null.
///
/// # Safety
/// The requirements of [`ffi::text`].
unsafe fn text<'a>(what: &'static str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller guarantees this by contract.
    unsafe { ffi::text(what, text) }?.ok_or(Failure::Null { what })
}

pub(crate) fn with<A>(
    number: c_int,
    body: impl FnOnce(&mut Stream<StreamEndpoint>) -> Result<A, StreamError>,
) -> Result<A, Failure> {
    STREAMS.with(number, |stream| match lock(stream).as_mut() {
        Some(stream) => Ok(body(stream)?),
        None => Err(Failure::NotAStream { number }),
    })
}

/// Serves streams at an endpoint, on a thread of its own; returns the interface's number.
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
        let max_streams = ffi::count(streams)?;
        let count = if count == 0 { 0 } else { ffi::count(count)? };
        // SAFETY: the caller guarantees this by contract.
        let names = unsafe { ffi::array("destinations", destinations, count) }?;
        let mut allowed: Vec<SocketAddr> = Vec::new();
        for name in names {
            // SAFETY: the caller guarantees this by contract.
            let name = unsafe { text("destinations", *name) }?;
            let found = name.to_socket_addrs();
            allowed.extend(found.map_err(|_| Failure::BadText {
                what: "destinations",
                found: name.to_owned(),
                expected: "host:port, of a host that can be found",
            })?);
        }
        let config = InterfaceConfig {
            destinations: match names.is_empty() {
                true => Destinations::Any,
                false => Destinations::Only(allowed),
            },
            max_streams: u32::try_from(max_streams).unwrap_or(u32::MAX),
            ..InterfaceConfig::default()
        };
        let node = process::current().node()?;
        let stops = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stops);
        let (opened, opening) = mpsc::channel();
        let serve = move || match Interface::open(&node, EndpointId(dpid), config) {
            Err(error) => _ = opened.send(Err(error)),
            Ok(interface) => {
                let _ = opened.send(Ok(interface.control()));
                // It ends early only with its node, and other calls report why.
                let _ended = interface.serve(|| stop.load(Ordering::Relaxed));
            }
        };
        let thread = std::thread::Builder::new().name("dipole-interface".into());
        let thread = thread.spawn(serve).map_err(|cause| Failure::Descriptor {
            doing: "starting the interface's thread",
            cause,
        })?;
        let opened = opening.recv();
        let control =
            opened.map_err(|_| Failure::Panic("an interface's thread panicked".into()))??;
        INTERFACES.insert(OpenInterface {
            stops,
            control,
            thread: Mutex::new(Some(thread)),
        })
    })
}

/// Accepts TCP clients at an address; returns its port.
///
/// # Safety
/// `at` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_interface_listen(interface: c_int, at: *const c_char) -> c_int {
    call("dp_interface_listen", || {
        // SAFETY: the caller guarantees this by contract.
        let name = unsafe { text("at", at) }?;
        let found = name.to_socket_addrs().ok();
        let address = found.and_then(|mut found| found.next());
        let address = address.ok_or_else(|| Failure::BadText {
            what: "at",
            found: name.to_owned(),
            expected: "host:port, of this host",
        })?;
        let listened = INTERFACES.with(interface, |open| Ok(open.control.listen(address)))?;
        let listened = listened.map_err(|cause| Failure::Listen { at: address, cause })?;
        Ok(listened.port().into())
    })
}

/// Closes an interface after its streams.
#[unsafe(no_mangle)]
pub extern "C" fn dp_interface_close(interface: c_int) -> c_int {
    call("dp_interface_close", || {
        let thread = INTERFACES.with(interface, |open| {
            open.stops.store(true, Ordering::Relaxed);
            Ok(lock(&open.thread).take())
        })?;
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            return Err(Failure::Panic("an interface's thread panicked".into()));
        }
        INTERFACES.close(interface)?;
        Ok(0)
    })
}

/// The number of bytes that a rank has of a transfer.
///
/// # Safety
/// `layout` points to a layout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_layout_bytes(
    layout: *const StreamLayout,
    rank: u32,
    total: u64,
) -> isize {
    call("dp_layout_bytes", || {
        // SAFETY: the caller guarantees this by contract.
        let layout = unsafe { self::layout(layout) }?;
        if let Some(why) = layout.error(total) {
            return Err(StreamError::Misuse(why).into());
        }
        length(layout.part(rank, total))
    })
}

pub(crate) fn length(bytes: u64) -> Result<isize, Failure> {
    isize::try_from(bytes).map_err(|_| Failure::BadNumber {
        what: "total",
        found: i64::MAX,
        expected: "fewer bytes than memory can have",
    })
}

/// Opens a stream; returns its number.
///
/// # Safety
/// `ranks` points to `count` addresses, `to` to a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_open(
    fd: c_int,
    ranks: *const Address,
    count: c_int,
    own: c_int,
    interface: Address,
    to: *const c_char,
    idle_timeout_ns: i64,
) -> c_int {
    call("dp_stream_open", || {
        // SAFETY: the caller guarantees this by contract.
        let ranks = unsafe { self::ranks(ranks, count, own) }?;
        // SAFETY: the caller guarantees this by contract.
        let to = unsafe { text("to", to) }?;
        let endpoint = StreamEndpoint(handle::find(fd)?);
        let timeout = Timeout::from_nanos(idle_timeout_ns).duration();
        let stream = Stream::open(endpoint, ranks, interface.checked()?, to, timeout)?;
        STREAMS.insert(Mutex::new(Some(stream)))
    })
}

/// The ranks of a stream.
///
/// # Safety
/// `ranks` points to `count` addresses.
unsafe fn ranks(ranks: *const Address, count: c_int, own: c_int) -> Result<Ranks, Failure> {
    let count = ffi::count(count)?;
    // SAFETY: the caller guarantees this by contract.
    let ranks = unsafe { ffi::array("ranks", ranks, count) }?;
    let addresses: Result<Vec<_>, _> = ranks.iter().map(|it| it.checked()).collect();
    let own = u32::try_from(own).map_err(|_| Failure::BadNumber {
        what: "own",
        found: own.into(),
        expected: "a rank, from 0 on",
    })?;
    Ok(Ranks {
        own,
        addresses: addresses?,
    })
}

/// Accepts the next TCP client of a port; returns the number of the stream.
///
/// # Safety
/// `ranks` points to `count` addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_accept(
    fd: c_int,
    ranks: *const Address,
    count: c_int,
    own: c_int,
    interface: Address,
    port: c_int,
    wait_ns: i64,
    idle_timeout_ns: i64,
) -> c_int {
    call("dp_stream_accept", || {
        // SAFETY: the caller guarantees this by contract.
        let ranks = unsafe { self::ranks(ranks, count, own) }?;
        let number = u16::try_from(port).ok().filter(|port| *port > 0);
        let callers = Callers {
            port: number.ok_or(Failure::BadNumber {
                what: "port",
                found: port.into(),
                expected: "a port, from 1 to 65535",
            })?,
            wait: Timeout::from_nanos(wait_ns).duration(),
        };
        let endpoint = StreamEndpoint(handle::find(fd)?);
        let timeout = Timeout::from_nanos(idle_timeout_ns).duration();
        let stream = Stream::accept(endpoint, ranks, interface.checked()?, callers, timeout)?;
        STREAMS.insert(Mutex::new(Some(stream)))
    })
}

/// Writes bytes to the connection without a layout; only for rank 0.
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
        // SAFETY: the caller guarantees this by contract.
        let bytes = unsafe { ffi::bytes("bytes", bytes, len) }?;
        with(stream, |stream| stream.write_raw(bytes))?;
        Ok(0)
    })
}

/// Reads bytes from the connection without a layout, only for rank 0; returns their number, 0 at the
/// end of the stream.
///
/// # Safety
/// `buf` points to `len` bytes that no other thread accesses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_read_raw(stream: c_int, buf: *mut c_void, len: usize) -> isize {
    call("dp_stream_read_raw", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { ffi::bytes_mut("buf", buf, len) }?;
        let received = with(stream, |stream| stream.read_raw(place.len()))?;
        let to = place.get_mut(..received.len());
        let to = to.ok_or_else(|| Failure::Panic("more bytes were received than fit".into()))?;
        to.copy_from_slice(&received);
        Ok(received.len().cast_signed())
    })
}

/// Ends the output of the stream; only for rank 0.
#[unsafe(no_mangle)]
pub extern "C" fn dp_stream_shutdown(stream: c_int) -> c_int {
    call("dp_stream_shutdown", || {
        with(stream, Stream::finish)?;
        Ok(0)
    })
}

/// Writes the parts of all ranks.
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
        // SAFETY: the caller guarantees this by contract.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: the caller guarantees this by contract.
        let part = unsafe { ffi::bytes("part", part, len) }?;
        with(stream, |stream| stream.write(&layout, total, part))?;
        Ok(0)
    })
}

/// Reads the parts of all ranks; returns the number of bytes of all parts.
///
/// # Safety
/// `layout` points to a layout, `part` to `len` bytes that no other thread accesses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_read(
    stream: c_int,
    layout: *const StreamLayout,
    total: u64,
    part: *mut c_void,
    len: usize,
) -> isize {
    call("dp_stream_read", || {
        // SAFETY: the caller guarantees this by contract.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: the caller guarantees this by contract.
        let part = unsafe { ffi::bytes_mut("part", part, len) }?;
        length(total)?;
        let total = with(stream, |stream| stream.read(&layout, total, part))?;
        length(total)
    })
}

/// Closes the stream, on all ranks.
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
