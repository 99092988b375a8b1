//! Safe wrappers over `bpf(2)`: maps, programs, links, test runs.
//!
//! Structures are those of `linux/bpf.h`, as far as they are used here. The kernel takes
//! a shorter one than its own as if the rest were zero.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    Hash = 1,
    PerCpuArray = 6,
    HashOfMaps = 13,
    Ring = 27,
}

/// Where a program may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    SchedCls = 3,
    Xdp = 6,
}

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachKind {
    Xdp = 37,
    TcxIngress = 46,
    TcxEgress = 47,
}

/// How XDP runs: on `sk_buff`s, or in the driver.
pub(crate) const XDP_GENERIC: u32 = 1 << 1;
pub(crate) const XDP_NATIVE: u32 = 1 << 2;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT_KEY: libc::c_int = 4;
const PROG_LOAD: libc::c_int = 5;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_GET_BY_ID: libc::c_int = 13;
const OBJECT_INFO: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;

/// XDP programs that know packets in several pieces.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// Memory for elements when they come, not before.
const NO_PREALLOCATION: u32 = 1;

/// Room for what the verifier says.
const LOG_BYTES: usize = 1 << 20;
/// Lines of it in an error.
const LOG_LINES: usize = 8;

/// What our programs use: nothing that asks for the GPL.
const LICENSE: &std::ffi::CStr = c"Apache-2.0 OR MIT";

fn pointer<T: ?Sized>(to: *const T) -> u64 {
    to.cast::<()>() as u64
}

fn length<T>(of: &[T]) -> u32 {
    u32::try_from(of.len()).expect("what is given to the kernel here is short")
}

