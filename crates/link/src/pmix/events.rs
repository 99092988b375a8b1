//! Events that the launcher's server reports: ranks that have failed, and requests to the job.
//!
//! The library calls [`on_event`] on a thread of its own. As it passes nothing of ours along, the
//! listener is a static. Numbers and types are the same in versions 3.0 to 6.1; some numbers exist only
//! since version 4, and an older server never sends them.

use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Info, NAMESPACE_BYTES, Proc, SUCCESS, Session, WILDCARD};

/// A report of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank of this job has failed.
    Failed {
        /// Its number.
        rank: u32,
    },
    /// The job shall save its state and go on.
    Checkpoint,
    /// The job shall save its state and end: its nodes are needed for something else.
    Preempt,
    /// The launcher's daemon on this node has ended.
    ServerLost,
}

/// A function that gets events. It must not block.
pub type Listener = fn(Event);

/// `PMIX_PROC`
const KIND_PROC: u16 = 22;
/// `PMIX_EVENT_AFFECTED_PROC`, with the zero that ends it.
const AFFECTED: &[u8] = b"pmix.evproc\0";
/// `PMIX_EVENT_NO_ACTION_TAKEN`: other handlers get the event, too.
const NO_ACTION_TAKEN: c_int = -331;
const CHECKPOINT: c_int = -106;
const PREEMPT: c_int = -108;
/// The rank was aborted, has aborted itself, ended without `PMIx_Finalize`, or was killed. Ordinary
/// ends are not among them: what such a rank has sent may still be on its way.
const FAILURES: [c_int; 5] = [-7, -8, -200, -400, -402];
/// Since version 4, and in version 3.
const SERVER_LOST: [c_int; 2] = [-61, -101];
/// All of the above.
static CODES: [c_int; 9] = [-7, -8, -200, -400, -402, CHECKPOINT, PREEMPT, -61, -101];

/// The namespace of this job, and the function that gets its events.
static LISTENER: Mutex<Option<([c_char; NAMESPACE_BYTES], Listener)>> = Mutex::new(None);

/// `pmix_event_notification_cbfunc_fn_t`
type Handled = unsafe extern "C" fn(
    c_int,
    *mut Info,
    usize,
    Option<unsafe extern "C" fn(c_int, *mut c_void)>,
    *mut c_void,
    *mut c_void,
);
/// `pmix_notification_fn_t`
type Handler = unsafe extern "C" fn(
    usize,
    c_int,
    *const Proc,
    *const Info,
    usize,
    *mut Info,
    usize,
    Option<Handled>,
    *mut c_void,
);
/// `pmix_hdlr_reg_cbfunc_t`
type Registered = extern "C" fn(c_int, usize, *mut c_void);
/// Version 3.0.0 returns nothing, so the result is not used.
pub(super) type Register =
    unsafe extern "C" fn(*const c_int, usize, *const Info, usize, Handler, Registered, *mut c_void);

impl Session {
    /// Passes events to a function from now on. A launcher that has none to report is not an error.
    pub fn listen(&self, listener: Listener) {
        let mut current = LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some((self.own.namespace, listener));
        drop(current);
        // SAFETY: the codes are static, and no directives are passed. The handlers are functions of this
        // library, which is never unloaded while the session is open, and need no data.
        unsafe {
            (self.library.register)(
                CODES.as_ptr(),
                CODES.len(),
                ptr::null(),
                0,
                on_event,
                on_registered,
                ptr::null_mut(),
            );
        }
    }
}

extern "C" fn on_registered(status: c_int, _handler: usize, _data: *mut c_void) {
    if status != SUCCESS {
        tracing::debug!(status, "the launcher does not report events");
    }
}

/// Gets an event from the library.
///
/// # Safety
/// The arguments are as `pmix_notification_fn_t` describes them: `source` is null or a process, `info`
/// the first of `count` pairs, and `handled` is called once with `data`.
unsafe extern "C" fn on_event(
    _handler: usize,
    status: c_int,
    source: *const Proc,
    info: *const Info,
    count: usize,
    _results: *mut Info,
    _result_count: usize,
    handled: Option<Handled>,
    data: *mut c_void,
) {
    let infos: &[Info] = match info.is_null() {
        true => &[],
        // SAFETY: the library passes an array of this length, which nothing changes during this call.
        false => unsafe { std::slice::from_raw_parts(info, count) },
    };
    let affected = infos.iter().find(|info| is_affected(info));
    // SAFETY: of a value of this kind the library has written this member: null, or a pointer to a
    // process that lives as long as the array.
    let affected = affected.and_then(|info| unsafe { info.value.data.process.as_ref() });
    // SAFETY: null or a process that lives until this call returns.
    let process = affected.or(unsafe { source.as_ref() });
    // A panic must not reach the library.
    let _panicked = catch_unwind(|| pass_on(status, process));
    if let Some(handled) = handled {
        // SAFETY: the library's function, called once with its own data and without results.
        unsafe {
            handled(
                NO_ACTION_TAKEN,
                ptr::null_mut(),
                0,
                None,
                ptr::null_mut(),
                data,
            )
        };
    }
}

