//! Draws `dipole top`: processes, the edges of the selected one, and traced ranks.

use dipole_launch::load::NodeLoad;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};

use super::sample::{Edge, Now, Process, Rank};

/// A column of a table: its heading, least width, and rank. If there is little room, columns with a
/// low rank are shown.
pub(super) struct Column(&'static str, u16, u16);

pub(super) const COLUMNS: [Column; 11] = [
    Column("pid", 7, 0),
    Column("command", 10, 1),
    Column("endpoints", 12, 8),
    Column("peers", 5, 9),
    Column("msg/s out", 9, 2),
    Column("msg/s in", 8, 3),
    Column("MB/s out", 8, 4),
    Column("MB/s in", 7, 5),
    Column("repeats/s", 9, 7),
    Column("unread kB", 9, 6),
    Column("unexpected kB", 13, 10),
];
pub(super) const EDGE_COLUMNS: [Column; 6] = [
    Column("from", 16, 3),
    Column("to", 16, 0),
    Column("link", 8, 5),
    Column("messages", 12, 4),
    Column("msg/s", 10, 1),
    Column("MB/s", 8, 2),
];
pub(super) const RANK_COLUMNS: [Column; 7] = [
    Column("rank", 6, 0),
    Column("host", 13, 4),
    Column("supersteps", 10, 5),
    Column("per s", 8, 2),
    Column("computes", 8, 1),
    Column("waits for", 10, 3),
    Column("at", 14, 6),
];
pub(super) const NODE_COLUMNS: [Column; 8] = [
    Column("node", 6, 0),
    Column("load", 8, 1),
    Column("cores", 6, 2),
    Column("Mflop/s", 9, 5),
    Column("idle Mflop/s", 13, 3),
    Column("users", 6, 6),
    Column("jobs", 6, 4),
    Column("age s", 8, 7),
];

pub(super) fn headings<const N: usize>(columns: &[Column; N]) -> [&'static str; N] {
    columns.each_ref().map(|column| column.0)
}

/// Columns that fit into this width, in order: those of the lowest rank. The rest of the width goes
/// to the columns of text.
fn chosen_columns<const N: usize>(columns: &[Column; N], width: u16) -> Vec<(usize, u16)> {
    let mut by_rank: Vec<usize> = (0..N).collect();
    by_rank.sort_by_key(|at| columns[*at].2);
    let mut left = width;
    let mut chosen: Vec<(usize, u16)> = Vec::new();
    for at in by_rank {
        let needed = columns[at].1 + u16::from(!chosen.is_empty());
        let Some(rest) = left.checked_sub(needed) else {
            break;
        };
        left = rest;
        chosen.push((at, columns[at].1));
    }
    chosen.sort_unstable();
    let is_text = |at: usize| ["command", "endpoints", "at"].contains(&columns[at].0);
    let texts = chosen.iter().filter(|(at, _)| is_text(*at)).count();
    let share = left / u16::try_from(texts.max(1)).unwrap_or(1);
    for (at, width) in &mut chosen {
        if is_text(*at) {
            *width += share.min(50);
        }
    }
    chosen
}

/// Column by which processes are sorted, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Messages,
    Bytes,
    Repeats,
    Unread,
    Pid,
}

impl Order {
    pub(super) fn next(self) -> Order {
        match self {
            Order::Messages => Order::Bytes,
            Order::Bytes => Order::Repeats,
            Order::Repeats => Order::Unread,
            Order::Unread => Order::Pid,
            Order::Pid => Order::Messages,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Messages => "messages",
            Order::Bytes => "bytes",
            Order::Repeats => "repeats/s",
            Order::Unread => "unread",
            Order::Pid => "pid",
        }
    }

