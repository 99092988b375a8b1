//! Predicted and measured times of supersteps, and the causes of their differences.

use dipole_bench::statistics::median;
use dipole_bsp::trace::total;
use dipole_model::Profile;
use dipole_model::{Basis, Machine, Parameters};
use serde::Serialize;

use super::run::{Run, Superstep, float, is_at_least, milliseconds};

/// Number of deviations that are printed.
const MOST_TOLD: usize = 20;

/// The predictions of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Predictions {
    /// The source of the prediction, or why the model is not used.
    pub(crate) basis: String,
    pub(crate) parameters: Option<Parameters>,
    /// Over all supersteps; then the relative deviation of the median superstep.
    pub(crate) predicted_ns: f64,
    pub(crate) measured_ns: f64,
    pub(crate) median_error: f64,
    /// Supersteps that took longest beyond their prediction, the largest deviation first.
    pub(crate) largest: Vec<Deviation>,
    /// Predicted communication by superstep.
    #[serde(skip)]
    pub(crate) communicate_ns: Vec<f64>,
}

/// A superstep that deviates from its prediction.
#[derive(Debug, Serialize)]
pub(crate) struct Deviation {
    pub(crate) superstep: u32,
    pub(crate) call: String,
    pub(crate) h_bytes: u64,
    pub(crate) predicted_ns: f64,
    pub(crate) measured_ns: f64,
    pub(crate) reason: String,
}

impl Predictions {
    /// Uses the profile of the run's link; without one, the median of each call.
    pub(crate) fn of(run: &Run<'_>) -> Predictions {
        let found = parameters(run);
        let medians = medians(run);
        let communicate_ns: Vec<f64> = run
            .supersteps
            .iter()
            .map(|superstep| match &found {
                Ok((parameters, _)) => parameters.superstep_ns(0.0, float(superstep.widest().1)),
                Err(_) => medians[superstep.call],
            })
            .collect();
        let predicted =
            |at: usize| float(run.supersteps[at].mean_compute_ns()) + communicate_ns[at];
        let measured = |at: usize| {
            let superstep = &run.supersteps[at];
            float(total([superstep.slowest().1, superstep.communicate_ns()]))
        };
        let all = 0..run.supersteps.len();
        let errors = all.clone().filter(|at| measured(*at) > 0.0);
        let errors = errors.map(|at| ((predicted(at) - measured(at)) / measured(at)).abs());
        let mut order: Vec<usize> = all.clone().collect();
        order.sort_by(|one, other| {
            let beyond = |at: &usize| measured(*at) - predicted(*at);
            beyond(other).total_cmp(&beyond(one))
        });
        let told = order.into_iter().take(MOST_TOLD);
        let told = told.filter(|at| measured(*at) > predicted(*at));
        Predictions {
            predicted_ns: all.clone().map(predicted).sum(),
            measured_ns: all.map(measured).sum(),
            median_error: median(errors).unwrap_or(0.0),
            largest: told
                .map(|at| {
                    let superstep = &run.supersteps[at];
                    Deviation {
                        superstep: superstep.number,
                        call: run.calls[superstep.call].clone(),
                        h_bytes: superstep.widest().1,
                        predicted_ns: predicted(at),
                        measured_ns: measured(at),
                        reason: reason(
                            superstep,
                            communicate_ns[at],
                            found.as_ref().ok(),
                            run.files[0].header.nodes,
                        ),
                    }
                })
                .collect(),
            communicate_ns,
            basis: match &found {
                Ok((_, words)) => words.clone(),
                Err(why) => {
                    format!("the median communication of each call, not the model: {why}")
                }
            },
            parameters: found.ok().map(|(parameters, _)| parameters),
        }
    }
}

/// g and l for this number of ranks and the run's link, with their source; or why there are none.
fn parameters(run: &Run<'_>) -> Result<(Parameters, String), String> {
    let head = &run.files[0].header;
    let link = &head.link;
    if head.nodes != 1 && head.nodes != head.size {
        return Err(format!(
            "supersteps of {} ranks on {} nodes are not measured; all on one, or each on its own, \
             would be",
            head.size, head.nodes
        ));
    }
    let profile = Profile::load(link).map_err(|error| error.to_string())?;
    let machine = profile.map(|profile| Machine::of(&profile.cost, head.nodes == 1));
    let found = machine.and_then(|machine| machine.at(head.size));
    let found = found.ok_or_else(|| {
        format!(
            "there are no measurements for supersteps of {} ranks over {link}; run `dipole calibrate supersteps --ranks \
             {} --link {link}` first",
            head.size, head.size
        )
    })?;
    let whence = match found.basis {
        Basis::Measured => "measured".to_owned(),
        Basis::Between(one, other) => format!("between those of {one} and {other}"),
        Basis::Beyond(one, other) => format!("on the line through those of {one} and {other}"),
    };
    let words = format!(
        "w + g h + l with w of the mean rank, g = {:.3} ns/byte and l = {:.2} us for {} ranks over \
         {link}, {whence}",
        found.g_ns_per_byte,
        found.l_ns / 1e3,
        head.size
    );
    Ok((found, words))
}

