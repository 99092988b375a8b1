//! Kernel and processor: version, clock source, frequency, cores, capabilities.

use std::fs;

use rustix::thread::CapabilitySet;

use super::finding::Finding;

pub(super) fn examine() -> Vec<Finding> {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let usable = dipole_link::cpu::usable_cores().map_or(0, |cores| cores.len());
    vec![
        kernel(&release),
        clock(read(CLOCK).as_deref()),
        governor(&governors()),
        cores(usable),
        capabilities(effective_capabilities()),
    ]
}

const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// The contents of a one-line file; `None` if it does not exist or is empty.
pub(super) fn read(path: impl AsRef<std::path::Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn kernel(release: &str) -> Finding {
    const NAME: &str = "kernel";
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let mut part = || parts.next().and_then(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (part(), part()) else {
        return Finding::unknown(NAME, format!("the kernel calls itself {release}"), "");
    };
    let fact = |what: &str| format!("Linux {release}: {what}");
    match (major, minor) {
        (..=3, _) | (4, ..=13) => Finding::broken(
            NAME,
            fact("older than 4.14, which is the oldest that works"),
            "install a newer kernel",
        ),
        (4, _) => Finding::slow(
            NAME,
            fact("before 5.1 runs of packets are not joined, and shared memory cannot be sealed"),
            "install a newer kernel",
        ),
        (5, 0) => Finding::slow(
            NAME,
            fact("before 5.1 shared memory cannot be sealed"),
            "install a newer kernel",
        ),
        _ => Finding::good(NAME, fact("has all that is used")),
    }
}

fn clock(source: Option<&str>) -> Finding {
    const NAME: &str = "clock";
    const FAST: [&str; 5] = [
        "tsc",
        "kvm-clock",
        "hyperv_clocksource_tsc_page",
        "arch_sys_counter",
        "timebase",
    ];
    match source {
        None => Finding::unknown(NAME, "the kernel reports no clock source", ""),
        Some(source) if FAST.contains(&source) => {
            Finding::good(NAME, format!("{source}: read without a system call"))
        }
        Some(source @ ("hpet" | "acpi_pm" | "xen" | "jiffies" | "refined-jiffies")) => {
            Finding::slow(
                NAME,
                format!("{source}: every look at the time is a system call of a microsecond"),
                format!(
                    "`dmesg | grep -i clocksource` shows why it is not tsc; try `echo tsc > {CLOCK}`"
                ),
            )
        }
        Some(source) => Finding::unknown(NAME, format!("{source}: not known to be fast"), ""),
    }
}

/// The frequency governors of all processors.
fn governors() -> Vec<String> {
    let Ok(entries) = fs::read_dir(PROCESSORS) else {
        return Vec::new();
    };
    let files = entries
        .flatten()
        .map(|entry| entry.path().join("cpufreq/scaling_governor"));
    let mut found: Vec<String> = files.filter_map(read).collect();
    found.sort();
    found.dedup();
    found
}

fn governor(found: &[String]) -> Finding {
    const NAME: &str = "frequency";
    if found.is_empty() {
        return Finding::good(NAME, "not governed by this kernel");
    }
    if found.iter().all(|one| one == "performance") {
        return Finding::good(NAME, "governor performance: cores are always fast");
    }
    Finding::slow(
        NAME,
        format!(
            "governor {}: a core that slept is slow at first",
            found.join(", ")
        ),
        "`cpupower frequency-set -g performance`, where latency matters more than power",
    )
}

fn cores(usable: usize) -> Finding {
    const NAME: &str = "cores";
    match usable {
        0 => Finding::unknown(
            NAME,
            "the kernel does not report how many cores may be used",
            "",
        ),
        1 => Finding::slow(
            NAME,
            "1 core may be used: the process that waits and the one that works take turns",
            "give the machine or the container more cores (`taskset -p $$` shows which may be \
             used)",
        ),
        _ => Finding::good(NAME, format!("{usable} cores may be used")),
    }
}

/// The effective capabilities of this process.
fn effective_capabilities() -> Option<CapabilitySet> {
    let sets = rustix::thread::capabilities(None).ok()?;
    Some(sets.effective)
}

/// True if this process has a capability.
pub(super) fn may(capability: CapabilitySet) -> bool {
    effective_capabilities().is_some_and(|held| held.contains(capability))
}

fn capabilities(held: Option<CapabilitySet>) -> Finding {
    const NAME: &str = "capabilities";
    const USES: [(CapabilitySet, &str, &str); 5] = [
        (
            CapabilitySet::NET_ADMIN,
            "CAP_NET_ADMIN",
            "socket queues beyond the system's limit",
        ),
        (
            CapabilitySet::SYS_PTRACE,
            "CAP_SYS_PTRACE",
            "one-copy reads regardless of Yama",
        ),
        (
            CapabilitySet::SYS_ADMIN,
            "CAP_SYS_ADMIN",
            "namespaces for `dipole bench`",
        ),
        (
            CapabilitySet::NET_RAW,
            "CAP_NET_RAW",
            "raw frames of the bpf link",
        ),
        (CapabilitySet::BPF, "CAP_BPF", "the bpf link"),
    ];
    let Some(held) = held else {
        return Finding::unknown(NAME, "the kernel reports no capabilities", "");
    };
    let (has, lacks): (Vec<_>, Vec<_>) = USES.iter().partition(|(one, ..)| held.contains(*one));
    let names: Vec<&str> = has.iter().map(|(_, name, _)| *name).collect();
    let fact = match &names[..] {
        [] => "none; none is needed".to_owned(),
        _ => format!("{}; none is needed", names.join(", ")),
    };
    let missing: Vec<String> = (lacks.iter())
        .map(|(_, name, adds)| format!("{name}: {adds}"))
        .collect();
    let finding = Finding::good(NAME, fact);
    match missing.is_empty() {
        true => finding,
        false => finding.advise(format!(
            "nothing needs doing; others would add {}",
            missing.join("; ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{self, Broken, Good, Slow, Unknown};
    use super::*;

    #[test]
    fn kernels_are_judged_by_what_they_lack() {
        let cases: [(&str, Verdict, &str); 6] = [
            ("6.18.44-generic", Good, "all that is used"),
            ("5.1", Good, "all"),
            ("5.0.21", Slow, "sealed"),
            ("4.19.0-5-amd64", Slow, "joined"),
            ("3.10.0", Broken, "4.14"),
            ("mine", Unknown, "mine"),
        ];
        for (release, verdict, words) in cases {
            let found = kernel(release);
            assert_eq!(found.verdict, verdict, "{release}");
            assert!(found.fact.contains(words), "{}", found.fact);
        }
    }

    #[test]
    fn clocks_that_need_a_system_call_are_slow() {
        for source in ["tsc", "kvm-clock"] {
            assert_eq!(clock(Some(source)).verdict, Good);
        }
        for source in ["hpet", "acpi_pm"] {
            assert_eq!(clock(Some(source)).verdict, Slow);
            assert!(!clock(Some(source)).advice.is_empty());
        }
        assert_eq!(clock(Some("sundial")).verdict, Unknown);
        assert_eq!(clock(None).verdict, Unknown);
    }

    #[test]
    fn one_saving_core_is_enough_to_be_slow() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            governor(&names)
        };
        assert_eq!(of(&[]).verdict, Good);
        assert_eq!(of(&["performance"]).verdict, Good);
        let mixed = of(&["performance", "powersave"]);
        assert_eq!(mixed.verdict, Slow);
        assert!(mixed.fact.contains("powersave"));
        assert_eq!(cores(1).verdict, Slow);
        assert_eq!(cores(2).verdict, Good);
    }

    #[test]
    fn what_other_capabilities_would_add_is_said() {
        let found = capabilities(Some(CapabilitySet::NET_ADMIN));
        assert_eq!(found.verdict, Good);
        assert!(found.fact.starts_with("CAP_NET_ADMIN;"));
        assert!(found.advice.contains("CAP_BPF") && !found.advice.contains("CAP_NET_ADMIN"));
        assert!(
            capabilities(Some(CapabilitySet::empty()))
                .fact
                .starts_with("none;")
        );
        assert_eq!(capabilities(Some(CapabilitySet::all())).advice, "");
    }
}
