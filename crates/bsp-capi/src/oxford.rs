//! Functions that the macros of the Oxford toolset's header call, with line and file as last arguments.
//! Programs compiled with that header need them.

use std::ffi::{c_char, c_int, c_void};

use crate::life::{bsp_init, bsp_sync};
use crate::memory::{bsp_get, bsp_hpget, bsp_hpput, bsp_pop_reg, bsp_push_reg, bsp_put};
use crate::messages::{bsp_get_tag, bsp_hpmove, bsp_move, bsp_qsize, bsp_send, bsp_set_tagsize};
use crate::section::bsp_call_site;

macro_rules! located {
    ($($located:ident is $call:ident ( $($name:ident : $kind:ty),* ) $(-> $answer:ty)?;)*) => {$(
        /// Like the function without the suffix, with the source position of the call.
        ///
        /// # Safety
        /// The requirements of that function; `file` must be null or a string that stays valid.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some of the functions are safe to call")]
        pub unsafe extern "C" fn $located(
            $($name: $kind,)*
            line: c_int,
            file: *const c_char,
        ) $(-> $answer)? {
            // SAFETY: the caller guarantees the same.
            unsafe {
                bsp_call_site(file, line);
                $call($($name),*)
            }
        }
    )*};
}

located! {
    bsp_init_cpp is bsp_init(spmd: Option<unsafe extern "C" fn()>, argc: c_int, argv: *mut *mut c_char);
    bsp_sync_cpp is bsp_sync();
    bsp_push_reg_cpp is bsp_push_reg(address: *const c_void, size: c_int);
    bsp_pop_reg_cpp is bsp_pop_reg(address: *const c_void);
    bsp_put_cpp is bsp_put(pid: c_int, src: *const c_void, dst: *mut c_void, offset: c_int, nbytes: c_int);
    bsp_hpput_cpp is bsp_hpput(pid: c_int, src: *const c_void, dst: *mut c_void, offset: c_int, nbytes: c_int);
    bsp_get_cpp is bsp_get(pid: c_int, src: *const c_void, offset: c_int, dst: *mut c_void, nbytes: c_int);
    bsp_hpget_cpp is bsp_hpget(pid: c_int, src: *const c_void, offset: c_int, dst: *mut c_void, nbytes: c_int);
    bsp_set_tagsize_cpp is bsp_set_tagsize(size: *mut c_int);
    bsp_send_cpp is bsp_send(pid: c_int, tag: *const c_void, payload: *const c_void, nbytes: c_int);
    bsp_qsize_cpp is bsp_qsize(messages: *mut c_int, bytes: *mut c_int);
    bsp_get_tag_cpp is bsp_get_tag(status: *mut c_int, tag: *mut c_void);
    bsp_move_cpp is bsp_move(payload: *mut c_void, size: c_int);
    bsp_hpmove_cpp is bsp_hpmove(tag: *mut *mut c_void, payload: *mut *mut c_void) -> c_int;
}
