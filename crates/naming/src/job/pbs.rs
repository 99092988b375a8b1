//! Nodes of a PBS job (`OpenPBS`, PBS Professional, Torque): a file with a line for each slot.

use std::path::Path;

use super::allocation::{Listed, Starter, counted, own_by_name};
use super::{JobError, Lookup};
use crate::lines;

const FILE: &str = "PBS_NODEFILE";

pub(super) fn allocation(get: Lookup<'_>) -> Result<Option<Listed>, JobError> {
    let (Some(_), Some(file)) = (get("PBS_JOBID"), get(FILE)) else {
        return Ok(None);
    };
    let nodes = slots_of_file(FILE, &file)?;
    Ok(Some(Listed {
        own: own_by_name(&nodes),
        nodes,
        starter: Starter::Ssh,
    }))
}

/// The nodes of a file with the name of a node for each slot.
pub(super) fn slots_of_file(
    variable: &'static str,
    file: &str,
) -> Result<Vec<(String, u32)>, JobError> {
    let bad = |expected: String| JobError::Bad {
        variable,
        found: lines::excerpt(file),
        expected,
    };
    let text = lines::read("list of nodes", Path::new(file));
    let text = text.map_err(|error| bad(format!("a file that can be read: {error}")))?;
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
    counted(names).ok_or_else(|| bad("a file with the name of a node in each line".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_file_is_a_slot() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        let file = file.to_str().unwrap();
        let with = |given: &'static [&'static str]| {
            let file = file.to_owned();
            move |name: &str| match name {
                FILE if given.contains(&FILE) => Some(file.clone()),
                "PBS_JOBID" if given.contains(&"PBS_JOBID") => Some("7.server".to_owned()),
                _ => None,
            }
        };
        let get = with(&[FILE, "PBS_JOBID"]);
        let error = allocation(&get).unwrap_err().to_string();
        assert!(error.contains("PBS_NODEFILE is `"), "{error}");
        std::fs::write(file, "a.b\na.b\n\nc\n").unwrap();
        let found = allocation(&get).unwrap().unwrap();
        assert_eq!(found.nodes, [("a.b".to_owned(), 2), ("c".to_owned(), 1)]);
        assert_eq!(found.starter, Starter::Ssh);
        assert_eq!(allocation(&with(&[FILE])).unwrap(), None);
        std::fs::write(file, "\n").unwrap();
        assert!(allocation(&get).is_err());
    }
}