/// Median communication of each call's supersteps.
fn medians(run: &Run<'_>) -> Vec<f64> {
    let mut by_call = vec![Vec::new(); run.calls.len()];
    for superstep in &run.supersteps {
        by_call[superstep.call].push(float(superstep.communicate_ns()));
    }
    let medians = by_call.into_iter().map(median);
    medians.map(|median| median.unwrap_or(0.0)).collect()
}

/// The main cause of the time beyond a balanced superstep, as text, and a remedy.
fn reason(
    superstep: &Superstep<'_>,
    predicted_ns: f64,
    model: Option<&(Parameters, String)>,
    nodes: u32,
) -> String {
    let (slowest, most_ns) = superstep.slowest();
    let late_ns = float(most_ns - superstep.mean_compute_ns());
    let beyond_ns = (float(superstep.communicate_ns()) - predicted_ns).max(0.0);
    let (widest, h) = superstep.widest();
    let skew_ns = model.map_or(0.0, |(parameters, _)| {
        parameters.g_ns_per_byte * (float(h) - superstep.mean_h())
    });
    if late_ns >= beyond_ns && late_ns >= skew_ns {
        return format!(
            "slow rank: rank {slowest} computed {} ms longer than the mean; give it less work here, \
             or look what else runs on its node",
            milliseconds(most_ns - superstep.mean_compute_ns())
        );
    }
    if skew_ns > beyond_ns {
        return format!(
            "skewed h: rank {widest} sends or receives {:.1} times as much as the mean; spread the \
             bytes",
            float(h) / superstep.mean_h()
        );
    }
    let repeats: u64 = superstep.repeats().sum();
    if repeats > 0 {
        let (rank, own) = super::run::greatest(superstep.repeats());
        return format!(
            "loss: {repeats} packets were sent again, {own} of them by rank {rank}; `dipole doctor` \
             looks for full queues and bad links"
        );
    }
    if let Some((rank, share)) = awaited(std::iter::once(superstep)) {
        return awaited_words(rank, share, nodes);
    }
    match superstep.stalls() {
        0 => "something else: no packet was lost and no rank was late; other programs on its cores, or \
              other traffic"
            .to_owned(),
        stalls => format!(
            "no room to send, {stalls} times: a receiver was slow to take, or the window full; send less \
             at once, or in several supersteps"
        ),
    }
}

/// Between nodes the cause is a link; inside a node there is none.
pub(crate) fn awaited_words(rank: usize, share: u64, nodes: u32) -> String {
    let waited = format!("{share} % of what ranks waited, beyond computation, they waited");
    match nodes {
        1 => format!(
            "held up: {waited} for rank {rank}, or it for them, within the call; are there more ranks \
             than cores, or other programs on them?"
        ),
        _ => format!(
            "slow link: {waited} for messages from or to rank {rank}; look at its link and at what else \
             runs on its node"
        ),
    }
}

/// The rank on one side of at least 70 % of the waiting beyond computation, if that does not hold for
/// all ranks, and its share.
pub(crate) fn awaited<'a>(
    supersteps: impl Iterator<Item = &'a Superstep<'a>>,
) -> Option<(usize, u64)> {
    let (mut all, mut by_rank) = (0, Vec::<u64>::new());
    for superstep in supersteps {
        by_rank.resize(superstep.steps.len(), 0);
        for (rank, other, ns) in superstep.waits() {
            all = total([all, ns]);
            by_rank[rank] = total([by_rank[rank], ns]);
            by_rank[other] = total([by_rank[other], ns]);
        }
    }
    // If there are two ranks, each is on one side of everything.
    let (rank, most) = super::run::greatest(by_rank.iter().copied());
    let is_one = by_rank.len() > 2 && all > 0 && is_at_least(most, 70, all);
    let share = u128::from(most) * 100 / u128::from(all.max(1));
    is_one.then(|| (rank, u64::try_from(share).unwrap_or(100)))
}