fn raw(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// One call. `A` is a structure of `union bpf_attr`.
///
/// # Safety
/// Every pointer in `attributes` must point to memory that the command may read, or
/// write if it does, for as many bytes as the command takes from it.
unsafe fn call<A>(command: libc::c_int, attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: the pointer and the length describe `attributes`, which the kernel reads
    // and for some commands writes; what it points to is the caller's promise.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    match libc::c_int::try_from(result) {
        Ok(value) if value >= 0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a descriptor that a call has just returned.
fn own(descriptor: libc::c_int) -> OwnedFd {
    // SAFETY: called only with what bpf(2) returned for a command that makes a
    // descriptor: it is open, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn name_of(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    // The last byte stays zero.
    for (place, byte) in name[..15].iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    name
}

fn text_of(name: [u8; 16]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(16);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// A map with keys and values of fixed size.
#[derive(Debug)]
pub(crate) struct Map {
    descriptor: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
    cpus: usize,
}

/// A map to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape<'a> {
    pub(crate) kind: MapKind,
    pub(crate) name: &'a str,
    pub(crate) key_bytes: usize,
    /// Of a map of maps: 4. Of a ring: 0.
    pub(crate) value_bytes: usize,
    /// Most elements; bytes of a ring.
    pub(crate) entries: u32,
}

/// Makes a map; `inner` is a pattern for the maps in a map of maps.
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
    /// Makes a map with keys.
    pub(crate) fn create(shape: MapShape<'_>, inner: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        Self::of(create_map(shape, inner)?, shape)
    }

    /// A map that somebody else made, if it is of this shape; entries do not count.
    ///
    /// # Errors
    /// `InvalidData` if it is not.
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

    /// Bytes that the kernel gives for a value: one for each CPU if they have their own.
    fn whole_value_bytes(&self) -> usize {
        match self.cpus {
            1 => self.value_bytes,
            cpus => self.value_bytes.next_multiple_of(8) * cpus,
        }
    }

    /// The value of a key, if there is one.
    pub(crate) fn look_up(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.whole_value_bytes()];
        let mut element = self.element(key, pointer(value.as_mut_ptr().cast_const()));
        // SAFETY: the key has the length that the map's keys have, as asserted, and the
        // value's buffer that of its values, for all CPUs. Both live during the call.
        match unsafe { call(MAP_LOOKUP, &mut element) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value of a key.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.whole_value_bytes());
        let mut element = self.element(key, pointer(value));
        // SAFETY: key and value have the lengths that the map's have, as asserted; the
        // kernel only reads them.
        unsafe { call(MAP_UPDATE, &mut element) }.map(drop)
    }

    /// Sets the value of a key in a map of maps.
    pub(crate) fn set_map(&self, key: &[u8], map: BorrowedFd<'_>) -> io::Result<()> {
        self.set(key, &map.as_raw_fd().to_ne_bytes())
    }

    /// Removes a key; false if it was not there.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<bool> {
        let mut element = self.element(key, 0);
        // SAFETY: as in `look_up`; a removal takes no value.
        match unsafe { call(MAP_DELETE, &mut element) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The keys that there are, `most` of them if others come and go meanwhile.
    pub(crate) fn keys(&self, most: u32) -> io::Result<Vec<Vec<u8>>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        while found.len() < usize::try_from(most).unwrap_or(usize::MAX) {
            let mut next = vec![0; self.key_bytes];
            let at = pointer(next.as_mut_ptr().cast_const());
            // The first one comes after none.
            let mut element = match found.last() {
                Some(last) => self.element(last, at),
                None => Element {
                    key: 0,
                    ..self.element(&vec![0; self.key_bytes], at)
                },
            };
            // SAFETY: the key has the length that the map's keys have, as asserted, or is none,
            // which the kernel knows; the buffer for the next has that length, too. Both live
            // during the call.
            match unsafe { call(MAP_NEXT_KEY, &mut element) } {
                Ok(_) => found.push(next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The sum over all CPUs of a counter in an array.
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
    /// Its descriptor, as programs name it.
    pub(crate) fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// How many CPUs the kernel keeps values for.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    // Like "0-3" or "0-3,8-11": all up to the last count.
    let last = text.trim().rsplit([',', '-']).next();
    let last: Option<usize> = last.and_then(|number| number.parse().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| io::Error::other("the kernel does not say how many CPUs there can be"))
}

/// What the kernel says of a map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapFacts {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    /// Bytes of a ring.
    pub(crate) entries: u32,
    flags: u32,
}

/// What the kernel says of the map behind a descriptor.
///
/// # Errors
/// Also when the descriptor is none of a map.
pub(crate) fn map_facts(map: BorrowedFd<'_>) -> io::Result<MapFacts> {
    if !is_bpf(map, "map")? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut facts = MapFacts::default();
    // SAFETY: plain numbers, which the kernel fills as far as the structure goes.
    unsafe { object_info(map, &mut facts) }?;
    Ok(facts)
}

/// What kind of BPF object a descriptor is: the call for facts does not say.
fn is_bpf(descriptor: BorrowedFd<'_>, kind: &str) -> io::Result<bool> {
    let place = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let target = std::fs::read_link(place)?;
    // Of a link the kernel writes `bpf-link` or `bpf_link`, as it was made or asked for.
    let target = target.to_string_lossy().replace("bpf_", "bpf-");
    Ok(target == format!("anon_inode:bpf-{kind}"))
}

/// Checks that a descriptor is a BPF program or link.
pub(crate) fn check_kind(descriptor: BorrowedFd<'_>, kind: &str) -> io::Result<()> {
    match is_bpf(descriptor, kind)? {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// # Safety
/// `F` is plain data of which any bytes are valid, laid out as the kernel's for this object.
unsafe fn object_info<F>(object: BorrowedFd<'_>, facts: &mut F) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        object: u32,
        length: u32,
        info: u64,
    }
    let mut attributes = Attributes {
        object: raw(object),
        length: u32::try_from(size_of::<F>()).expect("facts are few"),
        info: pointer(std::ptr::from_mut(facts).cast_const()),
    };
    // SAFETY: the kernel writes at most `length` bytes to `facts`, of which any are
    // valid by the caller's promise.
    unsafe { call(OBJECT_INFO, &mut attributes) }.map(drop)
}

/// Why a program was not loaded.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) cause: io::Error,
    /// The last lines of what the verifier says; empty if it was not asked.
    pub(crate) log: String,
}

/// Loads a program, for attaching at `attach`.
pub(crate) fn load(
    kind: ProgramKind,
    attach: AttachKind,
    name: &str,
    instructions: &[[u8; 8]],
) -> Result<OwnedFd, Rejected> {
    let attempt = |log: &mut [u8]| {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            instruction_count: u32,
            instructions: u64,
            license: u64,
            log_level: u32,
            log_bytes: u32,
            log: u64,
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            card: u32,
            attach: u32,
        }
        let logged = !log.is_empty();
        let mut attributes = Attributes {
            kind: kind as u32,
            instruction_count: length(instructions),
            instructions: pointer(instructions.as_ptr()),
            license: pointer(LICENSE.as_ptr()),
            log_level: u32::from(logged),
            log_bytes: length(log),
            log: match logged {
                true => pointer(log.as_mut_ptr().cast_const()),
                false => 0,
            },
            kernel_version: 0,
            flags: match kind {
                ProgramKind::Xdp => XDP_HAS_FRAGS,
                ProgramKind::SchedCls => 0,
            },
            name: name_of(name),
            card: 0,
            attach: attach as u32,
        };
        // SAFETY: instructions and log are given with their lengths, the license is a
        // string that ends with zero; the kernel writes only the log.
        unsafe { call(PROG_LOAD, &mut attributes) }.map(own)
    };
    attempt(&mut []).map_err(|cause| {
        // Again with a log, for the words; without one it is much faster.
        let mut log = vec![0; LOG_BYTES];
        let again = attempt(&mut log);
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG_BYTES);
        let text = String::from_utf8_lossy(&log[..end]);
        let lines: Vec<&str> = text.lines().collect();
        Rejected {
            cause: again.err().unwrap_or(cause),
            log: lines[lines.len().saturating_sub(LOG_LINES)..].join("; "),
        }
    })
}

/// Attaches a program to a card; it stays while the descriptor, or a copy of it, is open.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    card: u32,
    kind: AttachKind,
    flags: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        card: u32,
        kind: u32,
        flags: u32,
        relative: u32,
        padding: u32,
        revision: u64,
    }
    let mut attributes = Attributes {
        program: raw(program),
        card,
        kind: kind as u32,
        flags,
        relative: 0,
        padding: 0,
        revision: 0,
    };
    // SAFETY: the structure holds no pointers.
    unsafe { call(LINK_CREATE, &mut attributes) }.map(own)
}

