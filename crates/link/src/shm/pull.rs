//! Reading another process's memory: one copy, no system buffers.

use std::io;

/// Fills `into` from `address` of process `pid`.
pub(super) fn pull(pid: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let from = usize::try_from(address.wrapping_add(done as u64)).map_err(io::Error::other)?;
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(from),
            iov_len: rest.len(),
        };
        // SAFETY: the kernel writes at most `rest.len()` bytes into `rest`, which is
        // ours, and checks the other process's addresses itself.
        let got =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(got) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => done += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
