//! Calls of libpmix, which is loaded at run time: programs do not depend on it.
//!
//! A [`Session`] is the time between `PMIx_Init` and `PMIx_Finalize`. All calls block until the
//! launcher's server has replied; the caller sees to time limits.
//!
//! # Source
//! PMIx Standard 4.1, and the headers of OpenPMIx 3.0.0 to 6.1.0. Their shared libraries have the same
//! soname `libpmix.so.2`; `Proc`, `Value` and `Info` have the same layout in all of them, and so
//! have the functions used here. In version 2 a value is 8 bytes shorter.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

mod events;

pub use events::{Event, Listener, at_exit};

/// The soname of the supported versions.
pub const LIBRARY: &str = "libpmix.so.2";
/// Key of the number of ranks in the job, at the job's rank.
pub const JOB_SIZE: &str = "pmix.job.size";

const NAMESPACE_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
/// Major versions with the layouts below.
const SUPPORTED: std::ops::RangeInclusive<u32> = 3..=6;
/// Rank for data of the whole job, and for all its ranks.
const WILDCARD: u32 = u32::MAX - 1;
/// Data for ranks of this node and of others.
const SCOPE_GLOBAL: u8 = 3;
const SUCCESS: c_int = 0;
const KIND_BOOL: u16 = 1;
const KIND_STRING: u16 = 3;
const KIND_UINT32: u16 = 14;

/// `pmix_proc_t`
#[repr(C)]
#[derive(Clone)]
struct Proc {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

/// `pmix_value_t`
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// The union in `pmix_value_t`, whose longest member is a `pmix_envar_t`.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    number: u32,
    string: *const c_char,
    process: *const Proc,
    all: [u64; 3],
}

/// `pmix_info_t`
#[repr(C)]
struct Info {
    key: Key,
    directives: u32,
    value: Value,
}

/// `pmix_key_t`
type Key = [c_char; KEY_BYTES];

const _: () = {
    assert!(size_of::<usize>() == 8, "the layouts are those of 64 bits");
    assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32 && size_of::<Info>() == 552);
};

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PmixError {
    /// The library cannot be loaded, or lacks a function.
    Library {
        /// The loader's message.
        cause: String,
    },
    /// Data structures of this version are not known.
    Version {
        /// The version as the library reports it.
        found: String,
    },
    /// The library returned an error.
    Status {
        /// The function.
        call: &'static str,
        /// Number of the error.
        status: i32,
        /// The library's name for it.
        text: String,
    },
    /// The key has a value of another type, or the text is too long or contains a zero.
    Data {
        /// The function.
        call: &'static str,
        /// The key.
        key: String,
    },
}

type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;

/// The loaded library. It stays loaded: it has threads and handlers of its own.
#[derive(Clone, Copy)]
pub struct Library {
    error_string: ErrorString,
    init: Init,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    register: events::Register,
}

impl Library {
    /// Loads a library by its soname or path.
    ///
    /// # Errors
    /// It cannot be loaded, lacks a function, or has a version that is not supported.
    pub fn load(name: &str) -> Result<Library, PmixError> {
        let mut path = name.as_bytes().to_vec();
        path.push(0);
        let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
        // SAFETY: `path` ends with a zero. The initialization functions of libpmix and of the libraries
        // it needs run now; they have no preconditions. It is never unloaded, so addresses in it stay
        // valid.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: `dlerror` returns null or a string that is valid until the next call of this
            // thread, which is not made before it is copied.
            let cause = unsafe { copied(libc::dlerror()) };
            return Err(PmixError::Library { cause });
        }
        // SAFETY: in all versions the symbol is a function without arguments that returns a string
        // with static lifetime.
        let version = unsafe {
            let symbol = symbol(handle, c"PMIx_Get_version")?;
            let get_version: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(symbol);
            copied(get_version())
        };
        if !major(&version).is_some_and(|major| SUPPORTED.contains(&major)) {
            return Err(PmixError::Version { found: version });
        }
        // SAFETY: the symbols are functions with these types in the supported versions, as far as
        // parameters and results are passed: differences are in `const` and in the bounds of arrays.
        unsafe {
            Ok(Library {
                error_string: std::mem::transmute::<*mut c_void, ErrorString>(symbol(
                    handle,
                    c"PMIx_Error_string",
                )?),
                init: std::mem::transmute::<*mut c_void, Init>(symbol(handle, c"PMIx_Init")?),
                finalize: std::mem::transmute::<*mut c_void, Finalize>(symbol(
                    handle,
                    c"PMIx_Finalize",
                )?),
                put: std::mem::transmute::<*mut c_void, Put>(symbol(handle, c"PMIx_Put")?),
                commit: std::mem::transmute::<*mut c_void, Commit>(symbol(handle, c"PMIx_Commit")?),
                fence: std::mem::transmute::<*mut c_void, Fence>(symbol(handle, c"PMIx_Fence")?),
                get: std::mem::transmute::<*mut c_void, Get>(symbol(handle, c"PMIx_Get")?),
                register: std::mem::transmute::<*mut c_void, events::Register>(symbol(
                    handle,
                    c"PMIx_Register_event_handler",
                )?),
            })
        }
    }

    fn checked(&self, call: &'static str, status: c_int) -> Result<(), PmixError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function accepts any number, and returns a string with static lifetime.
        let text = unsafe { copied((self.error_string)(status)) };
        Err(PmixError::Status { call, status, text })
    }
}

