//! Draws a graph like figure 1 of the paper: nodes are boxes, processes are circles inside, endpoints
//! are vertices on the circles, and edges are arrows. Broadcasts and reductions are the arrows of
//! their trees, and their roots have a ring.
//!
//! Nodes are arranged in a grid, and so are the processes of a node. Each endpoint is placed where its
//! circle faces the endpoints it is connected to, at a distance from its neighbours.

use std::collections::HashMap;
use std::f64::consts::{PI, TAU};
use std::fmt::Write;

use dipole_node::Address;

use dipole_page::escape;

use super::collective::Kind;
use super::edge::Edge;
use super::model::Graph;

const LEAST_RADIUS: f64 = 46.0;
/// Length of the circle's rim per endpoint.
const RIM: f64 = 30.0;
const GAP: f64 = 70.0;
const MARGIN: f64 = 30.0;
const TITLE: f64 = 26.0;
/// Height of the legend, and width of its items.
const LEGEND: f64 = 30.0;
const LEGEND_ITEM: f64 = 270.0;
const VERTEX: f64 = 11.0;
/// Iterations in which endpoints move towards those that they are connected to.
const ROUNDS: usize = 4;

#[derive(Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
}

struct Circle {
    centre: Point,
    radius: f64,
}

struct NodeBox {
    node: u32,
    corner: Point,
    width: f64,
    height: f64,
}

#[allow(clippy::cast_precision_loss, reason = "few things are drawn")]
fn float(count: usize) -> f64 {
    count as f64
}

fn columns(count: usize) -> usize {
    (1..)
        .find(|columns| columns * columns >= count)
        .unwrap_or(1)
}

/// Draws the graph as SVG.
pub(super) fn draw(graph: &Graph) -> String {
    let (boxes, circles, width, height) = layout(graph);
    let arrows = arrows(graph);
    let vertices = position_endpoints(graph, &arrows, &circles);
    let rings = [
        ("broadcast", "one copy to each node", roots(graph, true)),
        (
            "reduction",
            "one message from each node",
            roots(graph, false),
        ),
    ];
    let height = height + if graph.groups.is_empty() { 0.0 } else { LEGEND };
    let mut out = header(width, height);
    for node_box in &boxes {
        let Point { x, y } = node_box.corner;
        let _ = writeln!(
            out,
            r#"<rect class="node" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{:.1}" rx="8"/><text x="{:.1}" y="{:.1}">node {}</text>"#,
            node_box.width,
            node_box.height,
            x + 10.0,
            y + 18.0,
            node_box.node
        );
    }
    for (circle, process) in circles.iter().zip(&graph.processes) {
        let Point { x, y } = circle.centre;
        let _ = writeln!(
            out,
            r#"<circle class="process" cx="{x:.1}" cy="{y:.1}" r="{:.1}"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            circle.radius,
            y + 4.0,
            escape(&process.name)
        );
    }
    let at = |address: Address| {
        vertices
            .iter()
            .find(|(found, _)| *found == address)
            .map(|(_, point)| *point)
    };
    for (class, edge) in arrows {
        let name = class.strip_suffix("-edge").unwrap_or(class);
        if let (Some(from), Some(to)) = (at(edge.from), at(edge.to)) {
            let _ = writeln!(
                out,
                r#"<path class="{class}" marker-end="url(#{class}-head)" d="{}"><title>{name} {} to {}</title></path>"#,
                curve(
                    from,
                    to,
                    &obstacles_between(graph, &circles, edge.from, edge.to)
                ),
                edge.from,
                edge.to
            );
        }
    }
    for (address, Point { x, y }) in &vertices {
        let _ = writeln!(
            out,
            r#"<circle class="vertex" cx="{x:.1}" cy="{y:.1}" r="{VERTEX}"><title>{address}</title></circle><text class="id" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            y + 4.0,
            address.endpoint
        );
    }
    draw_rings(&mut out, &rings, height, at);
    out += "</svg>\n";
    out
}

/// The classes of arrows.
const EDGE: &str = "edge";
const BROADCAST: &str = "broadcast-edge";
const REDUCTION: &str = "reduction-edge";

