//! One result of an examination, how it is printed, and what all of them mean.

use serde::Serialize;

/// What a finding means for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Nothing to do.
    Good,
    /// Everything works, slower than it need be.
    Slow,
    /// Messages will not get through, or the configuration is wrong.
    Broken,
    /// It cannot be told from here.
    Unknown,
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

/// One result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    /// The node or the device that it is about.
    pub(super) subject: String,
    pub(super) verdict: Verdict,
    pub(super) fact: String,
    /// What to do; empty if nothing.
    pub(super) advice: String,
}

/// The subject of findings about this machine as a whole.
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

    /// The same about something else.
    pub(super) fn about(mut self, subject: impl Into<String>) -> Finding {
        self.subject = subject.into();
        self
    }

    /// The same with words on what could be done.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }
}

fn count(findings: &[Finding], verdict: Verdict) -> usize {
    let same = findings.iter().filter(|finding| finding.verdict == verdict);
    same.count()
}

/// The exit status that findings deserve.
pub(super) fn status(findings: &[Finding], strict: bool) -> u8 {
    let slow = strict && count(findings, Verdict::Slow) > 0;
    u8::from(slow || count(findings, Verdict::Broken) > 0)
}

/// Findings as text: a line each, and one more if there is something to do.
pub(super) fn text(findings: &[Finding]) -> String {
    let width = |of: fn(&Finding) -> &str| {
        let widths = findings.iter().map(|finding| of(finding).chars().count());
        widths.max().unwrap_or(0)
    };
    let (names, subjects) = (width(|one| one.name), width(|one| &one.subject));
    let mut text = String::new();
    for one in findings {
        text += &format!(
            "{:7}  {:names$}  {:subjects$}  {}\n",
            one.verdict.word(),
            one.name,
            one.subject,
            one.fact
        );
        if !one.advice.is_empty() {
            text += &format!("{:7}  {:names$}  -> {}\n", "", "", one.advice);
        }
    }
    let of = |verdict| count(findings, verdict);
    text += &format!(
        "{} good, {} slow, {} broken, {} unknown",
        of(Verdict::Good),
        of(Verdict::Slow),
        of(Verdict::Broken),
        of(Verdict::Unknown)
    );
    text
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
        assert_eq!(status(&[good, unknown], true), 0);
    }

    #[test]
    fn text_has_a_line_for_each_fact_and_one_for_each_advice() {
        let findings = [
            Finding::good("clock", "tsc"),
            Finding::broken("route", "there is none", "make one").about("node 2"),
        ];
        let text = text(&findings);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "good     clock  this machine  tsc");
        assert_eq!(lines[1], "BROKEN   route  node 2        there is none");
        assert!(lines[2].ends_with("-> make one"), "{text}");
        assert_eq!(lines[3], "1 good, 0 slow, 1 broken, 0 unknown");
        assert_eq!(lines.len(), 4);
    }
}
