//! Axes: positions of values, and the values that get a mark and a label.

/// Linear or logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Powers of two, labelled as sizes.
    Bytes,
    /// Powers of ten, labelled as plain numbers.
    Number,
    /// Shares of 1: two steps up to 90 %, then each step leaves a tenth of the rest.
    Nines,
    /// Equal steps from 0, or from below it if there are such values.
    Linear,
    /// Equal steps over the values only, for distributions far from 0.
    Range,
}

/// A tick on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Value at the tick.
    pub value: f64,
    /// Empty for a line without a label.
    pub label: String,
}

/// A scale over the values that occur.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    /// Creates an axis that spans all values and ends on round ones. `None` if there are no values.
    #[must_use]
    pub fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut places = values.map(|value| place(scale, value));
        let first = places.next()?;
        let (low, high) = places.fold((first, first), |(low, high), place| {
            (low.min(place), high.max(place))
        });
        let (low, high) = match scale {
            Scale::Bytes => (low, high),
            Scale::Nines => (0.0, high.max(2.0)),
            Scale::Linear => {
                let step = step(high.max(-low));
                let low = (low.min(0.0) / step).floor() * step;
                (low, (high.max(0.0) / step).ceil() * step)
            }
            Scale::Range => {
                let step = step(high - low);
                ((low / step).floor() * step, (high / step).ceil() * step)
            }
            // Round to thirds of a decade: about 1, 2, 5.
            Scale::Number => (
                (low * 3.0 - 0.2).floor() / 3.0,
                (high * 3.0 + 0.2).ceil() / 3.0,
            ),
        };
        let high = if high - low < 1e-9 { low + 1.0 } else { high };
        Some(Self { scale, low, high })
    }

    /// Returns the position of a value, from 0 at the low end to 1 at the high end.
    #[must_use]
    pub fn position(&self, value: f64) -> f64 {
        (place(self.scale, value) - self.low) / (self.high - self.low)
    }

    /// Returns the ticks from low to high.
    #[must_use]
    pub fn ticks(&self) -> Vec<Tick> {
        let ticks: Vec<Tick> = match self.scale {
            Scale::Bytes => (0..=40)
                .step_by(2)
                .map(|power| Tick {
                    value: f64::from(power).exp2(),
                    label: bytes(power),
                })
                .collect(),
            Scale::Nines => [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 0.999_99]
                .into_iter()
                .map(|value| Tick {
                    value,
                    label: share(value),
                })
                .collect(),
            Scale::Linear => (-20..=20)
                .map(|count| f64::from(count) * step(self.high.max(-self.low)))
                .map(|value| Tick {
                    value,
                    label: number(value),
                })
                .collect(),
            Scale::Range => (0..=20)
                .map(|count| self.low + f64::from(count) * step(self.high - self.low))
                .map(|value| Tick {
                    value,
                    label: number(value),
                })
                .collect(),
            Scale::Number => {
                // If there are few powers of ten, 2 and 5 get labels, too.
                let labels_between = self.high - self.low < 2.5;
                (-6..=12)
                    .flat_map(|power| (1..10).map(move |digit| (power, digit)))
                    .map(|(power, digit)| {
                        let value = f64::from(digit) * 10_f64.powi(power);
                        let labelled = digit == 1 || (labels_between && matches!(digit, 2 | 5));
                        Tick {
                            value,
                            label: if labelled {
                                number(value)
                            } else {
                                String::new()
                            },
                        }
                    })
                    .collect()
            }
        };
        let inside = |tick: &Tick| (-1e-9..=1.0 + 1e-9).contains(&self.position(tick.value));
        ticks.into_iter().filter(inside).collect()
    }
}

fn place(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Bytes => value.max(1.0).log2(),
        Scale::Number => value.max(1e-6).log10(),
        // Most messages must not be squeezed by the few that take longer.
        Scale::Nines if value <= 0.9 => value / 0.9 * 2.0,
        Scale::Nines => 1.0 - (1.0 - value).max(1e-9).log10(),
        Scale::Linear | Scale::Range => value,
    }
}

