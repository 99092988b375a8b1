//! Supersteps: BSPlib's calls on Python's buffers.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipole_bsp::carrier::AnyCarrier;
use dipole_bsp::{Call, Failure, Misuse, Process};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::buffer::Buffer;
use crate::distributed::{Layout, Plans};
use crate::error::raise_as;
use crate::waiting::wait_once;

/// The native part of `dipole.bsp`: this process's place in a BSP program.
#[pyclass(module = "dipole", frozen)]
pub(crate) struct Bsp {
    state: Mutex<State>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    size: u32,
}

/// Everything that must live until a superstep ends.
struct State {
    /// `None` once the program has ended. Dropped first, since it accesses the other parts' memory.
    process: Option<OneThread>,
    /// Registered memory by number. Memory that is unregistered stays until the superstep ends.
    areas: HashMap<u64, Buffer>,
    next_area: u64,
    unregistered: Vec<Buffer>,
    /// Destinations of this superstep's gets.
    destinations: Vec<Buffer>,
    plans: Plans,
    /// Buffers of a failed reshuffle, which other ranks may still access.
    failed: Vec<Buffer>,
    /// Source files of the program, which trace records keep.
    files: HashMap<String, &'static str>,
}

/// A process whose addresses refer to memory of `State`.
struct OneThread(Process<AnyCarrier>);

// SAFETY: the addresses inside refer to buffers that `State` keeps in place; which thread calls
// does not matter, and the mutex admits one at a time.
unsafe impl Send for OneThread {}

fn failed(py: Python<'_>, failure: &Failure) -> PyErr {
    let class = match failure {
        Failure::Misuse(_) => return PyValueError::new_err(failure.to_string()),
        Failure::Gone { .. } | Failure::Unreachable { .. } | Failure::Aborted { .. } => "PeerGone",
        Failure::Job(_) | Failure::Config(_) | Failure::Profile(_) => "ConfigurationError",
        _ => "Error",
    };
    raise_as(py, class, failure.to_string())
}

impl Bsp {
    /// Locks the state, from a thread without the interpreter's lock.
    fn lock_detached(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state. Another thread may hold it while it runs signal handlers, so the
    /// interpreter's lock is released meanwhile.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        let locked = self.state.lock_py_attached(py);
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the superstep, or with `end` the program, without the interpreter's lock.
    fn end_superstep(&self, py: Python<'_>, end: bool) -> PyResult<()> {
        let done = wait_once(py, || {
            let mut state = self.lock_detached();
            let process = state.process.as_mut().map(|process| &mut process.0);
            let done = match (process, end) {
                (None, _) => return None,
                (Some(process), false) => process.sync(),
                (Some(process), true) => process.end(),
            };
            if end && done.is_ok() {
                state.process = None;
            }
            // Whether it succeeded or not, nothing refers to them any more. They are released without
            // the lock, which a thread with the interpreter may be waiting for.
            let unused = (
                std::mem::take(&mut state.destinations),
                std::mem::take(&mut state.unregistered),
            );
            Some((done, unused))
        })?;
        match done {
            Some((Ok(()), _unused)) => Ok(()),
            Some((Err(failure), _unused)) => Err(failed(py, &failure)),
            None => Err(ended(py)),
        }
    }
}

impl State {
    fn process(&mut self, py: Python<'_>) -> PyResult<&mut Process<AnyCarrier>> {
        match &mut self.process {
            Some(process) => Ok(&mut process.0),
            None => Err(ended(py)),
        }
    }

    /// The address that names an area to the other ranks.
    fn address(&self, area: u64) -> PyResult<*mut c_void> {
        let buffer = self.areas.get(&area).ok_or_else(|| {
            PyValueError::new_err(Misuse::NotRegistered { address: area }.to_string())
        })?;
        Ok(buffer.start().as_ptr().cast())
    }

    fn set_call(&mut self, name: &'static str, place: Option<(String, u32)>) {
        let place = place.map(|(file, line)| {
            let known = self.files.entry(file);
            let file = known.or_insert_with_key(|file| String::leak(file.clone()));
            (*file, line)
        });
        if let Some(process) = &mut self.process {
            process.0.set_call(Call { name, place });
        }
    }
}

fn ended(py: Python<'_>) -> PyErr {
    raise_as(py, "Closed", "the BSP program has ended".to_owned())
}

#[pymethods]
impl Bsp {
    /// Begins the program with the other processes of the job; None in a process beyond `max_ranks`.
    #[staticmethod]
    #[pyo3(signature = (max_ranks=None))]
    fn begin(py: Python<'_>, max_ranks: Option<u32>) -> PyResult<Option<Bsp>> {
        dipole_node::log::init_library("dipole");
        let begin = || Process::begin(max_ranks).map(|process| process.map(OneThread));
        let begun = wait_once(py, begin)?;
        let begun = begun.map_err(|failure| failed(py, &failure))?;
        Ok(begun.map(|process| Bsp {
            rank: process.0.rank(),
            size: process.0.size(),
            state: Mutex::new(State {
                process: Some(process),
                areas: HashMap::new(),
                next_area: 0,
                unregistered: Vec::new(),
                destinations: Vec::new(),
                plans: Plans::default(),
                failed: Vec::new(),
                files: HashMap::new(),
            }),
        }))
    }

    /// Seconds since the program began.
    fn time(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.lock(py).process(py)?.elapsed().as_secs_f64())
    }

