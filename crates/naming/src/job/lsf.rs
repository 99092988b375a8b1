//! Nodes of an LSF job: `LSB_DJOB_HOSTFILE`, a file with a line for each slot, or `LSB_MCPU_HOSTS`, as
//! in `one 4 two 2`.

use super::allocation::{Listed, Starter, own_by_name};
use super::hostlist::MAX_NAMES;
use super::pbs::slots_of_file;
use super::{JobError, Lookup};
use crate::hosts::MAX_SLOTS;
use crate::lines;

const FILE: &str = "LSB_DJOB_HOSTFILE";
const LIST: &str = "LSB_MCPU_HOSTS";

pub(super) fn allocation(get: Lookup<'_>) -> Result<Option<Listed>, JobError> {
    if get("LSB_JOBID").is_none() {
        return Ok(None);
    }
    let nodes = match (get(FILE), get(LIST)) {
        (Some(file), _) => slots_of_file(FILE, &file)?,
        (None, Some(list)) => parse(&list).ok_or_else(|| JobError::Bad {
            variable: LIST,
            found: lines::excerpt(&list),
            expected: "names of nodes with numbers of slots as in `one 4 two 2`".to_owned(),
        })?,
        (None, None) => return Ok(None),
    };
    Ok(Some(Listed {
        own: own_by_name(&nodes),
        nodes,
        starter: Starter::Blaunch,
    }))
}

fn parse(list: &str) -> Option<Vec<(String, u32)>> {
    let mut words = list.split_whitespace();
    let mut nodes = Vec::new();
    while let Some(name) = words.next() {
        let slots = words.next()?.parse().ok();
        let slots = slots.filter(|slots| (1..=MAX_SLOTS).contains(slots))?;
        nodes.push((name.to_owned(), slots));
    }
    (!nodes.is_empty() && nodes.len() <= MAX_NAMES).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &'static str) -> Result<Option<Listed>, JobError> {
        allocation(&move |name: &str| match name {
            "LSB_JOBID" => Some("7".to_owned()),
            LIST => Some(list.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn nodes_and_slots_alternate() {
        let listed = found("one 4  two 2").unwrap().unwrap();
        let expected = [("one".to_owned(), 4), ("two".to_owned(), 2)];
        assert_eq!(
            (listed.nodes, listed.starter),
            (expected.into(), Starter::Blaunch)
        );
        for wrong in ["one", "one 0", "one x", "one 4 two", "one 65537", " "] {
            let error = found(wrong).unwrap_err().to_string();
            assert!(error.contains("LSB_MCPU_HOSTS is `"), "{error}");
        }
        assert_eq!(allocation(&|_| None).unwrap(), None);
    }
}