    pub(super) fn sort(self, now: &mut Now) {
        now.processes.sort_by(|one, other| {
            let by = |of: fn(&Process) -> f64| of(other).total_cmp(&of(one));
            let order = match self {
                Order::Messages => {
                    by(|process| process.messages_out_per_s + process.messages_in_per_s)
                }
                Order::Bytes => by(|process| process.bytes_out_per_s + process.bytes_in_per_s),
                Order::Repeats => by(|process| process.repeats_per_s),
                Order::Unread => other.unread_bytes.cmp(&one.unread_bytes),
                Order::Pid => std::cmp::Ordering::Equal,
            };
            order.then(one.pid.cmp(&other.pid))
        });
    }
}

/// State of the view.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) order: Order,
    pub(super) is_paused: bool,
    /// The selected process, by its pid and last position, which changes as others overtake it.
    chosen: Option<u32>,
    at: usize,
    state: TableState,
}

impl View {
    /// Moves the selection by this number of rows.
    pub(super) fn step(&mut self, by: isize) {
        self.at = self.at.saturating_add_signed(by);
        self.chosen = None;
    }

    /// Finds the selected process again; if it has ended, the one at its position.
    pub(super) fn keep_within(&mut self, now: &Now) {
        let chosen = self.chosen.and_then(|pid| {
            let mut processes = now.processes.iter();
            processes.position(|process| process.pid == pid)
        });
        let last = now.processes.len().saturating_sub(1);
        self.at = chosen.unwrap_or(self.at).min(last);
        self.chosen = now.processes.get(self.at).map(|process| process.pid);
        self.state.select(self.chosen.map(|_| self.at));
    }

    pub(super) fn draw(&mut self, now: &Now, frame: &mut Frame<'_>) {
        let (ranks, nodes) = (height(now.ranks.len(), 12), height(now.nodes.len(), 8));
        let parts = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(ranks),
            Constraint::Length(nodes),
            Constraint::Max(8),
            Constraint::Length(1),
        ]);
        let [head, processes, traced, loads, edges, keys] = parts.areas(frame.area());
        self.head(now, frame, head);
        let rows = now.processes.iter().map(cells);
        let title = " processes ".to_owned();
        let table = titled(title, &COLUMNS, processes.width, rows)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, processes, &mut self.state);
        if ranks > 0 {
            let rows = now.ranks.iter().map(rank_cells);
            let table = titled(" ranks ".to_owned(), &RANK_COLUMNS, traced.width, rows);
            frame.render_widget(table, traced);
        }
        if nodes > 0 {
            let rows = now.nodes.iter().map(node_cells);
            let table = titled(" nodes ".to_owned(), &NODE_COLUMNS, loads.width, rows);
            frame.render_widget(table, loads);
        }
        self.chosen(now, frame, edges);
        let words = match keys.width {
            0..64 => "arrows choose, s sorts, p pauses, q ends",
            _ => "arrows choose   s sorts by another column   p pauses   q ends",
        };
        frame.render_widget(
            Line::from(words).style(Style::new().add_modifier(Modifier::DIM)),
            keys,
        );
    }

    fn head(&self, now: &Now, frame: &mut Frame<'_>, area: Rect) {
        // The sum of an empty list would be -0.
        let add = |one: f64, other: f64| one + other;
        let sum = |of: fn(&Process) -> f64| now.processes.iter().map(of).fold(0.0, add);
        let text = format!(
            "dipole top: {} processes, {:.0} msg/s out, {:.0} in, {:.1} MB/s out, {:.1} in, by {}{}",
            now.processes.len(),
            sum(|process| process.messages_out_per_s),
            sum(|process| process.messages_in_per_s),
            sum(|process| process.bytes_out_per_s) / 1e6,
            sum(|process| process.bytes_in_per_s) / 1e6,
            self.order.name(),
            if self.is_paused { ", paused" } else { "" }
        );
        let line = Line::from(text).style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_widget(line, area);
    }

    /// Destinations of the selected process, and its links.
    fn chosen(&self, now: &Now, frame: &mut Frame<'_>, area: Rect) {
        let Some(process) = now.processes.get(self.at) else {
            let text = "no process uses the runtime directory; set DIPOLE_RUNTIME_DIR for another";
            frame.render_widget(Paragraph::new(text).block(Block::bordered()), area);
            return;
        };
        let links = process.links.iter();
        let links: Vec<String> = links
            .map(|(link, peers)| format!("{peers} over {link}"))
            .collect();
        let why = match process.why.first() {
            Some(why) => format!("; not better, since {why}"),
            None => String::new(),
        };
        let links = match links.is_empty() {
            true => "no peers".to_owned(),
            false => format!("peers {}", links.join(", ")),
        };
        let title = format!(
            " process {} on node {}: {links}{why} ",
            process.pid, process.node
        );
        let rows = process.edges.iter().map(edge_cells);
        let table = titled(title, &EDGE_COLUMNS, area.width, rows);
        frame.render_widget(table, area);
    }
}

