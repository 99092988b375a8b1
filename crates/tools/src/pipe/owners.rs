//! Owners of files on another machine: users and groups by name, others by number.

use std::collections::HashMap;

use nix::unistd::{Group, User};
use rustix::fs::{Gid, Uid};

use super::place::Owner;
use super::record::Facts;

/// The name of a user or group of this machine, if it has one.
pub(super) fn name_of(is_group: bool, number: u32) -> Option<String> {
    match is_group {
        true => Group::from_gid(number.into()).ok()?.map(|found| found.name),
        false => User::from_uid(number.into()).ok()?.map(|found| found.name),
    }
}

/// Users and groups of the sender that have the same names here, with their numbers here.
#[derive(Debug, Default)]
pub(super) struct Owners {
    here: HashMap<(bool, u32), u32>,
}

impl Owners {
    /// Records the name of a number of the sender.
    pub(super) fn add(&mut self, is_group: bool, number: u32, name: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let found = match is_group {
            true => Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw())),
            false => User::from_name(name).map(|user| user.map(|user| user.uid.as_raw())),
        };
        if let Ok(Some(here)) = found {
            self.here.insert((is_group, number), here);
        }
    }

    /// The owner of a file here.
    pub(super) fn of(&self, facts: &Facts) -> Option<Owner> {
        let here = |is_group, number| {
            let found = self.here.get(&(is_group, number)).copied();
            // This number means "unchanged" to the kernel.
            Some(found.unwrap_or(number)).filter(|number| *number != u32::MAX)
        };
        Some(Owner {
            user: Uid::from_raw(here(false, facts.user)?),
            group: Gid::from_raw(here(true, facts.group)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_found_by_name_and_otherwise_by_number() {
        let mut owners = Owners::default();
        owners.add(false, 4711, b"root");
        owners.add(true, 4712, b"no such group \xff");
        let facts = Facts {
            mode: 0,
            user: 4711,
            group: 4712,
            modified_s: 0,
            modified_ns: 0,
        };
        let owner = owners.of(&facts).unwrap();
        assert_eq!((owner.user.as_raw(), owner.group.as_raw()), (0, 4712));
        let user = u32::MAX;
        assert!(owners.of(&Facts { user, ..facts }).is_none());
        assert_eq!(name_of(false, 0).as_deref(), Some("root"));
    }
}
