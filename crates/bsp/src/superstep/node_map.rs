//! A map from ranks to nodes. Ranks of one node share memory, and one of them leads it.

/// Nodes of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    /// The leader of each node.
    leaders: Vec<u32>,
    /// The node of each rank, as an index into `leaders`.
    nodes: Vec<u32>,
}

impl NodeMap {
    /// Ranks share memory if their nodes have the same name.
    #[must_use]
    pub fn new<T: PartialEq>(names: &[T]) -> NodeMap {
        let mut leaders: Vec<u32> = Vec::new();
        let mut nodes = Vec::with_capacity(names.len());
        for (rank, name) in (0..).zip(names) {
            let known = leaders
                .iter()
                .position(|leader| names[*leader as usize] == *name);
            let node = known.unwrap_or_else(|| {
                leaders.push(rank);
                leaders.len() - 1
            });
            nodes.push(u32::try_from(node).unwrap_or(u32::MAX));
        }
        NodeMap { leaders, nodes }
    }

    /// The map of the first `ranks` ranks.
    #[must_use]
    pub fn first_ranks(&self, ranks: u32) -> NodeMap {
        NodeMap::new(&self.nodes[..ranks as usize])
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// The number of nodes.
    #[must_use]
    #[inline]
    pub fn nodes(&self) -> usize {
        self.leaders.len()
    }

    /// The node of a rank.
    #[must_use]
    pub fn node(&self, rank: u32) -> usize {
        self.nodes[rank as usize] as usize
    }

    /// The leader of a node.
    #[must_use]
    pub fn leader_of_node(&self, node: usize) -> u32 {
        self.leaders[node]
    }

    /// The leader of a rank's node.
    #[must_use]
    pub fn leader(&self, rank: u32) -> u32 {
        self.leaders[self.node(rank)]
    }

    /// True if two ranks share memory.
    #[must_use]
    #[inline]
    pub fn share_node(&self, one: u32, other: u32) -> bool {
        self.nodes[one as usize] == self.nodes[other as usize]
    }

    /// The ranks on the same node as `rank`, including `rank`.
    pub fn ranks_with(&self, rank: u32) -> impl Iterator<Item = u32> {
        let node = self.nodes[rank as usize];
        let all = (0_u32..).zip(&self.nodes);
        all.filter(move |(_, of)| **of == node)
            .map(|(rank, _)| rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_of_each_node_leads() {
        let map = NodeMap::new(&["a", "b", "a", "c"]);
        assert_eq!((map.ranks(), map.nodes()), (4, 3));
        assert_eq!([0, 1, 2, 3].map(|rank| map.leader(rank)), [0, 1, 0, 3]);
        assert!(map.share_node(0, 2) && !map.share_node(0, 1));
        assert_eq!(map.ranks_with(2).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(map.first_ranks(2).nodes(), 2);
    }
}
