//! Figures: curves with marks and spreads on two axes, as SVG in the page.
//!
//! Colours and line widths are in the style sheet, so that figures follow the reader's light or dark
//! theme.

use std::fmt::Write;

use super::escape;
use super::scale::{Axis, Scale, Tick};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 38.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 58.0;
/// A curve that ends right of this position reaches the edge.
const AT_EDGE: f64 = 0.98;
/// Labels closer to the previous one than this are left out.
const LABEL_DISTANCE: f64 = 42.0;

/// A chart with several curves.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Id within the page.
    pub id: String,
    /// Title above the chart.
    pub title: String,
    /// Explanation of the chart for readers.
    pub text: &'static str,
    /// Scale and title of the horizontal axis.
    pub x: (Scale, &'static str),
    /// Scale and title of the vertical axis.
    pub y: (Scale, &'static str),
    /// Curves in the order of the legend.
    pub curves: Vec<Curve>,
}

/// The curve of one subject.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name of the subject.
    pub name: String,
    /// Class of colour and mark.
    pub family: &'static str,
    /// Points from left to right.
    pub points: Vec<Point>,
    /// Why it ends at its last point, if others go on.
    pub end: Option<String>,
}

/// A measured point of a curve.
#[derive(Clone, Debug)]
pub struct Point {
    /// Value on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Minimum and maximum over the rounds.
    pub spread: Option<(f64, f64)>,
    /// Text shown when the pointer is over the mark.
    pub note: String,
}

impl Chart {
    /// Returns the figure with its legend, followed by `behind`. Empty if there are no points.
    #[must_use]
    pub fn html(&self, behind: &str) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let spreads = points().filter_map(|point| point.spread);
        let x = Axis::over(self.x.0, points().map(|point| point.x));
        let y = Axis::over(
            self.y.0,
            points()
                .map(|point| point.y)
                .chain(spreads.flat_map(|(least, most)| [least, most])),
        );
        let (Some(x), Some(y)) = (x, y) else {
            return String::new();
        };
        let frame = Frame { x, y };
        let mut out = String::new();
        out += &format!(
            "<figure id=\"{id}\" data-x=\"{x}\" data-y=\"{y}\">\n<figcaption><h3>{title}</h3>\
             <p>{text}</p></figcaption>\n",
            id = self.id,
            x = self.x.1,
            y = self.y.1,
            title = escape(&self.title),
            text = self.text
        );
        out += "<ul class=\"legend\">";
        for curve in &self.curves {
            out += &format!(
                "<li class=\"{family}\"><svg viewBox=\"-14 -7 28 14\" width=\"28\" height=\"14\" \
                 aria-hidden=\"true\"><path class=\"line\" d=\"M-14 0H14\"/>{mark}</svg>{name}</li>",
                family = curve.family,
                mark = mark(curve.family, 0.0, 0.0, ""),
                name = escape(&curve.name)
            );
        }
        out += "</ul>\n";
        out += &format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}: {} over {}\">\n",
            escape(&self.title),
            self.y.1,
            self.x.1
        );
        out += &self.axes(&frame);
        for curve in &self.curves {
            out += &curve.svg(&frame);
        }
        out += "</svg>\n";
        out += behind;
        out += "</figure>\n";
        out
    }

    fn axes(&self, frame: &Frame) -> String {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut out = String::from("<g class=\"axes\">");
        let mut last = f64::NEG_INFINITY;
        for Tick { value, label } in frame.x.ticks() {
            let at = frame.left(value);
            out += &format!("<path class=\"major\" d=\"M{at:.1} {TOP}V{bottom}\"/>");
            if !label.is_empty() && at - last >= LABEL_DISTANCE {
                last = at;
                out += &format!(
                    "<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>",
                    bottom + 20.0
                );
            }
        }
        for Tick { value, label } in frame.y.ticks() {
            let at = frame.top(value);
            let class = if label.is_empty() { "minor" } else { "major" };
            out += &format!("<path class=\"{class}\" d=\"M{LEFT} {at:.1}H{right}\"/>");
            if !label.is_empty() {
                out += &format!(
                    "<text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                    LEFT - 8.0,
                    at + 4.0
                );
            }
        }
        out += &format!(
            "<text class=\"x label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            f64::midpoint(LEFT, right),
            HEIGHT - 10.0,
            self.x.1
        );
        out += &format!(
            "<text class=\"x label\" transform=\"translate(16 {:.1}) rotate(-90)\">{}</text></g>\n",
            f64::midpoint(TOP, bottom),
            self.y.1
        );
        out
    }
}

impl Curve {
    fn svg(&self, frame: &Frame) -> String {
        let mut line = String::new();
        let mut spreads = String::new();
        let mut marks = String::new();
        for (index, point) in self.points.iter().enumerate() {
            let (left, top) = (frame.left(point.x), frame.top(point.y));
            let command = if index == 0 { 'M' } else { 'L' };
            write!(line, "{command}{left:.1} {top:.1}").expect("a string takes all");
            if let Some((least, most)) = point.spread {
                let (low, high) = (frame.top(least), frame.top(most));
                spreads += &format!("M{left:.1} {low:.1}V{high:.1}");
            }
            marks += &mark(self.family, left, top, &escape(&point.note));
        }
        marks += &self.end_label(frame);
        format!(
            "<g class=\"curve {family}\" data-subject=\"{name}\" data-points=\"{count}\">\
             <path class=\"spread\" d=\"{spreads}\"/><path class=\"line\" d=\"{line}\"/>{marks}</g>\n",
            family = self.family,
            name = escape(&self.name),
            count = self.points.len(),
        )
    }