/// The class of an arrow, and its ends.
type Arrow = (&'static str, Edge);

/// All arrows: the edges, and the messages of broadcasts and reductions.
fn arrows(graph: &Graph) -> Vec<Arrow> {
    let edges = graph.edges.iter().map(|edge| (EDGE, *edge));
    let trees = graph.collectives().flat_map(|(group, call)| {
        let class = match call.kind {
            Kind::Broadcast => BROADCAST,
            Kind::Reduce(_) => REDUCTION,
        };
        let tree = call.tree(group).into_iter();
        tree.map(move |edge| (class, edge))
    });
    edges.chain(trees).collect()
}

/// The roots of broadcasts, or of reductions.
fn roots(graph: &Graph, of_broadcasts: bool) -> Vec<Address> {
    let calls = graph.collectives().map(|(_, call)| call);
    let wanted = calls.filter(|call| (call.kind == Kind::Broadcast) == of_broadcasts);
    wanted.map(|call| call.root).collect()
}

/// Opens the picture: its style and the heads of arrows.
fn header(width: f64, height: f64) -> String {
    let head = |class: &str| {
        format!(
            r#"<marker id="{class}-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path class="{class}-head" d="M0 0 10 5 0 10z"/></marker>"#
        )
    };
    let heads: String = [EDGE, BROADCAST, REDUCTION].map(head).concat();
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="directed point graph">
<style>
svg {{ color: #1d2733; background: #ffffff; font: 13px system-ui, sans-serif; }}
.node {{ fill: #7f8c9a22; stroke: #7f8c9a; }} .process {{ fill: #ffffff; stroke: currentColor; stroke-width: 1.5; }}
.vertex {{ fill: #2f6fb2; }} .broadcast, .reduction {{ fill: none; stroke-width: 3; }} .broadcast {{ stroke: #2e8b57; }} .reduction {{ stroke: #8a4fbf; stroke-dasharray: 5 3; }}
.edge, .broadcast-edge, .reduction-edge {{ fill: none; stroke-width: 2; }} .edge {{ stroke: #c4622d; }} .broadcast-edge {{ stroke: #2e8b57; }} .reduction-edge {{ stroke: #8a4fbf; stroke-dasharray: 5 3; }}
.edge-head {{ fill: #c4622d; }} .broadcast-edge-head {{ fill: #2e8b57; }} .reduction-edge-head {{ fill: #8a4fbf; }}
text {{ fill: currentColor; }} .id {{ fill: #ffffff; font-size: 11px; }}
@media (prefers-color-scheme: dark) {{ svg {{ color: #e6e9ee; background: #14181d; }} .process {{ fill: #1d232b; }} .vertex {{ fill: #3d84cf; }} .broadcast, .broadcast-edge {{ stroke: #5cc48d; }} .reduction, .reduction-edge {{ stroke: #b98ae6; }} .edge {{ stroke: #e98a55; }} .edge-head {{ fill: #e98a55; }} .broadcast-edge-head {{ fill: #5cc48d; }} .reduction-edge-head {{ fill: #b98ae6; }} }}
</style>
<defs>{heads}</defs>
"##
    )
}

/// A class of endpoints with a ring: its name, its meaning and its members.
type Ring = (&'static str, &'static str, Vec<Address>);

/// Draws rings around endpoints, and a legend of those that are used.
fn draw_rings(
    out: &mut String,
    rings: &[Ring],
    height: f64,
    at: impl Fn(Address) -> Option<Point>,
) {
    let mut x = MARGIN;
    for (index, (class, what, addresses)) in rings.iter().enumerate() {
        let radius = VERTEX + 3.5 * float(index + 1);
        for address in addresses {
            if let Some(Point { x, y }) = at(*address) {
                let _ = writeln!(
                    out,
                    r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"/>"#
                );
            }
        }
        if !addresses.is_empty() {
            let y = height - MARGIN;
            let _ = writeln!(
                out,
                r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="7"/><text x="{:.1}" y="{y:.1}">{class}: {what}</text>"#,
                x + 7.0,
                y - 4.0,
                x + 20.0
            );
            x += LEGEND_ITEM;
        }
    }
}

/// Arranges nodes in a grid, and processes in a grid inside each.
fn layout(graph: &Graph) -> (Vec<NodeBox>, Vec<Circle>, f64, f64) {
    let radius = |index: usize| {
        let rim = float(graph.processes[index].endpoints.len()) * RIM / TAU;
        rim.max(LEAST_RADIUS)
    };
    let mut boxes: Vec<NodeBox> = Vec::new();
    let mut circles: Vec<Option<Circle>> = graph.processes.iter().map(|_| None).collect();
    let across = columns(graph.nodes.len());
    let (mut y, mut width) = (MARGIN, 0.0_f64);
    for row in graph.nodes.chunks(across) {
        let (mut x, mut deepest) = (MARGIN, 0.0_f64);
        for node in row {
            let inside: Vec<usize> = (0..graph.processes.len())
                .filter(|index| graph.processes[*index].node == *node)
                .collect();
            let largest = inside
                .iter()
                .map(|index| radius(*index))
                .fold(LEAST_RADIUS / 2.0, f64::max);
            let cell = 2.0 * largest + GAP;
            let inner = columns(inside.len().max(1));
            let rows = inside.len().div_ceil(inner).max(1);
            let node_box = NodeBox {
                node: *node,
                corner: Point { x, y },
                width: float(inner) * cell,
                height: float(rows) * cell + TITLE,
            };
            for (slot, index) in inside.into_iter().enumerate() {
                let centre = Point {
                    x: x + (float(slot % inner) + 0.5) * cell,
                    y: y + TITLE + (float(slot / inner) + 0.5) * cell,
                };
                circles[index] = Some(Circle {
                    centre,
                    radius: radius(index),
                });
            }
            x += node_box.width + GAP;
            deepest = deepest.max(node_box.height);
            boxes.push(node_box);
        }
        width = width.max(x - GAP + MARGIN);
        y += deepest + GAP;
    }
    let circles = circles.into_iter().flatten().collect();
    (boxes, circles, width, y - GAP + MARGIN)
}

/// Places the endpoints on the rims of their processes: first facing the circles that they are
/// connected to, then the endpoints themselves, one process after the other, to avoid crossings.
fn position_endpoints(
    graph: &Graph,
    arrows: &[Arrow],
    circles: &[Circle],
) -> Vec<(Address, Point)> {
    let mut at = HashMap::new();
    for (index, _) in circles.iter().enumerate() {
        let centre = |address| Some(circles.get(graph.owner(address)?)?.centre);
        at.extend(position_facing((graph, arrows), circles, index, &centre));
    }
    for _ in 0..ROUNDS {
        for (index, _) in circles.iter().enumerate() {
            let moved = position_facing((graph, arrows), circles, index, &|other| {
                at.get(&other).copied()
            });
            at.extend(moved);
        }
    }
    let all = graph.endpoints().map(|(_, address)| address);
    all.filter_map(|address| Some((address, *at.get(&address)?)))
        .collect()
}

/// Places the endpoints of a process.
fn position_facing(
    (graph, arrows): (&Graph, &[Arrow]),
    circles: &[Circle],
    index: usize,
    at: &dyn Fn(Address) -> Option<Point>,
) -> Vec<(Address, Point)> {
    let (circle, process) = (&circles[index], &graph.processes[index]);
    let count = float(process.endpoints.len());
    let wanted = (process.endpoints.iter().zip(0..)).map(|(endpoint, nth)| {
        let address = Address::new(process.node, *endpoint);
        let fallback = TAU * float(nth) / count + PI / 2.0;
        let angle = facing(arrows, at, circle, address);
        (angle.unwrap_or(fallback), address)
    });
    let mut wanted: Vec<(f64, Address)> = wanted.collect();
    wanted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let angles: Vec<f64> = wanted.iter().map(|one| one.0).collect();
    let angles = spread(&angles, RIM / circle.radius).into_iter();
    let placed = angles.zip(wanted).map(|(angle, (_, address))| {
        let point = Point {
            x: circle.centre.x + circle.radius * angle.cos(),
            y: circle.centre.y + circle.radius * angle.sin(),
        };
        (address, point)
    });
    placed.collect()
}

/// The endpoints at the other ends of an endpoint's arrows.
fn neighbours(arrows: &[Arrow], address: Address) -> impl Iterator<Item = Address> {
    arrows.iter().filter_map(move |(_, edge)| match address {
        _ if edge.from == address => Some(edge.to),
        _ if edge.to == address => Some(edge.from),
        _ => None,
    })
}

/// Direction of the endpoints that an endpoint is connected to.
fn facing(
    arrows: &[Arrow],
    at: &dyn Fn(Address) -> Option<Point>,
    own: &Circle,
    address: Address,
) -> Option<f64> {
    let (mut x, mut y) = (0.0, 0.0);
    let mut any = false;
    for other in neighbours(arrows, address).filter_map(at) {
        let (dx, dy) = (other.x - own.centre.x, other.y - own.centre.y);
        let length = dx.hypot(dy).max(1.0);
        x += dx / length;
        y += dy / length;
        any = true;
    }
    (any && x.hypot(y) > 1e-6).then(|| y.atan2(x).rem_euclid(TAU))
}

/// Moves sorted angles apart until neighbours differ by at least `least`, or evenly if there is not
/// enough room.
fn spread(wanted: &[f64], least: f64) -> Vec<f64> {
    let count = wanted.len();
    if count < 2 {
        return wanted.to_vec();
    }
    let least = least.min(TAU / float(count));
    let mut angles = wanted.to_vec();
    for _ in 0..200 {
        let mut moved = false;
        for index in 0..count {
            let next = (index + 1) % count;
            let around = if next == 0 { TAU } else { 0.0 };
            let short = least - (angles[next] + around - angles[index]);
            if short > 1e-3 {
                angles[index] -= short / 2.0;
                angles[next] += short / 2.0;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    angles
}

/// Circles other than those at both ends of an edge.
fn obstacles_between<'a>(
    graph: &Graph,
    circles: &'a [Circle],
    from: Address,
    to: Address,
) -> Vec<&'a Circle> {
    let ends = [graph.owner(from), graph.owner(to)];
    let others = circles.iter().enumerate();
    others
        .filter(|(index, _)| !ends.contains(&Some(*index)))
        .map(|(_, circle)| circle)
        .collect()
}

/// A slightly bent arrow, so that two edges in opposite directions do not coincide; bent more if that
/// leads it around obstacles.
fn curve(from: Point, to: Point, obstacles: &[&Circle]) -> String {
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length, dy / length);
    let middle = |bend: f64| Point {
        x: f64::midpoint(from.x, to.x) - uy * bend,
        y: f64::midpoint(from.y, to.y) + ux * bend,
    };
    let slight = (length * 0.12).min(40.0);
    let wider = (2..10).flat_map(|times| {
        let bend = length * 0.12 * f64::from(times);
        [bend, -bend]
    });
    let is_free = |bend: &f64| {
        let through = middle(*bend);
        let points = (0..=24).map(|step| {
            let part = f64::from(step) / 24.0;
            let rest = 1.0 - part;
            Point {
                x: rest * rest * from.x + 2.0 * rest * part * through.x + part * part * to.x,
                y: rest * rest * from.y + 2.0 * rest * part * through.y + part * part * to.y,
            }
        });
        points.into_iter().all(|point| {
            obstacles.iter().all(|circle| {
                let (x, y) = (point.x - circle.centre.x, point.y - circle.centre.y);
                x.hypot(y) > circle.radius + VERTEX
            })
        })
    };
    let bend = [slight, -slight]
        .into_iter()
        .chain(wider)
        .find(is_free)
        .unwrap_or(slight);
    let middle = middle(bend);
    // Starts and ends at the rims of the vertices.
    let shorten = |end: Point| {
        let (ex, ey) = (middle.x - end.x, middle.y - end.y);
        let distance = ex.hypot(ey).max(1.0);
        let part = (VERTEX + 1.0) / distance;
        Point {
            x: end.x + ex * part,
            y: end.y + ey * part,
        }
    };
    let (start, end) = (shorten(from), shorten(to));
    format!(
        "M{:.1} {:.1} Q{:.1} {:.1} {:.1} {:.1}",
        start.x, start.y, middle.x, middle.y, end.x, end.y
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_process_endpoint_and_edge_is_in_the_picture() {
        let text = include_str!("../../../../examples/graphs/paper.toml");
        let graph = Graph::parse(Path::new("paper.toml"), text).expect("it is right");
        let picture = draw(&graph);
        assert_eq!(picture.matches("class=\"node\"").count(), 4);
        assert_eq!(picture.matches("class=\"process\"").count(), 3);
        assert_eq!(picture.matches("class=\"vertex\"").count(), 9);
        assert_eq!(picture.matches("class=\"edge\"").count(), 4);
        // Figure 1 of the paper has neither: endpoint 2 is used for two channels.
        for class in ["broadcast", "reduction", "broadcast-edge", "reduction-edge"] {
            assert!(!picture.contains(&format!("class=\"{class}\"")), "{class}");
        }
    }

    #[test]
    fn broadcasts_and_reductions_are_drawn_as_their_trees() {
        let text = include_str!("../../../../examples/graphs/tree.toml");
        let graph = Graph::parse(Path::new("tree.toml"), text).expect("it is right");
        let picture = draw(&graph);
        for (class, count) in [
            // One ring for the root and one in the legend.
            ("broadcast", 2),
            ("reduction", 2),
            ("broadcast-edge", 6),
            ("reduction-edge", 6),
            ("edge", 0),
        ] {
            let found = picture.matches(&format!("class=\"{class}\"")).count();
            assert_eq!(found, count, "{class}");
        }
        let from_root = picture.matches("<title>broadcast 1:1 to").count();
        assert_eq!(from_root, 2, "one arrow to each other node");
    }

    #[test]
    fn endpoints_are_in_the_order_of_those_that_they_are_joined_to() {
        let text = include_str!("../../../../examples/graphs/paper.toml");
        let graph = Graph::parse(Path::new("paper.toml"), text).expect("it is right");
        let (_, circles, ..) = layout(&graph);
        let at: HashMap<Address, Point> = position_endpoints(&graph, &arrows(&graph), &circles)
            .into_iter()
            .collect();
        let [first, last, five, six] = [1, 3, 5, 6].map(|dpid| at[&Address::new(1, dpid)].y);
        assert_eq!(
            first < last,
            five < six,
            "the edges 1-5 and 3-6 do not cross"
        );
    }

    #[test]
    fn endpoints_of_a_process_are_kept_apart() {
        let angles = spread(&[1.0, 1.0, 1.01, 6.2], 0.5);
        for pair in angles.windows(2) {
            assert!(pair[1] - pair[0] > 0.49, "{angles:?}");
        }
        assert!(angles[0] + TAU - angles[3] > 0.49, "{angles:?}");
    }
}
