//! The endpoint objects of libfabric. Their data transfer calls are in `endpoint/`.

pub(crate) mod atomic;
mod messages;
mod rma;
mod tagged;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dipole_node::EndpointId;

use crate::abi::cm::CmOps;
use crate::abi::domain::FidAv;
use crate::abi::endpoint::{EpOps, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FidEp};
use crate::abi::eq::{FidCntr, FidCq};
use crate::abi::errno::{FI_EINVAL, FI_ENOAV, FI_ENOMEM, FI_ENOSYS, FI_ETOOSMALL};
use crate::abi::fabric::{
    FI_ADDR_UNSPEC, FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EP, FI_CLASS_EQ,
    FI_COMPLETION, FI_DIRECTED_RECV, FI_ENABLE, FI_INJECT, FI_RECV, FI_SELECTIVE_COMPLETION,
    FI_SEND, Fid, Info, Ops,
};
use crate::av::Av;
use crate::completion::{Source, lock};
use crate::counter::Counter;
use crate::exchange::{Exchange, Survivor};
use crate::ffi::{
    Failure, borrow, call, class, copy_out, export, fid, missing, object, ops, read_at, reclaim,
    write_at,
};
use crate::name::{Name, number};
use crate::node::Domain;
use crate::queue::Queue;
use crate::serial::Serial;

/// Default of `FI_OPT_MIN_MULTI_RECV`: a buffer for several messages is released when fewer bytes
/// are left.
const MIN_ROOM: usize = 64;

/// One direction of an endpoint.
#[derive(Default)]
struct Direction {
    /// Flags of operations that pass none.
    flags: AtomicU64,
    /// Only operations with `FI_COMPLETION` report success.
    is_selective: AtomicBool,
}

impl Direction {
    #[inline]
    fn flags(&self) -> u64 {
        self.flags.load(Ordering::Relaxed)
    }

    /// True if the success of an operation with these flags is reported.
    #[inline]
    fn reports(&self, flags: u64) -> bool {
        flags & FI_COMPLETION != 0 || !self.is_selective.load(Ordering::Relaxed)
    }

    #[inline]
    fn mode(&self, flags: u64) -> CompletionMode {
        let notify = self.reports(flags);
        CompletionMode { flags, notify }
    }

    /// The mode of operations that pass no flags.
    #[inline]
    fn default_mode(&self) -> CompletionMode {
        self.mode(self.flags())
    }
}

/// How an operation completes.
#[derive(Clone, Copy)]
struct CompletionMode {
    flags: u64,
    /// Success is reported to the completion queue.
    notify: bool,
}

impl CompletionMode {
    const INJECTED: CompletionMode = CompletionMode {
        flags: FI_INJECT,
        notify: false,
    };
}

/// The libfabric object of an endpoint.
pub(crate) struct Ep {
    exchange: Serial<Exchange>,
    av: OnceLock<Arc<Av>>,
    transmit: Direction,
    receive: Direction,
    min_room: AtomicUsize,
    /// Receives that name a source take messages only from there.
    is_directed: bool,
    /// Readable while messages or completions wait.
    descriptors: OnceLock<Option<[OwnedFd; 2]>>,
    domain: Arc<Domain>,
}

static OPS: Ops = Ops {
    bind,
    control,
    ..ops(close)
};
static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: missing!("tx_ctx"),
    rx_ctx: missing!("rx_ctx"),
    rx_size_left: missing!("rx_size_left"),
    tx_size_left: missing!("tx_size_left"),
};
static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: missing!("setname"),
    getname,
    getpeer: missing!("getpeer"),
    connect: missing!("connect"),
    listen: missing!("listen"),
    accept: missing!("accept"),
    reject: missing!("reject"),
    shutdown: missing!("shutdown"),
    join: missing!("join"),
};

