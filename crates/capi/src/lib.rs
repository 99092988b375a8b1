//! The C interface of Dipole: `libdipole`.
//!
//! A thin layer over `dipole_node`: it checks pointers, finds the endpoint of a descriptor, turns
//! errors into `errno` and a text, and lets no panic out. The interface is documented in
//! `include/dipole.h` and the manual pages; a test compares the header with the functions here.
//!
//! `dp.rs` has the seven calls of DP §2, table 1, and the other files one group of calls each. All of
//! them go through `ffi`. `handle` maps descriptors to endpoints, `numbers` other numbers to
//! objects, and `process` holds the node of this process.

mod address;
mod carrier;
mod counter;
mod dp;
mod edge;
mod failure;
mod ffi;
mod group;
mod handle;
mod message;
mod numbers;
mod options;
mod per_process;
mod port;
mod process;
mod query;
mod queue;
mod region;
mod status;
mod stream;
mod stripes;
mod table;
mod target;

pub use address::Address;
pub use counter::{
    Counts, dp_counter_attach_edge, dp_counter_close, dp_counter_open, dp_counter_read,
    dp_counter_wait,
};
pub use dp::{dp_close, dp_fsync, dp_mmap, dp_open, dp_read, dp_target, dp_write};
pub use edge::{
    DP_ZEROCOPY, dp_cancel, dp_edge_close, dp_edge_drain, dp_edge_open, dp_edge_send, dp_post,
};
pub use group::{
    CombineFunction, DP_MAX_F64, DP_MAX_I64, DP_MAX_U64, DP_MIN_F64, DP_MIN_I64, DP_MIN_U64,
    DP_SUM_F64, DP_SUM_I64, DP_SUM_U64, dp_allreduce, dp_allreduce_with, dp_barrier, dp_broadcast,
    dp_group_close, dp_group_failed, dp_group_open, dp_group_rank, dp_group_shrink, dp_group_size,
    dp_reduce, dp_reduce_with,
};
pub use message::{
    DP_DONTWAIT, DP_MAX_MESSAGE_BYTES, DP_MORE, DP_UNRELIABLE, ReceivedMessage, dp_drain, dp_flush,
    dp_recv, dp_recv_copy, dp_recv_many, dp_reply, dp_send, dp_send_to,
};
pub use options::{
    DP_ANY, DP_IO, DP_NONBLOCK, DP_ZERO_NS, NodeOptions, OpenOptions, Pool, Stats, dp_finalize,
    dp_init, dp_open_with,
};
pub use port::{
    DP_KEEP, Handler, SlotHandler, dp_port_address, dp_port_close, dp_port_open, dp_port_open_into,
    dp_port_release, dp_port_reply, dp_port_wait,
};
pub use query::{
    dp_error, dp_own_address, dp_rank, dp_rank_address, dp_rank_of, dp_size, dp_stats, dp_strerror,
    dp_version,
};
pub use queue::{
    Completion, DP_DONE, DP_FAILED, DP_FILLED, DP_RECEIVED, DP_SENT, dp_cancel_receive,
    dp_post_receive, dp_queue_attach, dp_queue_attach_edge, dp_queue_close, dp_queue_open,
    dp_queue_wait,
};
pub use region::{
    DP_ALLOW_ATOMIC, DP_ALLOW_GET, DP_ALLOW_PUT, DP_COMPARE_SWAP, DP_FETCH_ADD, DP_GET, DP_NOTIFY,
    DP_PUT, Notification, PostedOperation, dp_compare_swap, dp_fetch_add, dp_get,
    dp_is_notification, dp_post_operation, dp_put, dp_put_notify, dp_region_close, dp_region_open,
};
pub use status::{
    DP_WAITS_CALL, DP_WAITS_CALLER, DP_WAITS_CONNECTION, DP_WAITS_DATA, DP_WAITS_PEER_TO_READ,
    DP_WAITS_PEER_TO_WRITE, DP_WAITS_READER, StreamState, dp_stream_status,
};
pub use stream::{
    StreamLayout, dp_interface_close, dp_interface_listen, dp_interface_open, dp_layout_bytes,
    dp_stream_accept, dp_stream_close, dp_stream_open, dp_stream_read, dp_stream_read_raw,
    dp_stream_shutdown, dp_stream_write, dp_stream_write_raw,
};
pub use stripes::{dp_stripes_read, dp_stripes_split, dp_stripes_write};
pub use target::{
    DP_DROP_NEWEST, DP_DROP_OLDEST, DP_KEEP_LATEST, DP_WAIT, dp_add_target, dp_remove_target,
    dp_target_dropped, dp_target_policy, dp_untarget,
};