fn is_affected(info: &Info) -> bool {
    let mut pairs = info.key.iter().zip(AFFECTED);
    info.value.kind == KIND_PROC && pairs.all(|(found, wanted)| found.to_ne_bytes() == [*wanted])
}

/// Passes an event to the listener.
fn pass_on(status: c_int, process: Option<&Proc>) {
    let current = *LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((namespace, listener)) = current else {
        return;
    };
    let is_own = |process: &&Proc| {
        let end = namespace.iter().position(|byte| *byte == 0);
        let end = end.map_or(NAMESPACE_BYTES, |end| end + 1);
        process.namespace[..end] == namespace[..end]
    };
    let rank = process.filter(is_own).map(|process| process.rank);
    let event = match status {
        CHECKPOINT => Some(Event::Checkpoint),
        PREEMPT => Some(Event::Preempt),
        failure if FAILURES.contains(&failure) => {
            // Greater numbers stand for several ranks.
            let rank = rank.filter(|rank| *rank < WILDCARD - 16);
            rank.map(|rank| Event::Failed { rank })
        }
        lost if SERVER_LOST.contains(&lost) => Some(Event::ServerLost),
        _ => None,
    };
    if let Some(event) = event {
        listener(event);
    }
}

/// The function that runs at the exit of this process.
static AT_EXIT: OnceLock<fn()> = OnceLock::new();

/// Calls a function when this process exits, once. Of several functions the first counts.
pub fn at_exit(function: fn()) {
    if AT_EXIT.set(function).is_ok() {
        // SAFETY: the handler lets no panic out. It is part of a program, or of a library that is not
        // unloaded before the process ends.
        let _full = unsafe { libc::atexit(run_at_exit) };
    }
}

extern "C" fn run_at_exit() {
    if let Some(function) = AT_EXIT.get() {
        let _panicked = catch_unwind(function);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::{Data, Value, key, proc_of};
    use super::*;

    static SENT: Mutex<Option<Sender<Event>>> = Mutex::new(None);

    fn send(event: Event) {
        let sender = SENT.lock().unwrap();
        sender.as_ref().unwrap().send(event).unwrap();
    }

    fn namespace(name: &str) -> [c_char; NAMESPACE_BYTES] {
        let mut namespace = [c_char::from_ne_bytes([b'U']); NAMESPACE_BYTES];
        for (to, byte) in namespace.iter_mut().zip(name.bytes().chain([0])) {
            *to = c_char::from_ne_bytes([byte]);
        }
        namespace
    }

    unsafe extern "C" fn handled(
        status: c_int,
        _: *mut Info,
        _: usize,
        _: Option<unsafe extern "C" fn(c_int, *mut c_void)>,
        _: *mut c_void,
        data: *mut c_void,
    ) {
        assert_eq!(status, NO_ACTION_TAKEN);
        // SAFETY: the test passes a counter.
        unsafe { *data.cast::<u32>() += 1 };
    }

    fn report(status: c_int, source: &Proc, info: &[Info], events: &Receiver<Event>) -> Vec<Event> {
        let mut count = 0_u32;
        let (first, none) = (info.as_ptr(), ptr::null_mut());
        // SAFETY: all pointers are those of complete values that outlive the call.
        unsafe {
            let data = (&raw mut count).cast();
            on_event(
                7,
                status,
                source,
                first,
                info.len(),
                none,
                0,
                Some(handled),
                data,
            );
        }
        assert_eq!(count, 1);
        events.try_iter().collect()
    }

    #[test]
    fn failures_of_this_job_and_requests_are_passed_on_and_all_events_are_confirmed() {
        let (sender, events) = channel();
        *SENT.lock().unwrap() = Some(sender);
        *LISTENER.lock().unwrap() = Some((namespace("job.1"), send));
        let own = proc_of(&namespace("job.1"), 3);
        let other = proc_of(&namespace("job.10"), 3);
        for status in FAILURES {
            assert_eq!(
                report(status, &own, &[], &events),
                [Event::Failed { rank: 3 }]
            );
            assert_eq!(report(status, &other, &[], &events), []);
        }
        let all = proc_of(&namespace("job.1"), WILDCARD);
        assert_eq!(report(-7, &all, &[], &events), []);
        // The source may be a daemon.
        let about = |name: &str, process: &Proc| Info {
            key: key(name).unwrap(),
            directives: 0,
            value: Value {
                kind: KIND_PROC,
                data: Data { process },
            },
        };
        let info = [about("pmix.evproc2", &all), about("pmix.evproc", &own)];
        assert_eq!(
            report(-402, &other, &info, &events),
            [Event::Failed { rank: 3 }]
        );
        assert_eq!(
            report(CHECKPOINT, &other, &[], &events),
            [Event::Checkpoint]
        );
        assert_eq!(report(PREEMPT, &other, &[], &events), [Event::Preempt]);
        for status in SERVER_LOST {
            assert_eq!(report(status, &own, &[], &events), [Event::ServerLost]);
        }
        // An ordinary end.
        assert_eq!(report(-201, &own, &[], &events), []);
        for status in FAILURES.iter().chain(&SERVER_LOST) {
            assert!(CODES.contains(status));
        }
    }
}
