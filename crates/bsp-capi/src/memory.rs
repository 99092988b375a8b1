//! Registration, and communication with remote memory.

use std::ffi::{c_int, c_uint, c_void};

use dipole_bsp::misuse::Misuse;

use crate::number::{Rank, Size};
use crate::section::call;

/// # Safety
/// While the memory is registered, `sync` and other processes may read and write it.
unsafe fn push(address: *const c_void, size: impl Size) {
    call("bsp_push_reg", |part| {
        let bytes = size.number("the size")?;
        // SAFETY: the caller guarantees the same.
        unsafe { part.process.push_registration(address.cast_mut(), bytes) }
    });
}

/// Arguments of a put or a get.
struct Transfer<R, S> {
    name: &'static str,
    rank: R,
    offset: S,
    bytes: S,
    when: When,
}

/// When the bytes are moved.
#[derive(Clone, Copy)]
enum When {
    /// The bytes are copied at the end of the superstep.
    End,
    /// The bytes may be copied at any time until the superstep ends.
    Anytime,
    /// The bytes are copied before the call returns.
    Now,
}

/// # Safety
/// `from` must be readable for `bytes` bytes during the call; if unbuffered, until the superstep ends.
#[inline]
unsafe fn put<R: Rank, S: Size>(it: Transfer<R, S>, from: *const c_void, handle: *const c_void) {
    call(it.name, |part| {
        let bytes = it.bytes.number("the number of bytes")?;
        // For 0 bytes, nothing else is checked.
        if bytes == 0 {
            return Ok(());
        }
        let process = &mut part.process;
        let to = it.rank.rank(process.size())?;
        let offset = it.offset.number("the offset")?;
        if from.is_null() {
            return Err(Misuse::Null("the source").into());
        }
        if handle.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let from = from.cast();
        // SAFETY: the caller guarantees that `from` is readable for as long as needed.
        unsafe {
            match it.when {
                When::End | When::Now => process.put(to, from, handle, offset, bytes),
                When::Anytime => process.put_unbuffered(to, from, handle, offset, bytes),
            }
        }
    });
}

/// # Safety
/// `into` must be writable for `bytes` bytes when they are moved, and not be used until then.
#[inline]
unsafe fn get<R: Rank, S: Size>(it: Transfer<R, S>, handle: *const c_void, into: *mut c_void) {
    call(it.name, |part| {
        let bytes = it.bytes.number("the number of bytes")?;
        if bytes == 0 {
            return Ok(());
        }
        let process = &mut part.process;
        let from = it.rank.rank(process.size())?;
        let offset = it.offset.number("the offset")?;
        if handle.is_null() {
            return Err(Misuse::Null("the source").into());
        }
        if into.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let into = into.cast();
        // SAFETY: the caller guarantees that `into` is writable for as long as needed.
        unsafe {
            match it.when {
                When::End => process.get(from, handle, offset, into, bytes),
                When::Anytime => process.get_unbuffered(from, handle, offset, into, bytes),
                When::Now => process.direct_get(from, handle, offset, into, bytes),
            }
        }
    });
}

/// Removes a registration.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_pop_reg(address: *const c_void) {
    call("bsp_pop_reg", |part| part.process.pop_registration(address));
}

/// An alias of [`bsp_pop_reg`].
#[unsafe(no_mangle)]
pub extern "C" fn bsp_popregister(address: *const c_void) {
    bsp_pop_reg(address);
}

/// The functions of a dialect, given its types and symbols.
macro_rules! dialect {
    ($rank:ty, $size:ty, $push:ident, $put:ident, $hpput:ident, $get:ident, $hpget:ident, $direct_get:ident) => {
        /// Registers memory for communication from the next superstep on.
        ///
        /// # Safety
        /// Until it is popped, the memory may be read and written when supersteps end, and by
        /// unbuffered calls at any time.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $push(address: *const c_void, size: $size) {
            // SAFETY: the caller guarantees the same.
            unsafe { push(address, size) }
        }

        /// Copies to registered memory of another process when the superstep ends.
        ///
        /// # Safety
        /// `src` must be readable for `nbytes` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $put(
            pid: $rank,
            src: *const c_void,
            dst: *mut c_void,
            offset: $size,
            nbytes: $size,
        ) {
            let it = Transfer {
                name: "bsp_put",
                rank: pid,
                offset,
                bytes: nbytes,
                when: When::End,
            };
            // SAFETY: the caller guarantees the same.
            unsafe { put(it, src, dst) }
        }

        /// Unbuffered put: the bytes may be copied at any time until the superstep ends.
        ///
        /// # Safety
        /// `src` must be readable for `nbytes` bytes, and unchanged, until the superstep ends.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $hpput(
            pid: $rank,
            src: *const c_void,
            dst: *mut c_void,
            offset: $size,
            nbytes: $size,
        ) {
            let it = Transfer {
                name: "bsp_hpput",
                rank: pid,
                offset,
                bytes: nbytes,
                when: When::Anytime,
            };
            // SAFETY: the caller guarantees the same.
            unsafe { put(it, src, dst) }
        }

        /// Copies from registered memory of another process when the superstep ends.
        ///
        /// # Safety
        /// `dst` must be writable for `nbytes` bytes until then.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            pid: $rank,
            src: *const c_void,
            offset: $size,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Transfer {
                name: "bsp_get",
                rank: pid,
                offset,
                bytes: nbytes,
                when: When::End,
            };
            // SAFETY: the caller guarantees the same.
            unsafe { get(it, src, dst) }
        }

        /// Unbuffered get: the bytes may be copied at any time until the superstep ends.
        ///
        /// # Safety
        /// `dst` must be writable for `nbytes` bytes until then, and nothing else may use it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $hpget(
            pid: $rank,
            src: *const c_void,
            offset: $size,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Transfer {
                name: "bsp_hpget",
                rank: pid,
                offset,
                bytes: nbytes,
                when: When::Anytime,
            };
            // SAFETY: the caller guarantees the same.
            unsafe { get(it, src, dst) }
        }

        /// Copies from registered memory of another process of this node before it returns.
        ///
        /// # Safety
        /// `dst` must be writable for `nbytes` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $direct_get(
            pid: $rank,
            src: *const c_void,
            offset: $size,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Transfer {
                name: "bsp_direct_get",
                rank: pid,
                offset,
                bytes: nbytes,
                when: When::Now,
            };
            // SAFETY: the caller guarantees the same.
            unsafe { get(it, src, dst) }
        }
    };
}

dialect!(
    c_int,
    c_int,
    bsp_push_reg,
    bsp_put,
    bsp_hpput,
    bsp_get,
    bsp_hpget,
    bsp_direct_get
);
dialect!(
    c_uint,
    usize,
    mcbsp_push_reg,
    mcbsp_put,
    mcbsp_hpput,
    mcbsp_get,
    mcbsp_hpget,
    mcbsp_direct_get
);

/// An alias of [`bsp_push_reg`].
///
/// # Safety
/// The same as for [`bsp_push_reg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_pushregister(address: *const c_void, size: c_int) {
    // SAFETY: the caller guarantees the same.
    unsafe { bsp_push_reg(address, size) }
}
