//! Memory shared with the kernel during calls: heap arrays and socket addresses.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::NonNull;

use crate::sys::socklen_of;

/// A heap array that other structures point into.
///
/// Unlike with a `Box`, moving or borrowing it does not assert exclusive access, so the kernel's
/// structures may keep their pointers.
#[derive(Debug)]
pub(super) struct Array<T>(NonNull<[T]>);

// SAFETY: the array owns its elements, as a `Box` does; raw pointers into it are stored in the
// same owner and move with it.
unsafe impl<T: Send> Send for Array<T> {}

impl<T> Array<T> {
    pub(super) fn new(elements: Vec<T>) -> Array<T> {
        let raw = Box::into_raw(elements.into_boxed_slice());
        Array(NonNull::new(raw).expect("a box is never null"))
    }

    /// A pointer to one element, valid as long as the array lives.
    pub(super) fn place(&self, index: usize) -> *mut T {
        assert!(index < self.0.len(), "element {index} of {}", self.0.len());
        // SAFETY: the index was checked, so the result is inside the allocation.
        unsafe { self.0.as_ptr().cast::<T>().add(index) }
    }

    pub(super) fn slice(&self) -> &[T] {
        // SAFETY: the allocation is alive and initialised; nothing writes to it while `self` is
        // borrowed: only system calls do, from methods that borrow the owner mutably.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`, and the mutable borrow excludes other readers.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Box::into_raw` and is dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A message header; its pointers refer to arrays of the same owner, or to a caller's frames
/// during one call.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Header(pub(super) libc::mmsghdr);

/// One piece of a message.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Piece(pub(super) libc::iovec);

// SAFETY: the pointers are used only by system calls of the owner, which moves to another thread
// together with the memory.
unsafe impl Send for Header {}
// SAFETY: as above.
unsafe impl Send for Piece {}

impl Header {
    pub(super) fn zeroed() -> Header {
        // SAFETY: all zeros is an empty message: null pointers, lengths 0.
        Header(unsafe { std::mem::zeroed() })
    }
}

impl Piece {
    pub(super) const EMPTY: Piece = Piece(libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    });

    /// True if `bytes` directly follow this piece, so that one piece can cover both.
    pub(super) fn is_followed_by(&self, bytes: &[u8]) -> bool {
        self.0.iov_base.addr() + self.0.iov_len == bytes.as_ptr().addr()
    }
}

/// Space for the control messages of one message, aligned for `cmsghdr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Control(pub(super) [u8; 64]);

/// A socket address in the kernel's format, with room for both families.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Name(libc::sockaddr_in6);

impl Name {
    pub(super) const BYTES: libc::socklen_t = socklen_of::<Name>();

    pub(super) fn zeroed() -> Name {
        // SAFETY: the fields are integers, for which zero is valid.
        Name(unsafe { std::mem::zeroed() })
    }

    /// Stores an address; returns its length in bytes.
    pub(super) fn set(&mut self, address: &SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(v4) => {
                let name = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*v4.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: `sockaddr_in` is shorter than `sockaddr_in6` and not more aligned, so
                // it fits into `self`.
                unsafe { (&raw mut self.0).cast::<libc::sockaddr_in>().write(name) };
                socklen_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                self.0 = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                Self::BYTES
            }
        }
    }

    /// The stored address; `None` if it has another family.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match libc::c_int::from(self.0.sin6_family) {
            libc::AF_INET => {
                // SAFETY: as in `set`; every bit pattern is a valid `sockaddr_in`.
                let v4 = unsafe { (&raw const self.0).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(self.0.sin6_addr.s6_addr);
                let port = u16::from_be(self.0.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, self.0.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// An address family as stored in a socket address.
#[allow(
    clippy::cast_possible_truncation,
    reason = "families are small numbers"
)]
const fn family(number: libc::c_int) -> libc::sa_family_t {
    number as libc::sa_family_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_conversion_to_the_kernels_format() {
        for text in ["127.0.0.1:7", "10.1.2.3:65535", "[::1]:80", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut name = Name::zeroed();
            name.set(&address);
            assert_eq!(name.address(), Some(address));
        }
        assert_eq!(Name::zeroed().address(), None);
    }

    #[test]
    #[should_panic(expected = "element 3 of 3")]
    fn an_index_outside_an_array_is_refused() {
        Array::new(vec![1, 2, 3]).place(3);
    }
}
