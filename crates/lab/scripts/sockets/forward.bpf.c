/* Hands what TCP programs of a cgroup write to forward.c, and what forward.c writes to them: each end of a connection
   stands for its number, which follows from the client's port. For the experiment of between_nodes.py. */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SERVER_PORT 7000
#define CLIENT_PORTS 20000
#define FORWARDER_PORTS 21000

struct sockets {
    __uint(type, BPF_MAP_TYPE_SOCKHASH);
    __uint(max_entries, 1024);
    __type(key, __u32);
    __type(value, __u32);
};
struct sockets programs SEC(".maps"), forwarders SEC(".maps");

SEC("sockops")
int keep(struct bpf_sock_ops *socket)
{
    __u32 own = socket->local_port, other = bpf_ntohl(socket->remote_port);
    __u32 number = (own == SERVER_PORT ? other : own) - CLIENT_PORTS;
    int is_established = socket->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
                         socket->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
    if (is_established && (own == SERVER_PORT || other == SERVER_PORT))
        bpf_sock_hash_update(socket, &programs, &number, BPF_ANY);
    return 0;
}

SEC("sk_msg")
int from_program(struct sk_msg_md *message)
{
    __u32 own = message->local_port, other = bpf_ntohl(message->remote_port);
    __u32 number = (own == SERVER_PORT ? other : own) - CLIENT_PORTS;
    bpf_msg_redirect_hash(message, &forwarders, &number, BPF_F_INGRESS);
    return SK_PASS;
}

SEC("sk_msg")
int from_forwarder(struct sk_msg_md *message)
{
    __u32 number = message->local_port - FORWARDER_PORTS;
    bpf_msg_redirect_hash(message, &programs, &number, BPF_F_INGRESS);
    return SK_PASS;
}

char terms[] SEC("license") = "GPL";
