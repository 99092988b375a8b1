//! Structs that C passes, and the calls that take options.
//!
//! Each begins with its size, which identifies its version: members are only ever appended, and zero
//! always has the meaning of an absent member.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use dipole_node::hosts::Hosts;
use dipole_node::{ClusterKey, Config, EndpointId, NodeId};

use crate::failure::Failure;
use crate::ffi::{self, Versioned, call};
use crate::process;
use crate::{carrier, handle, message};

/// A time of zero in options, where 0 selects the default.
pub const DP_ZERO_NS: i64 = -1;
/// Endpoint number for `dp_open_with`: any free one.
pub const DP_ANY: u32 = dipole_node::EndpointId::ANY.0;
/// For `dp_open_with`: calls on the descriptor do not wait.
pub const DP_NONBLOCK: u32 = 1;
/// For `dp_open_with`: the descriptor carries messages through `read` and `write`.
pub const DP_IO: u32 = 2;

/// `struct dp_node_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// This node, or 0.
    pub nid: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The runtime directory, or null.
    pub runtime_dir: *const c_char,
    /// The hosts file, or null.
    pub hosts: *const c_char,
    /// The IP address to bind, or null.
    pub bind: *const c_char,
    /// `auto`, `shm`, `udp` or `bpf`, or null.
    pub link: *const c_char,
    /// How long waiting calls spin before they sleep.
    pub spin_ns: i64,
    /// Time limit of `dp_target` in nanoseconds.
    pub connect_timeout_ns: i64,
    /// How long `exit` waits for acknowledgements.
    pub linger_ns: i64,
    /// The file of the cluster key, or null.
    pub key: *const c_char,
}

// SAFETY: integers and raw pointers in an order without padding, a usize first.
unsafe impl Versioned for NodeOptions {
    const NAME: &'static str = "struct dp_node_options";
}

/// `struct dp_open_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// [`DP_NONBLOCK`], [`DP_IO`], both or 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Bytes of the token buffer pool, or 0.
    pub pool_bytes: usize,
}

// SAFETY: integers in an order without padding, a usize first.
unsafe impl Versioned for OpenOptions {
    const NAME: &'static str = "struct dp_open_options";
}

/// `dpmmap_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Bytes of this struct.
    pub size: usize,
    /// In: requested bytes; out: bytes of the pool.
    pub bytes: usize,
    /// Address of the pool.
    pub base: *const c_void,
}

// SAFETY: an integer and a raw pointer in an order without padding, a usize first.
unsafe impl Versioned for Pool {
    const NAME: &'static str = "dpmmap_t";
}

/// `struct dp_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Bytes of this struct.
    pub size: usize,
    /// Packets passed to the network.
    pub packets_sent: u64,
    /// Packets received from the network.
    pub packets_received: u64,
    /// Bytes of the packets sent.
    pub bytes_sent: u64,
    /// Bytes of the packets received.
    pub bytes_received: u64,
    /// Packets dropped on arrival, for any reason.
    pub packets_dropped: u64,
    /// Times that the network took less than it was offered.
    pub link_full: u64,
    /// Units sent for the first time.
    pub units_sent: u64,
    /// Units received for the first time.
    pub units_received: u64,
    /// Number of units sent again.
    pub repeats: u64,
    /// Packets that carried only acknowledgements.
    pub explicit_acks: u64,
    /// Messages received, through the network or shared memory.
    pub messages_delivered: u64,
    /// Messages refused because their endpoint was not open.
    pub messages_refused: u64,
    /// Number of unreliable packets sent.
    pub unreliable_sent: u64,
    /// Unreliable messages dropped because too many were waiting.
    pub unreliable_dropped: u64,
    /// Messages that targets did not get because of their policies.
    pub target_dropped: u64,
    /// Peers reached through the network.
    pub peers: u64,
    /// Peers reached through shared memory.
    pub local_peers: u64,
    /// Records sent through shared memory.
    pub local_records_sent: u64,
    /// Records received through shared memory.
    pub local_records_received: u64,
    /// Bytes of the records sent.
    pub local_bytes_sent: u64,
    /// Bytes of the records received.
    pub local_bytes_received: u64,
    /// Bytes of long messages fetched from other processes.
    pub local_bytes_fetched: u64,
    /// Wake-ups of sleeping processes.
    pub local_wakes: u64,
    /// Bytes of messages that wait to be read.
    pub pool_used_bytes: u64,
    /// Free frames for sending.
    pub free_frames: u64,
    /// Small packets received from the rings of the kernel program.
    pub bpf_received: u64,
    /// Packets sent as raw frames.
    pub bpf_sent: u64,
    /// Small packets that the bpf link received from its socket.
    pub bpf_socket_received: u64,
    /// Small packets that the bpf link sent through its socket.
    pub bpf_socket_sent: u64,
    /// Messages sent, through the network or shared memory.
    pub messages_sent: u64,
    /// Bytes of the messages sent.
    pub message_bytes_sent: u64,
    /// Bytes of the messages received.
    pub message_bytes_received: u64,
    /// Calls that waited.
    pub waits: u64,
    /// Sum of their waits in nanoseconds.
    pub wait_ns: u64,
}

