//! Messages: sent in one superstep, in the queue of their destination in the next.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;

use crate::number::{Rank, Size};
use crate::section::call;

/// A pointer to a result, which must not be null.
fn not_null<T>(what: &'static str, pointer: *mut T) -> Result<*mut T, Failure> {
    match pointer.is_null() {
        true => Err(Misuse::Null(what).into()),
        false => Ok(pointer),
    }
}

/// # Safety
/// `size` must be null, or valid for reads and writes.
unsafe fn set_tagsize<S: Size>(size: *mut S) {
    call("bsp_set_tagsize", |part| {
        let size = not_null("the pointer to the size", size)?;
        // SAFETY: `size` is not null, and the caller guarantees that it is valid then.
        let bytes = unsafe { size.read() }.number("the size of tags")?;
        let before = part.process.set_tag_size(bytes);
        // SAFETY: `size` is not null, and the caller guarantees that it is valid then.
        unsafe { size.write(S::nearest(before)) };
        Ok(())
    });
}

/// # Safety
/// `tag` must be readable for the tag size, `payload` for `bytes` bytes.
#[inline]
unsafe fn send<R: Rank, S: Size>(
    name: &'static str,
    rank: R,
    tag: *const c_void,
    payload: *const c_void,
    bytes: S,
) {
    call(name, |part| {
        let process = &mut part.process;
        let to = rank.rank(process.size())?;
        let bytes = bytes.number("the number of bytes")?;
        if tag.is_null() && process.tag_size() > 0 {
            return Err(Misuse::Null("the tag").into());
        }
        if payload.is_null() && bytes > 0 {
            return Err(Misuse::Null("the payload").into());
        }
        // SAFETY: the caller guarantees that both are readable, and null pointers are not read.
        unsafe { process.send(to, tag.cast(), payload.cast(), bytes) }
    });
}

/// # Safety
/// Both pointers must be null or valid for writes.
unsafe fn qsize<R: Rank, S: Size>(messages: *mut R, bytes: *mut S) {
    call("bsp_qsize", |part| {
        let messages = not_null("the pointer to the number of messages", messages)?;
        let (count, total) = part.process.queue_size();
        // SAFETY: pointers that are not null are valid, as the caller guarantees. `bytes` may be null.
        unsafe {
            messages.write(R::nearest(count));
            if !bytes.is_null() {
                bytes.write(S::nearest(total));
            }
        }
        Ok(())
    });
}

/// # Safety
/// `status` must be null or valid for writes, `tag` null or writable for the tag size.
unsafe fn get_tag<S: Size>(status: *mut S, tag: *mut c_void) {
    call("bsp_get_tag", |part| {
        let status = not_null("the pointer to the status", status)?;
        let length = match part.process.first_message() {
            None => S::NONE,
            Some(message) => {
                let found = message.tag;
                if !found.is_empty() {
                    let tag = not_null("the tag", tag.cast::<u8>())?;
                    // SAFETY: the caller guarantees that `tag` is writable for the tag size. The queue
                    // is memory of this library, so the two do not overlap.
                    unsafe { ptr::copy_nonoverlapping(found.as_ptr(), tag, found.len()) };
                }
                S::nearest(message.payload.len() as u64)
            }
        };
        // SAFETY: `status` is not null, and the caller guarantees that it is valid then.
        unsafe { status.write(length) };
        Ok(())
    });
}

/// # Safety
/// `payload` must be null or writable for `size` bytes.
unsafe fn move_next<S: Size>(payload: *mut c_void, size: S, may_be_empty: bool) {
    call("bsp_move", |part| {
        let size = size.number("the size of the buffer")?;
        let Some(message) = part.process.take_message() else {
            return match may_be_empty {
                true => Ok(()),
                false => Err(Misuse::EmptyQueue.into()),
            };
        };
        let copied = message.payload.len().min(usize::nearest(size));
        if copied > 0 {
            let payload = not_null("the buffer", payload.cast::<u8>())?;
            // SAFETY: the message has at least `copied` bytes. The caller guarantees that the buffer is
            // writable for `size` bytes, which are no fewer.
            unsafe { ptr::copy_nonoverlapping(message.payload.as_ptr(), payload, copied) };
        }
        Ok(())
    });
}

