//! The calls of Fortran 77 programs, for the Oxford toolset: names in lower case with an underscore, and
//! every argument by reference. This is the convention of gfortran and of most other compilers.

use std::ffi::{c_char, c_int, c_void};

use crate::checkpoint::bsp_checkpoint;
use crate::level1::*;
use crate::life::*;
use crate::memory::*;
use crate::messages::*;
use crate::parameters::*;
use crate::text::end_with;

/// Declares functions that pass on their arguments: values, which Fortran passes by reference, and
/// addresses.
macro_rules! by_reference {
    ($($fortran:ident is $call:ident ( $($mode:ident $name:ident : $type:ty),* ) $(-> $answer:ty)?;)*) => { $(
        /// The function of this name for Fortran 77.
        ///
        /// # Safety
        /// The requirements of that function; numbers must be references to variables.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some of the functions are safe to call")]
        pub unsafe extern "C" fn $fortran(
            $($name: by_reference!(@type $mode $type)),*
        ) $(-> $answer)? {
            // SAFETY: the caller guarantees the same, and that numbers are references to variables.
            unsafe { $call($(by_reference!(@pass $mode $name)),*) }
        }
    )* };
    (@type value $type:ty) => { *const $type };
    (@type address $type:ty) => { $type };
    (@pass value $name:ident) => { *$name };
    (@pass address $name:ident) => { $name };
}

