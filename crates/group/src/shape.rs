//! Communication patterns: which rank sends to which in which round, as pure functions.
//!
//! In round k of a barrier, rank r sends to r + 2^k and receives from r - 2^k, so that after
//! ceil(log2 n) rounds each rank has received from all. A broadcast uses a binomial tree of nodes,
//! and inside each node a binomial tree of its ranks ([`Placement`]). A reduction combines
//! neighbours, so that each intermediate result covers a contiguous range of ranks: the largest
//! power of two of the ranks take slots and combine in pairs, after each remaining rank has sent its
//! data to a neighbour. A reduction whose result does not depend on the order uses the broadcast
//! tree, from the leaves to the root.

use dipole_node::NodeId;
use rustc_hash::FxHashMap;

/// Rounds of a barrier; also the depth of a binomial tree.
pub(super) fn rounds(size: usize) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// The ranks that a rank sends to and receives from in a round of a barrier.
pub(super) fn partners(rank: usize, size: usize, round: u32) -> (usize, usize) {
    let distance = 1 << round;
    ((rank + distance) % size, (rank + size - distance) % size)
}

/// The position that sends to `place` in a binomial tree of `size`; none for the root.
fn parent(place: usize, root: usize, size: usize) -> Option<usize> {
    let place = (place + size - root) % size;
    (place != 0).then(|| ((place & (place - 1)) + root) % size)
}

/// The positions that `place` sends to in a binomial tree, largest subtree first.
fn children(place: usize, root: usize, size: usize) -> impl Iterator<Item = usize> {
    let place = (place + size - root) % size;
    let bits = match place {
        0 => rounds(size),
        _ => place.trailing_zeros(),
    };
    let below = (0..bits).rev().map(move |bit| place + (1 << bit));
    below
        .filter(move |child| *child < size)
        .map(move |child| (child + root) % size)
}

/// The nodes of the ranks, and the broadcast trees that follow from them.
///
/// Each node but the root's gets one copy, which arrives at the first of its ranks, its relay.
/// Without nodes that have several ranks, and on one node, the tree is binomial in the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// The ranks of each node in order; the nodes in the order of their first ranks.
    nodes: Vec<Vec<usize>>,
    /// The node of each rank, and the rank's position on it.
    places: Vec<(usize, usize)>,
}

impl Placement {
    /// Arranges ranks on these nodes, given in rank order.
    pub(super) fn new(nodes_of_ranks: impl IntoIterator<Item = NodeId>) -> Placement {
        let mut indices = FxHashMap::default();
        let mut nodes: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::new();
        for (rank, node) in nodes_of_ranks.into_iter().enumerate() {
            let index = *indices.entry(node).or_insert(nodes.len());
            if index == nodes.len() {
                nodes.push(Vec::new());
            }
            places.push((index, nodes[index].len()));
            nodes[index].push(rank);
        }
        Placement { nodes, places }
    }

    /// The position on its node of the rank that gets the node's copy.
    fn relay(&self, node: usize, root: usize) -> usize {
        let (root_node, root_place) = self.places[root];
        if node == root_node { root_place } else { 0 }
    }

    /// The rank that sends the broadcast to `rank`; none for the root.
    pub(super) fn parent(&self, rank: usize, root: usize) -> Option<usize> {
        let (node, place) = self.places[rank];
        let ranks = &self.nodes[node];
        let relay = self.relay(node, root);
        if place != relay {
            return parent(place, relay, ranks.len()).map(|place| ranks[place]);
        }
        let from = parent(node, self.places[root].0, self.nodes.len())?;
        Some(self.nodes[from][self.relay(from, root)])
    }

    /// The ranks to which a rank forwards a broadcast: those on other nodes first, because their
    /// way is longer.
    pub(super) fn children(&self, rank: usize, root: usize) -> impl Iterator<Item = usize> {
        let (node, place) = self.places[rank];
        let ranks = &self.nodes[node];
        let relay = self.relay(node, root);
        let nodes = (place == relay)
            .then(|| children(node, self.places[root].0, self.nodes.len()))
            .into_iter()
            .flatten();
        let away = nodes.map(move |node| self.nodes[node][self.relay(node, root)]);
        let here = children(place, relay, ranks.len()).map(|place| ranks[place]);
        away.chain(here)
    }
}

/// A rank's role in a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReductionRole {
    /// Sends its data to that rank and waits for the result.
    Folded(usize),
    /// Has a slot, and first combines the data of a folded rank, if any.
    Active(usize, Option<usize>),
}

/// Slots of a reduction: the largest power of two that is not greater than the size.
pub(super) fn slots(size: usize) -> usize {
    1 << size.ilog2()
}

