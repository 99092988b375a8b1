//! How a program waits for a queue or counter: `enum fi_wait_obj`.

use std::ffi::{c_int, c_void};
use std::io;

use crate::abi::eq::{FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD};
use crate::abi::errno::{FI_EINVAL, FI_EMFILE, FI_ENODATA, FI_ENOSYS};
use crate::abi::fabric::{FI_GETWAIT, FI_GETWAITOBJ};
use crate::ffi::{Failure, write_at};

/// The wait object of a queue or counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitObject {
    /// None, or calls of libfabric that yield.
    Unavailable(c_int),
    /// Calls of libfabric, or the descriptor if the program requests it.
    Any,
    /// A file descriptor, which the program polls.
    Descriptor,
}

impl WaitObject {
    /// The wait object with a number of `enum fi_wait_obj`.
    ///
    /// # Errors
    /// It is not offered.
    pub(crate) fn from_attr(object: c_int) -> Result<WaitObject, Failure> {
        match object {
            FI_WAIT_NONE | FI_WAIT_YIELD => Ok(WaitObject::Unavailable(object)),
            FI_WAIT_UNSPEC => Ok(WaitObject::Any),
            FI_WAIT_FD => Ok(WaitObject::Descriptor),
            other => {
                tracing::info!(
                    "refused: wait object {other} (only FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD \
                     and FI_WAIT_YIELD are offered)"
                );
                Err(Failure(FI_ENOSYS))
            }
        }
    }

    /// Handles `FI_GETWAIT` and `FI_GETWAITOBJ`.
    ///
    /// # Safety
    /// `buffer` is null or valid for writes of the result of the command.
    pub(crate) unsafe fn control(
        self,
        command: c_int,
        buffer: *mut c_void,
        open_descriptor: impl FnOnce() -> io::Result<i32>,
    ) -> Result<c_int, Failure> {
        let answer = match (command, self) {
            (FI_GETWAIT, WaitObject::Unavailable(_)) => return Err(Failure(FI_ENODATA)),
            (FI_GETWAIT, _) => open_descriptor().map_err(|cause| descriptor_failure(&cause))?,
            (FI_GETWAITOBJ, WaitObject::Unavailable(object)) => object,
            (FI_GETWAITOBJ, _) => FI_WAIT_FD,
            _ => return Err(Failure(FI_ENOSYS)),
        };
        if buffer.is_null() {
            return Err(Failure(FI_EINVAL));
        }
        // SAFETY: not null; valid for writes of an `int` by contract.
        unsafe { write_at(buffer.cast::<c_int>(), 0, answer) };
        Ok(0)
    }
}

/// Reports that a descriptor cannot be created.
pub(crate) fn descriptor_failure(cause: &io::Error) -> Failure {
    eprintln!("dipole: cannot create a descriptor for a queue or counter: {cause}");
    Failure(FI_EMFILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::eq::FI_WAIT_MUTEX_COND;

    fn control(wait: WaitObject, command: c_int) -> Result<c_int, Failure> {
        let mut answer = -1;
        // SAFETY: `answer` is an `int`.
        unsafe { wait.control(command, (&raw mut answer).cast(), || Ok(7)) }?;
        Ok(answer)
    }

    #[test]
    fn a_descriptor_is_available_for_fi_wait_fd_and_fi_wait_unspec_only() {
        for (object, kind, descriptor) in [
            (FI_WAIT_NONE, FI_WAIT_NONE, Err(Failure(FI_ENODATA))),
            (FI_WAIT_YIELD, FI_WAIT_YIELD, Err(Failure(FI_ENODATA))),
            (FI_WAIT_UNSPEC, FI_WAIT_FD, Ok(7)),
            (FI_WAIT_FD, FI_WAIT_FD, Ok(7)),
        ] {
            let wait = WaitObject::from_attr(object).unwrap();
            assert_eq!(control(wait, FI_GETWAITOBJ), Ok(kind));
            assert_eq!(control(wait, FI_GETWAIT), descriptor);
            assert_eq!(control(wait, 1234), Err(Failure(FI_ENOSYS)));
        }
        assert_eq!(
            WaitObject::from_attr(FI_WAIT_MUTEX_COND),
            Err(Failure(FI_ENOSYS))
        );
    }
}
