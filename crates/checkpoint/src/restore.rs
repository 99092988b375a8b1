//! Replaces this process by the one in an image.
//!
//! The memory of the image is first written to a free range of addresses. Then a short piece of
//! code, which lies in that range too, removes everything else, moves the memory to its place and
//! continues where the image was taken. It makes a list of system calls that is prepared here.

#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits on the processor that this is for"
)]

use std::convert::Infallible;
use std::ffi::c_void;
use std::fs;
use std::io;

use crate::chain::Chain;
use crate::context::{Step, code_bytes, run_steps};
use crate::descriptors;
use crate::error::RestoreError;
use crate::handover::Handover;
use crate::image::{Content, Header, Layout, PAGE_BYTES};
use crate::machine::Machine;
use crate::maps::{self, Mapping};
use crate::thread::{RSEQ_SIGNATURE, SIGNALS, block_signals, rseq_area};

/// As in the kernel's `asm/prctl.h`.
const SET_FS: u64 = 0x1002;
/// Lowest and highest address of a free range: the kernel reserves the first ones.
const LOWEST: u64 = 1 << 32;
const HIGHEST: u64 = (1 << 47) - (1 << 24);
/// Lengths with which C libraries register restartable sequences.
const RSEQ_LENGTHS: [u64; 3] = [32, 64, 20];
const UNREGISTER: u64 = 1;

fn system(doing: &'static str) -> impl Fn(io::Error) -> RestoreError {
    move |cause| RestoreError::System { doing, cause }
}

/// Replaces this process by the one in the last image of a chain, which continues in [`take`](crate::Recorder::take) and gets
/// `environment` there. The process must have no other thread. Standard input, output and error and
/// the limits stay those of this process.
///
/// # Errors
/// An image is damaged or needs another machine, or a file that was open does not exist any more.
pub fn restore(
    mut images: Chain,
    environment: &[(String, String)],
) -> Result<Infallible, RestoreError> {
    let machine = Machine::current().map_err(system("reading /proc"))?;
    let accepted = machine.accept(&images.header().machine);
    accepted.map_err(|reason| RestoreError::Machine {
        path: images.path().to_owned(),
        reason,
    })?;
    let header = images.header().clone();
    std::env::set_current_dir(&header.directory)
        .map_err(system("changing to the directory of the image"))?;
    let range = Range::reserve(&header, &machine)?;
    range.fill(&mut images, &header)?;
    // From here on this process uses no other file.
    drop(images);
    descriptors::open_again(&header.files).map_err(system("opening the files of the image"))?;
    let steps = Steps::new(&header, &machine, &range, environment);
    range.jump(&header, steps)
}

/// Free addresses, used neither by this process nor by the one in the image.
struct Range {
    start: u64,
    /// Where the memory of each mapping is prepared.
    staged: Vec<u64>,
    /// Where the kernel's mappings are moved first, so that old and new places never overlap.
    kernel: u64,
    /// Code, list of system calls and their data.
    code: u64,
    end: u64,
}

/// Longest code and list: about 100 bytes for each mapping, and the environment.
const CODE_BYTES: u64 = 16 << 20;

impl Range {
    fn reserve(header: &Header, machine: &Machine) -> Result<Range, RestoreError> {
        let text = fs::read_to_string("/proc/self/maps").map_err(system("reading /proc"))?;
        let own = maps::parse(&text).unwrap_or_default();
        let kernel = &header.machine.kernel_maps;
        let used = own.iter().chain(&header.mappings).chain(kernel);
        let mut used: Vec<(u64, u64)> = used.map(|it| (it.start, it.end)).collect();
        used.sort_unstable();
        let staged: u64 = header.mappings.iter().map(Mapping::bytes).sum();
        let kernel_bytes: u64 = machine.kernel_maps.iter().map(Mapping::bytes).sum();
        let length = staged + kernel_bytes + CODE_BYTES;
        let start = free(&used, length).ok_or_else(|| {
            system("finding free addresses for the image")(io::ErrorKind::OutOfMemory.into())
        })?;
        let mut next = start;
        let staged = header.mappings.iter().map(|mapping| {
            let place = next;
            next += mapping.bytes();
            place
        });
        let staged = staged.collect();
        Ok(Range {
            start,
            staged,
            kernel: next,
            code: next + kernel_bytes,
            end: start + length,
        })
    }

