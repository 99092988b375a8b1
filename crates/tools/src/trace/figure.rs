//! The superstep figure (thesis, figures 6.6 and 6.7): bytes sent above the axis, bytes received below
//! it. A bar is as wide as its communication took, and as far from the previous one as the slowest rank
//! computed. Keys name the source lines that ended supersteps.

use std::collections::BTreeMap;
use std::fmt::Write;

use dipole_bsp::trace::total;
use dipole_page::{Axis, Scale, Tick, behind, digits, escape, table};

use super::run::{Run, Superstep, float};

const WIDTH: f64 = 1440.0;
const HALF: f64 = 190.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
/// Space above the figure for the keys.
const TOP: f64 = 34.0;
const BOTTOM: f64 = 54.0;
/// Keys closer than this to that of a wider bar are omitted.
const KEY_DISTANCE: f64 = 16.0;
/// Beyond this many supersteps, several share a bar.
pub(super) const MOST_BARS: usize = 400;
/// Colours; more ranks than this are drawn in groups.
const FAMILIES: [&str; 8] = [
    "udp",
    "shm",
    "unix",
    "tcp",
    "dipole",
    "gso",
    "dipole-udp",
    "pipe",
];

/// Consecutive supersteps, drawn as one bar.
struct Bar {
    first: u32,
    last: u32,
    /// The call that ended them, if it is the same for all.
    call: Option<usize>,
    compute_ns: u64,
    communicate_ns: u64,
    predicted_ns: f64,
    /// Sent bytes by group of ranks, mean over the supersteps.
    out: Vec<f64>,
    inward: Vec<f64>,
    /// The mean of the largest h.
    h: f64,
}

/// Ranks drawn in one colour.
struct Bands {
    each: usize,
    count: usize,
}

impl Bands {
    fn of(ranks: usize) -> Bands {
        let each = ranks.div_ceil(FAMILIES.len());
        Bands {
            each,
            count: ranks.div_ceil(each),
        }
    }

    fn name(&self, band: usize, ranks: usize) -> String {
        let first = band * self.each;
        let last = (first + self.each).min(ranks) - 1;
        match first == last {
            true => format!("rank {first}"),
            false => format!("ranks {first} to {last}"),
        }
    }

    fn sum(&self, by_rank: &[u64]) -> Vec<f64> {
        let sums = by_rank.chunks(self.each);
        sums.map(|ranks| float(total(ranks.iter().copied())))
            .collect()
    }
}

/// The figure of all supersteps, and its data. `predicted_ns` is the predicted communication.
pub(super) fn html(run: &Run<'_>, predicted_ns: &[f64]) -> String {
    let each = run.supersteps.len().div_ceil(MOST_BARS).max(1);
    let bands = Bands::of(run.ranks());
    let bars: Vec<Bar> = run
        .supersteps
        .chunks(each)
        .zip(predicted_ns.chunks(each))
        .map(|(supersteps, predicted)| {
            let (first, last) = (&supersteps[0], &supersteps[supersteps.len() - 1]);
            let count = float(supersteps.len() as u64);
            let mean = |of: &dyn Fn(usize) -> Vec<f64>| {
                let mut sums = vec![0.0; bands.count];
                for at in 0..supersteps.len() {
                    sums.iter_mut()
                        .zip(of(at))
                        .for_each(|(sum, own)| *sum += own);
                }
                sums.into_iter()
                    .map(|sum| sum / count)
                    .collect::<Vec<f64>>()
            };
            let is_same = supersteps.iter().all(|one| one.call == first.call);
            Bar {
                first: first.number,
                last: last.number,
                call: is_same.then_some(first.call),
                compute_ns: total(supersteps.iter().map(|one| one.slowest().1)),
                communicate_ns: total(supersteps.iter().map(Superstep::communicate_ns)),
                predicted_ns: predicted.iter().sum(),
                out: mean(&|at| bands.sum(&supersteps[at].out)),
                inward: mean(&|at| bands.sum(&supersteps[at].inward)),
                h: supersteps
                    .iter()
                    .map(|one| float(one.widest().1))
                    .sum::<f64>()
                    / count,
            }
        })
        .collect();
    let Some(svg) = draw(&bars, &bands, run) else {
        return String::new();
    };
    let merged = match each {
        1 => String::new(),
        _ => format!(
            " Each bar stands for {each} supersteps in a row: their communication, their computation, \
             and the mean of their bytes."
        ),
    };
    let mut html = format!(
        "<figure id=\"supersteps\" class=\"full\">\n<figcaption><h3>Supersteps</h3><p>Above the axis bytes that \
         leave, below bytes that arrive, by rank. A bar is as wide as the communication took, the white \
         before it as the slowest rank computed; the number above is the key of the call that ended \
         it.{merged} Point at a bar for its numbers.</p></figcaption>\n<ul class=\"legend\">"
    );
    for (band, family) in FAMILIES.iter().enumerate().take(bands.count) {
        html += &format!(
            "<li class=\"{}\"><svg viewBox=\"0 0 14 14\" width=\"14\" height=\"14\" \
             aria-hidden=\"true\"><path class=\"bar\" d=\"M0 0H14V14H0Z\"/></svg>{}</li>",
            family,
            bands.name(band, run.ranks())
        );
    }
    html += "</ul>\n";
    html += &svg;
    html += &keys(run);
    html += &behind(&numbers(&bars, run));
    html + "</figure>\n"
}