impl Ep {
    /// Opens an endpoint of this process's node.
    ///
    /// # Safety
    /// `out` is null or valid for writes; the pointers of `info` are null or valid.
    pub(crate) unsafe fn open(
        domain: &Arc<Domain>,
        info: Option<&Info>,
        out: *mut *mut FidEp,
        context: *mut c_void,
    ) -> Result<c_int, Failure> {
        let endpoint = domain.node.endpoint(EndpointId::ANY).map_err(|error| {
            eprintln!("dipole: cannot open an endpoint: {error}");
            Failure(FI_ENOMEM)
        })?;
        let exchange = Exchange::new(domain, endpoint, Survivor::of(info));
        let ep = Ep {
            exchange: Serial::new(exchange),
            av: OnceLock::new(),
            transmit: Direction::default(),
            receive: Direction::default(),
            min_room: AtomicUsize::new(MIN_ROOM),
            is_directed: info.is_none_or(|info| info.caps & FI_DIRECTED_RECV != 0),
            descriptors: OnceLock::new(),
            domain: Arc::clone(domain),
        };
        if let Some(info) = info {
            // SAFETY: null or valid by contract.
            let (tx, rx) = unsafe { (borrow(info.tx_attr), borrow(info.rx_attr)) };
            let set =
                |direction: &Direction, flags| direction.flags.store(flags, Ordering::Relaxed);
            set(&ep.transmit, tx.map_or(0, |tx| tx.op_flags));
            set(&ep.receive, rx.map_or(0, |rx| rx.op_flags));
        }
        let fid = FidEp {
            fid: fid(FI_CLASS_EP, context, &OPS),
            ops: &EP_OPS,
            cm: ptr::from_ref(&CM_OPS).cast(),
            msg: &messages::OPS,
            rma: ptr::from_ref(&rma::OPS).cast(),
            tagged: ptr::from_ref(&tagged::OPS).cast(),
            atomic: ptr::from_ref(&atomic::OPS).cast(),
            collective: ptr::null(),
        };
        // SAFETY: the arguments are valid by contract.
        unsafe { export(out, fid, Arc::new(ep)) }
    }

    /// The name at an index of the address vector.
    #[inline]
    fn name(&self, index: u64) -> Result<&Name, Failure> {
        let av = self.av.get().ok_or(Failure(FI_ENOAV))?;
        av.get(index).ok_or(Failure(FI_EINVAL))
    }

    /// Begins an operation of the program.
    #[inline]
    fn begin(
        &self,
        operation: impl FnOnce(&mut Exchange) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut exchange = lock(&self.exchange);
        operation(&mut exchange)?;
        exchange.on_operation();
        Ok(())
    }

    /// The source that a receive is restricted to.
    #[inline]
    fn source(&self, index: u64) -> Result<Option<u64>, Failure> {
        match index {
            FI_ADDR_UNSPEC => Ok(None),
            _ if !self.is_directed => Ok(None),
            index => Ok(Some(number(self.name(index)?.messages))),
        }
    }

    fn bind_queue(self: &Arc<Ep>, queue: &Queue, flags: u64) {
        queue.cq.sources.add(Arc::clone(self) as Arc<dyn Source>);
        if let Some(wait_trace) = &queue.wait_trace {
            wait_trace.set_endpoint(self.number());
        }
        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
        let sinks = &mut lock(&self.exchange).sinks;
        if flags & FI_SEND != 0 {
            sinks.transmit = Some(Arc::clone(&queue.cq));
            (self.transmit.is_selective).store(selective, Ordering::Relaxed);
        }
        if flags & FI_RECV != 0 {
            sinks.receive = Some(Arc::clone(&queue.cq));
            (self.receive.is_selective).store(selective, Ordering::Relaxed);
        }
    }

    /// Checks whether the peers that operations wait for are alive.
    #[cold]
    fn check_peers(&self, exchange: &mut Exchange) {
        let find = |address| {
            let av = self.av.get()?;
            av.get(av.find(address)?).copied()
        };
        exchange.check_peers(find, |incarnation| self.domain.gone_reason(incarnation));
    }

    /// Waits until everything sent has left, and detaches the queues and counters.
    fn close(self: &Arc<Ep>) {
        let sinks = lock(&self.exchange).end();
        for queue in [sinks.transmit, sinks.receive].into_iter().flatten() {
            queue.sources.remove(&**self);
        }
        for (_, counter) in sinks.counters {
            counter.sources.remove(&**self);
        }
    }
}

impl Source for Ep {
    #[inline]
    fn progress(&self) -> u32 {
        let mut exchange = lock(&self.exchange);
        let idle_polls = exchange.poll_for_program();
        if idle_polls > 0 && exchange.is_peer_check_due() {
            self.check_peers(&mut exchange);
        }
        idle_polls
    }