/// # Safety
/// Both pointers must be null or valid for writes.
unsafe fn hpmove<S: Size>(tag: *mut *mut c_void, payload: *mut *mut c_void) -> S {
    call("bsp_hpmove", |part| {
        let tag = not_null("the pointer to the tag", tag)?;
        let payload = not_null("the pointer to the payload", payload)?;
        let Some(message) = part.process.take_message() else {
            return Ok(S::NONE);
        };
        // SAFETY: both are not null, and the caller guarantees that they are valid then.
        unsafe {
            tag.write(message.tag.as_ptr().cast_mut().cast());
            payload.write(message.payload.as_ptr().cast_mut().cast());
        }
        Ok(S::nearest(message.payload.len() as u64))
    })
}

/// The functions of a dialect, given its types and symbols, and whether moving from an empty queue is
/// allowed.
macro_rules! dialect {
    ($rank:ty, $size:ty, $empty:literal, $set_tagsize:ident, $send:ident, $hpsend:ident, $qsize:ident, $get_tag:ident,
     $move:ident, $hpmove:ident) => {
        /// Sets the tag size from the next superstep on, and returns the size set before.
        ///
        /// # Safety
        /// `size` must be null, or valid for reads and writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set_tagsize(size: *mut $size) {
            // SAFETY: the caller guarantees the same.
            unsafe { set_tagsize(size) }
        }

        /// Sends a message, which is in the queue of its destination in the next superstep.
        ///
        /// # Safety
        /// `tag` must be readable for the tag size, `payload` for `nbytes` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $send(
            pid: $rank,
            tag: *const c_void,
            payload: *const c_void,
            nbytes: $size,
        ) {
            // SAFETY: the caller guarantees the same.
            unsafe { send("bsp_send", pid, tag, payload, nbytes) }
        }

        /// Unbuffered send: the caller must not change tag and payload until the superstep ends.
        ///
        /// # Safety
        /// `tag` must be readable for the tag size, `payload` for `nbytes` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $hpsend(
            pid: $rank,
            tag: *const c_void,
            payload: *const c_void,
            nbytes: $size,
        ) {
            // SAFETY: the caller guarantees the same.
            unsafe { send("bsp_hpsend", pid, tag, payload, nbytes) }
        }

        /// Gets the number of messages in the queue, and the bytes of their payloads.
        ///
        /// # Safety
        /// Both pointers must be null or valid for writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $qsize(messages: *mut $rank, bytes: *mut $size) {
            // SAFETY: the caller guarantees the same.
            unsafe { qsize(messages, bytes) }
        }

        /// Gets length and tag of the first message in the queue.
        ///
        /// # Safety
        /// `status` must be null or valid for writes, `tag` null or writable for the tag size.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_tag(status: *mut $size, tag: *mut c_void) {
            // SAFETY: the caller guarantees the same.
            unsafe { get_tag(status, tag) }
        }

        /// Copies the payload of the first message, and removes it from the queue.
        ///
        /// # Safety
        /// `payload` must be null or writable for `size` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $move(payload: *mut c_void, size: $size) {
            // SAFETY: the caller guarantees the same.
            unsafe { move_next(payload, size, $empty) }
        }

        /// Removes the first message from the queue, and returns pointers into the library's buffer. They
        /// are valid until the superstep ends.
        ///
        /// # Safety
        /// Both pointers must be null or valid for writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $hpmove(
            tag: *mut *mut c_void,
            payload: *mut *mut c_void,
        ) -> $size {
            // SAFETY: the caller guarantees the same.
            unsafe { hpmove(tag, payload) }
        }
    };
}

dialect!(
    c_int,
    c_int,
    false,
    bsp_set_tagsize,
    bsp_send,
    bsp_hpsend,
    bsp_qsize,
    bsp_get_tag,
    bsp_move,
    bsp_hpmove
);
dialect!(
    c_uint,
    usize,
    true,
    mcbsp_set_tagsize,
    mcbsp_send,
    mcbsp_hpsend,
    mcbsp_qsize,
    mcbsp_get_tag,
    mcbsp_move,
    mcbsp_hpmove
);

/// An alias of [`bsp_set_tagsize`].
///
/// # Safety
/// The same as for [`bsp_set_tagsize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_set_tag_size(size: *mut c_int) {
    // SAFETY: the caller guarantees the same.
    unsafe { bsp_set_tagsize(size) }
}

/// An alias of [`bsp_qsize`].
///
/// # Safety
/// The same as for [`bsp_qsize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_bsmp_info(messages: *mut c_int, bytes: *mut c_int) {
    // SAFETY: the caller guarantees the same.
    unsafe { bsp_qsize(messages, bytes) }
}
