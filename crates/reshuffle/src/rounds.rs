//! The order of messages: rounds in which each process sends at most one message and receives at most one.
//!
//! Messages are edges between senders and receivers, and rounds are their colours. As many colours
//! suffice as the busiest process has messages (König). All processes colour all edges in the same way,
//! so they need no communication. That would take long for many processes; then the rounds form a Latin
//! square, in which every process sends k ranks ahead in round k.

/// Maximum number of processes for which edges are coloured.
const MAX_COLOURED: usize = 256;
const NONE: u32 = u32::MAX;

/// The messages that `rank` sends, as pairs of round and receiver, and the number of rounds for all ranks.
/// `sends` is true if the first rank sends to the second.
pub(crate) fn schedule(
    size: usize,
    rank: usize,
    sends: impl Fn(usize, usize) -> bool,
) -> (Vec<(u32, usize)>, u32) {
    if size > MAX_COLOURED {
        let latin = (1..size).map(|step| (step, (rank + step) % size));
        let own = latin.filter(|(_, to)| rank < size && sends(rank, *to));
        let own = own.map(|(step, to)| (u32::try_from(step).unwrap_or(NONE), to));
        return (own.collect(), u32::try_from(size - 1).unwrap_or(NONE));
    }
    let mut colours = Colours::new(size, &sends);
    for from in 0..size {
        // Each rank starts with its successor, so that the first rounds do not all go to rank 0.
        for to in (1..size).map(|step| (from + step) % size) {
            if sends(from, to) {
                colours.add(from, to);
            }
        }
    }
    // A rank beyond all grids sends nothing.
    let row = colours.to.iter().skip(rank * colours.rounds);
    let row = (0..).zip(row.take(colours.rounds));
    let own = row.filter(|(_, to)| **to != NONE);
    let own = own.map(|(round, to)| (round, *to as usize)).collect();
    (own, u32::try_from(colours.rounds).unwrap_or(NONE))
}

/// Receivers and senders in each round.
struct Colours {
    rounds: usize,
    to: Vec<u32>,
    from: Vec<u32>,
}

impl Colours {
    fn new(size: usize, sends: &impl Fn(usize, usize) -> bool) -> Colours {
        let others = |at: usize| (0..size).filter(move |other| *other != at);
        let busiest = (0..size).map(|at| {
            let sent = others(at).filter(|other| sends(at, *other)).count();
            sent.max(others(at).filter(|other| sends(*other, at)).count())
        });
        let rounds = busiest.max().unwrap_or(0);
        Colours {
            rounds,
            to: vec![NONE; size * rounds],
            from: vec![NONE; size * rounds],
        }
    }

    fn free(ends: &[u32], rounds: usize, at: usize) -> usize {
        let row = ends[at * rounds..][..rounds].iter();
        // A free round exists: the number of rounds is that of the busiest rank, and this message has no
        // round yet.
        row.take_while(|end| **end != NONE).count()
    }

    /// Assigns a round to a message.
    fn add(&mut self, sender: usize, receiver: usize) {
        let rounds = self.rounds;
        let wanted = Colours::free(&self.to, rounds, sender);
        let other = Colours::free(&self.from, rounds, receiver);
        if wanted != other {
            // The receiver may be busy in that round. The messages on the path that alternates between
            // both rounds swap them.
            self.swap(receiver, wanted, other);
        }
        self.to[sender * rounds + wanted] = as_end(receiver);
        self.from[receiver * rounds + wanted] = as_end(sender);
    }

    /// Makes round `one` free on a receiver that has `other` free.
    fn swap(&mut self, receiver: usize, one: usize, other: usize) {
        let rounds = self.rounds;
        let (mut path, mut at) = (Vec::new(), receiver);
        // The path begins at the receiver, and ends at a rank that has the next round free. It never
        // reaches the sender of the new message: that would need its round `one`, which is free.
        loop {
            let sender = self.from[at * rounds + one];
            if sender == NONE {
                break;
            }
            path.push((sender as usize, at, one));
            let next = self.to[sender as usize * rounds + other];
            if next == NONE {
                break;
            }
            path.push((sender as usize, next as usize, other));
            at = next as usize;
        }
        for (sender, receiver, round) in &path {
            self.to[sender * rounds + round] = NONE;
            self.from[receiver * rounds + round] = NONE;
        }
        for (sender, receiver, round) in path {
            let round = if round == one { other } else { one };
            self.to[sender * rounds + round] = as_end(receiver);
            self.from[receiver * rounds + round] = as_end(sender);
        }
    }
}

fn as_end(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(size: usize, edges: &[bool]) {
        let sends = |from: usize, to: usize| from != to && edges[from * size + to];
        let (mut all, mut degree) = (Vec::new(), 0);
        let mut rounds = 0;
        for rank in 0..size {
            let (own, count) = schedule(size, rank, sends);
            let mut to: Vec<usize> = own.iter().map(|(_, to)| *to).collect();
            to.sort_unstable();
            let wanted: Vec<usize> = (0..size).filter(|to| sends(rank, *to)).collect();
            assert_eq!(to, wanted, "each message once");
            let received = (0..size).filter(|from| sends(*from, rank)).count();
            degree = degree.max(wanted.len()).max(received);
            rounds = count as usize;
            all.extend(own.into_iter().map(|(round, to)| (round, rank, to)));
        }
        if size <= MAX_COLOURED {
            assert_eq!(
                rounds, degree,
                "no more rounds than messages of the busiest rank"
            );
        }
        for end in [
            |it: &(u32, usize, usize)| (it.0, it.1),
            |it: &(u32, usize, usize)| (it.0, it.2),
        ] {
            let mut ends: Vec<_> = all.iter().map(end).collect();
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(ends.len(), all.len(), "one message at a time");
        }
    }

    proptest! {
        #[test]
        fn a_rank_sends_and_receives_at_most_one_message_in_each_round(
            size in 1_usize..10,
            edges in proptest::collection::vec(any::<bool>(), 100),
        ) {
            check(size, &edges);
        }
    }

    #[test]
    fn many_processes_use_a_latin_square() {
        let size = MAX_COLOURED + 3;
        let edges: Vec<bool> = (0..size * size).map(|at| at % 31 == 0).collect();
        check(size, &edges);
    }
}