    fn prepare_sleep(&self) -> Option<Duration> {
        let mut exchange = lock(&self.exchange);
        let again = exchange.prepare_sleep()?;
        if !exchange.is_peer_check_overdue() {
            return Some(again);
        }
        self.check_peers(&mut exchange);
        exchange.prepare_sleep()
    }

    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let make = || lock(&self.exchange).descriptors();
        let descriptors = self.descriptors.get_or_init(make).as_ref()?;
        Some(descriptors.each_ref().map(AsFd::as_fd))
    }

    fn wait(&self, timeout: Duration) {
        lock(&self.exchange).wait(timeout);
    }

    fn find(&self, address: u64) -> Option<u64> {
        self.av.get()?.find(address)
    }

    fn number(&self) -> u64 {
        number(lock(&self.exchange).name().messages)
    }
}

/// The endpoint behind a pointer from C.
///
/// # Safety
/// `ep` is null or was created by this provider.
#[inline]
unsafe fn ep<'a>(ep: *const FidEp) -> Result<&'a Arc<Ep>, Failure> {
    // SAFETY: the caller's contract is the same.
    unsafe { object(ep) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: created by `Ep::open`; C does not use it again.
        let ep = unsafe { reclaim::<FidEp, Arc<Ep>>(fid) }?;
        ep.close();
        Ok(0)
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    call(|| {
        // SAFETY: an endpoint, and an object of this provider.
        let (ep, class) = unsafe { (ep(fid.cast())?, class(other)?) };
        match class {
            FI_CLASS_AV => {
                // SAFETY: its class determines its type.
                let av: &Arc<Av> = unsafe { object(other.cast::<FidAv>()) }?;
                let bound = ep.av.set(Arc::clone(av));
                bound.map_err(|_| Failure(FI_EINVAL))?;
            }
            FI_CLASS_CQ => {
                // SAFETY: as above.
                let queue: &Queue = unsafe { object(other.cast::<FidCq>()) }?;
                ep.bind_queue(queue, flags);
            }
            FI_CLASS_CNTR => {
                // SAFETY: as above.
                let counter: &Counter = unsafe { object(other.cast::<FidCntr>()) }?;
                counter.0.sources.add(Arc::clone(ep) as Arc<dyn Source>);
                let counters = &mut lock(&ep.exchange).sinks.counters;
                counters.push((flags, Arc::clone(&counter.0)));
            }
            // Endpoints report no events.
            FI_CLASS_EQ => {}
            _ => return Err(Failure(FI_EINVAL)),
        }
        Ok(0)
    })
}

unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    match command {
        // Endpoints are enabled from the start.
        FI_ENABLE => 0,
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    call(|| {
        // SAFETY: libfabric passes an endpoint of this provider.
        let ep = unsafe { ep(fid.cast()) }?;
        lock(&ep.exchange).cancel(context.expose_provenance());
        Ok(0)
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, buffer: *mut c_void, length: *mut usize) -> c_int {
    call(|| {
        // SAFETY: libfabric passes an endpoint of this provider.
        let name = lock(&unsafe { ep(fid.cast()) }?.exchange).name();
        // SAFETY: a buffer of that length.
        match unsafe { copy_out(&name.encode(), buffer, length) }? {
            true => Ok(0),
            false => Err(Failure(FI_ETOOSMALL)),
        }
    })
}

unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    buffer: *mut c_void,
    length: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: libfabric passes an endpoint of this provider.
        let ep = unsafe { ep(fid.cast()) }?;
        if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(Failure(libc::ENOPROTOOPT));
        }
        // SAFETY: buffers for the option and its length.
        unsafe {
            write_at(buffer.cast(), 0, ep.min_room.load(Ordering::Relaxed));
            write_at(length, 0, size_of::<usize>());
        }
        Ok(0)
    })
}

unsafe extern "C" fn setopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: libfabric passes an endpoint of this provider.
        let ep = unsafe { ep(fid.cast()) }?;
        if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(Failure(libc::ENOPROTOOPT));
        }
        if value.is_null() || length < size_of::<usize>() {
            return Err(Failure(FI_EINVAL));
        }
        // SAFETY: not null, of that length.
        let room = unsafe { read_at(value.cast::<usize>(), 0) };
        ep.min_room.store(room, Ordering::Relaxed);
        Ok(0)
    })
}
