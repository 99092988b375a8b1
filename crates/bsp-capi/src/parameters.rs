//! The measured cost of supersteps, as programs see it.

use std::ffi::c_int;

use dipole_bsp::check_max_ranks;
use dipole_model::Parameters;

use crate::section::call;

/// Predicts the seconds of a superstep with `nprocs` processes (0 for the present number), in which the
/// busiest process computes for `work` seconds and sends or receives at most `h` bytes. Negative if it
/// is not known.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_predict(nprocs: c_int, work: f64, h: f64) -> f64 {
    call("bsp_predict", |part| {
        let process = &part.process;
        let size = match nprocs {
            0 => process.size(),
            _ => check_max_ranks(nprocs.into())?,
        };
        let seconds = process.machine().superstep_seconds(size, work, h);
        Ok(seconds.unwrap_or(-1.0))
    })
}

/// Bytes of a word, in which the Oxford toolset counts.
const WORD_BYTES: f64 = 4.0;

/// A value derived from the parameters for the present number of processes; -1 if they are not known.
fn parameter(name: &'static str, value: impl Fn(&Parameters) -> f64) -> f64 {
    call(name, |part| {
        let parameters = part.process.machine().at(part.process.size());
        Ok(parameters.as_ref().map_or(-1.0, value))
    })
}

/// Speed of a process in Mflop/s.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_s() -> f64 {
    parameter("bsp_s", |it| it.s_mflops)
}

/// Time of an empty superstep, in the time of a floating-point operation.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_l() -> f64 {
    parameter("bsp_l", |it| it.flops(it.l_ns))
}

/// Time per 32-bit word that a process sends or receives, in the time of a floating-point operation.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_g() -> f64 {
    parameter("bsp_g", |it| it.flops(it.g_ns_per_byte * WORD_BYTES))
}

/// The number of 32-bit words that take as long as the empty superstep: with these, a superstep reaches
/// half of the bandwidth.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_nhalf() -> c_int {
    let words = parameter("bsp_nhalf", |it| it.l_ns / (it.g_ns_per_byte * WORD_BYTES));
    #[allow(clippy::cast_possible_truncation, reason = "the conversion saturates")]
    let words = words.round() as c_int;
    words
}