    /// Registers a buffer as this rank's part of an area; returns the area's number.
    fn register(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<u64> {
        let mut buffer = Buffer::writable(memory)?;
        let length = buffer.bytes_mut().len() as u64;
        let start = buffer.start().as_ptr().cast();
        let mut state = self.lock(py);
        // SAFETY: the buffer stays in `areas` or `unregistered` until the superstep in which it is
        // unregistered has ended. As in C, the program does not use it during `sync`.
        let pushed = unsafe { state.process(py)?.push_registration(start, length) };
        pushed.map_err(|failure| failed(py, &failure))?;
        state.next_area += 1;
        let number = state.next_area;
        state.areas.insert(number, buffer);
        Ok(number)
    }

    /// Removes an area from the next superstep on.
    fn unregister(&self, py: Python<'_>, area: u64) -> PyResult<()> {
        let mut state = self.lock(py);
        let address = state.address(area)?;
        let popped = state.process(py)?.pop_registration(address);
        popped.map_err(|failure| failed(py, &failure))?;
        let buffer = state.areas.remove(&area);
        state.unregistered.extend(buffer);
        Ok(())
    }

    /// Puts the bytes of a buffer at byte `offset` of a rank's part of an area.
    fn put(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        to: u32,
        area: u64,
        offset: u64,
    ) -> PyResult<()> {
        let buffer = Buffer::readable(buffer)?;
        let (from, length) = (buffer.start().as_ptr(), buffer.length() as u64);
        let mut state = self.lock(py);
        let address = state.address(area)?;
        // SAFETY: the buffer is readable during the call.
        let put = unsafe { state.process(py)?.put(to, from, address, offset, length) };
        put.map_err(|failure| failed(py, &failure))
    }

    /// Fills a writable buffer at the end of the superstep from byte `offset` of a rank's part of an
    /// area.
    fn get(
        &self,
        py: Python<'_>,
        from: u32,
        area: u64,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let buffer = Buffer::writable(buffer)?;
        let (into, length) = (buffer.start().as_ptr(), buffer.length() as u64);
        let mut state = self.lock(py);
        let address = state.address(area)?;
        // SAFETY: the buffer stays in `destinations` until the superstep has ended.
        let got = unsafe { state.process(py)?.get(from, address, offset, into, length) };
        got.map_err(|failure| failed(py, &failure))?;
        state.destinations.push(buffer);
        Ok(())
    }

    /// Sends the bytes of a buffer to the queue of a rank.
    fn send(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, to: u32) -> PyResult<()> {
        let buffer = Buffer::readable(buffer)?;
        let (from, length) = (buffer.start().as_ptr(), buffer.length() as u64);
        let mut state = self.lock(py);
        // SAFETY: the buffer is readable during the call; tags have no bytes.
        let sent = unsafe { state.process(py)?.send(to, std::ptr::null(), from, length) };
        sent.map_err(|failure| failed(py, &failure))
    }

    /// The next message of the queue; None if it is empty.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut state = self.lock(py);
        let message = state.process(py)?.take_message();
        Ok(message.map(|message| PyBytes::new(py, message.payload)))
    }

    /// Moves an array between two distributions, from the first buffer to the second; `place` is the
    /// caller's source file and line, for traces.
    #[pyo3(signature = (layouts, source, target, place=None))]
    fn reshuffle(
        &self,
        py: Python<'_>,
        layouts: (PyRef<'_, Layout>, PyRef<'_, Layout>),
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
        place: Option<(String, u32)>,
    ) -> PyResult<()> {
        self.lock(py).set_call("reshuffle", place);
        let (source, mut target) = (Buffer::readable(source)?, Buffer::writable(target)?);
        let (from, to) = (&*layouts.0, &*layouts.1);
        let done = wait_once(py, || {
            let mut state = self.lock_detached();
            let State {
                process: Some(process),
                plans,
                failed,
                ..
            } = &mut *state
            else {
                return None;
            };
            // SAFETY: `process` is dropped before `plans` and `failed`.
            let ran = unsafe { plans.run(&mut process.0, (from, to), &source, &mut target) };
            if ran.is_err() {
                failed.extend([source, target]);
                return Some((ran, None));
            }
            // They are released without the lock.
            Some((ran, Some((source, target))))
        })?;
        match done {
            Some((Ok(()), _unused)) => Ok(()),
            Some((Err(failure), _)) => Err(failed(py, &failure)),
            None => Err(ended(py)),
        }
    }

    /// Requests a checkpoint at the end of the superstep.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let requested = self.lock(py).process(py)?.request_checkpoint();
        requested.map_err(|failure| failed(py, &failure))
    }

    /// Ends the superstep; `place` is the caller's source file and line, for traces. Without it, the
    /// last one is still valid.
    #[pyo3(signature = (place=None))]
    fn sync(&self, py: Python<'_>, place: Option<(String, u32)>) -> PyResult<()> {
        if place.is_some() {
            self.lock(py).set_call("sync", place);
        }
        self.end_superstep(py, false)
    }

    /// Ends the last superstep and the program.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py).set_call("end", None);
        self.end_superstep(py, true)
    }

    /// Ends the program because of an error of this rank: the others fail at their next `sync`.
    /// Returns true if this rank should report its error, false if another one does.
    fn abort(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let process = self.lock_detached().process.take();
            process.is_some_and(|mut process| process.0.abort())
        })
    }
}
