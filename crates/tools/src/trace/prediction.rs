//! Predicted and measured times of supersteps, and the causes of their differences.

use dipole_bench::statistics::median;
use dipole_bsp::trace::total;
use dipole_model::Profile;
use dipole_model::{Basis, Machine, Parameters, Sums, half_width};
use serde::Serialize;

use super::cores::crowded_words;
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
    /// Computation is that of the slowest rank.
    pub(crate) predicted_ns: f64,
    /// Interval of 95 % of runs; `None` if there are too few supersteps to see their spread.
    pub(crate) interval_ns: Option<(f64, f64)>,
    pub(crate) measured_ns: f64,
    pub(crate) median_error: f64,
    /// Supersteps that took longest beyond balanced ones, the largest difference first.
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
    /// With the computation of the slowest rank.
    pub(crate) predicted_ns: f64,
    /// If all ranks had computed as long as the mean rank.
    pub(crate) balanced_ns: f64,
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
        let predicted = |at: usize| float(run.supersteps[at].slowest().1) + communicate_ns[at];
        let balanced = |at: usize| float(run.supersteps[at].mean_compute_ns()) + communicate_ns[at];
        let measured = |at: usize| {
            let superstep = &run.supersteps[at];
            float(total([superstep.slowest().1, superstep.communicate_ns()]))
        };
        let all = 0..run.supersteps.len();
        let errors = all.clone().filter(|at| measured(*at) > 0.0);
        let errors = errors.map(|at| ((predicted(at) - measured(at)) / measured(at)).abs());
        let mut order: Vec<usize> = all.clone().collect();
        order.sort_by(|one, other| {
            let beyond = |at: &usize| measured(*at) - balanced(*at);
            beyond(other).total_cmp(&beyond(one))
        });
        let told = order.into_iter().take(MOST_TOLD);
        let told = told.filter(|at| measured(*at) > balanced(*at));
        Predictions {
            predicted_ns: all.clone().map(predicted).sum(),
            interval_ns: interval(run, &communicate_ns, found.as_ref().ok().map(|(it, _)| *it)),
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
                        balanced_ns: balanced(at),
                        measured_ns: measured(at),
                        reason: reason(run, superstep, communicate_ns[at], found.as_ref().ok()),
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

impl Predictions {
    /// The interval as a part of a sentence.
    pub(crate) fn interval_text(&self) -> String {
        match self.interval_ns {
            Some((low, high)) => {
                format!(" ({:.3} to {:.3} in 95 % of runs)", low * 1e-6, high * 1e-6)
            }
            None => String::new(),
        }
    }
}

/// g and l for this number of ranks and the run's link, with their source; or the reason for their absence.
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
        "w + g h + l with w of the slowest rank, g = {:.3} ns/byte and l = {:.2} us for {} ranks over \
         {link}, {whence}",
        found.g_ns_per_byte,
        found.l_ns / 1e3,
        head.size
    );
    Ok((found, words))
}

/// Interval of the whole run; see [`dipole_model::Forecast`]. Without a model, communication has no
/// error of its own.
fn interval(
    run: &Run<'_>,
    communicate_ns: &[f64],
    model: Option<Parameters>,
) -> Option<(f64, f64)> {
    let took = |one: &Superstep<'_>| float(total([one.slowest().1, one.communicate_ns()]));
    let times: Vec<(usize, f64)> = run
        .supersteps
        .iter()
        .map(|one| (one.call, took(one)))
        .collect();
    let of_all = |of: &dyn Fn(&Superstep<'_>) -> u64| float(total(run.supersteps.iter().map(of)));
    let communicated_ns = of_all(&|one| one.communicate_ns());
    let sums = Sums {
        supersteps: float(run.supersteps.len() as u64),
        work_ns: of_all(&|one| one.slowest().1),
        undisturbed_ns: of_all(&|one| one.work_ns().max().unwrap_or(0)),
        h_bytes: of_all(&|one| one.widest().1),
        beyond_ns: communicated_ns - communicate_ns.iter().sum::<f64>(),
        spread_ns: half_width(&times),
    };
    let without_model = Parameters {
        p: 0,
        l_ns: communicate_ns.iter().sum::<f64>() / sums.supersteps.max(1.0),
        g_ns_per_byte: 0.0,
        l_ci_ns: 0.0,
        g_sd: 0.0,
        contention: None,
        s_mflops: 1.0,
        basis: Basis::Measured,
    };
    model.unwrap_or(without_model).forecast(&sums).interval
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
    run: &Run<'_>,
    superstep: &Superstep<'_>,
    predicted_ns: f64,
    model: Option<&(Parameters, String)>,
) -> String {
    let (slowest, most_ns) = super::run::greatest(superstep.work_ns());
    let mean_ns = total(superstep.work_ns()) / superstep.steps.len() as u64;
    let late_ns = most_ns - mean_ns.min(most_ns);
    let lost = superstep.lost(&run.groups);
    let lost_ns = lost.busy_ns.max(lost.crowded_ns);
    let beyond_ns = (float(superstep.communicate_ns()) - predicted_ns).max(0.0);
    let (widest, h) = superstep.widest();
    let skew_ns = model.map_or(0.0, |(parameters, _)| {
        parameters.g_ns_per_byte * (float(h) - superstep.mean_h())
    });
    let others_ns = beyond_ns.max(skew_ns);
    if lost_ns > late_ns && float(lost_ns) >= others_ns {
        return out_of_cores(run, superstep);
    }
    if float(late_ns) >= others_ns {
        return format!(
            "slow rank: rank {slowest} worked {} ms longer than the mean; give it less work here, or \
             look whether its core is slower",
            milliseconds(late_ns)
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
    if repeats > 0 && run.has_loss() {
        let (rank, own) = super::run::greatest(superstep.repeats());
        return format!(
            "loss: {repeats} packets were sent again, {own} of them by rank {rank}; `dipole doctor` \
             looks for full queues and bad links"
        );
    }
    if let Some((rank, share)) = awaited(std::iter::once(superstep)) {
        return awaited_words(rank, share, run.files[0].header.nodes);
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

/// Computation was longer than the work of its busiest rank, for want of cores.
fn out_of_cores(run: &Run<'_>, superstep: &Superstep<'_>) -> String {
    let lost = superstep.lost(&run.groups);
    let crowded = run.groups.iter().find(|group| group.is_crowded());
    if let Some(group) = crowded.filter(|_| lost.crowded_ns >= lost.busy_ns) {
        return crowded_words(
            group,
            &format!("{} ms are lost", milliseconds(lost.crowded_ns)),
        );
    }
    let preempted = superstep.steps.iter().map(|step| step.preempted_ns());
    let (rank, ns) = super::run::greatest(preempted);
    format!(
        "busy machine: rank {rank} waited {} ms for a core while another program used it; its work is \
         not the cause",
        milliseconds(ns)
    )
}

/// Between nodes the cause is a link; inside a node no link is involved.
pub(crate) fn awaited_words(rank: usize, share: u64, nodes: u32) -> String {
    let waited = format!("{share} % of what ranks waited, beyond computation, they waited");
    match nodes {
        1 => format!(
            "held up: {waited} for rank {rank}, or it for them, within the call; look what else runs on \
             its cores"
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