    /// Writes the memory of the image.
    fn fill(&self, images: &mut Chain, header: &Header) -> Result<(), RestoreError> {
        for (mapping, place) in header.mappings.iter().zip(&self.staged) {
            let growth = match mapping.is_stack() {
                true => libc::MAP_GROWSDOWN,
                false => 0,
            };
            map(*place, mapping.bytes(), growth).map_err(system("mapping memory for the image"))?;
        }
        images.read_chunks(&mut |address, content| {
            let length = match content {
                Content::Bytes(bytes) => bytes.len() as u64,
                Content::Zeros(length) => length,
            };
            let first = header
                .mappings
                .partition_point(|mapping| mapping.end <= address);
            let mappings = header.mappings.iter().zip(&self.staged).skip(first);
            // The process may have unmapped a part of what an earlier image has.
            for (mapping, place) in mappings.take_while(|it| it.0.start < address + length) {
                let start = mapping.start.max(address);
                let end = mapping.end.min(address + length);
                let part = match content {
                    Content::Bytes(bytes) => {
                        Content::Bytes(&bytes[(start - address) as usize..(end - address) as usize])
                    }
                    Content::Zeros(_) => Content::Zeros(end - start),
                };
                // SAFETY: the part is inside of the mapping, whose memory was just mapped at `place`
                // with the same length, and is used by nothing else.
                unsafe { write(place + (start - mapping.start), part)? };
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Writes code and steps, and runs them.
    fn jump(&self, header: &Header, steps: Steps) -> Result<Infallible, RestoreError> {
        let mapping = system("mapping memory for the image");
        map(self.code, CODE_BYTES, 0).map_err(&mapping)?;
        let list_bytes = std::mem::size_of_val(&steps.list[..]) as u64;
        if DATA + steps.data.len() as u64 > LIST || LIST + list_bytes > CODE_BYTES {
            let cause = io::Error::other("the image has too many mappings");
            return Err(system("preparing the restoration")(cause));
        }
        let place =
            |at: u64| std::ptr::with_exposed_provenance_mut::<u8>((self.code + at) as usize);
        // SAFETY: the memory was just mapped, and code, data and list fit in, as just checked.
        unsafe {
            std::ptr::copy_nonoverlapping(run_steps as *const u8, place(0), code_bytes());
            std::ptr::copy_nonoverlapping(steps.data.as_ptr(), place(DATA), steps.data.len());
            std::ptr::copy_nonoverlapping(
                steps.list.as_ptr(),
                place(LIST).cast(),
                steps.list.len(),
            );
        }
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: the memory was mapped above; only its access changes.
        if unsafe { libc::mprotect(place(0).cast(), CODE_BYTES as usize, access) } < 0 {
            return Err(mapping(io::Error::last_os_error()));
        }
        unregister_rseq();
        // SAFETY: the code is a copy of `run_steps`, which is independent of its place.
        let run: unsafe extern "C" fn(*const Step, u64, u64, u64) -> ! =
            unsafe { std::mem::transmute(place(0)) };
        let thread = header.thread;
        block_signals();
        // SAFETY: the list ends with `END`, and its calls leave this range in place. The image holds
        // the memory at `stack` and `resume`, as the checksums confirm. No other thread exists.
        unsafe {
            run(
                place(LIST).cast(),
                thread.stack,
                thread.resume,
                self.code + DATA,
            )
        }
    }
}

/// Positions in the memory of the code.
const DATA: u64 = 4096;
const LIST: u64 = 8 << 20;

/// The first free range of this length above [`LOWEST`].
fn free(used: &[(u64, u64)], length: u64) -> Option<u64> {
    // A distance keeps stacks from growing into it.
    const DISTANCE: u64 = 1 << 30;
    let mut start = LOWEST;
    for (first, last) in used {
        if start + length + DISTANCE <= *first {
            break;
        }
        start = start.max(last.saturating_add(DISTANCE));
    }
    (start + length <= HIGHEST).then_some(start)
}

/// Maps zeroed memory at a free address.
fn map(at: u64, length: u64, flags: i32) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE
        | libc::MAP_ANONYMOUS
        | libc::MAP_NORESERVE
        | libc::MAP_FIXED_NOREPLACE
        | flags;
    let to = std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
    // SAFETY: the flags make the call fail if anything is mapped there.
    let mapped = unsafe { libc::mmap(to, length as usize, access, flags, -1, 0) };
    match mapped {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Writes to memory of [`map`].
///
/// # Safety
/// The memory must be as long as the content, and used by nothing else.
unsafe fn write(at: u64, content: Content<'_>) -> io::Result<()> {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    match content {
        Content::Bytes(bytes) => {
            // SAFETY: as the caller guarantees.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            Ok(())
        }
        // Writing zeros would use memory for them.
        Content::Zeros(length) => {
            // SAFETY: as the caller guarantees; private anonymous memory is zero afterwards.
            match unsafe { libc::madvise(to.cast(), length as usize, libc::MADV_DONTNEED) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

fn unregister_rseq() {
    if let Some(area) = rseq_area() {
        for length in RSEQ_LENGTHS {
            let signature = u64::from(RSEQ_SIGNATURE);
            // SAFETY: after the call the kernel no longer writes there. A wrong length is refused.
            unsafe { libc::syscall(libc::SYS_rseq, area, length, UNREGISTER, signature) };
        }
    }
}

/// The list of system calls, and the data that they refer to.
struct Steps {
    list: Vec<Step>,
    data: Vec<u8>,
    /// Address of the data.
    at: u64,
}

impl Steps {
    fn new(
        header: &Header,
        machine: &Machine,
        range: &Range,
        environment: &[(String, String)],
    ) -> Steps {
        let mut steps = Steps {
            list: Vec::new(),
            data: Vec::new(),
            at: range.code + DATA,
        };
        steps.hand_over(range, environment);
        steps.clear(range, machine);
        steps.place(header, range);
        steps.set_layout(&header.layout);
        steps.set_thread(header);
        steps.list.push(Step::END);
        steps
    }

    fn hand_over(&mut self, range: &Range, environment: &[(String, String)]) {
        self.data.resize(size_of::<Handover>(), 0);
        let mut text = Vec::new();
        for word in environment.iter().flat_map(|(name, value)| [name, value]) {
            text.extend_from_slice(word.as_bytes());
            text.push(0);
        }
        let place = self.add(&text);
        let words = [range.code, CODE_BYTES, place, text.len() as u64];
        for (at, word) in words.into_iter().enumerate() {
            self.data[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Adds data; returns its address.
    fn add(&mut self, bytes: &[u8]) -> u64 {
        self.data.resize(self.data.len().next_multiple_of(16), 0);
        let place = self.at + self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        place
    }

    /// Adds a call whose errors are ignored.
    fn attempt(&mut self, number: i64, arguments: &[u64]) {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        self.list.push(Step {
            number: number.cast_unsigned(),
            arguments: all,
            message: 0,
        });
    }

    /// Adds a call that must succeed.
    fn call(&mut self, number: i64, arguments: &[u64], doing: &str) {
        let text = format!("dipole: restoring a process: {doing} failed\n");
        let mut message = (text.len() as u64).to_ne_bytes().to_vec();
        message.extend_from_slice(text.as_bytes());
        let message = self.add(&message);
        self.attempt(number, arguments);
        if let Some(step) = self.list.last_mut() {
            step.message = message;
        }
    }

    /// Removes everything but the range and the kernel's mappings, which move into the range.
    fn clear(&mut self, range: &Range, machine: &Machine) {
        let mut place = range.kernel;
        for mapping in &machine.kernel_maps {
            self.move_to(
                mapping.start,
                mapping.bytes(),
                place,
                "moving the kernel's code",
            );
            place += mapping.bytes();
        }
        let first = PAGE_BYTES as u64;
        let last = HIGHEST + (1 << 24) - first;
        for (start, end) in [(first, range.start), (range.end, last)] {
            self.call(libc::SYS_munmap, &[start, end - start], "removing memory");
        }
    }

    fn move_to(&mut self, from: u64, length: u64, to: u64, doing: &str) {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED)
            .unsigned_abs()
            .into();
        self.call(libc::SYS_mremap, &[from, length, length, flags, to], doing);
    }

    /// Moves the memory to its place.
    fn place(&mut self, header: &Header, range: &Range) {
        let mut from = range.kernel;
        for mapping in &header.machine.kernel_maps {
            self.move_to(
                from,
                mapping.bytes(),
                mapping.start,
                "placing the kernel's code",
            );
            from += mapping.bytes();
        }
        for (mapping, from) in header.mappings.iter().zip(&range.staged) {
            let doing = format!("placing memory at {:x}", mapping.start);
            self.move_to(*from, mapping.bytes(), mapping.start, &doing);
            if i32::from(mapping.access) != libc::PROT_READ | libc::PROT_WRITE {
                let arguments = [mapping.start, mapping.bytes(), mapping.access.into()];
                self.call(libc::SYS_mprotect, &arguments, "protecting memory");
            }
        }
    }

    /// Sets the heap, and what /proc shows. A kernel that refuses leaves the heap as it is; the C
    /// library then gets memory elsewhere.
    fn set_layout(&mut self, layout: &Layout) {
        let pairs = [layout.code, layout.data, layout.heap];
        let mut words: Vec<u64> = pairs.iter().flat_map(|pair| [pair.0, pair.1]).collect();
        words.push(layout.stack);
        for pair in [layout.arguments, layout.environment] {
            words.extend([pair.0, pair.1]);
        }
        // No auxiliary vector, and no other program file.
        words.extend([0, u64::from(u32::MAX) << 32]);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let map = self.add(&bytes);
        let (set, set_map) = (libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64);
        self.attempt(libc::SYS_prctl, &[set, set_map, map, bytes.len() as u64]);
    }

    fn set_thread(&mut self, header: &Header) {
        let thread = header.thread;
        let arguments = [SET_FS, thread.local_data];
        self.call(
            libc::SYS_arch_prctl,
            &arguments,
            "setting the thread's data",
        );
        self.attempt(libc::SYS_set_tid_address, &[thread.id_address]);
        let (list, length) = thread.robust_list;
        self.attempt(libc::SYS_set_robust_list, &[list, length]);
        if let Some((area, signature)) = thread.rseq {
            let arguments = [area, RSEQ_LENGTHS[0], 0, signature.into()];
            self.attempt(libc::SYS_rseq, &arguments);
        }
        let (stack, flags, length) = thread.signal_stack;
        let bytes: Vec<u8> = [stack, flags, length]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let signal_stack = self.add(&bytes);
        self.attempt(libc::SYS_sigaltstack, &[signal_stack, 0]);
        for (signal, action) in (1..=SIGNALS).zip(&header.signals) {
            let bytes: Vec<u8> = action.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let action = self.add(&bytes);
            let signal = signal.unsigned_abs().into();
            self.attempt(libc::SYS_rt_sigaction, &[signal, action, 0, 8]);
        }
        let mut name = [0; 16];
        let length = header.name.len().min(name.len() - 1);
        name[..length].copy_from_slice(&header.name.as_bytes()[..length]);
        let name = self.add(&name);
        self.attempt(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_range_keeps_its_distance() {
        const GIB: u64 = 1 << 30;
        assert_eq!(free(&[], GIB), Some(LOWEST));
        let used = [(0x1000, 0x2000), (LOWEST + GIB, LOWEST + 2 * GIB)];
        assert_eq!(free(&used, GIB), Some(LOWEST + 3 * GIB));
        assert_eq!(free(&used, 1 << 46), Some(LOWEST + 3 * GIB));
        assert_eq!(free(&used, 1 << 47), None);
    }
}
