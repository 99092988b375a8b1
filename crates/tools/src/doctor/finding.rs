//! Findings: how they are printed, and the exit status.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// No action is needed.
    Good,
    /// It cannot be determined from here.
    Unknown,
    /// Works, but slower than necessary.
    Slow,
    /// Messages will not get through, or the configuration is invalid.
    Broken,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Slow => "slow",
            Verdict::Broken => "BROKEN",
            Verdict::Unknown => "unknown",
        }
    }
}

/// A result of the examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    /// The node or device concerned.
    pub(super) subject: String,
    pub(super) verdict: Verdict,
    pub(super) fact: String,
    /// Advice to the user; may be empty.
    pub(super) advice: String,
    /// No process replied, so it is unknown whether messages get through.
    #[serde(skip)]
    unanswered: bool,
}

/// Subject of findings about this machine as a whole.
pub(super) const HERE: &str = "this machine";

impl Finding {
    fn here(
        name: &'static str,
        verdict: Verdict,
        fact: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            name,
            subject: HERE.to_owned(),
            verdict,
            fact: fact.into(),
            advice: advice.into(),
            unanswered: false,
        }
    }

    pub(super) fn good(name: &'static str, fact: impl Into<String>) -> Finding {
        Finding::here(name, Verdict::Good, fact, "")
    }

    pub(super) fn slow(
        name: &'static str,
        fact: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding::here(name, Verdict::Slow, fact, advice)
    }

    pub(super) fn broken(
        name: &'static str,
        fact: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding::here(name, Verdict::Broken, fact, advice)
    }

    pub(super) fn unknown(
        name: &'static str,
        fact: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding::here(name, Verdict::Unknown, fact, advice)
    }

    /// A finding that is unknown because no process replies, which is not reported as success.
    pub(super) fn unanswered(
        name: &'static str,
        fact: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            unanswered: true,
            ..Finding::unknown(name, fact, advice)
        }
    }

    /// Sets the node, interface or file that the finding is about.
    pub(super) fn about(mut self, subject: impl Into<String>) -> Finding {
        self.subject = subject.into();
        self
    }

    /// Sets the advice to the user.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }
}

fn count(findings: &[Finding], verdict: Verdict) -> usize {
    let same = findings.iter().filter(|finding| finding.verdict == verdict);
    same.count()
}

/// Nothing is broken, but some node did not reply, so it is unknown whether it can be reached.
const UNANSWERED: u8 = 3;

/// The exit status for these findings.
pub(super) fn status(findings: &[Finding], strict: bool) -> u8 {
    let has = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    if has(Verdict::Broken) || (strict && has(Verdict::Slow)) {
        return 1;
    }
    match findings.iter().any(|finding| finding.unanswered) {
        true => UNANSWERED,
        false => 0,
    }
}

/// Formats findings, the worst first, each with its advice on the same line. Good ones are listed by
/// name only, unless `all` is set.
pub(super) fn text(findings: &[Finding], all: bool, colours: bool) -> String {
    let (good, mut shown): (Vec<&Finding>, Vec<&Finding>) = findings
        .iter()
        .partition(|one| !all && one.verdict == Verdict::Good);
    shown.sort_by_key(|one| std::cmp::Reverse(one.verdict));
    let subject = |one: &Finding| match &*one.subject {
        HERE => String::new(),
        other => other.to_owned(),
    };
    let width = |of: &dyn Fn(&Finding) -> usize| shown.iter().map(|one| of(one)).max().unwrap_or(0);
    let names = width(&|one| one.name.len());
    let subjects = width(&|one| subject(one).chars().count());
    let mut text = String::new();
    for one in &shown {
        let (on, off) = match one.verdict {
            Verdict::Broken if colours => ("\x1b[31m", "\x1b[0m"),
            Verdict::Slow if colours => ("\x1b[33m", "\x1b[0m"),
            _ => ("", ""),
        };
        text += &format!(
            "{on}{:7}{off}  {:names$}  {:subjects$}  {}",
            one.verdict.word(),
            one.name,
            subject(one),
            one.fact
        );
        if !one.advice.is_empty() {
            text += &format!(" -> {}", one.advice);
        }
        text.push('\n');
    }
    for (subject, names) in by_subject(&good) {
        text += &format!("good     {subject}: {}\n", names.join(", "));
    }
    let of = |verdict| count(findings, verdict);
    text += &format!(
        "{} broken, {} slow, {} unknown, {} good",
        of(Verdict::Broken),
        of(Verdict::Slow),
        of(Verdict::Unknown),
        of(Verdict::Good),
    );
    if !good.is_empty() {
        text += " (facts: --verbose)";
    }
    text
}

/// Names of the findings about each subject, without duplicates, in order of appearance.
fn by_subject<'a>(findings: &[&'a Finding]) -> Vec<(&'a str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&'static str>)> = Vec::new();
    for one in findings {
        let group = groups
            .iter()
            .position(|(subject, _)| *subject == one.subject);
        let group = group.unwrap_or_else(|| {
            groups.push((&one.subject, Vec::new()));
            groups.len() - 1
        });
        let names = &mut groups[group].1;
        if !names.contains(&one.name) {
            names.push(one.name);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_broken_findings_fail_unless_slow_ones_shall_too() {
        let good = Finding::good("a", "fine");
        let slow = Finding::slow("b", "not so fine", "do this");
        let unknown = Finding::unknown("c", "who knows", "");
        let broken = Finding::broken("d", "not fine", "do that");
        let all = [good.clone(), slow, unknown.clone(), broken];
        assert_eq!(status(&all[..3], false), 0);
        assert_eq!(status(&all[..3], true), 1);
        assert_eq!(status(&all, false), 1);
        assert_eq!(status(&[good.clone(), unknown], true), 0);
        let unanswered = Finding::unanswered("e", "no process is there", "start one");
        assert_eq!(
            status(&[good.clone(), unanswered.clone()], false),
            UNANSWERED
        );
        assert_eq!(status(&[unanswered, all[3].clone()], false), 1);
    }

    #[test]
    fn the_worst_comes_first_with_what_to_do_and_of_what_is_good_only_the_name() {
        let findings = [
            Finding::good("clock", "tsc"),
            Finding::slow("cores", "one", "get another"),
            Finding::good("kernel", "new"),
            Finding::broken("route", "not found", "add one").about("node 2"),
        ];
        let lines = |all| -> Vec<String> {
            let text = text(&findings, all, false);
            text.lines().map(str::to_owned).collect()
        };
        let short = [
            "BROKEN   route  node 2  not found -> add one",
            "slow     cores          one -> get another",
            "good     this machine: clock, kernel",
            "1 broken, 1 slow, 0 unknown, 2 good (facts: --verbose)",
        ];
        assert_eq!(lines(false), short);
        let all = lines(true);
        assert_eq!(all.len(), 5);
        assert_eq!(all[2], "good     clock           tsc");
        assert!(text(&findings, false, true).contains("\x1b[31mBROKEN \x1b[0m"));
    }
}