/// The connection of this process to the launcher's server.
pub struct Session {
    library: Library,
    own: Proc,
}

impl Session {
    /// Connects to the server that the launcher's variables name.
    ///
    /// The library may set variables of the environment, so this should be called before other
    /// threads read it with functions of C.
    ///
    /// # Errors
    /// The status of `PMIx_Init`.
    pub fn open(library: Library) -> Result<Session, PmixError> {
        let mut own = proc_of(&[0; NAMESPACE_BYTES], 0);
        // SAFETY: `own` is a `pmix_proc_t` that the library fills before it returns and does not keep.
        // No directives are passed.
        let status = unsafe { (library.init)(&raw mut own, ptr::null_mut(), 0) };
        library.checked("PMIx_Init", status)?;
        // A library that fills the array completely is wrong; the name then ends here.
        own.namespace[NAMESPACE_BYTES - 1] = 0;
        Ok(Session { library, own })
    }

    /// Name of the job.
    #[must_use]
    pub fn namespace(&self) -> String {
        // SAFETY: the array has a zero at its end, if not before.
        unsafe { copied(self.own.namespace.as_ptr()) }
    }

    /// Rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.own.rank
    }

    /// A number that the launcher has published about the job.
    ///
    /// # Errors
    /// The status of `PMIx_Get`, or the value is not a 32-bit number.
    pub fn number(&self, key: &str) -> Result<u32, PmixError> {
        self.get(WILDCARD, key, |value| {
            if value.kind != KIND_UINT32 {
                return None;
            }
            // SAFETY: of a value of this kind the library has written this member of the union.
            Some(unsafe { value.data.number })
        })
    }

    /// The text that a rank has published under a key.
    ///
    /// # Errors
    /// The status of `PMIx_Get`, or the value is not a text.
    pub fn text(&self, rank: u32, key: &str) -> Result<String, PmixError> {
        self.get(rank, key, |value| {
            // SAFETY: of a value of this kind the library has written this member: a pointer to a
            // string that ends with a zero, or null. It is copied before the value is freed.
            (value.kind == KIND_STRING).then(|| unsafe { copied(value.data.string) })
        })
    }

    fn get<T>(
        &self,
        rank: u32,
        name: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, PmixError> {
        const CALL: &str = "PMIx_Get";
        let wrong = || PmixError::Data {
            call: CALL,
            key: name.to_owned(),
        };
        let key = key(name).ok_or_else(wrong)?;
        let of = proc_of(&self.own.namespace, rank);
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: `of` and `key` are complete structures of the library's types that live during the
        // call, which does not keep them; no directives are passed. `value` receives a pointer.
        let status = unsafe {
            let no_info = ptr::null();
            (self.library.get)(&raw const of, key.as_ptr(), no_info, 0, &raw mut value)
        };
        self.library.checked(CALL, status)?;
        if value.is_null() {
            return Err(wrong());
        }
        // SAFETY: after success the pointer is that of a `pmix_value_t`, which belongs to the caller.
        let found = read(unsafe { &*value });
        // SAFETY: as `PMIX_VALUE_RELEASE` does in all versions, the string and the value are freed with
        // `free`, once: the reference above has ended. Members of values of other kinds, of which the
        // launcher has none under these keys, would only be leaked.
        unsafe {
            if (*value).kind == KIND_STRING {
                libc::free((*value).data.string.cast_mut().cast());
            }
            libc::free(value.cast());
        }
        found.ok_or_else(wrong)
    }

    /// Prepares a text for all ranks. [`commit`](Self::commit) publishes it.
    ///
    /// # Errors
    /// The status of `PMIx_Put`, or the text contains a zero.
    pub fn put(&self, name: &str, text: &str) -> Result<(), PmixError> {
        const CALL: &str = "PMIx_Put";
        let wrong = || PmixError::Data {
            call: CALL,
            key: name.to_owned(),
        };
        let key = key(name).ok_or_else(wrong)?;
        let text = std::ffi::CString::new(text).map_err(|_| wrong())?;
        let mut value = Value {
            kind: KIND_STRING,
            data: Data { all: [0; 3] },
        };
        value.data.string = text.as_ptr();
        // SAFETY: key, value and text are complete and live during the call. The library copies the
        // value; its parameter is not const but it does not write there.
        let status = unsafe { (self.library.put)(SCOPE_GLOBAL, key.as_ptr(), &raw mut value) };
        self.library.checked(CALL, status)
    }

    /// Publishes the texts of this rank.
    ///
    /// # Errors
    /// The status of `PMIx_Commit`.
    pub fn commit(&self) -> Result<(), PmixError> {
        // SAFETY: the function has no arguments, and the session is open.
        let status = unsafe { (self.library.commit)() };
        self.library.checked("PMIx_Commit", status)
    }

    /// Waits until all ranks of the job have called this. With `is_collecting`, servers exchange the
    /// texts of their ranks.
    ///
    /// # Errors
    /// The status of `PMIx_Fence`.
    pub fn fence(&self, is_collecting: bool) -> Result<(), PmixError> {
        let all = proc_of(&self.own.namespace, WILDCARD);
        let mut value = Value {
            kind: KIND_BOOL,
            data: Data { all: [0; 3] },
        };
        value.data.flag = true;
        let collect = Info {
            key: key("pmix.collect").unwrap_or([0; KEY_BYTES]),
            directives: 0,
            value,
        };
        let count = usize::from(is_collecting);
        // SAFETY: one process and at most one directive are passed, complete structures that live
        // until the call has returned.
        let status = unsafe { (self.library.fence)(&raw const all, 1, &raw const collect, count) };
        self.library.checked("PMIx_Fence", status)
    }

    /// Ends the connection. The launcher takes a process that ends without this for a failed one.
    ///
    /// # Errors
    /// The status of `PMIx_Finalize`.
    pub fn close(self) -> Result<(), PmixError> {
        // SAFETY: no directives are passed, and no call of this session follows, which is consumed.
        let status = unsafe { (self.library.finalize)(ptr::null(), 0) };
        self.library.checked("PMIx_Finalize", status)
    }
}