// SAFETY: integers of one size, a usize first (this library is for 64-bit machines).
unsafe impl Versioned for Stats {
    const NAME: &'static str = "struct dp_stats";
}

const _: () = assert!(
    size_of::<usize>() == 8 && size_of::<c_int>() == 4,
    "the structs of the interface are laid out for 64-bit Linux"
);

/// Opens this process's node. Options that are not set come from the environment.
///
/// # Safety
/// `options` is null or points to a struct of the size that it states, whose texts are null or C
/// strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_init(options: *const NodeOptions) -> c_int {
    call("dp_init", || {
        let mut config = Config::from_env()?;
        if !options.is_null() {
            // SAFETY: the pointer is not null, and by contract the memory has the stated size.
            let options = unsafe { ffi::read_struct(options) }?;
            // SAFETY: texts are strings by contract.
            unsafe { options.apply(&mut config) }?;
        }
        process::current().init(config)?;
        Ok(0)
    })
}

/// Closes the node after everything sent is acknowledged, or the timeout has expired.
#[unsafe(no_mangle)]
pub extern "C" fn dp_finalize(timeout_ns: i64) -> c_int {
    call("dp_finalize", || {
        process::current().finalize(Some(message::duration(timeout_ns)))?;
        Ok(0)
    })
}

/// Opens an endpoint with options.
///
/// # Safety
/// `options` is null or points to a struct of the size that it states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_open_with(dpid: u32, options: *const OpenOptions) -> c_int {
    call("dp_open_with", || {
        let options = match options.is_null() {
            true => OpenOptions::EMPTY,
            // SAFETY: the pointer is not null, and by contract the memory has the stated size.
            false => unsafe { ffi::read_struct(options) }?,
        };
        open(dpid, options)
    })
}

pub(crate) fn open(dpid: u32, options: OpenOptions) -> Result<c_int, Failure> {
    let OpenOptions {
        flags,
        reserved,
        pool_bytes,
        ..
    } = options;
    if flags & !(DP_NONBLOCK | DP_IO) != 0 || reserved != 0 {
        return Err(Failure::BadNumber {
            what: "flags or reserved of struct dp_open_options",
            found: i64::from(flags).max(i64::from(reserved)),
            expected: "DP_NONBLOCK, DP_IO, both or 0, and 0",
        });
    }
    let process = process::current();
    let node = process.node()?;
    let endpoint = node.endpoint(EndpointId(dpid))?;
    if pool_bytes > 0 {
        set_pool(&endpoint, pool_bytes)?;
    }
    let (descriptor, own) = match flags & DP_IO {
        0 => (endpoint.export()?, None),
        _ => {
            let (own, user) = carrier::pair().map_err(|cause| Failure::Descriptor {
                doing: "creating a descriptor for DP_IO",
                cause,
            })?;
            (user, Some(own))
        }
    };
    let mut status = rustix::fs::fcntl_getfl(&descriptor).map_err(descriptor_failure)?;
    let nonblocking = flags & DP_NONBLOCK != 0;
    status.set(rustix::fs::OFlags::NONBLOCK, nonblocking);
    rustix::fs::fcntl_setfl(&descriptor, status).map_err(descriptor_failure)?;
    // A call that does not spin sleeps soon, and reading the flags first costs less than sleeping
    // twice.
    let probe = message::PROBE.min(process.spin());
    let fd = handle::insert(endpoint, descriptor, nonblocking, probe)?;
    if let Some(own) = own {
        handle::carry(fd, own)?;
    }
    Ok(fd)
}

