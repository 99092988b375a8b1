//! Messages: sent in one superstep, in the queue of their destination in the next.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;

use crate::number::{Rank, Size};
use crate::section::call;

/// A place for an answer, which must be there.
fn place<T>(what: &'static str, place: *mut T) -> Result<*mut T, Failure> {
    match place.is_null() {
        true => Err(Misuse::Null(what).into()),
        false => Ok(place),
    }
}

/// # Safety
/// `size` is null, or valid for reads and writes.
unsafe fn set_tagsize<S: Size>(size: *mut S) {
    call("bsp_set_tagsize", |inside| {
        let size = place("the pointer to the size", size)?;
        // SAFETY: not null, so valid by contract.
        let bytes = unsafe { size.read() }.number("the size of tags")?;
        let before = inside.process.set_tag_size(bytes);
        // SAFETY: as above.
        unsafe { size.write(S::nearest(before)) };
        Ok(())
    });
}

/// # Safety
/// `tag` is readable for the size of tags, `payload` for `bytes`.
#[inline]
unsafe fn send<R: Rank, S: Size>(
    name: &'static str,
    rank: R,
    tag: *const c_void,
    payload: *const c_void,
    bytes: S,
) {
    call(name, |inside| {
        let process = &mut inside.process;
        let to = rank.rank(process.size())?;
        let bytes = bytes.number("the number of bytes")?;
        if tag.is_null() && process.tag_size() > 0 {
            return Err(Misuse::Null("the tag").into());
        }
        if payload.is_null() && bytes > 0 {
            return Err(Misuse::Null("the payload").into());
        }
        // SAFETY: readable by contract, and not null unless nothing is read.
        unsafe { process.send(to, tag.cast(), payload.cast(), bytes) }
    });
}

/// # Safety
/// Both are null or valid for writes.
unsafe fn qsize<R: Rank, S: Size>(messages: *mut R, bytes: *mut S) {
    call("bsp_qsize", |inside| {
        let messages = place("the pointer to the number of messages", messages)?;
        let (count, total) = inside.process.queue_size();
        // SAFETY: not null, so valid by contract; the second one may be.
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
/// `status` is null or valid for writes, `tag` null or writable for the size of tags.
unsafe fn get_tag<S: Size>(status: *mut S, tag: *mut c_void) {
    call("bsp_get_tag", |inside| {
        let status = place("the pointer to the status", status)?;
        let length = match inside.process.first_message() {
            None => S::NONE,
            Some(message) => {
                let found = message.tag;
                if !found.is_empty() {
                    let tag = place("the tag", tag.cast::<u8>())?;
                    // SAFETY: not null, so writable for the size of tags by contract; the queue is the library's.
                    unsafe { ptr::copy_nonoverlapping(found.as_ptr(), tag, found.len()) };
                }
                S::nearest(message.payload.len() as u64)
            }
        };
        // SAFETY: not null, so valid by contract.
        unsafe { status.write(length) };
        Ok(())
    });
}

/// # Safety
/// `payload` is null or writable for `size` bytes.
unsafe fn move_next<S: Size>(payload: *mut c_void, size: S, may_be_empty: bool) {
    call("bsp_move", |inside| {
        let size = size.number("the size of the buffer")?;
        let Some(message) = inside.process.take_message() else {
            return match may_be_empty {
                true => Ok(()),
                false => Err(Misuse::EmptyQueue.into()),
            };
        };
        let copied = message.payload.len().min(usize::nearest(size));
        if copied > 0 {
            let payload = place("the buffer", payload.cast::<u8>())?;
            // SAFETY: the message has so many bytes; the buffer is not null, so writable for them by contract.
            unsafe { ptr::copy_nonoverlapping(message.payload.as_ptr(), payload, copied) };
        }
        Ok(())
    });
}

/// # Safety
/// Both are null or valid for writes.
unsafe fn hpmove<S: Size>(tag: *mut *mut c_void, payload: *mut *mut c_void) -> S {
    call("bsp_hpmove", |inside| {
        let tag = place("the pointer to the tag", tag)?;
        let payload = place("the pointer to the payload", payload)?;
        let Some(message) = inside.process.take_message() else {
            return Ok(S::NONE);
        };
        // SAFETY: not null, so valid by contract.
        unsafe {
            tag.write(message.tag.as_ptr().cast_mut().cast());
            payload.write(message.payload.as_ptr().cast_mut().cast());
        }
        Ok(S::nearest(message.payload.len() as u64))
    })
}

/// The functions of a dialect, by its types and symbols, and what it makes of a queue that is empty.
macro_rules! dialect {
    ($rank:ty, $size:ty, $empty:literal, $set_tagsize:ident, $send:ident, $hpsend:ident, $qsize:ident, $get_tag:ident,
     $move:ident, $hpmove:ident) => {
        /// Sets the size of tags from the next superstep on, and answers the one set before.
        ///
        /// # Safety
        /// `size` is null, or valid for reads and writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set_tagsize(size: *mut $size) {
            // SAFETY: the contract is the same.
            unsafe { set_tagsize(size) }
        }

        /// Sends a message, which is in the queue of its destination in the next superstep.
        ///
        /// # Safety
        /// `tag` is readable for the size of tags, `payload` for `nbytes`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $send(
            pid: $rank,
            tag: *const c_void,
            payload: *const c_void,
            nbytes: $size,
        ) {
            // SAFETY: the contract is the same.
            unsafe { send("bsp_send", pid, tag, payload, nbytes) }
        }

        /// The same; the caller leaves tag and payload as they are until the superstep ends.
        ///
        /// # Safety
        /// That of a send.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $hpsend(
            pid: $rank,
            tag: *const c_void,
            payload: *const c_void,
            nbytes: $size,
        ) {
            // SAFETY: the contract is the same.
            unsafe { send("bsp_hpsend", pid, tag, payload, nbytes) }
        }

        /// How many messages are in the queue, and how many bytes their payloads have.
        ///
        /// # Safety
        /// Both are null or valid for writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $qsize(messages: *mut $rank, bytes: *mut $size) {
            // SAFETY: the contract is the same.
            unsafe { qsize(messages, bytes) }
        }

        /// Length and tag of the first message in the queue.
        ///
        /// # Safety
        /// `status` is null or valid for writes, `tag` null or writable for the size of tags.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_tag(status: *mut $size, tag: *mut c_void) {
            // SAFETY: the contract is the same.
            unsafe { get_tag(status, tag) }
        }

        /// Copies the payload of the first message, and takes it from the queue.
        ///
        /// # Safety
        /// `payload` is null or writable for `size` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $move(payload: *mut c_void, size: $size) {
            // SAFETY: the contract is the same.
            unsafe { move_next(payload, size, $empty) }
        }

        /// Takes the first message from the queue and says where it lies until the superstep ends.
        ///
        /// # Safety
        /// Both are null or valid for writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $hpmove(
            tag: *mut *mut c_void,
            payload: *mut *mut c_void,
        ) -> $size {
            // SAFETY: the contract is the same.
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

/// As [`bsp_set_tagsize`].
///
/// # Safety
/// That of [`bsp_set_tagsize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_set_tag_size(size: *mut c_int) {
    // SAFETY: the contract is the same.
    unsafe { bsp_set_tagsize(size) }
}

/// As [`bsp_qsize`].
///
/// # Safety
/// That of [`bsp_qsize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_bsmp_info(messages: *mut c_int, bytes: *mut c_int) {
    // SAFETY: the contract is the same.
    unsafe { bsp_qsize(messages, bytes) }
}
