//! Predictions of programs whose true cost is known: intervals contain the time of further runs, and
//! are as wide as the noise of the machine makes necessary. Seeds are printed.

#![allow(missing_docs, reason = "tests")]

use dipole_model::{Cost, Forecast, Machine, Sums, half_width};

/// A small generator with a printed seed (splitmix64).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
        let fraction = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        fraction
    }

    /// A normal variable of mean 0 and deviation 1.
    fn normal(&mut self) -> f64 {
        let (one, other) = (self.uniform().max(1e-12), self.uniform());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    }

    /// An exponential variable of mean 1: the length of a disturbance.
    fn exponential(&mut self) -> f64 {
        -self.uniform().max(1e-12).ln()
    }
}

const RANKS: usize = 4;
const L_NS: f64 = 30_000.0;
const G: f64 = 0.8;
const H_BYTES: f64 = 50_000.0;

/// Superstep `at` of a run: the slowest rank's work, and communication.
fn superstep(random: &mut Random, at: usize, noise: f64) -> (usize, f64, f64) {
    let kind = at % 2;
    // Work shrinks as in an elimination, and the second kind has a tenth of it.
    let shrink = 1.0 - 0.5 * f64::from(u32::try_from(at).expect("few")) / 400.0;
    let base_ns = shrink * [1e6, 1e5][kind];
    let rank = |random: &mut Random| base_ns * (1.0 + noise * random.exponential());
    let work_ns = (0..RANKS).map(|_| rank(random)).fold(0.0, f64::max);
    let communicate_ns = (L_NS + G * H_BYTES) * (1.0 + noise * random.exponential());
    (kind, work_ns, communicate_ns)
}

fn run(random: &mut Random, steps: usize, noise: f64) -> Vec<(usize, f64, f64)> {
    (0..steps).map(|at| superstep(random, at, noise)).collect()
}

fn sum(run: &[(usize, f64, f64)]) -> f64 {
    run.iter()
        .map(|(_, work, communicate)| work + communicate)
        .sum()
}

/// l and g as a calibration on the same machine measures them.
fn calibrated(random: &mut Random, noise: f64) -> Machine {
    let (l_ci_ns, g_sd) = (L_NS * noise * 0.2, G * noise * 0.1);
    let cost = Cost {
        p: 4,
        nodes: 1,
        s_mflops: 1000.0,
        l_ns: L_NS * (1.0 + noise) + random.normal() * l_ci_ns / 1.96,
        l_ci_ns,
        g_ns_per_byte: G * (1.0 + noise) + random.normal() * g_sd,
        g_sd,
        contention: None,
    };
    Machine::of(&[cost], true)
}

fn forecast(traced: &[(usize, f64, f64)], machine: &Machine) -> Forecast {
    let parameters = machine.at(4).expect("measured");
    let supersteps = f64::from(u32::try_from(traced.len()).expect("few"));
    let work_ns: f64 = traced.iter().map(|(_, work, _)| work).sum();
    let communicate_ns: f64 = traced.iter().map(|(.., communicate)| communicate).sum();
    let h_bytes = H_BYTES * supersteps;
    let times: Vec<(usize, f64)> = traced
        .iter()
        .map(|(kind, work, communicate)| (*kind, work + communicate))
        .collect();
    parameters.forecast(&Sums {
        supersteps,
        work_ns,
        undisturbed_ns: work_ns,
        h_bytes,
        beyond_ns: communicate_ns - parameters.superstep_ns(0.0, h_bytes)
            + parameters.l_ns * (1.0 - supersteps),
        spread_ns: half_width(&times),
    })
}

#[test]
fn intervals_contain_further_runs_at_any_noise_and_are_no_wider_than_needed() {
    let seed: u64 = std::env::var("DIPOLE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(39);
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut widths = Vec::new();
    for noise in [0.001, 0.01, 0.05, 0.2, 1.0] {
        for steps in [20, 200] {
            let (mut hits, mut width, mut deviations) = (0, 0.0, 0.0);
            let trials = 400;
            for _ in 0..trials {
                let machine = calibrated(&mut random, noise);
                let traced = run(&mut random, steps, noise);
                let told = forecast(&traced, &machine);
                let (low, high) = told.interval.expect("many supersteps");
                assert!(low <= told.ns && told.ns <= high, "{told:?}");
                let truth = sum(&run(&mut random, steps, noise));
                hits += u32::from((low..=high).contains(&truth));
                width += (high - low) / truth / f64::from(trials);
                deviations += (sum(&traced) - truth).abs() / truth / f64::from(trials);
            }
            println!(
                "noise {noise}, {steps} supersteps: {hits} of {trials} in the interval, width {:.3} %, \
                 two runs differ by {:.3} %",
                width * 100.0,
                deviations * 100.0
            );
            // 95 % are intended. The estimate of the spread is itself uncertain.
            assert!(
                hits * 100 >= trials * 88,
                "noise {noise}, {steps} supersteps: {hits}"
            );
            // An interval of 95 % is about five mean differences wide; l and g add to that.
            let needed = 5.0 * deviations + 0.2 * noise;
            assert!(
                width < 3.0 * needed + 0.005,
                "noise {noise}: {width} {needed}"
            );
            widths.push(width);
        }
    }
    let of_many: Vec<f64> = widths.into_iter().skip(1).step_by(2).collect();
    assert!(of_many.is_sorted(), "more noise, wider: {of_many:?}");
    // A quiet machine is predicted to a few percent, a noisy one honestly not.
    assert!(of_many[0] < 0.02 && of_many[4] > 0.1, "{of_many:?}");
}

#[test]
fn a_run_on_a_machine_that_became_busy_is_within_the_interval() {
    let mut random = Random(5);
    let machine = calibrated(&mut random, 0.01);
    // Communication took ten times as long as during the calibration, and will again.
    let busy = |random: &mut Random| -> Vec<(usize, f64, f64)> {
        let quiet = run(random, 100, 0.01).into_iter();
        quiet
            .map(|(kind, work, communicate)| (kind, work, communicate * 10.0))
            .collect()
    };
    let told = forecast(&busy(&mut random), &machine);
    let (low, high) = told.interval.expect("many");
    for truth in [sum(&busy(&mut random)), sum(&run(&mut random, 100, 0.01))] {
        assert!((low..=high).contains(&truth), "{truth} {told:?}");
    }
}
