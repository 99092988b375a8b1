//! The length at which one of two methods becomes faster, and the best of several candidates.

/// Minimum gain of a candidate over the built-in values.
const GAIN: f64 = 0.03;

/// Returns the longest message for which the method for short ones should be used, of these limits,
/// from the times of both methods. `None` if the built-in limit is as good.
pub(super) fn crossover(
    lengths: &[usize],
    (built_in, limits): (usize, &[usize]),
    short: &[f64],
    long: &[f64],
) -> Option<usize> {
    let times = |limit: usize| -> Vec<f64> {
        let both = lengths.iter().zip(short.iter().zip(long));
        both.map(|(length, (short, long))| if *length <= limit { *short } else { *long })
            .collect()
    };
    let limits: Vec<usize> = [built_in]
        .into_iter()
        .chain(limits.iter().copied())
        .collect();
    let all: Vec<Vec<f64>> = limits.iter().map(|limit| times(*limit)).collect();
    match best(&all) {
        0 => None,
        other => Some(limits[other]),
    }
}

/// Returns the candidate with the smallest geometric mean over all lengths, or the first one unless
/// another is clearly faster.
pub(super) fn best(times: &[Vec<f64>]) -> usize {
    let cost = |times: &Vec<f64>| times.iter().map(|ns| ns.max(1.0).ln()).sum::<f64>();
    let costs: Vec<f64> = times.iter().map(cost).collect();
    let least = (0..costs.len()).min_by(|one, other| costs[*one].total_cmp(&costs[*other]));
    let Some(least) = least else { return 0 };
    // A crossover changes the method of a few lengths. Each of these must gain this much.
    let moved = times[least]
        .iter()
        .zip(&times[0])
        .filter(|(one, usual)| one != usual);
    let enough = (1.0 + GAIN).ln() * moved.count() as f64;
    match costs[0] - costs[least] > enough {
        true => least,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths below and above each limit.
    const LENGTHS: [usize; 5] = [1500, 3000, 6000, 12_000, 24_000];
    const LIMITS: [usize; 6] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 31 << 10];

    #[test]
    fn a_crossover_is_where_the_times_cross_if_that_gains_enough() {
        let lengths = &LENGTHS;
        let long: Vec<f64> = lengths
            .iter()
            .map(|bytes| 3000.0 + 0.05 * *bytes as f64)
            .collect();
        let whole = |each: f64| -> Vec<f64> {
            lengths
                .iter()
                .map(|bytes| 300.0 + each * *bytes as f64)
                .collect()
        };
        // Both methods are equal at 2700 / (each - 0.05).
        let limits = (16 << 10, &LIMITS[..]);
        let found = |each| crossover(lengths, limits, &whole(each), &long);
        assert_eq!(found(0.7), Some(4 << 10));
        assert_eq!(found(0.09), Some(31 << 10));
        assert_eq!(found(0.18), None, "it is built in");
        assert_eq!(found(5.0), Some(1 << 10));
    }

    #[test]
    fn noise_changes_nothing() {
        let usual = vec![1000.0, 2000.0];
        assert_eq!(best(&[usual.clone(), vec![990.0, 1990.0]]), 0);
        assert_eq!(
            best(&[usual.clone(), vec![1000.0, 1900.0]]),
            1,
            "one length, by 5 %"
        );
        assert_eq!(best(&[usual, vec![900.0, 1900.0], vec![800.0, 1700.0]]), 2);
        assert_eq!(best(&[]), 0);
    }
}