pub(crate) fn set_pool(endpoint: &dipole_node::Endpoint, bytes: usize) -> Result<Pool, Failure> {
    if bytes == 0 {
        return Err(Failure::BadNumber {
            what: "bytes of the pool",
            found: 0,
            expected: "its size",
        });
    }
    let pool = endpoint.set_pool(bytes)?;
    Ok(Pool {
        size: size_of::<Pool>(),
        bytes: pool.bytes,
        base: ptr::without_provenance(pool.base),
    })
}

fn descriptor_failure(cause: rustix::io::Errno) -> Failure {
    Failure::Descriptor {
        doing: "fcntl on the endpoint's descriptor",
        cause: cause.into(),
    }
}

impl NodeOptions {
    /// Overrides the values from the environment.
    ///
    /// # Safety
    /// The texts are null or C strings.
    unsafe fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        if self.reserved != 0 {
            return Err(Failure::BadNumber {
                what: "reserved of struct dp_node_options",
                found: self.reserved.into(),
                expected: "0",
            });
        }
        // SAFETY: null or C strings by contract, here and below.
        let hosts = unsafe { ffi::text("hosts", self.hosts) }?;
        if let Some(file) = hosts {
            config.hosts = Hosts::load(file.as_ref())?;
        }
        // SAFETY: as above.
        let directory = unsafe { ffi::text("runtime_dir", self.runtime_dir) }?;
        if let Some(directory) = directory {
            config.runtime_dir = directory.into();
        }
        if self.nid != 0 {
            config.set_node(NodeId(self.nid))?;
        }
        if (self.nid != 0 || hosts.is_some())
            && let Some(host) = config.hosts.get(config.node).cloned()
        {
            config.bind_to(&host);
            if let Some(directory) = &host.runtime_dir {
                config.runtime_dir = (**directory).into();
            }
        }
        if let Some(directory) = directory {
            config.runtime_dir = directory.into();
        }
        // SAFETY: as above.
        if let Some(file) = unsafe { ffi::text("key", self.key) }? {
            let key = ClusterKey::load(file.as_ref());
            config.key = Some(key.map_err(dipole_node::ConfigError::Key)?);
        }
        // SAFETY: as above.
        if let Some(address) = unsafe { ffi::text("bind", self.bind) }? {
            config.bind = parsed("bind", address, "an IP address of this node")?;
            config.interfaces.clear();
        }
        // SAFETY: as above.
        if let Some(link) = unsafe { ffi::text("link", self.link) }? {
            config.links = parsed("link", link, "auto, shm, udp or bpf")?;
        }
        for (time_ns, place) in [
            (self.spin_ns, &mut config.spin),
            (self.connect_timeout_ns, &mut config.connect_timeout),
            (self.linger_ns, &mut config.linger),
        ] {
            match time_ns {
                0 => {}
                1.. => *place = Duration::from_nanos(time_ns.unsigned_abs()),
                DP_ZERO_NS => *place = Duration::ZERO,
                _ => {
                    return Err(Failure::BadNumber {
                        what: "a time in struct dp_node_options",
                        found: time_ns,
                        expected: "nanoseconds, 0 for the default or DP_ZERO_NS",
                    });
                }
            }
        }
        Ok(())
    }
}

fn parsed<T: std::str::FromStr>(
    what: &'static str,
    text: &str,
    expected: &'static str,
) -> Result<T, Failure> {
    text.parse().map_err(|_| Failure::BadText {
        what,
        found: text.to_owned(),
        expected,
    })
}
