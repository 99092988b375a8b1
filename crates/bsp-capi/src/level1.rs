//! The collectives of the Oxford toolset's level 1, and related ones.

use std::ffi::{c_char, c_int, c_uint, c_void};

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;

use crate::number::{Rank, Size};
use crate::section::{ParallelPart, call_and_wait};

/// Combines the second and the third value into the first.
pub type Operator<S> = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut S);

/// Checks an address, unless there are no bytes to move.
fn check(what: &'static str, address: *const c_void, bytes: u64) -> Result<(), Failure> {
    match address.is_null() && bytes > 0 {
        true => Err(Misuse::Null(what).into()),
        false => Ok(()),
    }
}

const SOURCE: &str = "the source";
const DESTINATION: &str = "the destination";

/// Arguments of a collective with a root.
struct Rooted<R, S> {
    name: &'static str,
    root: R,
    src: *const c_void,
    dst: *mut c_void,
    bytes: S,
    /// All processes provide a source, or only the root.
    all_send: bool,
    /// All processes provide a destination, or only the root.
    all_receive: bool,
}

fn rooted<R: Rank, S: Size>(
    it: &Rooted<R, S>,
    body: impl FnOnce(&mut ParallelPart, u32, *const u8, *mut u8, u64) -> Result<(), Failure>,
) {
    call_and_wait(it.name, |part| {
        let bytes = it.bytes.number("the number of bytes")?;
        let root = it.root.rank(part.process.size())?;
        let is_root = part.process.rank() == root;
        if it.all_send || is_root {
            check(SOURCE, it.src, bytes)?;
        }
        if it.all_receive || is_root {
            check(DESTINATION, it.dst, bytes)?;
        }
        body(part, root, it.src.cast(), it.dst.cast(), bytes)
    });
}

fn among_all<S: Size>(
    name: &'static str,
    (src, dst, bytes): (*const c_void, *mut c_void, S),
    body: impl FnOnce(&mut ParallelPart, *const u8, *mut u8, u64) -> Result<(), Failure>,
) {
    call_and_wait(name, |part| {
        let bytes = bytes.number("the number of bytes")?;
        check(SOURCE, src, bytes)?;
        check(DESTINATION, dst, bytes)?;
        body(part, src.cast(), dst.cast(), bytes)
    });
}

/// The caller's operator, as the algorithms call it.
///
/// # Safety
/// The operator must accept memory of `bytes` bytes.
unsafe fn combiner<S: Size>(
    operator: Option<Operator<S>>,
    bytes: S,
) -> Result<impl FnMut(*mut u8, *mut u8, *mut u8), Failure> {
    let Some(operator) = operator else {
        return Err(Misuse::Null("the operator").into());
    };
    Ok(move |result: *mut u8, left: *mut u8, right: *mut u8| {
        let mut bytes = bytes;
        // SAFETY: the caller guarantees that the operator accepts this memory; the three do not overlap.
        unsafe { operator(result.cast(), left.cast(), right.cast(), &raw mut bytes) }
    })
}