/// Lines of a table with a frame and headings: none without rows, and no more than `most`.
fn height(rows: usize, most: u16) -> u16 {
    match rows {
        0 => 0,
        rows => u16::try_from(rows + 3).unwrap_or(u16::MAX).min(most),
    }
}

/// A table with those columns that fit into a frame of this width.
fn titled<const N: usize>(
    title: String,
    columns: &[Column; N],
    width: u16,
    rows: impl Iterator<Item = [String; N]>,
) -> Table<'static> {
    let chosen = chosen_columns(columns, width.saturating_sub(2));
    let row = |cells: [String; N]| {
        let shown = chosen.iter().map(|(at, _)| cells[*at].clone());
        Row::new(shown.collect::<Vec<_>>())
    };
    let head = row(headings(columns).map(str::to_owned));
    let head = head.style(Style::new().add_modifier(Modifier::BOLD));
    let rows: Vec<Row<'static>> = rows.map(row).collect();
    Table::new(
        rows,
        chosen.iter().map(|(_, width)| Constraint::Length(*width)),
    )
    .header(head)
    .block(Block::bordered().title(title))
}

#[allow(clippy::cast_precision_loss, reason = "for a reader")]
pub(super) fn cells(process: &Process) -> [String; 11] {
    [
        process.pid.to_string(),
        process.command.chars().take(60).collect(),
        process.endpoints.join(" "),
        process.peers.to_string(),
        format!("{:.0}", process.messages_out_per_s),
        format!("{:.0}", process.messages_in_per_s),
        format!("{:.1}", process.bytes_out_per_s / 1e6),
        format!("{:.1}", process.bytes_in_per_s / 1e6),
        format!("{:.1}", process.repeats_per_s),
        format!("{:.1}", process.unread_bytes as f64 / 1e3),
        format!("{:.1}", process.unexpected_bytes as f64 / 1e3),
    ]
}

pub(super) fn edge_cells(edge: &Edge) -> [String; 6] {
    [
        edge.from.clone(),
        edge.to.clone(),
        edge.link.to_owned(),
        edge.messages.to_string(),
        format!("{:.0}", edge.messages_per_s),
        format!("{:.1}", edge.bytes_per_s / 1e6),
    ]
}

pub(super) fn rank_cells(rank: &Rank) -> [String; 7] {
    [
        rank.rank.to_string(),
        rank.host.chars().take(16).collect(),
        rank.supersteps.to_string(),
        format!("{:.0}", rank.supersteps_per_s),
        format!("{:.0} %", 100.0 * rank.computes),
        rank.waits_for
            .map_or("-".to_owned(), |other| format!("rank {other}")),
        rank.call.clone(),
    ]
}

pub(super) fn node_cells(node: &NodeLoad) -> [String; 8] {
    [
        node.node.to_string(),
        format!("{:.2}", node.load),
        node.cores.to_string(),
        node.speed.to_string(),
        format!("{:.0}", node.idle_speed()),
        node.users.to_string(),
        node.jobs.to_string(),
        format!("{:.0}", node.age_s),
    ]
}

