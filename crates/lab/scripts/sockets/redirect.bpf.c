/* Joins both ends of each loopback TCP connection of a cgroup: bytes sent at one end are queued at the other, without
   packets. For comparison with libdipole-sockets; loaded by value.py. */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct end {
    __u32 own_address, other_address, own_port, other_port;
};

struct {
    __uint(type, BPF_MAP_TYPE_SOCKHASH);
    __uint(max_entries, 65536);
    __type(key, struct end);
    __type(value, __u32);
} ends SEC(".maps");

SEC("sockops")
int keep(struct bpf_sock_ops *socket)
{
    struct end end = {
        socket->local_ip4, socket->remote_ip4, socket->local_port, bpf_ntohl(socket->remote_port),
    };
    int is_established = socket->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
                         socket->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
    if (is_established && end.own_address == end.other_address)
        bpf_sock_hash_update(socket, &ends, &end, BPF_NOEXIST);
    return 0;
}

SEC("sk_msg")
int redirect(struct sk_msg_md *message)
{
    struct end other = {
        message->remote_ip4, message->local_ip4, bpf_ntohl(message->remote_port), message->local_port,
    };
    bpf_msg_redirect_hash(message, &ends, &other, BPF_F_INGRESS);
    return SK_PASS;
}

char terms[] SEC("license") = "GPL";
