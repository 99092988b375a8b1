//! Calls for one sequence of bytes over several streams.

use std::ffi::{c_int, c_void};

use dipole_streams::{Layout, Stream, StreamError, Stripes};

use crate::failure::Failure;
use crate::ffi::{self, call};
use crate::per_process::lock;
use crate::stream::{STREAMS, StreamEndpoint, StreamLayout, layout, length};

/// Streams that this call has taken out of their numbers.
struct Taken(Vec<(c_int, Stream<StreamEndpoint>)>);

impl Taken {
    fn take(numbers: &[c_int]) -> Result<Taken, Failure> {
        let mut taken = Taken(Vec::new());
        for number in numbers {
            let stream = STREAMS.with(*number, |stream| {
                let number = *number;
                lock(stream).take().ok_or(Failure::NotAStream { number })
            });
            match stream {
                Ok(stream) => taken.0.push((*number, stream)),
                Err(failure) => {
                    taken.put_back();
                    return Err(failure);
                }
            }
        }
        Ok(taken)
    }

    /// Returns the streams to their numbers, also after an error: they need to be closed.
    fn put_back(self) {
        for (number, stream) in self.0 {
            // The number exists unless the program has ended with this call under way.
            let _ended = STREAMS.with(number, |place| {
                *lock(place) = Some(stream);
                Ok(())
            });
        }
    }

    /// Runs a transfer over the streams.
    fn striped<A>(
        self,
        block: u64,
        body: impl FnOnce(&mut Stripes<StreamEndpoint>) -> Result<A, StreamError>,
    ) -> Result<A, Failure> {
        if let Err(failure) = positive(block) {
            self.put_back();
            return Err(failure);
        }
        let (numbers, streams): (Vec<c_int>, Vec<_>) = self.0.into_iter().unzip();
        let mut stripes = Stripes::new(streams, block)?;
        let done = body(&mut stripes);
        Taken(numbers.into_iter().zip(stripes.into_streams()).collect()).put_back();
        Ok(done?)
    }
}

fn positive(block: u64) -> Result<u64, Failure> {
    match block {
        0 => Err(Failure::BadNumber {
            what: "block",
            found: 0,
            expected: "a number above 0",
        }),
        block => Ok(block),
    }
}

/// The layout of the bytes of each stream; all ranks have blocks in turn.
///
/// # Safety
/// The requirements of [`layout`].
unsafe fn stripe_layout(place: *const StreamLayout) -> Result<Layout, Failure> {
    // SAFETY: the caller guarantees this by contract.
    let given = unsafe { ffi::array("layout", place, 1) }?;
    if given[0].records != 0 {
        return Err(Failure::BadNumber {
            what: "records",
            found: i64::try_from(given[0].records).unwrap_or(i64::MAX),
            expected: "0, because each stream has blocks in turn",
        });
    }
    // SAFETY: the caller guarantees this by contract.
    unsafe { layout(place) }
}

/// Stores how many of `total` bytes go over each of `count` streams.
///
/// # Safety
/// `bytes` points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stripes_split(
    count: c_int,
    block: u64,
    total: u64,
    bytes: *mut u64,
) -> c_int {
    call("dp_stripes_split", || {
        let count = ffi::count(count)?;
        let number = u32::try_from(count).unwrap_or(u32::MAX);
        let over = Layout::block_cyclic(number, positive(block)?);
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { ffi::Out::new("bytes", bytes) }?;
        for (stream, at) in (0..number).zip(0..count) {
            // SAFETY: `at` is less than `count`, the length of the array by contract.
            unsafe { place.element(at) }.write(over.part(stream, total));
        }
        Ok(0)
    })
}

/// Writes the parts of all ranks over several streams at once.
///
/// # Safety
/// `streams`, `parts` and `lengths` have `count` elements, `layout` points to a layout, and each part
/// has the stated length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stripes_write(
    streams: *const c_int,
    count: c_int,
    block: u64,
    layout: *const StreamLayout,
    total: u64,
    parts: *const *const c_void,
    lengths: *const usize,
) -> c_int {
    call("dp_stripes_write", || {
        let count = ffi::count(count)?;
        // SAFETY: the caller guarantees this by contract.
        let layout = unsafe { stripe_layout(layout) }?;
        // SAFETY: the caller guarantees this by contract.
        let numbers = unsafe { ffi::array("streams", streams, count) }?;
        // SAFETY: the caller guarantees this by contract.
        let places = unsafe { ffi::array("parts", parts, count) }?;
        // SAFETY: the caller guarantees this by contract.
        let lengths = unsafe { ffi::array("lengths", lengths, count) }?;
        let mut parts: Vec<&[u8]> = Vec::new();
        for (place, length) in places.iter().zip(lengths) {
            // SAFETY: the caller guarantees this by contract.
            parts.push(unsafe { ffi::bytes("parts", *place, *length) }?);
        }
        let taken = Taken::take(numbers)?;
        taken.striped(block, |stripes| {
            stripes.write(|_| layout.clone(), total, &parts)
        })?;
        Ok(0)
    })
}

/// Reads the parts of all ranks from several streams at once; returns the number of bytes of all parts.
///
/// # Safety
/// The requirements of `dp_stripes_write`; the parts do not overlap, and no other thread accesses them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stripes_read(
    streams: *const c_int,
    count: c_int,
    block: u64,
    layout: *const StreamLayout,
    total: u64,
    parts: *const *mut c_void,
    lengths: *const usize,
) -> isize {
    call("dp_stripes_read", || {
        let count = ffi::count(count)?;
        // SAFETY: the caller guarantees this by contract.
        let layout = unsafe { stripe_layout(layout) }?;
        // SAFETY: the caller guarantees this by contract.
        let numbers = unsafe { ffi::array("streams", streams, count) }?;
        // SAFETY: the caller guarantees this by contract.
        let places = unsafe { ffi::array("parts", parts, count) }?;
        // SAFETY: the caller guarantees this by contract.
        let lengths = unsafe { ffi::array("lengths", lengths, count) }?;
        let mut parts: Vec<&mut [u8]> = Vec::new();
        for (place, length) in places.iter().zip(lengths) {
            // SAFETY: the caller guarantees this by contract, and that the parts do not overlap.
            parts.push(unsafe { ffi::bytes_mut("parts", *place, *length) }?);
        }
        length(total)?;
        let taken = Taken::take(numbers)?;
        let bytes = taken.striped(block, |stripes| {
            stripes.read(|_| layout.clone(), total, &mut parts)
        })?;
        length(bytes)
    })
}
