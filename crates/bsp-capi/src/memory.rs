//! Registration, and communication with remote memory.

use std::ffi::{c_int, c_uint, c_void};

use dipole_bsp::misuse::Misuse;

use crate::number::{Rank, Size};
use crate::section::call;

/// # Safety
/// As long as it is registered, other processes read and write the memory there when supersteps end.
unsafe fn push(address: *const c_void, size: impl Size) {
    call("bsp_push_reg", |inside| {
        let bytes = size.number("the size")?;
        // SAFETY: the contract is the same.
        unsafe { inside.process.push_registration(address.cast_mut(), bytes) }
    });
}

/// What is to be put or got.
struct Transfer<R, S> {
    name: &'static str,
    rank: R,
    offset: S,
    bytes: S,
    when: When,
}

/// When bytes are moved.
#[derive(Clone, Copy)]
enum When {
    /// At the end of the superstep.
    End,
    /// At any time until then.
    Whenever,
    /// Before the call returns.
    AtOnce,
}

/// # Safety
/// `from` is readable for so many bytes, now, or if unbuffered until the superstep ends.
#[inline]
unsafe fn put<R: Rank, S: Size>(it: Transfer<R, S>, from: *const c_void, handle: *const c_void) {
    call(it.name, |inside| {
        let bytes = it.bytes.number("the number of bytes")?;
        // Nothing is moved: nothing else is looked at.
        if bytes == 0 {
            return Ok(());
        }
        let process = &mut inside.process;
        let to = it.rank.rank(process.size())?;
        let offset = it.offset.number("the offset")?;
        if from.is_null() {
            return Err(Misuse::Null("the source").into());
        }
        if handle.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let from = from.cast();
        // SAFETY: readable by contract.
        unsafe {
            match it.when {
                When::End | When::AtOnce => process.put(to, from, handle, offset, bytes),
                When::Whenever => process.put_unbuffered(to, from, handle, offset, bytes),
            }
        }
    });
}

/// # Safety
/// `into` is writable for so many bytes when the superstep ends, or from now on if they may be moved before.
#[inline]
unsafe fn get<R: Rank, S: Size>(it: Transfer<R, S>, handle: *const c_void, into: *mut c_void) {
    call(it.name, |inside| {
        let bytes = it.bytes.number("the number of bytes")?;
        if bytes == 0 {
            return Ok(());
        }
        let process = &mut inside.process;
        let of = it.rank.rank(process.size())?;
        let offset = it.offset.number("the offset")?;
        if handle.is_null() {
            return Err(Misuse::Null("the source").into());
        }
        if into.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let into = into.cast();
        // SAFETY: writable by contract.
        unsafe {
            match it.when {
                When::End => process.get(of, handle, offset, into, bytes),
                When::Whenever => process.get_unbuffered(of, handle, offset, into, bytes),
                When::AtOnce => process.direct_get(of, handle, offset, into, bytes),
            }
        }
    });
}

/// Takes a registration back.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_pop_reg(address: *const c_void) {
    call("bsp_pop_reg", |inside| {
        inside.process.pop_registration(address)
    });
}

/// As [`bsp_pop_reg`].
#[unsafe(no_mangle)]
pub extern "C" fn bsp_popregister(address: *const c_void) {
    bsp_pop_reg(address);
}

/// The functions of a dialect, by its types and symbols.
macro_rules! dialect {
    ($rank:ty, $size:ty, $push:ident, $put:ident, $hpput:ident, $get:ident, $hpget:ident, $direct_get:ident) => {
        /// Registers memory for communication from the next superstep on.
        ///
        /// # Safety
        /// Until it is popped the memory may be read and written when supersteps end, and by unbuffered calls before.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $push(address: *const c_void, size: $size) {
            // SAFETY: the contract is the same.
            unsafe { push(address, size) }
        }

        /// Copies to registered memory of another process, when the superstep ends.
        ///
        /// # Safety
        /// The source is readable for `nbytes`.
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
            // SAFETY: the contract is the same.
            unsafe { put(it, src, dst) }
        }

        /// The same without buffers: at any time until the superstep ends.
        ///
        /// # Safety
        /// The source is readable for `nbytes` and unchanged until the superstep ends.
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
                when: When::Whenever,
            };
            // SAFETY: the contract is the same.
            unsafe { put(it, src, dst) }
        }

        /// Copies from registered memory of another process, when the superstep ends.
        ///
        /// # Safety
        /// The destination is writable for `nbytes` then.
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
            // SAFETY: the contract is the same.
            unsafe { get(it, src, dst) }
        }

        /// The same without buffers: at any time until the superstep ends.
        ///
        /// # Safety
        /// The destination is writable for `nbytes` until then, and nobody else's.
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
                when: When::Whenever,
            };
            // SAFETY: the contract is the same.
            unsafe { get(it, src, dst) }
        }

        /// Copies from registered memory of another process of this node before it returns.
        ///
        /// # Safety
        /// The destination is writable for `nbytes`.
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
                when: When::AtOnce,
            };
            // SAFETY: the contract is the same.
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

/// As [`bsp_push_reg`].
///
/// # Safety
/// That of [`bsp_push_reg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_pushregister(address: *const c_void, size: c_int) {
    // SAFETY: the contract is the same.
    unsafe { bsp_push_reg(address, size) }
}
