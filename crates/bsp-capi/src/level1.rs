//! The collectives of the Oxford toolset's level 1, and those that go with them.

use std::ffi::{c_int, c_uint, c_void};

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;

use crate::number::{Rank, Size};
use crate::section::{Inside, call_and_wait};

/// What combines two values of the caller's into a third place.
pub type Operator<S> = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut S);

/// Memory that is read or written, unless there is nothing to be moved.
fn check(what: &'static str, address: *const c_void, bytes: u64) -> Result<(), Failure> {
    match address.is_null() && bytes > 0 {
        true => Err(Misuse::Null(what).into()),
        false => Ok(()),
    }
}

const SOURCE: &str = "the source";
const DESTINATION: &str = "the destination";

/// A collective with a root: which memory it needs there, and which elsewhere.
struct Rooted<R, S> {
    name: &'static str,
    root: R,
    src: *const c_void,
    dst: *mut c_void,
    bytes: S,
    /// Everyone gives, or the root alone.
    all_give: bool,
    /// Everyone gets, or the root alone.
    all_get: bool,
}

fn rooted<R: Rank, S: Size>(
    it: &Rooted<R, S>,
    body: impl FnOnce(&mut Inside, u32, *const u8, *mut u8, u64) -> Result<(), Failure>,
) {
    call_and_wait(it.name, |inside| {
        let bytes = it.bytes.number("the number of bytes")?;
        let root = it.root.rank(inside.process.size())?;
        let is_root = inside.process.rank() == root;
        if it.all_give || is_root {
            check(SOURCE, it.src, bytes)?;
        }
        if it.all_get || is_root {
            check(DESTINATION, it.dst, bytes)?;
        }
        body(inside, root, it.src.cast(), it.dst.cast(), bytes)
    });
}

fn among_all<S: Size>(
    name: &'static str,
    (src, dst, bytes): (*const c_void, *mut c_void, S),
    body: impl FnOnce(&mut Inside, *const u8, *mut u8, u64) -> Result<(), Failure>,
) {
    call_and_wait(name, |inside| {
        let bytes = bytes.number("the number of bytes")?;
        check(SOURCE, src, bytes)?;
        check(DESTINATION, dst, bytes)?;
        body(inside, src.cast(), dst.cast(), bytes)
    });
}

/// The caller's operator as the algorithms call it.
///
/// # Safety
/// It may be called with memory for so many bytes.
unsafe fn combiner<S: Size>(
    operator: Option<Operator<S>>,
    bytes: S,
) -> Result<impl FnMut(*mut u8, *mut u8, *mut u8), Failure> {
    let Some(operator) = operator else {
        return Err(Misuse::Null("the operator").into());
    };
    Ok(move |result: *mut u8, left: *mut u8, right: *mut u8| {
        let mut bytes = bytes;
        // SAFETY: so it may by contract; the three are apart.
        unsafe { operator(result.cast(), left.cast(), right.cast(), &raw mut bytes) }
    })
}