/// The programs attached to a card, by number, in the order in which they run.
pub(crate) fn attached(card: u32, kind: AttachKind) -> io::Result<Vec<u32>> {
    /// As many programs as the kernel lets be at one hook.
    const MOST: usize = 64;
    #[repr(C)]
    struct Attributes {
        card: u32,
        kind: u32,
        query_flags: u32,
        attach_flags: u32,
        programs: u64,
        count: u32,
        padding: u32,
        program_flags: u64,
        links: u64,
        link_flags: u64,
        revision: u64,
    }
    let mut programs = [0_u32; MOST];
    let mut attributes = Attributes {
        card,
        kind: kind as u32,
        query_flags: 0,
        attach_flags: 0,
        programs: pointer(programs.as_mut_ptr().cast_const()),
        count: length(&programs),
        padding: 0,
        program_flags: 0,
        links: 0,
        link_flags: 0,
        revision: 0,
    };
    // SAFETY: the kernel writes at most `count` numbers to `programs`.
    unsafe { call(PROG_QUERY, &mut attributes) }?;
    let count = usize::try_from(attributes.count).expect("at most 64");
    Ok(programs[..count.min(MOST)].to_vec())
}

/// The name of a program that is loaded, or why it cannot be told.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    #[repr(C)]
    struct Attributes {
        id: u32,
        next: u32,
        flags: u32,
    }
    let mut attributes = Attributes {
        id,
        next: 0,
        flags: 0,
    };
    // SAFETY: the structure holds no pointers.
    let program = unsafe { call(PROG_GET_BY_ID, &mut attributes) }.map(own)?;
    /// The begin of the kernel's; 64 bytes up to the name.
    #[repr(C)]
    #[derive(Default)]
    struct Facts {
        before: [u64; 8],
        name: [u8; 16],
    }
    let mut facts = Facts::default();
    // SAFETY: plain numbers, laid out so that the name stands at byte 64 as in
    // `struct bpf_prog_info`. Lengths in it that the kernel reads are zero.
    unsafe { object_info(program.as_fd(), &mut facts) }?;
    Ok(text_of(facts.name))
}

/// What a test run gave.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestRun {
    pub(crate) returned: u32,
    /// Mean of the runs.
    pub(crate) duration_ns: u32,
}

/// Runs a program on a frame, some times over, with a context (all zero if empty).
#[cfg(test)]
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: &[u8],
    repeat: u32,
) -> io::Result<TestRun> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        returned: u32,
        frame_bytes: u32,
        out_bytes: u32,
        frame: u64,
        out: u64,
        repeat: u32,
        duration: u32,
        context_bytes: u32,
        context_out_bytes: u32,
        context: u64,
        context_out: u64,
        flags: u32,
        cpu: u32,
        batch: u32,
        padding: u32,
    }
    let mut attributes = Attributes {
        program: raw(program),
        returned: 0,
        frame_bytes: length(frame),
        out_bytes: 0,
        frame: pointer(frame),
        out: 0,
        repeat,
        duration: 0,
        context_bytes: length(context),
        context_out_bytes: 0,
        context: match context.is_empty() {
            true => 0,
            false => pointer(context),
        },
        context_out: 0,
        flags: 0,
        cpu: 0,
        batch: 0,
        padding: 0,
    };
    // SAFETY: frame and context are given with their lengths, and only read; nothing
    // is asked back but the numbers in the structure.
    unsafe { call(PROG_TEST_RUN, &mut attributes) }?;
    Ok(TestRun {
        returned: attributes.returned,
        duration_ns: attributes.duration,
    })
}

/// What kind of card it is (`ARPHRD_...`), and its address if that has six bytes.
pub(crate) fn hardware(name: &str) -> io::Result<(u16, [u8; 6])> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: `ifreq` is plain C data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    // SAFETY: SIOCGIFHWADDR reads the name, which is NUL-terminated since it is shorter
    // than its zeroed field, and writes inside `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel filled the `hwaddr` member, plain data.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from.to_ne_bytes()[0];
    }
    Ok((address.sa_family, mac))
}