#[cfg(test)]
mod tests {
    use dipole_node::NodeId;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn now(count: u32) -> Now {
        let process = |pid: u32| Process {
            node: 1,
            pid,
            command: format!("program-{pid}"),
            messages_out_per_s: f64::from(pid),
            repeats_per_s: f64::from(1000 - pid),
            why: vec!["DIPOLE_LINK is set".to_owned()],
            links: [("udp".to_owned(), 3)].into(),
            edges: vec![Edge {
                from: "1:7".to_owned(),
                to: format!("2:{pid}"),
                link: "packets",
                ..Edge::default()
            }],
            ..Process::default()
        };
        Now {
            processes: (1..=count).map(process).collect(),
            ranks: vec![Rank {
                rank: 3,
                call: "lu.c:30".to_owned(),
                waits_for: Some(1),
                ..Rank::default()
            }],
            nodes: vec![NodeLoad {
                node: NodeId(4),
                load: 0.5,
                cores: 8,
                speed: 2000,
                memory_mib: 16_000,
                available_mib: 9000,
                users: 1,
                jobs: 2,
                age_s: 77.0,
            }],
        }
    }

    fn drawn(view: &mut View, now: &Now, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
        view.keep_within(now);
        terminal
            .draw(|frame| view.draw(now, frame))
            .expect("memory");
        terminal.backend().to_string()
    }

    #[test]
    fn processes_ranks_and_the_edges_of_the_chosen_process_are_shown() {
        let (mut view, mut now) = (View::default(), now(3));
        view.order.sort(&mut now);
        let text = drawn(&mut view, &now, 110, 30);
        for part in [
            "3 processes",
            "program-3",
            "lu.c:30",
            "rank 1",
            "2:3",
            "15000",
            "3 over udp; not better, since DIPOLE_LINK",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        // The selection follows the process when others overtake it.
        view.order = Order::Repeats;
        view.order.sort(&mut now);
        assert!(drawn(&mut view, &now, 110, 30).contains("2:3"));
        view.step(-1);
        assert!(drawn(&mut view, &now, 110, 30).contains("2:2"));
    }

    #[test]
    fn columns_are_chosen_by_width_and_whole_at_40_80_and_200() {
        let (mut view, now) = (View::default(), now(3));
        for (width, shown, hidden) in [
            (
                40,
                ["pid", "command", "msg/s out", "msg/s in"],
                Some("MB/s out"),
            ),
            (
                80,
                ["MB/s out", "MB/s in", "unread kB", "repeats/s"],
                Some("peers"),
            ),
            (200, ["peers", "endpoints", "unexpected kB", "at"], None),
        ] {
            let text = drawn(&mut view, &now, width, 30);
            let headings: Vec<&str> = text.lines().collect();
            let processes = headings
                .iter()
                .find(|line| line.contains("pid"))
                .expect("shown");
            for part in shown {
                assert!(text.contains(part), "{part} at {width} in\n{text}");
            }
            if let Some(part) = hidden {
                assert!(!processes.contains(part), "{part} at {width} in\n{text}");
            }
            for part in ["program-1", "2:1", "rank 1", "q ends"] {
                assert!(text.contains(part), "{part} at {width} in\n{text}");
            }
        }
    }

    #[test]
    fn many_processes_scroll_and_small_terminals_do_no_harm() {
        let (mut view, now) = (View::default(), now(500));
        assert!(!drawn(&mut view, &now, 100, 24).contains("program-400"));
        view.step(399);
        assert!(drawn(&mut view, &now, 100, 24).contains("program-400"));
        view.step(isize::MAX);
        assert!(drawn(&mut view, &now, 100, 24).contains("program-500"));
        for (width, height) in [(1, 1), (20, 3), (80, 5), (300, 100)] {
            drawn(&mut view, &now, width, height);
        }
        let empty = drawn(&mut view, &Now::default(), 80, 24);
        assert!(empty.contains("0 processes, 0 msg/s out, 0 in"), "{empty}");
    }
}