/// The functions of a dialect, by its types and symbols.
macro_rules! dialect {
    ($rank:ty, $size:ty, $bcast:ident, $gather:ident, $scatter:ident, $allgather:ident, $total_exchange:ident,
     $reduce:ident, $fold:ident, $scan:ident) => {
        /// Copies the root's bytes to all.
        ///
        /// # Safety
        /// `src` is readable at the root, `dst` writable everywhere for `nbytes`; they may be the same.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $bcast(
            root: $rank,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Rooted {
                name: "bsp_bcast",
                root,
                src,
                dst,
                bytes: nbytes,
                all_give: false,
                all_get: true,
            };
            rooted(&it, |inside, root, src, dst, bytes| {
                // SAFETY: the contract is the same.
                unsafe { inside.broadcast(root, src, dst, bytes) }
            });
        }

        /// Copies a block of each to the root, in order of their ranks.
        ///
        /// # Safety
        /// `src` is readable for `nbytes`, at the root `dst` writable for as many blocks as there are processes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $gather(
            root: $rank,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Rooted {
                name: "bsp_gather",
                root,
                src,
                dst,
                bytes: nbytes,
                all_give: true,
                all_get: false,
            };
            rooted(&it, |inside, root, src, dst, bytes| {
                // SAFETY: the contract is the same.
                unsafe { inside.gather(root, src, dst, bytes) }
            });
        }

        /// Copies a block of the root's to each.
        ///
        /// # Safety
        /// At the root `src` is readable for as many blocks as there are processes, `dst` writable for `nbytes`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $scatter(
            root: $rank,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Rooted {
                name: "bsp_scatter",
                root,
                src,
                dst,
                bytes: nbytes,
                all_give: false,
                all_get: true,
            };
            rooted(&it, |inside, root, src, dst, bytes| {
                // SAFETY: the contract is the same.
                unsafe { inside.scatter(root, src, dst, bytes) }
            });
        }

        /// Copies a block of each to all, in order of their ranks.
        ///
        /// # Safety
        /// `src` is readable for `nbytes`, `dst` writable for as many blocks as there are processes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $allgather(src: *const c_void, dst: *mut c_void, nbytes: $size) {
            among_all(
                "bsp_allgather",
                (src, dst, nbytes),
                |inside, src, dst, bytes| {
                    // SAFETY: the contract is the same.
                    unsafe { inside.all_gather(src, dst, bytes) }
                },
            );
        }

        /// Copies a block of each for each.
        ///
        /// # Safety
        /// `src` is readable and `dst` writable for as many blocks as there are processes, and they are apart.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $total_exchange(
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            among_all(
                "bsp_total_exchange",
                (src, dst, nbytes),
                |inside, src, dst, bytes| {
                    // SAFETY: the contract is the same.
                    unsafe { inside.total_exchange(src, dst, bytes) }
                },
            );
        }

        /// Combines the values of all at the root.
        ///
        /// # Safety
        /// `src` is readable for `nbytes`, at the root `dst` writable; the operator combines so many bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $reduce(
            root: $rank,
            op: Option<Operator<$size>>,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            let it = Rooted {
                name: "bsp_reduce",
                root,
                src,
                dst,
                bytes: nbytes,
                all_give: true,
                all_get: false,
            };
            rooted(&it, |inside, root, src, dst, bytes| {
                // SAFETY: the contract is the same.
                unsafe { inside.reduce(root, &mut combiner(op, nbytes)?, src, dst, bytes) }
            });
        }

        /// Combines the values of all, at all.
        ///
        /// # Safety
        /// `src` is readable and `dst` writable for `nbytes`; the operator combines so many.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fold(
            op: Option<Operator<$size>>,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            among_all("bsp_fold", (src, dst, nbytes), |inside, src, dst, bytes| {
                // SAFETY: the contract is the same.
                unsafe { inside.fold(&mut combiner(op, nbytes)?, src, dst, bytes) }
            });
        }

        /// Combines the values of all up to the caller.
        ///
        /// # Safety
        /// `src` is readable and `dst` writable for `nbytes`; the operator combines so many.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $scan(
            op: Option<Operator<$size>>,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            among_all("bsp_scan", (src, dst, nbytes), |inside, src, dst, bytes| {
                // SAFETY: the contract is the same.
                unsafe { inside.scan(&mut combiner(op, nbytes)?, src, dst, bytes) }
            });
        }
    };
}

dialect!(
    c_int,
    c_int,
    bsp_bcast,
    bsp_gather,
    bsp_scatter,
    bsp_allgather,
    bsp_total_exchange,
    bsp_reduce,
    bsp_fold,
    bsp_scan
);
dialect!(
    c_uint,
    usize,
    mcbsp_bcast,
    mcbsp_gather,
    mcbsp_scatter,
    mcbsp_allgather,
    mcbsp_total_exchange,
    mcbsp_reduce,
    mcbsp_fold,
    mcbsp_scan
);

