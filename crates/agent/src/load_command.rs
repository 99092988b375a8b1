//! `dipole load`: the table of loads as this node's agent knows it.

use std::io::Write;

use clap::Args;
use dipole_launch::load::NodeLoad;
use dipole_node::NodeId;

use super::{open_node, status};

/// Show the load of all nodes, as this node's agent knows it
///
/// One line per node, best first: five-minute load average, cores, speed of a core as measured by
/// its agent, idle speed, memory, logged-in users, jobs started by agents, and the age of the line.
/// The idle speed is (cores - load) * speed; `dipole run --hosts agent` places ranks on the nodes
/// with the most of it. Agents exchange their tables every three to five minutes, so lines about
/// other nodes are up to some minutes old.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID")]
    nid: Option<NodeId>,
}

/// Prints the table.
///
/// # Errors
/// The agent does not reply, or writing to `out` failed.
pub fn load(
    args: &LoadArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let (_, registry) = open_node(args.nid)?;
    let status = status::request(&registry)?;
    let mut loads = status.load;
    loads.sort_by(|one, other| other.priority().total_cmp(&one.priority()));
    if json {
        for load in &loads {
            writeln!(out, "{}", serde_json::to_string(load)?)?;
        }
        return Ok(());
    }
    writeln!(out, "{}", table(&loads))?;
    Ok(())
}

fn table(loads: &[NodeLoad]) -> comfy_table::Table {
    let mut table = status::titled([
        "node",
        "load",
        "cores",
        "Mflop/s",
        "idle Mflop/s",
        "memory GiB",
        "available",
        "users",
        "jobs",
        "age s",
    ]);
    let gibibytes = |mib: u32| format!("{:.1}", f64::from(mib) / 1024.0);
    for load in loads {
        table.add_row([
            load.node.to_string(),
            format!("{:.2}", load.load),
            load.cores.to_string(),
            load.speed.to_string(),
            format!("{:.0}", load.idle_speed()),
            gibibytes(load.memory_mib),
            gibibytes(load.available_mib),
            load.users.to_string(),
            load.jobs.to_string(),
            format!("{:.0}", load.age_s),
        ]);
    }
    table
}