by_reference! {
    bsp_begin_ is bsp_begin(value maxprocs: c_int);
    bsp_end_ is bsp_end();
    bsp_nprocs_ is bsp_nprocs() -> c_int;
    bsp_pid_ is bsp_pid() -> c_int;
    bsp_sync_ is bsp_sync();
    bsp_time_ is bsp_time() -> f64;
    bsp_dtime_ is bsp_dtime() -> f64;
    bsp_cputime_ is bsp_cputime() -> f64;
    bsp_predict_ is bsp_predict(value nprocs: c_int, value work: f64, value h: f64) -> f64;
    bsp_s_ is bsp_s() -> f64;
    bsp_l_ is bsp_l() -> f64;
    bsp_g_ is bsp_g() -> f64;
    bsp_nhalf_ is bsp_nhalf() -> c_int;
    bsp_checkpoint_ is bsp_checkpoint();
    bsp_push_reg_ is bsp_push_reg(address address: *const c_void, value size: c_int);
    bsp_pushregister_ is bsp_pushregister(address address: *const c_void, value size: c_int);
    bsp_pop_reg_ is bsp_pop_reg(address address: *const c_void);
    bsp_popregister_ is bsp_popregister(address address: *const c_void);
    bsp_put_ is bsp_put(value pid: c_int, address src: *const c_void, address dst: *mut c_void, value offset: c_int, value nbytes: c_int);
    bsp_hpput_ is bsp_hpput(value pid: c_int, address src: *const c_void, address dst: *mut c_void, value offset: c_int, value nbytes: c_int);
    bsp_get_ is bsp_get(value pid: c_int, address src: *const c_void, value offset: c_int, address dst: *mut c_void, value nbytes: c_int);
    bsp_hpget_ is bsp_hpget(value pid: c_int, address src: *const c_void, value offset: c_int, address dst: *mut c_void, value nbytes: c_int);
    bsp_direct_get_ is bsp_direct_get(value pid: c_int, address src: *const c_void, value offset: c_int, address dst: *mut c_void, value nbytes: c_int);
    bsp_set_tagsize_ is bsp_set_tagsize(address size: *mut c_int);
    bsp_set_tag_size_ is bsp_set_tag_size(address size: *mut c_int);
    bsp_send_ is bsp_send(value pid: c_int, address tag: *const c_void, address payload: *const c_void, value nbytes: c_int);
    bsp_hpsend_ is bsp_hpsend(value pid: c_int, address tag: *const c_void, address payload: *const c_void, value nbytes: c_int);
    bsp_qsize_ is bsp_qsize(address messages: *mut c_int, address bytes: *mut c_int);
    bsp_bsmp_info_ is bsp_bsmp_info(address messages: *mut c_int, address bytes: *mut c_int);
    bsp_get_tag_ is bsp_get_tag(address status: *mut c_int, address tag: *mut c_void);
    bsp_move_ is bsp_move(address payload: *mut c_void, value size: c_int);
    bsp_bcast_ is bsp_bcast(value root: c_int, address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_gather_ is bsp_gather(value root: c_int, address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_scatter_ is bsp_scatter(value root: c_int, address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_allgather_ is bsp_allgather(address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_total_exchange_ is bsp_total_exchange(address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_reduce_ is bsp_reduce(value root: c_int, address op: Option<Operator<c_int>>, address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_fold_ is bsp_fold(address op: Option<Operator<c_int>>, address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_scan_ is bsp_scan(address op: Option<Operator<c_int>>, address src: *const c_void, address dst: *mut c_void, value nbytes: c_int);
    bsp_all_ is bsp_all(value value: c_int) -> c_int;
    bsp_any_ is bsp_any(value value: c_int) -> c_int;
    bsp_constanti_ is bsp_constantI(value value: c_int) -> c_int;
    bsp_sumi_ is bsp_sumI(value value: c_int) -> c_int;
    bsp_sumi_prefix_ is bsp_sumI_prefix(value value: c_int) -> c_int;
    bsp_producti_ is bsp_productI(value value: c_int) -> c_int;
    bsp_producti_prefix_ is bsp_productI_prefix(value value: c_int) -> c_int;
    bsp_mini_ is bsp_minI(value value: c_int) -> c_int;
    bsp_mini_prefix_ is bsp_minI_prefix(value value: c_int) -> c_int;
    bsp_maxi_ is bsp_maxI(value value: c_int) -> c_int;
    bsp_maxi_prefix_ is bsp_maxI_prefix(value value: c_int) -> c_int;
    bsp_sorti_ is bsp_sortI(value value: c_int) -> c_int;
    bsp_sumr_ is bsp_sumR(value value: f32) -> f32;
    bsp_sumr_prefix_ is bsp_sumR_prefix(value value: f32) -> f32;
    bsp_productr_ is bsp_productR(value value: f32) -> f32;
    bsp_productr_prefix_ is bsp_productR_prefix(value value: f32) -> f32;
    bsp_minr_ is bsp_minR(value value: f32) -> f32;
    bsp_minr_prefix_ is bsp_minR_prefix(value value: f32) -> f32;
    bsp_maxr_ is bsp_maxR(value value: f32) -> f32;
    bsp_maxr_prefix_ is bsp_maxR_prefix(value value: f32) -> f32;
    bsp_sortr_ is bsp_sortR(value value: f32) -> f32;
    bsp_sumd_ is bsp_sumD(value value: f64) -> f64;
    bsp_sumd_prefix_ is bsp_sumD_prefix(value value: f64) -> f64;
    bsp_productd_ is bsp_productD(value value: f64) -> f64;
    bsp_productd_prefix_ is bsp_productD_prefix(value value: f64) -> f64;
    bsp_mind_ is bsp_minD(value value: f64) -> f64;
    bsp_mind_prefix_ is bsp_minD_prefix(value value: f64) -> f64;
    bsp_maxd_ is bsp_maxD(value value: f64) -> f64;
    bsp_maxd_prefix_ is bsp_maxD_prefix(value value: f64) -> f64;
    bsp_sortd_ is bsp_sortD(value value: f64) -> f64;
}

/// Names the subroutine that is the parallel part.
///
/// # Safety
/// `spmd` must be a subroutine without arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_init_(spmd: Option<unsafe extern "C" fn()>) {
    // SAFETY: the caller guarantees the same; the other arguments are not used.
    unsafe { bsp_init(spmd, 0, std::ptr::null_mut()) }
}

/// Ends the job with a message. The compiler passes the length of the text as last argument.
///
/// # Safety
/// `text` must be readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_abort_(text: *const c_char, length: usize) -> ! {
    // SAFETY: the caller guarantees this.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    end_with(&String::from_utf8_lossy(text))
}
