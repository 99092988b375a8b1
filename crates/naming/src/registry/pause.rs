//! Finds out whether a process cannot run: it was stopped by a signal or a debugger, or its cgroup is
//! frozen, as by `docker pause`.

use std::fs::read_to_string;
use std::path::Path;

/// Where cgroup file systems are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// True if the process is stopped or frozen, or if its state cannot be read.
pub(super) fn is_paused(pid: u32) -> bool {
    let Ok(stat) = read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    let groups = read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    is_stopped(&stat) || is_frozen(&groups, Path::new(CGROUPS))
}

/// True if `/proc/PID/stat` shows a stopped process.
fn is_stopped(stat: &str) -> bool {
    // The second field is the program's name in brackets and may contain brackets.
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// True if one of the groups in `/proc/PID/cgroup` is frozen. Groups outside the caller's view do not
/// count.
fn is_frozen(groups: &str, root: &Path) -> bool {
    groups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            return false;
        };
        let group = group.trim_start_matches('/');
        if controllers.is_empty() {
            let events = root.join(group).join("cgroup.events");
            return read_to_string(events)
                .is_ok_and(|events| events.lines().any(|line| line == "frozen 1"));
        }
        // Version 1 of cgroups.
        controllers.split(',').any(|one| one == "freezer")
            && read_to_string(root.join("freezer").join(group).join("freezer.state"))
                .is_ok_and(|state| state.trim() != "THAWED")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_recognised_whatever_its_name() {
        assert!(is_stopped("7 (a) S 1) T 1 7 7"));
        assert!(is_stopped("7 (cat) t 1 7 7"));
        assert!(!is_stopped("7 (T) T) S 1 7 7"));
        assert!(!is_paused(std::process::id()));
        assert!(is_paused(u32::MAX));
    }

    #[test]
    fn a_process_in_a_frozen_group_is_recognised_with_both_versions_of_cgroups() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("a/cgroup.events", "populated 1\nfrozen 0\n");
        put("b/c/cgroup.events", "populated 1\nfrozen 1\n");
        put("freezer/d/freezer.state", "FROZEN\n");
        put("freezer/e/freezer.state", "THAWED\n");
        let is_frozen = |groups: &str| is_frozen(groups, root.path());
        assert!(!is_frozen("0::/a\n"));
        assert!(is_frozen("0::/b/c\n"));
        assert!(is_frozen("4:cpu:/x\n3:freezer:/d\n"));
        assert!(!is_frozen("3:freezer:/e\n0::/missing\n"));
        assert!(!is_frozen(""));
    }
}
