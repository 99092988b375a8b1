//! Ranks on threads exchange cards through a service in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};

use super::business_card::Candidate;
use super::*;

/// A service in memory.
#[derive(Clone)]
struct Memory {
    store: Arc<Mutex<BTreeMap<(u32, u32), String>>>,
    barrier: Arc<Barrier>,
    max_value_bytes: usize,
}

impl Memory {
    fn new(ranks: usize) -> Memory {
        Memory {
            store: Arc::default(),
            barrier: Arc::new(Barrier::new(ranks)),
            max_value_bytes: 900,
        }
    }
}

impl Exchange for Memory {
    fn job_name(&self) -> &'static str {
        "job"
    }

    fn max_value_bytes(&self) -> usize {
        self.max_value_bytes
    }

    fn put(&mut self, round: u32, rank: u32, value: &str) -> Result<(), ServiceError> {
        assert!(value.len() <= self.max_value_bytes);
        let mut store = self.store.lock().unwrap();
        store.insert((round, rank), value.to_owned());
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), ServiceError> {
        self.barrier.wait();
        Ok(())
    }

    fn get(&mut self, round: u32, rank: u32) -> Result<String, ServiceError> {
        let store = self.store.lock().unwrap();
        Ok(store[&(round, rank)].clone())
    }

    fn finish(&mut self) -> Result<(), ServiceError> {
        Ok(())
    }
}

fn address(ip: &str, prefix_bits: u8) -> Candidate {
    Candidate {
        ip: ip.parse().unwrap(),
        prefix_bits,
        speed_mbit: 0,
        is_routed: false,
    }
}

fn card(node: u64, addresses: &[Candidate]) -> BusinessCard {
    BusinessCard {
        node,
        machine: node,
        port: 10_000 + u16::try_from(node).unwrap(),
        name: format!("n{node}"),
        addresses: addresses.to_vec(),
    }
}

type Exchanged = Result<(Vec<NodeId>, Option<Hosts>), JobError>;

fn exchanged(service: &Memory, cards: &[BusinessCard]) -> Vec<Exchanged> {
    let size = u32::try_from(cards.len()).unwrap();
    std::thread::scope(|scope| {
        let ranks = (0..size).zip(cards).map(|(rank, card)| {
            let (mut service, mut card) = (service.clone(), card.clone());
            scope.spawn(move || exchange(&mut service, rank, size, &mut card))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_find_the_same_nodes_in_the_order_of_their_first_ranks() {
    let on = |node| card(node, &[address(&format!("10.0.0.{node}"), 24)]);
    let cards = [on(7), on(5), on(7), on(6)];
    let all = exchanged(&Memory::new(4), &cards);
    let (placed, hosts) = all[0].clone().unwrap();
    assert_eq!(placed, [1, 2, 1, 3].map(NodeId));
    let lines: Vec<String> = hosts.unwrap().iter().map(Host::line).collect();
    assert_eq!(
        lines,
        [
            "1 10.0.0.7 port=10007 slots=1 name=n7",
            "2 10.0.0.5 port=10005 slots=1 name=n5",
            "3 10.0.0.6 port=10006 slots=1 name=n6",
        ]
    );
    assert!(all.iter().all(|one| *one == all[0]));
}

#[test]
fn ranks_of_one_node_need_no_addresses() {
    let cards = [card(1, &[]), card(1, &[])];
    for found in exchanged(&Memory::new(2), &cards) {
        assert_eq!(found.unwrap(), (vec![NodeId(1); 2], None));
    }
}

#[test]
fn nodes_without_a_common_network_exchange_their_routes() {
    // The loopback device has routes to all of 127.0.0.0/8, and no others.
    let addresses = [address("127.0.0.1", 32), address("192.0.2.3", 32)];
    let cards = [card(1, &addresses), card(2, &[address("127.0.0.2", 32)])];
    let service = Memory::new(2);
    let all = exchanged(&service, &cards);
    // The second rank is not on another machine, so its packets have the same source.
    let error = all[0].clone().unwrap_err();
    assert_eq!(
        error,
        JobError::NoRoute {
            from: "n2 (127.0.0.2)".to_owned(),
            to: "n1 (127.0.0.1, 192.0.2.3)".to_owned()
        }
    );
    assert!(error.to_string().contains("set DIPOLE_BIND"), "{error}");
    assert_eq!(all[1], all[0]);
    assert_eq!(service.store.lock().unwrap()[&(2, 0)], "1/from/127.0.0.1");
}

#[test]
fn the_text_of_another_program_is_refused() {
    let mut service = Memory::new(1);
    service.put(1, 1, "mpi#address").unwrap();
    let error = exchange(&mut service, 0, 2, &mut card(1, &[])).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("`mpi#address` for rank 1"), "{error}");
}

#[test]
fn the_port_is_free_and_near_the_jobs_own() {
    let port = free_port(7);
    assert!((10_000..30_000).contains(&port));
    let taken = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    assert_ne!(free_port(7), port);
    drop(taken);
}

#[test]
fn a_later_program_has_other_endpoints_on_the_same_nodes() {
    let outcome = |programs_before| Outcome {
        id: 7,
        programs_before,
        rank: 0,
        placed: vec![NodeId(1), NodeId(2)],
        hosts: Some(Hosts::local_only(NodeId(1))),
    };
    let launched = [0, 1, 2].map(|before| outcome(before).launched());
    let mut bases: Vec<_> = launched.iter().map(|one| one.job.addresses[0]).collect();
    bases.dedup();
    assert_eq!((bases.len(), launched[0].job.id), (3, 7));
    assert!(launched.iter().all(|one| one.nodes == launched[0].nodes));
}
