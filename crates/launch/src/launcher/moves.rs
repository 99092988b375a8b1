//! Selects the hosts to which ranks move.

use dipole_node::NodeId;
use dipole_node::hosts::Host;

/// The ranks to move, and the hosts to move them to; either may be empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Numbers, names or addresses.
    pub(super) hosts: &'a [String],
    pub(super) ranks: &'a [u32],
}

/// Selects a host for each rank that moves. `hosts` are in the order of preference, and `places` has
/// the present node of each rank. A host takes more ranks than it has slots only if `is_bounded` is
/// false.
///
/// # Errors
/// A host or rank does not exist or is there already, or there are too few slots.
pub(super) fn select<'a>(
    hosts: &'a [Host],
    places: &[NodeId],
    wanted: Wanted<'_>,
    is_bounded: bool,
) -> Result<Vec<(u32, &'a Host)>, String> {
    let named: Result<Vec<&Host>, String> =
        wanted.hosts.iter().map(|name| find(hosts, name)).collect();
    let named = named?;
    let ranks = movers(places, wanted.ranks, &named)?;
    let candidates: Vec<&Host> = match named.is_empty() {
        true => hosts.iter().collect(),
        false => named,
    };
    let mut free: Vec<i64> = candidates
        .iter()
        .map(|host| {
            let stays =
                |(rank, node): &(u32, &NodeId)| **node == host.node && !ranks.contains(rank);
            let taken = (0..).zip(places).filter(stays).count();
            i64::from(host.slots) - i64::try_from(taken).unwrap_or(i64::MAX)
        })
        .collect();
    let mut moves = Vec::new();
    for rank in &ranks {
        let present = places[*rank as usize];
        let others = || (0..candidates.len()).filter(|at| candidates[*at].node != present);
        let mut best = others().find(|at| free[*at] > 0);
        if best.is_none() && !is_bounded {
            best = others().max_by_key(|at| (free[*at], usize::MAX - at));
        }
        let Some(at) = best else {
            return Err(no_room(*rank, &candidates, ranks.len(), present));
        };
        free[at] -= 1;
        moves.push((*rank, candidates[at]));
    }
    Ok(moves)
}

fn find<'a>(hosts: &'a [Host], name: &str) -> Result<&'a Host, String> {
    let is_named = |host: &&Host| {
        host.node.to_string() == name
            || host.text_of(host.address) == name
            || host.name.as_ref().is_some_and(|own| &**own == name)
    };
    hosts.iter().find(is_named).ok_or_else(|| {
        let known = names(hosts.iter());
        format!("`{name}` is not a host of this job; its hosts are {known}")
    })
}

/// The ranks that move.
fn movers(places: &[NodeId], given: &[u32], named: &[&Host]) -> Result<Vec<u32>, String> {
    let is_there = |rank: u32| {
        let present = places[rank as usize];
        named.iter().find(move |host| host.node == present)
    };
    let size = u32::try_from(places.len()).unwrap_or(u32::MAX);
    if given.is_empty() {
        let ranks: Vec<u32> = (0..size).filter(|rank| is_there(*rank).is_none()).collect();
        return match ranks.is_empty() {
            true => Err(format!(
                "all ranks are on {} already",
                names(named.iter().copied())
            )),
            false => Ok(ranks),
        };
    }
    let mut ranks = given.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    for rank in &ranks {
        if *rank >= size {
            return Err(format!("rank {rank} does not exist: {size} ranks run"));
        }
        if let Some(host) = is_there(*rank) {
            return Err(format!("rank {rank} is on {host} already"));
        }
    }
    Ok(ranks)
}

fn no_room(rank: u32, candidates: &[&Host], count: usize, present: NodeId) -> String {
    let others = candidates.iter().filter(|host| host.node != present);
    match names(others.copied()) {
        none if none.is_empty() => {
            format!("rank {rank} cannot move: the job has no other host than node {present}")
        }
        names => format!(
            "too few free slots for the {count} ranks that move: {names}; name other hosts, or give \
             hosts more slots in the hosts file"
        ),
    }
}

/// Hosts as messages name them.
fn names<'a>(hosts: impl Iterator<Item = &'a Host>) -> String {
    /// Hosts that a message lists.
    const MOST: usize = 8;
    let mut names: Vec<String> = hosts.map(ToString::to_string).collect();
    if names.len() > MOST {
        names.truncate(MOST);
        names.push("...".to_owned());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    fn selected(
        places: &[u32],
        hosts: &[&str],
        ranks: &[u32],
        is_bounded: bool,
    ) -> Result<Vec<(u32, u32)>, String> {
        let text = "1 192.0.2.1 slots=2\n2 192.0.2.2 slots=2 name=b\n3 192.0.2.3 slots=1";
        let list: Vec<Host> = Hosts::parse(text).unwrap().iter().cloned().collect();
        let places: Vec<NodeId> = places.iter().copied().map(NodeId).collect();
        let names: Vec<String> = hosts.iter().map(|name| (*name).to_owned()).collect();
        let wanted = Wanted {
            hosts: &names,
            ranks,
        };
        let moves = select(&list, &places, wanted, is_bounded)?;
        Ok(moves
            .into_iter()
            .map(|(rank, host)| (rank, host.node.0))
            .collect())
    }

    #[test]
    fn ranks_move_to_free_slots_of_the_hosts_that_are_named_or_of_any_other() {
        let places = [1, 1, 2];
        assert_eq!(selected(&places, &["3"], &[1], true), Ok(vec![(1, 3)]));
        assert_eq!(selected(&places, &["b"], &[0], true), Ok(vec![(0, 2)]));
        let both = Ok(vec![(0, 2), (1, 3)]);
        assert_eq!(selected(&places, &["192.0.2.2", "3"], &[], true), both);
        assert_eq!(selected(&places, &[], &[2, 2], true), Ok(vec![(2, 3)]));
        assert_eq!(selected(&places, &[], &[0], true), Ok(vec![(0, 2)]));
        // The slots of ranks that leave are free.
        assert_eq!(
            selected(&[1, 1, 2, 2], &[], &[0, 2], true),
            Ok(vec![(0, 2), (2, 1)])
        );
    }

    #[test]
    fn unknown_hosts_and_ranks_and_present_places_are_refused() {
        let places = [1, 1, 2];
        for (hosts, ranks, reason) in [
            (&["4"][..], &[0][..], "`4` is not a host of this job"),
            (&["3"], &[3], "rank 3 does not exist: 3 ranks run"),
            (&["1"], &[1], "rank 1 is on node 1 (192.0.2.1) already"),
            (
                &["1", "2"],
                &[],
                "all ranks are on node 1 (192.0.2.1), node 2",
            ),
            (&["3"], &[], "too few free slots for the 3 ranks"),
        ] {
            let refused = selected(&places, hosts, ranks, true).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        let alone = Hosts::parse("1 192.0.2.1").unwrap();
        let list: Vec<Host> = alone.iter().cloned().collect();
        let wanted = Wanted {
            hosts: &[],
            ranks: &[0],
        };
        let refused = select(&list, &[NodeId(1)], wanted, true).unwrap_err();
        assert!(refused.contains("no other host"), "{refused}");
    }

    #[test]
    fn without_bounds_hosts_take_more_ranks_than_slots_evenly() {
        let moves = selected(&[1, 1, 1], &["2", "3"], &[], false).unwrap();
        assert_eq!(moves, [(0, 2), (1, 2), (2, 3)]);
        let moves = selected(&[1, 1, 1, 1, 1], &["2", "3"], &[], false).unwrap();
        assert_eq!(moves[3..], [(3, 2), (4, 3)]);
    }
}