    /// Labels the end of the curve, unless it reaches the right edge.
    fn end_label(&self, frame: &Frame) -> String {
        let (Some(end), Some(last)) = (&self.end, self.points.last()) else {
            return String::new();
        };
        let position = frame.x.position(last.x);
        if position > AT_EDGE {
            return String::new();
        }
        let (left, top) = (frame.left(last.x), frame.top(last.y));
        // Towards the side with more room.
        let (anchor, left) = match position < 0.5 {
            true => ("start", left + 9.0),
            false => ("end", left - 9.0),
        };
        format!(
            "<text class=\"end\" text-anchor=\"{anchor}\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>",
            (top - 9.0).max(TOP + 9.0),
            escape(end)
        )
    }
}

/// Positions of values in the picture.
struct Frame {
    x: Axis,
    y: Axis,
}

impl Frame {
    fn left(&self, value: f64) -> f64 {
        LEFT + self.x.position(value) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.position(value)) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Returns the mark of a family. The shapes differ, for readers who cannot distinguish the colours.
fn mark(family: &str, left: f64, top: f64, note: &str) -> String {
    let shape = match family {
        "dipole" => "M0-4.5A4.5 4.5 0 1 1-.01-4.5Z",
        "dipole-udp" => "M-4.5 0A4.5 4.5 0 0 1 4.5 0Z",
        "bpf" => "M-5-1.6H5V1.6H-5Z",
        "xdp" => "M-1.6-5H1.6V5H-1.6Z",
        "udp" => "M-4-4H4V4H-4Z",
        "tcp" => "M0-5L5 4H-5Z",
        "gso" => "M0 5L5-4H-5Z",
        "peer" => "M-4.5-4.5H4.5L-4.5 4.5H4.5Z",
        "shm" => "M0-5.5L5.5 0 0 5.5-5.5 0Z",
        "open-mpi" => "M-5 0L0-5 5 0 3 5H-3Z",
        "mpich" => "M-5-4H5L0 5Z",
        "libfabric" => "M-5 4L-2-4H2L5 4Z",
        "ucx" => "M-5-5L0-2 5-5 2 0 5 5 0 2-5 5-2 0Z",
        "aeron" => "M-5 1L0-5 5 1H2V5H-2V1Z",
        "zeromq" => "M-4.5-4.5H4.5L-4.5 4.5H4.5Z",
        "bsponmpi" => "M-5-5H0V0H5V5H0V0H-5Z",
        "iperf3" => "M-5-1L5-5V1L-5 5Z",
        "sockperf" => "M-5-5L5-1V5L-5 1Z",
        "unix" => "M-1.6-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
        _ => "M-5-3H5V3H-5Z",
    };
    let title = if note.is_empty() {
        String::new()
    } else {
        format!("<title>{note}</title>")
    };
    format!(
        "<path class=\"mark\" transform=\"translate({left:.1} {top:.1})\" d=\"{shape}\">{title}</path>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> Chart {
        let points = points.iter().map(|&(x, y)| Point {
            x,
            y,
            spread: Some((y / 2.0, y * 2.0)),
            note: format!("{y} < 1 & more"),
        });
        Chart {
            id: "latency".into(),
            title: "Latency".into(),
            text: "Less is better.",
            x: (Scale::Bytes, "message size, bytes"),
            y: (Scale::Number, "one-way latency, µs"),
            curves: vec![Curve {
                name: "dipole".into(),
                family: "dipole",
                points: points.collect(),
                end: None,
            }],
        }
    }

    #[test]
    fn a_curve_that_ends_within_the_picture_says_why() {
        let ending = |last: f64| {
            let mut chart = chart(&[(0.0, 2.0), (last, 3.0)]);
            chart.x.0 = Scale::Nines;
            chart.curves[0].end = Some("beyond 70 %: <5 messages".to_owned());
            chart.html("")
        };
        assert!(ending(0.7).contains(">beyond 70 %: &lt;5 messages</text>"));
        assert!(!ending(0.99).contains("beyond"), "it reaches the edge");
    }

    #[test]
    fn a_figure_has_a_mark_for_each_point_and_labels_with_units() {
        let html = chart(&[(1.0, 2.0), (64.0, 3.0), (4096.0, 8.0)]).html("");
        // The legend has one more.
        assert_eq!(html.matches("class=\"mark\"").count(), 4, "{html}");
        assert!(html.contains("data-points=\"3\""));
        assert!(html.contains(">message size, bytes</text>"));
        assert!(html.contains(">one-way latency, µs</text>"));
        assert!(html.contains("2 &lt; 1 &amp; more"), "{html}");
    }

    #[test]
    fn a_figure_without_points_is_left_out() {
        assert_eq!(chart(&[]).html("behind"), "");
    }

    #[test]
    fn everything_drawn_lies_within_the_picture() {
        let html = chart(&[(1.0, 1e-3), (1_048_576.0, 1e4)]).html("");
        let curve = html.split("class=\"curve").nth(1).expect("a curve");
        for place in curve.split("translate(").skip(1) {
            let inside = place.split(')').next().expect("closed");
            let (left, top) = inside.split_once(' ').expect("two numbers");
            let (left, top): (f64, f64) = (left.parse().unwrap(), top.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&left), "{inside}");
            assert!((TOP..=HEIGHT - BOTTOM).contains(&top), "{inside}");
        }
    }
}