/// Returns the distance of ticks from 0 to this value: 1, 2 or 5 times a power of ten, about eight.
fn step(high: f64) -> f64 {
    let power = 10_f64.powf((high.max(1e-6) / 4.0).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|digit| digit * power);
    let fits = |step: &f64| high / step <= 10.0;
    steps.into_iter().find(fits).unwrap_or(10.0 * power)
}

fn bytes(power: i32) -> String {
    let (unit, rest) = match power {
        0..10 => ("", power),
        10..20 => (" Ki", power - 10),
        20..30 => (" Mi", power - 20),
        _ => (" Gi", power - 30),
    };
    format!("{}{unit}", 1_u32 << rest)
}

/// Formats a share in percent, with as many digits as needed.
#[must_use]
pub fn share(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a round number without unnecessary zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        let ticks = axis.ticks().into_iter().map(|tick| tick.label);
        ticks.filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn sizes_are_labelled_by_powers_of_four() {
        let sizes = [1.0, 64.0, 1_048_576.0];
        let axis = Axis::over(Scale::Bytes, sizes.into_iter()).expect("values");
        assert_eq!(axis.position(1.0), 0.0);
        assert_eq!(axis.position(1_048_576.0), 1.0);
        let expected = [
            "1", "4", "16", "64", "256", "1 Ki", "4 Ki", "16 Ki", "64 Ki", "256 Ki", "1 Mi",
        ];
        assert_eq!(labels(&axis), expected);
    }

    #[test]
    fn a_wide_range_is_labelled_by_powers_of_ten_and_a_narrow_one_between_them() {
        let wide = Axis::over(Scale::Number, [0.09, 3000.0].into_iter()).expect("values");
        assert_eq!(labels(&wide), ["0.1", "1", "10", "100", "1000"]);
        let narrow = Axis::over(Scale::Number, [1.2, 7.0].into_iter()).expect("values");
        assert_eq!(labels(&narrow), ["1", "2", "5", "10"]);
    }

    #[test]
    fn every_value_lies_within_its_axis() {
        for values in [[0.037, 0.9], [5.0, 5.0], [1e-3, 1e6]] {
            for scale in [Scale::Bytes, Scale::Number, Scale::Linear] {
                let axis = Axis::over(scale, values.into_iter()).expect("values");
                for value in values {
                    let position = axis.position(value);
                    assert!((0.0..=1.0).contains(&position), "{value} {scale:?}");
                }
            }
        }
        assert!(Axis::over(Scale::Bytes, std::iter::empty()).is_none());
    }

    #[test]
    fn shares_are_spaced_by_nines() {
        let axis = Axis::over(Scale::Nines, [0.0, 0.999].into_iter()).expect("values");
        assert!((axis.position(0.45) - 0.25).abs() < 1e-9);
        assert!((axis.position(0.9) - 0.5).abs() < 1e-9);
        assert!((axis.position(0.99) - 0.75).abs() < 1e-9);
        let expected = ["0 %", "25 %", "50 %", "75 %", "90 %", "99 %", "99.9 %"];
        assert_eq!(labels(&axis), expected);
    }

    #[test]
    fn a_range_spans_its_values_alone() {
        let axis = Axis::over(Scale::Range, [9.03, 9.96].into_iter()).expect("values");
        let labels = labels(&axis);
        assert_eq!(
            (&*labels[0], labels.last().map(|it| &**it)),
            ("9", Some("10"))
        );
        let one = Axis::over(Scale::Range, [7.0].into_iter()).expect("a value");
        assert!((0.0..=1.0).contains(&one.position(7.0)));
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let axis = Axis::over(Scale::Linear, [0.3, 1.25].into_iter()).expect("values");
        let expected = ["0", "0.2", "0.4", "0.6", "0.8", "1", "1.2", "1.4"];
        assert_eq!(labels(&axis), expected);
        assert!((axis.position(0.7) - 0.5).abs() < 1e-9);
        let axis = Axis::over(Scale::Linear, [2000.0].into_iter()).expect("values");
        assert_eq!(labels(&axis)[..3], ["0", "200", "400"]);
        let below = Axis::over(Scale::Linear, [-700.0, 1900.0].into_iter()).expect("values");
        assert_eq!(labels(&below)[..3], ["-800", "-600", "-400"]);
        assert!(
            (below.position(0.0) - 0.8 / 2.8).abs() < 1e-9,
            "it ends at 2000"
        );
    }
}
