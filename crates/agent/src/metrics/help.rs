//! Explanations of counters, for the HELP lines of Prometheus.

const TEXTS: [(&str, &str); 45] = [
    ("edges", "edges from endpoints of this process"),
    ("unread bytes", "bytes of messages waiting to be read"),
    ("free frames", "frames free for sending"),
    (
        "unexpected messages",
        "messages to an MPI rank that wait for a matching receive",
    ),
    (
        "unexpected bytes",
        "memory that messages without a matching receive take",
    ),
    (
        "most unexpected messages",
        "the most messages that have waited for a matching receive at a time",
    ),
    (
        "most unexpected bytes",
        "the most memory that messages without a matching receive have taken",
    ),
    (
        "injected shortages",
        "resources that seemed exhausted because of DIPOLE_FAULT",
    ),
    (
        "messages sent",
        "messages that left the program's hands, through the network or shared memory",
    ),
    (
        "messages received",
        "messages accepted in order, whether the program has read them or not",
    ),
    (
        "message bytes sent",
        "payload of the messages sent, without headers and retransmissions",
    ),
    (
        "message bytes received",
        "payload of the messages received, without headers and retransmissions",
    ),
    ("messages refused", "messages whose endpoint was not open"),
    (
        "messages dropped for slow targets",
        "messages that a target did not get because of its overflow policy",
    ),
    (
        "unreliable packets sent",
        "packets of unreliable messages, which are never retransmitted",
    ),
    (
        "unreliable messages dropped",
        "unreliable messages dropped on arrival, because too many were waiting",
    ),
    (
        "packets sent",
        "UDP datagrams and raw frames sent, retransmissions and acknowledgements included",
    ),
    (
        "packets received",
        "UDP datagrams and raw frames received, duplicates included",
    ),
    (
        "packet bytes sent",
        "bytes of the packets sent, with the headers of Dipole",
    ),
    (
        "packet bytes received",
        "bytes of the packets received, with the headers of Dipole",
    ),
    (
        "link full",
        "times that the link took less than it was offered",
    ),
    ("units sent", "packets with payload sent for the first time"),
    (
        "units received",
        "packets with payload received for the first time",
    ),
    (
        "units repeated",
        "packets with payload that were retransmitted",
    ),
    (
        "units repeated as a tail",
        "retransmitted packets that were the ends of messages that seemed lost",
    ),
    (
        "packets of acknowledgements alone",
        "packets sent only to acknowledge others",
    ),
    (
        "ack requests",
        "requests for acknowledgements sent to silent peers",
    ),
    ("probes", "probes of the addresses of peers"),
    ("lanes lost", "pairs of addresses given up after time-outs"),
    (
        "memory records sent",
        "entries written to rings of shared memory",
    ),
    (
        "memory records received",
        "entries read from rings of shared memory",
    ),
    (
        "memory bytes sent",
        "bytes written to rings of shared memory",
    ),
    (
        "memory bytes received",
        "bytes read from rings of shared memory",
    ),
    (
        "memory bytes fetched",
        "bytes copied from the memory of senders on this node",
    ),
    (
        "memory wake-ups",
        "wake-ups sent to sleeping processes of this node",
    ),
    (
        "memory large rings",
        "large rings created for peers on this node",
    ),
    (
        "memory format violations",
        "connections on this node closed because a peer broke the format",
    ),
    (
        "memory connections from other users",
        "connections refused because they came from other users",
    ),
    (
        "memory connections rejected",
        "connections refused because the limit of peers was reached",
    ),
    (
        "bpf received from ring",
        "packets read from the receive rings of the bpf link",
    ),
    (
        "bpf received from socket",
        "packets that the bpf link read from its UDP socket",
    ),
    (
        "bpf sent as raw frames",
        "packets that the bpf link sent as raw frames",
    ),
    (
        "bpf sent by socket",
        "packets that the bpf link sent by its UDP socket",
    ),
    (
        "bpf sent in runs",
        "packets that the bpf link sent together with others in one call",
    ),
    (
        "bpf bulk sent as raw frames",
        "packets of long messages that the bpf link sent as raw frames",
    ),
];

/// The explanation of a counter of `dipole stats`, or its name if another version wrote it.
pub(super) fn of(name: &str) -> &str {
    let known = TEXTS.iter().find(|(known, _)| *known == name);
    known.map_or(name, |(_, text)| text)
}