/// The functions of a dialect, given its types and symbols.
macro_rules! dialect {
    ($rank:ty, $size:ty, $bcast:ident, $gather:ident, $scatter:ident, $allgather:ident, $total_exchange:ident,
     $reduce:ident, $fold:ident, $scan:ident) => {
        /// Copies bytes from the root to all processes.
        ///
        /// # Safety
        /// `src` must be readable on the root, `dst` writable on all, for `nbytes` bytes. They may be the
        /// same.
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
                all_send: false,
                all_receive: true,
            };
            rooted(&it, |part, root, src, dst, bytes| {
                // SAFETY: the caller guarantees the same.
                unsafe { part.broadcast(root, src, dst, bytes) }
            });
        }

        /// Copies a block from each process to the root, in the order of ranks.
        ///
        /// # Safety
        /// `src` must be readable for `nbytes` bytes. On the root, `dst` must be writable for a block of
        /// each process.
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
                all_send: true,
                all_receive: false,
            };
            rooted(&it, |part, root, src, dst, bytes| {
                // SAFETY: the caller guarantees the same.
                unsafe { part.gather(root, src, dst, bytes) }
            });
        }

        /// Copies a block from the root to each process.
        ///
        /// # Safety
        /// On the root, `src` must be readable for a block of each process. `dst` must be writable for
        /// `nbytes` bytes.
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
                all_send: false,
                all_receive: true,
            };
            rooted(&it, |part, root, src, dst, bytes| {
                // SAFETY: the caller guarantees the same.
                unsafe { part.scatter(root, src, dst, bytes) }
            });
        }

        /// Copies a block from each process to all, in the order of ranks.
        ///
        /// # Safety
        /// `src` must be readable for `nbytes` bytes, `dst` writable for a block of each process.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $allgather(src: *const c_void, dst: *mut c_void, nbytes: $size) {
            among_all(
                "bsp_allgather",
                (src, dst, nbytes),
                |part, src, dst, bytes| {
                    // SAFETY: the caller guarantees the same.
                    unsafe { part.all_gather(src, dst, bytes) }
                },
            );
        }

        /// Copies a block from each process to each other one.
        ///
        /// # Safety
        /// `src` must be readable and `dst` writable for a block of each process. They must not overlap.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $total_exchange(
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            among_all(
                "bsp_total_exchange",
                (src, dst, nbytes),
                |part, src, dst, bytes| {
                    // SAFETY: the caller guarantees the same.
                    unsafe { part.total_exchange(src, dst, bytes) }
                },
            );
        }

        /// Combines the values of all processes on the root.
        ///
        /// # Safety
        /// `src` must be readable for `nbytes` bytes, and `dst` writable on the root. The operator must
        /// accept values of that size.
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
                all_send: true,
                all_receive: false,
            };
            rooted(&it, |part, root, src, dst, bytes| {
                // SAFETY: the caller guarantees the same.
                unsafe { part.reduce(root, &mut combiner(op, nbytes)?, src, dst, bytes) }
            });
        }

        /// Combines the values of all processes on all.
        ///
        /// # Safety
        /// `src` must be readable and `dst` writable for `nbytes` bytes. The operator must accept values
        /// of that size.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fold(
            op: Option<Operator<$size>>,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            among_all("bsp_fold", (src, dst, nbytes), |part, src, dst, bytes| {
                // SAFETY: the caller guarantees the same.
                unsafe { part.fold(&mut combiner(op, nbytes)?, src, dst, bytes) }
            });
        }

        /// Combines the values of all processes up to the caller.
        ///
        /// # Safety
        /// `src` must be readable and `dst` writable for `nbytes` bytes. The operator must accept values
        /// of that size.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $scan(
            op: Option<Operator<$size>>,
            src: *const c_void,
            dst: *mut c_void,
            nbytes: $size,
        ) {
            among_all("bsp_scan", (src, dst, nbytes), |part, src, dst, bytes| {
                // SAFETY: the caller guarantees the same.
                unsafe { part.scan(&mut combiner(op, nbytes)?, src, dst, bytes) }
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

/// The processes whose values are combined: all, or those up to the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    All,
    Prefix,
}

fn one_each<T: Copy>(name: &'static str, over: Over, own: T, combine: impl Fn(T, T) -> T) -> T {
    call_and_wait(name, |part| {
        let mut result = own;
        let mut combine = |result: *mut u8, left: *mut u8, right: *mut u8| {
            // SAFETY: all three have room for a `T`. `left` and `right` hold the value of a process or
            // an earlier result.
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
        // SAFETY: both are local variables.
        unsafe {
            match over {
                Over::All => part.fold(&mut combine, src, dst, bytes),
                Over::Prefix => part.scan(&mut combine, src, dst, bytes),
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
    bsp_any, All, c_int, |a, b| c_int::from(a != 0 || b != 0), "1 if any process's value is not 0.";
    bsp_sumI, All, c_int, c_int::wrapping_add, "The sum over all processes.";
    bsp_productI, All, c_int, c_int::wrapping_mul, "The product over all processes.";
    bsp_minI, All, c_int, Ord::min, "The minimum over all processes.";
    bsp_maxI, All, c_int, Ord::max, "The maximum over all processes.";
    bsp_sumI_prefix, Prefix, c_int, c_int::wrapping_add, "The sum up to the caller.";
    bsp_productI_prefix, Prefix, c_int, c_int::wrapping_mul, "The product up to the caller.";
    bsp_minI_prefix, Prefix, c_int, Ord::min, "The minimum up to the caller.";
    bsp_maxI_prefix, Prefix, c_int, Ord::max, "The maximum up to the caller.";
    bsp_sumR, All, f32, |a, b| a + b, "The sum over all processes.";
    bsp_productR, All, f32, |a, b| a * b, "The product over all processes.";
    bsp_minR, All, f32, f32::min, "The minimum over all processes.";
    bsp_maxR, All, f32, f32::max, "The maximum over all processes.";
    bsp_sumR_prefix, Prefix, f32, |a, b| a + b, "The sum up to the caller.";
    bsp_productR_prefix, Prefix, f32, |a, b| a * b, "The product up to the caller.";
    bsp_minR_prefix, Prefix, f32, f32::min, "The minimum up to the caller.";
    bsp_maxR_prefix, Prefix, f32, f32::max, "The maximum up to the caller.";
    bsp_sumD, All, f64, |a, b| a + b, "The sum over all processes.";
    bsp_productD, All, f64, |a, b| a * b, "The product over all processes.";
    bsp_minD, All, f64, f64::min, "The minimum over all processes.";
    bsp_maxD, All, f64, f64::max, "The maximum over all processes.";
    bsp_sumD_prefix, Prefix, f64, |a, b| a + b, "The sum up to the caller.";
    bsp_productD_prefix, Prefix, f64, |a, b| a * b, "The product up to the caller.";
    bsp_minD_prefix, Prefix, f64, f64::min, "The minimum up to the caller.";
    bsp_maxD_prefix, Prefix, f64, f64::max, "The maximum up to the caller.";
}

/// Collects the values of all processes in the order of ranks, and derives a result from them.
fn of_all<T: Copy>(name: &'static str, own: T, result: impl FnOnce(&mut [T], usize) -> T) -> T {
    call_and_wait(name, |part| {
        let mut values = vec![own; part.process.size() as usize];
        let (src, dst) = ((&raw const own).cast(), values.as_mut_ptr().cast());
        // SAFETY: the source is a local variable, and `values` has room for one value of each process.
        unsafe { part.all_gather(src, dst, size_of::<T>() as u64) }?;
        Ok(result(&mut values, part.process.rank() as usize))
    })
}

/// 1 if all processes have given the same value.
#[allow(non_snake_case, reason = "the names that BSPlib has had since 1998")]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_constantI(value: c_int) -> c_int {
    of_all("bsp_constantI", value, |values, _| {
        c_int::from(values.iter().all(|other| *other == value))
    })
}

macro_rules! sorted {
    ($($name:ident, $type:ty, $order:expr;)*) => { $(
        /// The value that has the place of the caller's rank when the values of all processes are in
        /// ascending order.
        #[allow(non_snake_case, reason = "the names that BSPlib has had since 1998")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(value: $type) -> $type {
            of_all(stringify!($name), value, |values, rank| {
                values.sort_unstable_by($order);
                values[rank]
            })
        }
    )* };
}

sorted! {
    bsp_sortI, c_int, Ord::cmp;
    bsp_sortR, f32, f32::total_cmp;
    bsp_sortD, f64, f64::total_cmp;
    bsp_sortC, c_char, Ord::cmp;
}
