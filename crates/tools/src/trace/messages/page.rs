//! The page of one message: sender and receiver as two rows of bars over one axis.

use std::fmt::Write;

use dipole_page::{Axis, Heading, Scale, document, escape, section, table};

use super::{Messages, PhaseName, Side, clock_note, signed, summary, title, us};

const WIDTH: f64 = 900.0;
/// Room for the names of the rows.
const LEFT: f64 = 110.0;
const ROW: f64 = 34.0;
const BAR: f64 = 22.0;

/// Returns the whole HTML page.
pub(super) fn html(messages: &Messages) -> String {
    let facts = facts(messages);
    let heading = Heading {
        title: &title(&messages.shown),
        text: "The phases of one message at its sender and its receiver, over one axis of time. Point at a bar \
               for its numbers.",
        facts: &facts,
    };
    document(heading, &body(messages), messages)
}

fn facts(messages: &Messages) -> Vec<(&'static str, String)> {
    let shown = &messages.shown;
    let mut facts = vec![
        ("From", shown.from.clone()),
        ("To", shown.to.clone()),
        ("Message", summary(shown)),
    ];
    facts.extend(clock_note(shown).map(|note| ("Clocks", note)));
    facts
}

/// Everything below the heading.
pub(crate) fn body(messages: &Messages) -> String {
    let shown = &messages.shown;
    let rows: Vec<Vec<String>> = (shown.phases.iter())
        .map(|phase| {
            vec![
                phase.name.name().to_owned(),
                us(phase.from_ns),
                us(phase.to_ns),
                us(phase.ns()),
                phase.name.meaning().to_owned(),
            ]
        })
        .collect();
    let phases = table(&["phase", "from us", "to us", "us", "the message"], &rows);
    let edges: Vec<Vec<String>> = (messages.edges.iter())
        .map(|edge| {
            vec![
                edge.from.clone(),
                edge.to.clone(),
                edge.messages.to_string(),
                us(edge.median_ns),
                us(edge.longest_ns),
            ]
        })
        .collect();
    let edges = table(
        &["from", "to", "messages", "median us", "longest us"],
        &edges,
    );
    section("Phases", &(figure(messages) + &phases)) + &section("All edges", &edges)
}

fn figure(messages: &Messages) -> String {
    let shown = &messages.shown;
    let ends = shown
        .phases
        .iter()
        .flat_map(|phase| [phase.from_ns, phase.to_ns]);
    let Some(axis) = Axis::over(Scale::Linear, ends.map(|ns| signed(ns) / 1e3)) else {
        return String::new();
    };
    let x = |us: f64| LEFT + axis.position(us) * (WIDTH - LEFT - 20.0);
    let height = 3.0 * ROW + 40.0;
    let mut svg = format!(
        "<figure class=\"full\"><svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&title(shown))
    );
    for tick in axis.ticks() {
        let at = x(tick.value);
        let _text = writeln!(
            svg,
            "<g class=\"axes\"><path d=\"M{at:.1} 0V{:.1}\"/>\
             <text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text></g>",
            3.0 * ROW,
            3.0 * ROW + 16.0,
            escape(&tick.label)
        );
    }
    let rows = [
        (Side::Sender, format!("sender {}", shown.from)),
        (Side::Network, "network".to_owned()),
        (Side::Receiver, format!("receiver {}", shown.to)),
    ];
    for ((side, name), row) in rows.into_iter().zip([0.0, 1.0, 2.0]) {
        let top = row * ROW + (ROW - BAR) / 2.0;
        let _text = writeln!(
            svg,
            "<text class=\"key\" style=\"text-anchor: start\" x=\"0\" y=\"{:.1}\">{}</text>",
            top + BAR * 0.7,
            escape(&name)
        );
        for phase in shown.phases.iter().filter(|phase| phase.side == side) {
            let (from, to) = (signed(phase.from_ns) / 1e3, signed(phase.to_ns) / 1e3);
            let (left, right) = (x(from.min(to)), x(from.max(to)));
            let _text = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\">\
                 <title>{}: {} us, {}</title></rect>",
                (right - left).max(1.5),
                colour(phase.name),
                phase.name.name(),
                us(phase.ns()),
                phase.name.meaning()
            );
        }
    }
    let _text = writeln!(
        svg,
        "<text class=\"key\" style=\"text-anchor: end\" x=\"{:.1}\" y=\"{:.1}\">us</text></svg></figure>",
        WIDTH,
        3.0 * ROW + 34.0
    );
    svg
}

fn colour(phase: PhaseName) -> &'static str {
    match phase {
        PhaseName::Credit => "#b07aa1",
        PhaseName::Queue => "#edc948",
        PhaseName::Send => "#4e79a7",
        PhaseName::Repeat => "#e15759",
        PhaseName::Network => "#9c9c9c",
        PhaseName::Arrive => "#59a14f",
        PhaseName::Order => "#f28e2b",
        PhaseName::Unread => "#76b7b2",
    }
}
