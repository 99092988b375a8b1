//! The crates that are compiled into the wheel, as a CycloneDX document (PEP 770).

use serde_json::json;

use crate::command::{Failure, cargo, output_of};
use crate::install::INSTALLED;
use crate::target::Target;

/// Name, version and licence of every crate in the installed programs, as JSON.
pub(super) fn bill_of_materials(target: &Target) -> Result<String, Failure> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", "{p}|{l}", "-p", "dipole-python"]);
    tree.args(INSTALLED.map(|package| ["-p", package]).as_flattened());
    target.add_to(&mut tree);
    let listed =
        output_of(&mut tree).ok_or_else(|| Failure::Text("cargo tree failed".to_owned()))?;
    let mut lines: Vec<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    let mut components: Vec<_> = lines.into_iter().filter_map(component).collect();
    // Repeated crates are marked with a star.
    components.dedup();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": {
            "type": "library", "name": "dipole", "version": env!("CARGO_PKG_VERSION"),
        } },
        "components": components,
    });
    Ok(format!("{bill:#}\n"))
}

/// A component from a line `name vVERSION (...)|LICENCE (*)`.
fn component(line: &str) -> Option<serde_json::Value> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let licence = licence.trim_end_matches("(*)").trim();
    Some(json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{ "expression": licence }],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_tree_becomes_a_component() {
        let found = component("libc v0.2.1 (proc-macro)|MIT OR Apache-2.0 (*)").unwrap();
        assert_eq!(found["purl"], "pkg:cargo/libc@0.2.1");
        assert_eq!(found["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert!(component("nonsense").is_none());
    }
}
