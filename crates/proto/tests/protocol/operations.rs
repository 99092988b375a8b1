//! Operations on memory between two machines: order, credit, and closing endpoints.

use crate::pair::{Wire, connected};
use dipole_proto::time::SECOND;
use dipole_proto::wire::{
    self, FRAGMENT_BYTES, MESSAGE_BYTES, OPERATION_BYTES, Operation, OperationKind,
};
use dipole_proto::{Config, EdgeId};

fn put(id: u32) -> Operation {
    Operation {
        kind: OperationKind::Put,
        wants_answer: true,
        gives_notice: false,
        id,
        key: 5,
        offset: 9,
        value: 0,
    }
}

fn data(id: u32, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 3 + id as usize) as u8;
    (0..length).map(byte).collect()
}

/// Sends an operation in pieces of at most `piece` bytes. Returns its number.
fn send(wire: &mut Wire, edge: EdgeId, id: u32, length: usize, piece: usize) -> Option<u64> {
    let now = wire.now;
    let sender = &mut wire.hosts[0];
    let begun = sender.machine.begin(now, edge, 0).ok()?;
    let (head, data) = (put(id).to_bytes(), data(id, length));
    let sequence = begun.sequence as u32;
    let mut offset = 0;
    loop {
        let end = length.min(offset + piece);
        let part = &data[offset..end];
        let payload = OPERATION_BYTES + part.len();
        let sent = sender.send_records(edge.peer, false, |bytes| {
            let at = if part.len() == length {
                wire::emit_message(bytes, begun.key, sequence, payload, false, true);
                MESSAGE_BYTES
            } else {
                let place = (offset as u64, length as u64);
                wire::emit_fragment(
                    bytes,
                    wire::FragmentHead {
                        key: begun.key,
                        sequence,
                        offset: place.0,
                        total: place.1,
                        unreliable: false,
                        operation: true,
                    },
                    payload,
                );
                FRAGMENT_BYTES
            };
            bytes[at..at + OPERATION_BYTES].copy_from_slice(&head);
            bytes[at + OPERATION_BYTES..at + payload].copy_from_slice(part);
            at + payload
        });
        assert!(sent, "frames for a few packets");
        offset = end;
        if offset == length {
            return Some(begun.sequence);
        }
    }
}

/// Handles arrivals as the owner of the memory does.
fn take(wire: &mut Wire, taken: &mut Vec<(u32, Vec<u8>)>) {
    let now = wire.now;
    let owner = &mut wire.hosts[1];
    for (edge, bytes) in std::mem::take(&mut owner.operations) {
        let (head, data) = bytes.split_at(OPERATION_BYTES);
        let head = head.try_into().expect("as long as a head");
        let operation = Operation::parse(head, data.len() as u64).expect("as it was sent");
        assert_eq!(operation, put(operation.id));
        taken.push((operation.id, data.to_vec()));
        owner.machine.consumed(now, edge, 0);
    }
}

#[test]
fn operations_complete_once_and_in_the_order_of_their_edge() {
    for seed in 0..40 {
        let (mut wire, edge) = connected(seed, &Config::default());
        (wire.loss, wire.duplicate, wire.reorder) = (0.1, 0.1, 0.2);
        let (mut sent, mut taken) = (0, Vec::new());
        let done = wire.run(60 * SECOND, |wire| {
            take(wire, &mut taken);
            while sent < 200 {
                let length = (sent as usize * 97) % 5000;
                let few = wire.hosts[0].pool.free() > 16;
                if !few || send(wire, edge, sent, length, 1000).is_none() {
                    break;
                }
                sent += 1;
            }
            taken.len() == 200
        });
        assert!(done, "seed {seed}: {} of {sent}", taken.len());
        for (id, (of, bytes)) in (0..).zip(&taken) {
            assert_eq!((*of, bytes), (id, &data(id, (id as usize * 97) % 5000)));
        }
        assert_eq!(wire.hosts[1].machine.pool_used(), 0, "seed {seed}");
    }
}

#[test]
fn data_costs_no_credit_but_unfinished_operations_do() {
    let config = Config {
        initial_credit_bytes: 1000,
        edge_window_bytes: 1000,
        ..Config::default()
    };
    let (mut wire, edge) = connected(3, &config);
    let mut sent = 0;
    wire.run(SECOND, |wire| {
        while send(wire, edge, sent, 900, 1000).is_some() {
            sent += 1;
        }
        false
    });
    assert_eq!(sent, 15, "64 bytes each");
    let mut taken = Vec::new();
    take(&mut wire, &mut taken);
    wire.run(SECOND, |_| false);
    assert!(send(&mut wire, edge, sent, 900, 1000).is_some());
}

#[test]
fn an_operation_reaches_its_owner_after_the_endpoint_has_closed() {
    let (mut wire, edge) = connected(4, &Config::default());
    let now = wire.now;
    wire.hosts[1].machine.close_endpoint(now, 7);
    send(&mut wire, edge, 0, 10, 1000).expect("credit");
    send(&mut wire, edge, 1, 3000, 1000).expect("credit");
    wire.run(SECOND, |_| false);
    let mut taken = Vec::new();
    take(&mut wire, &mut taken);
    assert_eq!(taken.len(), 2, "the owner decides and answers");
    assert!(wire.hosts[0].refused.is_empty());
}