/// Draws the legend.
fn keys(run: &Run<'_>) -> String {
    let mut html = String::from("<ol class=\"keys\">");
    for call in &run.calls {
        html += &format!("<li>{}</li>", escape(call));
    }
    html + "</ol>\n"
}

fn key(bar: &Bar) -> String {
    bar.call
        .map_or(String::from("*"), |call| (call + 1).to_string())
}

fn numbers(bars: &[Bar], run: &Run<'_>) -> String {
    let headings = [
        "superstep",
        "call",
        "compute, ms",
        "communicate, ms",
        "predicted, ms",
        "h, bytes",
        "out, bytes",
        "in, bytes",
    ];
    let rows: Vec<Vec<String>> = bars
        .iter()
        .map(|bar| {
            let call = bar.call.map_or("several", |call| run.calls[call].as_str());
            vec![
                number(bar),
                call.to_owned(),
                digits(float(bar.compute_ns) * 1e-6),
                digits(float(bar.communicate_ns) * 1e-6),
                digits(bar.predicted_ns * 1e-6),
                format!("{:.0}", bar.h),
                format!("{:.0}", bar.out.iter().sum::<f64>()),
                format!("{:.0}", bar.inward.iter().sum::<f64>()),
            ]
        })
        .collect();
    table(&headings, &rows)
}

fn number(bar: &Bar) -> String {
    match bar.first == bar.last {
        true => bar.first.to_string(),
        false => format!("{} to {}", bar.first, bar.last),
    }
}

