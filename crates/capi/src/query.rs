//! Calls that return information: errors, addresses, the job, counters, the version.

use std::ffi::{c_char, c_int};

use crate::address::Address;
use crate::failure::{self, Failure};
use crate::ffi::{self, Out, Versioned, call};
use crate::handle;
use crate::options::Stats;
use crate::process;

/// The text of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error() -> *const c_char {
    ffi::last_text()
}

/// The meaning of an error number that a call of this library set.
#[unsafe(no_mangle)]
pub extern "C" fn dp_strerror(errnum: c_int) -> *const c_char {
    failure::meaning(errnum)
        .unwrap_or(c"no error of this library")
        .as_ptr()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn dp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The address of an endpoint.
///
/// # Safety
/// `address` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_own_address(fd: c_int, address: *mut Address) -> c_int {
    call("dp_own_address", || {
        // SAFETY: the caller guarantees this by contract.
        let address = unsafe { Out::new("address", address) }?;
        address.write(handle::find(fd)?.endpoint.address().into());
        Ok(0)
    })
}

/// This process's rank in its job.
#[unsafe(no_mangle)]
pub extern "C" fn dp_rank() -> c_int {
    call("dp_rank", || Ok(process::job()?.rank.cast_signed()))
}

/// The number of processes of the job.
#[unsafe(no_mangle)]
pub extern "C" fn dp_size() -> c_int {
    call("dp_size", || Ok(process::job()?.size.cast_signed()))
}

/// The main endpoint of a rank.
///
/// # Safety
/// `address` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_rank_address(rank: c_int, address: *mut Address) -> c_int {
    call("dp_rank_address", || {
        // SAFETY: the caller guarantees this by contract.
        let address = unsafe { Out::new("address", address) }?;
        let job = process::job()?;
        let known = usize::try_from(rank)
            .ok()
            .and_then(|rank| job.addresses.get(rank));
        address.write(
            (*known.ok_or(Failure::BadNumber {
                what: "rank",
                found: rank.into(),
                expected: "a number below dp_size()",
            })?)
            .into(),
        );
        Ok(0)
    })
}

/// The rank whose main endpoint has an address.
#[unsafe(no_mangle)]
pub extern "C" fn dp_rank_of(address: Address) -> c_int {
    call("dp_rank_of", || {
        let rank = process::job()?.rank_of(address.checked()?);
        let rank = rank.ok_or(Failure::BadNumber {
            what: "dpid",
            found: address.dpid.into(),
            expected: "the main endpoint of a rank of this job",
        })?;
        Ok(rank.cast_signed())
    })
}

/// Counters of this process's node.
///
/// # Safety
/// `stats` is null or points to a struct of the size that it states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stats(stats: *mut Stats) -> c_int {
    call("dp_stats", || {
        let stats_now = process::current().open_node()?.stats();
        let (traffic, protocol) = (stats_now.traffic, stats_now.protocol);
        let local = stats_now.local.unwrap_or_default();
        let bpf = stats_now.bpf.unwrap_or_default();
        let ours = Stats {
            packets_sent: traffic.packets_sent,
            packets_received: traffic.packets_received,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            packets_dropped: protocol.drops().map(|(_, count)| count).sum(),
            link_full: traffic.link_full,
            units_sent: protocol.units_sent,
            units_received: protocol.units_received,
            repeats: protocol.repeats,
            explicit_acks: protocol.explicit_acks,
            messages_delivered: protocol.messages_delivered,
            messages_refused: protocol.messages_refused,
            unreliable_sent: protocol.unreliable_sent,
            unreliable_dropped: traffic.unreliable_dropped,
            target_dropped: stats_now.target_dropped,
            peers: stats_now.peers as u64,
            local_peers: stats_now.local_peers as u64,
            local_records_sent: local.records_out,
            local_records_received: local.records_in,
            local_bytes_sent: local.bytes_out,
            local_bytes_received: local.bytes_in,
            local_bytes_fetched: local.pulled_bytes,
            local_wakes: local.wakeups,
            pool_used_bytes: stats_now.pool_used_bytes,
            free_frames: stats_now.free_frames as u64,
            bpf_received: bpf.from_ring,
            bpf_sent: bpf.raw + bpf.raw_bulk,
            bpf_socket_received: bpf.from_socket,
            bpf_socket_sent: bpf.socket + bpf.joined,
            messages_sent: protocol.messages_sent,
            message_bytes_sent: protocol.message_bytes_sent,
            message_bytes_received: protocol.message_bytes_delivered,
            waits: stats_now.waits.total(),
            wait_ns: stats_now.waits.total_ns(),
            ..Stats::EMPTY
        };
        // SAFETY: the caller guarantees this by contract.
        unsafe { ffi::write_struct(stats, &ours) }?;
        Ok(0)
    })
}