fn proc_of(namespace: &[c_char; NAMESPACE_BYTES], rank: u32) -> Proc {
    Proc {
        namespace: *namespace,
        rank,
    }
}

/// A key with zeros to its end, because some versions take the whole array; `None` if it is too long.
fn key(name: &str) -> Option<Key> {
    let mut key = [0; KEY_BYTES];
    if name.len() >= KEY_BYTES {
        return None;
    }
    for (to, byte) in key.iter_mut().zip(name.bytes()) {
        *to = byte.cast_signed() as c_char;
    }
    Some(key)
}

/// The address of a function.
///
/// # Safety
/// `handle` is that of a loaded library.
unsafe fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, PmixError> {
    // SAFETY: the caller passes a handle, and the name ends with a zero.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match found.is_null() {
        false => Ok(found),
        true => Err(PmixError::Library {
            cause: format!("it has no function {}", name.to_string_lossy()),
        }),
    }
}

/// Copies a string of C; an empty one if the pointer is null.
///
/// # Safety
/// The pointer is null, or that of a string that ends with a zero and does not change meanwhile.
unsafe fn copied(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}

/// The first number of a version such as `OpenPMIx 4.2.2 (PMIx Standard: 4.2)` or `3.1.7`.
fn major(version: &str) -> Option<u32> {
    let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    let number = version.split_whitespace().find(is_number)?;
    number.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_are_read_from_all_forms() {
        for (version, expected) in [
            (
                "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0)",
                Some(4),
            ),
            ("OpenPMIx 6.1.0, repo rev: v6.1.0", Some(6)),
            ("3.1.7", Some(3)),
            ("2.2.5", Some(2)),
            ("10.0.0", Some(10)),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(major(version), expected, "{version}");
        }
        assert!(key(&"k".repeat(511)).is_some_and(|key| key[511] == 0));
        assert_eq!(key(&"k".repeat(512)), None);
    }

    #[test]
    fn a_library_that_does_not_exist_and_one_without_the_functions_are_refused() {
        for (name, cause) in [
            ("/nowhere/libpmix.so.2", "/nowhere/libpmix.so.2"),
            ("libc.so.6", "no function PMIx_Get_version"),
        ] {
            match Library::load(name).err() {
                Some(PmixError::Library { cause: found }) => {
                    assert!(found.contains(cause), "{found}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