/// A unit in which a value has few digits, and its factor.
fn unit(most: f64, units: &[(&'static str, f64)]) -> (&'static str, f64) {
    let fits = units.iter().rev().find(|(_, factor)| most * factor >= 1.0);
    *fits.unwrap_or(&units[0])
}

fn draw(bars: &[Bar], bands: &Bands, run: &Run<'_>) -> Option<String> {
    let all_ns = bars
        .iter()
        .map(|bar| float(total([bar.compute_ns, bar.communicate_ns])));
    let all_ns: f64 = all_ns.sum();
    let (time, to_time) = unit(all_ns, &[("us", 1e-3), ("ms", 1e-6), ("s", 1e-9)]);
    let most = bars
        .iter()
        .flat_map(|bar| [bar.out.iter().sum(), bar.inward.iter().sum()]);
    let most = most.fold(0.0, f64::max).max(1.0);
    let (bytes, to_bytes) = unit(
        most,
        &[("bytes", 1.0), ("kB", 1e-3), ("MB", 1e-6), ("GB", 1e-9)],
    );
    if bars.is_empty() || all_ns <= 0.0 {
        return None;
    }
    let frame = Frame {
        all_ns,
        time,
        to_time,
        bytes,
        to_bytes,
        height: Axis::over(Scale::Linear, std::iter::once(most * to_bytes))?,
    };
    let mut svg = frame.axes()?;
    let spans = frame.spans(bars);
    for ((bar, Span { from, width, .. }), has_key) in bars.iter().zip(&spans).zip(keyed(&spans)) {
        let _fits = write!(
            svg,
            "<g data-superstep=\"{}\"><title>{}</title>",
            bar.first,
            note(bar, run)
        );
        frame.bands(&mut svg, bar, bands, *from, *width);
        // Includes supersteps without any bytes.
        let _fits = write!(
            svg,
            "<path class=\"span\" d=\"M{from:.2} {:.1}h{width:.2}v2h-{width:.2}Z\"/>",
            MIDDLE - 1.0
        );
        if has_key {
            let _fits = write!(
                svg,
                "<text class=\"key\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                from + width / 2.0,
                TOP - 10.0,
                key(bar)
            );
        }
        svg += "</g>\n";
    }
    Some(svg + "</svg>\n")
}

/// A bar's place in the figure.
#[derive(Clone, Copy)]
struct Span {
    from: f64,
    width: f64,
    call: Option<usize>,
}

impl Span {
    /// Where its key stands.
    fn middle(&self) -> f64 {
        self.from + self.width / 2.0
    }
}

/// Chooses the bars that have keys: the widest ones first, while there is room next to other keys.
fn keyed(spans: &[Span]) -> Vec<bool> {
    let mut by_width: Vec<usize> = (0..spans.len()).collect();
    by_width.sort_by(|a, b| spans[*b].width.total_cmp(&spans[*a].width));
    let mut has_key = vec![false; spans.len()];
    // By position in hundredths: only the next keys to the left and right matter.
    let mut placed: BTreeMap<i64, Span> = BTreeMap::new();
    for at in by_width {
        let span = spans[at];
        #[allow(clippy::cast_possible_truncation, reason = "inside the figure")]
        let place = (span.middle() * 100.0) as i64;
        let is_free = |other: Option<(&i64, &Span)>| {
            let distance = |other: &Span| (other.middle() - span.middle()).abs();
            other.is_none_or(|(_, other)| match other.call == span.call {
                true => distance(other) >= KEY_DISTANCE,
                false => distance(other) >= KEY_DISTANCE / 2.0,
            })
        };
        if is_free(placed.range(..=place).next_back()) && is_free(placed.range(place..).next()) {
            placed.insert(place, span);
            has_key[at] = true;
        }
    }
    has_key
}

/// Vertical centre of the figure: the axis of time.
const MIDDLE: f64 = TOP + HALF;
/// Height of the figure.
const FULL: f64 = MIDDLE + HALF + BOTTOM;

/// Scales of the figure.
struct Frame {
    /// Duration of all bars.
    all_ns: f64,
    /// Unit of time, and its factor from nanoseconds.
    time: &'static str,
    to_time: f64,
    /// Unit of bytes, and its factor.
    bytes: &'static str,
    to_bytes: f64,
    height: Axis,
}

impl Frame {
    fn x(&self, ns: f64) -> f64 {
        LEFT + ns / self.all_ns * (WIDTH - LEFT - RIGHT)
    }

    /// Places the bars one after the other.
    fn spans(&self, bars: &[Bar]) -> Vec<Span> {
        let mut now_ns = 0.0;
        let place = |bar: &Bar| {
            now_ns += float(bar.compute_ns);
            let from = self.x(now_ns);
            now_ns += float(bar.communicate_ns);
            // Anything thinner would not be visible.
            let width = (self.x(now_ns) - from).max(0.6);
            Span {
                from,
                width,
                call: bar.call,
            }
        };
        bars.iter().map(place).collect()
    }

    /// Opens the figure and draws its axes.
    fn axes(&self) -> Option<String> {
        let (time, bytes) = (self.time, self.bytes);
        let mut svg = format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {FULL}\" role=\"img\" aria-label=\"Supersteps: bytes \
             over time\">\n<g class=\"axes\">"
        );
        for Tick { value, label } in self.height.ticks() {
            let up = self.height.position(value) * HALF;
            for at in [MIDDLE - up, MIDDLE + up] {
                let _fits = write!(
                    svg,
                    "<path class=\"major\" d=\"M{LEFT} {at:.1}H{}\"/><text class=\"y\" x=\"{:.1}\" \
                     y=\"{:.1}\">{label}</text>",
                    WIDTH - RIGHT,
                    LEFT - 8.0,
                    at + 4.0
                );
            }
        }
        let of_time = Axis::over(Scale::Linear, std::iter::once(self.all_ns * self.to_time))?;
        let ticks = of_time
            .ticks()
            .into_iter()
            .filter(|tick| tick.value <= self.all_ns * self.to_time);
        for Tick { value, label } in ticks {
            let at = self.x(value / self.to_time);
            let _fits = write!(
                svg,
                "<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>",
                MIDDLE + HALF + 20.0
            );
        }
        let _fits = write!(
            svg,
            "<text class=\"x label\" x=\"{:.1}\" y=\"{:.1}\">time, {time}</text><text class=\"x label\" \
             transform=\"translate(16 {:.1}) rotate(-90)\">out, {bytes}</text><text class=\"x label\" \
             transform=\"translate(16 {:.1}) rotate(-90)\">in, {bytes}</text></g>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            FULL - 8.0,
            MIDDLE - HALF / 2.0,
            MIDDLE + HALF / 2.0
        );
        Some(svg)
    }

    /// Draws the bytes of a bar, by group of ranks.
    fn bands(&self, svg: &mut String, bar: &Bar, bands: &Bands, from: f64, width: f64) {
        for (values, is_up) in [(&bar.out, true), (&bar.inward, false)] {
            let mut done = 0.0;
            for (band, value) in values.iter().enumerate().take(bands.count) {
                let tall = self.height.position(*value * self.to_bytes) * HALF;
                if tall > 0.0 {
                    let top = if is_up {
                        MIDDLE - done - tall
                    } else {
                        MIDDLE + done
                    };
                    let _fits = write!(
                        svg,
                        "<path class=\"bar {}\" d=\"M{from:.2} {top:.2}h{width:.2}v{tall:.2}h-{width:.2}Z\"/>",
                        FAMILIES[band]
                    );
                }
                done += tall;
            }
        }
    }
}

fn note(bar: &Bar, run: &Run<'_>) -> String {
    let ms = |ns: f64| digits(ns * 1e-6);
    escape(&format!(
        "superstep {}, {}: computation {} ms, communication {} ms (predicted {}), h {:.0} bytes, {:.0} \
         bytes in all",
        number(bar),
        bar.call
            .map_or("several calls", |call| run.calls[call].as_str()),
        ms(float(bar.compute_ns)),
        ms(float(bar.communicate_ns)),
        ms(bar.predicted_ns),
        bar.h,
        bar.out.iter().sum::<f64>()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bars in a row, each with a gap before it.
    fn spans(bars: &[(f64, f64, usize)]) -> Vec<Span> {
        let mut end = 0.0;
        let place = |(gap, width, call): &(f64, f64, usize)| {
            let from = end + gap;
            end = from + width;
            Span {
                from,
                width: *width,
                call: Some(*call),
            }
        };
        bars.iter().map(place).collect()
    }

    #[test]
    fn a_thin_bar_does_not_take_the_key_of_the_wide_one_after_it() {
        let alternating = [(6.0, 0.6, 4), (1.0, 13.0, 3)].repeat(20);
        let has_key = keyed(&spans(&alternating));
        for (at, has_key) in has_key.iter().enumerate() {
            assert!(*has_key || at % 2 == 0, "the wide bar {at}");
        }
    }

    #[test]
    fn keys_of_a_call_keep_their_distance() {
        let all = spans(&[(0.0, 3.0, 1)].repeat(300));
        let has_key = keyed(&all);
        let keys = all.iter().zip(&has_key).filter(|(_, has_key)| **has_key);
        let middles: Vec<f64> = keys.map(|(span, _)| span.middle()).collect();
        assert!(middles.len() > 30, "{}", middles.len());
        let mut gaps = middles.windows(2).map(|two| two[1] - two[0]);
        assert!(gaps.all(|gap| gap >= KEY_DISTANCE), "{middles:?}");
    }
}