/// Over the values of all processes, or of those up to the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    All,
    Prefix,
}

fn one_each<T: Copy>(name: &'static str, over: Over, own: T, combine: impl Fn(T, T) -> T) -> T {
    call_and_wait(name, |inside| {
        let mut result = own;
        let mut combine = |result: *mut u8, left: *mut u8, right: *mut u8| {
            // SAFETY: all three have room for a value; those that are read hold one of a process each, or a result.
            unsafe {
                let value = combine(
                    left.cast::<T>().read_unaligned(),
                    right.cast::<T>().read_unaligned(),
                );
                result.cast::<T>().write_unaligned(value);
            }
        };
        let (src, dst) = ((&raw const own).cast(), (&raw mut result).cast());
        let bytes = size_of::<T>() as u64;
        // SAFETY: both are values of this function.
        unsafe {
            match over {
                Over::All => inside.fold(&mut combine, src, dst, bytes),
                Over::Prefix => inside.scan(&mut combine, src, dst, bytes),
            }
        }?;
        Ok(result)
    })
}

macro_rules! one_each {
    ($($name:ident, $over:ident, $type:ty, $combine:expr, $what:literal;)*) => { $(
        #[doc = $what]
        #[allow(non_snake_case, reason = "the names that BSPlib has had since 1998")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(value: $type) -> $type {
            one_each(stringify!($name), Over::$over, value, $combine)
        }
    )* };
}

one_each! {
    bsp_all, All, c_int, |a, b| c_int::from(a != 0 && b != 0), "1 if no process's value is 0.";
    bsp_any, All, c_int, |a, b| c_int::from(a != 0 || b != 0), "1 if some process's value is not 0.";
    bsp_sumI, All, c_int, c_int::wrapping_add, "The sum over all processes.";
    bsp_productI, All, c_int, c_int::wrapping_mul, "The product over all processes.";
    bsp_minI, All, c_int, Ord::min, "The least over all processes.";
    bsp_maxI, All, c_int, Ord::max, "The greatest over all processes.";
    bsp_sumI_prefix, Prefix, c_int, c_int::wrapping_add, "The sum up to the caller.";
    bsp_productI_prefix, Prefix, c_int, c_int::wrapping_mul, "The product up to the caller.";
    bsp_minI_prefix, Prefix, c_int, Ord::min, "The least up to the caller.";
    bsp_maxI_prefix, Prefix, c_int, Ord::max, "The greatest up to the caller.";
    bsp_sumR, All, f32, |a, b| a + b, "The sum over all processes.";
    bsp_productR, All, f32, |a, b| a * b, "The product over all processes.";
    bsp_minR, All, f32, f32::min, "The least over all processes.";
    bsp_maxR, All, f32, f32::max, "The greatest over all processes.";
    bsp_sumR_prefix, Prefix, f32, |a, b| a + b, "The sum up to the caller.";
    bsp_productR_prefix, Prefix, f32, |a, b| a * b, "The product up to the caller.";
    bsp_minR_prefix, Prefix, f32, f32::min, "The least up to the caller.";
    bsp_maxR_prefix, Prefix, f32, f32::max, "The greatest up to the caller.";
    bsp_sumD, All, f64, |a, b| a + b, "The sum over all processes.";
    bsp_productD, All, f64, |a, b| a * b, "The product over all processes.";
    bsp_minD, All, f64, f64::min, "The least over all processes.";
    bsp_maxD, All, f64, f64::max, "The greatest over all processes.";
    bsp_sumD_prefix, Prefix, f64, |a, b| a + b, "The sum up to the caller.";
    bsp_productD_prefix, Prefix, f64, |a, b| a * b, "The product up to the caller.";
    bsp_minD_prefix, Prefix, f64, f64::min, "The least up to the caller.";
    bsp_maxD_prefix, Prefix, f64, f64::max, "The greatest up to the caller.";
}