pub(super) fn role(rank: usize, size: usize) -> ReductionRole {
    let extra = size - slots(size);
    match (rank < 2 * extra, rank % 2) {
        (true, 0) => ReductionRole::Active(rank / 2, Some(rank + 1)),
        (true, _) => ReductionRole::Folded(rank - 1),
        (false, _) => ReductionRole::Active(rank - extra, None),
    }
}

pub(super) fn rank_of_slot(slot: usize, size: usize) -> usize {
    let extra = size - slots(size);
    match slot < extra {
        true => 2 * slot,
        false => slot + extra,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZES: std::ops::Range<usize> = 1..40;

    #[test]
    fn after_the_last_round_every_rank_has_heard_from_every_rank() {
        for size in SIZES {
            let mut heard: Vec<u64> = (0..size).map(|rank| 1 << rank).collect();
            for round in 0..rounds(size) {
                let before = heard.clone();
                for (rank, heard) in heard.iter_mut().enumerate() {
                    let (to, from) = partners(rank, size, round);
                    assert_eq!(partners(to, size, round).1, rank);
                    *heard |= before[from];
                }
            }
            assert!(heard.iter().all(|heard| *heard == (1 << size) - 1));
            assert!(1 << rounds(size) >= size && (size == 1 || 1 << (rounds(size) - 1) < size));
        }
    }

    /// The parent of each rank, after a check that the tree is one and reaches each rank once.
    fn tree(placement: &Placement, root: usize) -> Vec<Option<usize>> {
        let size = placement.places.len();
        let mut reached = vec![root];
        let mut at = 0;
        while let Some(rank) = reached.get(at).copied() {
            for child in placement.children(rank, root) {
                assert_eq!(placement.parent(child, root), Some(rank));
                reached.push(child);
            }
            at += 1;
        }
        reached.sort_unstable();
        assert!(reached.into_iter().eq(0..size));
        (0..size).map(|rank| placement.parent(rank, root)).collect()
    }

    /// Steps from the root to the rank that is reached last.
    fn depth(tree: &[Option<usize>]) -> u32 {
        let steps = |rank| std::iter::successors(tree[rank], |above| tree[*above]).count();
        let deepest = (0..tree.len()).map(steps).max().expect("at least a root");
        u32::try_from(deepest).expect("few")
    }

    #[test]
    fn without_shared_nodes_a_broadcast_uses_edges_of_the_barrier() {
        for size in SIZES {
            for nodes in [
                vec![NodeId(1); size],
                (1..).map(NodeId).take(size).collect(),
            ] {
                let placement = Placement::new(nodes);
                for root in 0..size {
                    for (rank, above) in tree(&placement, root).into_iter().enumerate() {
                        let to_it = |round| partners(rank, size, round).1;
                        let is_partner =
                            |above: usize| (0..rounds(size)).any(|k| to_it(k) == above);
                        assert_eq!(above.map(is_partner), (rank != root).then_some(true));
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn each_node_gets_one_copy_and_passes_it_on(
            nodes in prop::collection::vec(1_u32..9, 1..60),
            root in any::<prop::sample::Index>(),
        ) {
            let root = root.index(nodes.len());
            let placement = Placement::new(nodes.iter().copied().map(NodeId));
            let tree = tree(&placement, root);
            let mut copies = std::collections::BTreeMap::new();
            for (rank, above) in tree.iter().enumerate() {
                let is_from_elsewhere = above.is_some_and(|above| nodes[above] != nodes[rank]);
                *copies.entry(nodes[rank]).or_insert(0) += u32::from(is_from_elsewhere);
            }
            for (node, copies) in &copies {
                prop_assert_eq!(*copies, u32::from(*node != nodes[root]), "node {}", node);
            }
            // No path is longer than a binomial tree of the nodes and one of the fullest node.
            let most = copies.keys().map(|node| nodes.iter().filter(|it| *it == node).count());
            let most = most.max().expect("at least one node");
            prop_assert!(depth(&tree) <= rounds(copies.len()) + rounds(most));
        }
    }

    #[test]
    fn slots_follow_rank_order_and_each_rank_has_one_role() {
        for size in SIZES {
            let mut ranks = Vec::new();
            for taken in 0..slots(size) {
                let rank = rank_of_slot(taken, size);
                ranks.push(rank);
                let ReductionRole::Active(found, gives) = role(rank, size) else {
                    panic!("rank {rank} of {size} has a slot");
                };
                assert_eq!(found, taken);
                if let Some(gives) = gives {
                    assert_eq!(role(gives, size), ReductionRole::Folded(rank));
                    ranks.push(gives);
                }
            }
            assert!(ranks.into_iter().eq(0..size));
        }
    }
}
