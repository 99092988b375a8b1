//! Maps: memory shared by programs and this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{call, is_bpf, name_of, object_info, own, pointer, raw};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT_KEY: libc::c_int = 4;

/// Flag: allocate memory for entries on demand.
const NO_PREALLOCATION: u32 = 1;

/// Type of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    Hash = 1,
    PerCpuArray = 6,
    HashOfMaps = 13,
    Ring = 27,
}

/// A map with keys and values of fixed size.
#[derive(Debug)]
pub(crate) struct Map {
    descriptor: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
    cpus: usize,
}

/// Properties of a new map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape<'a> {
    pub(crate) kind: MapKind,
    pub(crate) name: &'a str,
    pub(crate) key_bytes: usize,
    /// 4 for a map of maps, 0 for a ring.
    pub(crate) value_bytes: usize,
    /// Maximum number of entries; bytes of a ring.
    pub(crate) entries: u32,
}

/// Creates a map; `inner` is a template for the maps in a map of maps.
pub(crate) fn create_map(
    shape: MapShape<'_>,
    inner: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
        flags: u32,
        inner: u32,
        numa_node: u32,
        name: [u8; 16],
    }
    let small = |bytes: usize| u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    let flags = match shape.kind {
        MapKind::Hash | MapKind::HashOfMaps => NO_PREALLOCATION,
        MapKind::PerCpuArray | MapKind::Ring => 0,
    };
    let mut attributes = Attributes {
        kind: shape.kind as u32,
        key_bytes: small(shape.key_bytes)?,
        value_bytes: small(shape.value_bytes)?,
        entries: shape.entries,
        flags,
        inner: inner.map_or(0, raw),
        numa_node: 0,
        name: name_of(shape.name),
    };
    // SAFETY: the structure holds no pointers.
    unsafe { call(MAP_CREATE, &mut attributes) }.map(own)
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// Creates a map with keys.
    pub(crate) fn create(shape: MapShape<'_>, inner: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        Self::of(create_map(shape, inner)?, shape)
    }

    /// Takes over a map that another process created, if its type and sizes match.
    ///
    /// # Errors
    /// `InvalidData` if they do not match.
    pub(crate) fn of(descriptor: OwnedFd, shape: MapShape<'_>) -> io::Result<Self> {
        let facts = map_facts(descriptor.as_fd())?;
        let sizes = [shape.key_bytes, shape.value_bytes].map(u32::try_from);
        if facts.kind != shape.kind as u32 || sizes != [Ok(facts.key_bytes), Ok(facts.value_bytes)]
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let cpus = match shape.kind {
            MapKind::PerCpuArray => possible_cpus()?,
            _ => 1,
        };
        Ok(Self {
            descriptor,
            key_bytes: shape.key_bytes,
            value_bytes: shape.value_bytes,
            cpus,
        })
    }

    fn element(&self, key: &[u8], value: u64) -> Element {
        // The kernel reads this many bytes.
        assert_eq!(key.len(), self.key_bytes);
        Element {
            map: raw(self.descriptor.as_fd()),
            padding: 0,
            key: pointer(key),
            value,
            flags: 0,
        }
    }

    /// Bytes that the kernel returns for a value: one value per CPU for per-CPU maps.
    fn whole_value_bytes(&self) -> usize {
        match self.cpus {
            1 => self.value_bytes,
            cpus => self.value_bytes.next_multiple_of(8) * cpus,
        }
    }

    /// The value of a key, if it exists.
    pub(crate) fn look_up(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.whole_value_bytes()];
        let mut element = self.element(key, pointer(value.as_mut_ptr().cast_const()));
        // SAFETY: the key has the map's key length, as asserted, and the buffer has room for its
        // values on all CPUs. Both live during the call.
        match unsafe { call(MAP_LOOKUP, &mut element) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.whole_value_bytes());
        let mut element = self.element(key, pointer(value));
        // SAFETY: key and value have the map's lengths, as asserted; the kernel only reads them.
        unsafe { call(MAP_UPDATE, &mut element) }.map(drop)
    }

    /// Sets the value of a key in a map of maps.
    pub(crate) fn set_map(&self, key: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        self.set(key, &file.as_raw_fd().to_ne_bytes())
    }

    /// Removes a key; false if it did not exist.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<bool> {
        let mut element = self.element(key, 0);
        // SAFETY: as in `look_up`; a removal takes no value.
        match unsafe { call(MAP_DELETE, &mut element) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All keys; at most `most`, in case others add and remove keys meanwhile.
    pub(crate) fn keys(&self, most: u32) -> io::Result<Vec<Vec<u8>>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        while found.len() < usize::try_from(most).unwrap_or(usize::MAX) {
            let mut next = vec![0; self.key_bytes];
            let at = pointer(next.as_mut_ptr().cast_const());
            // No key means the start.
            let mut element = match found.last() {
                Some(last) => self.element(last, at),
                None => Element {
                    key: 0,
                    ..self.element(&vec![0; self.key_bytes], at)
                },
            };
            // SAFETY: the key has the map's key length, as asserted, or is null, which the kernel
            // accepts; the buffer for the next key has that length, too. Both live during the call.
            match unsafe { call(MAP_NEXT_KEY, &mut element) } {
                Ok(_) => found.push(next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Sum of a per-CPU counter over all CPUs.
    pub(crate) fn sum(&self, index: u32) -> io::Result<u64> {
        let values = self.look_up(&index.to_ne_bytes())?.unwrap_or_default();
        let counts = values.chunks_exact(8);
        Ok(counts.fold(0, |sum, bytes| {
            let count = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8"));
            sum.wrapping_add(count)
        }))
    }
}

impl Map {
    /// Its descriptor number, for use in programs.
    pub(crate) fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Number of CPUs for which the kernel keeps values.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    // Like "0-3" or "0-3,8-11": the last number is the highest CPU.
    let last = text.trim().rsplit([',', '-']).next();
    let last: Option<usize> = last.and_then(|number| number.parse().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| io::Error::other("the kernel does not say how many CPUs there can be"))
}

/// The kernel's description of a map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapFacts {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    /// Maximum number of entries; bytes of a ring.
    pub(crate) entries: u32,
    flags: u32,
}

/// Queries the kernel's description of a map.
///
/// # Errors
/// The error that the kernel returns; the descriptor is not a map.
pub(crate) fn map_facts(map: BorrowedFd<'_>) -> io::Result<MapFacts> {
    if !is_bpf(map, "bpf-map")? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut facts = MapFacts::default();
    // SAFETY: integers, which the kernel fills up to the size of the structure.
    unsafe { object_info(map, &mut facts) }?;
    Ok(facts)
}
