//! One result of an examination, how it is printed, and what all of them mean.

use serde::Serialize;

/// What a finding means for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Nothing to do.
    Good,
    /// It cannot be determined from here.
    Unknown,
    /// Everything works, slower than necessary.
    Slow,
    /// Messages will not get through, or the configuration is wrong.
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

fn count(findings: &[&Finding], verdict: Verdict) -> usize {
    let same = findings.iter().filter(|finding| finding.verdict == verdict);
    same.count()
}

/// The exit status that findings deserve.
pub(super) fn status(findings: &[Finding], strict: bool) -> u8 {
    let has = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    u8::from(has(Verdict::Broken) || (strict && has(Verdict::Slow)))
}

/// Findings as text: a line each, and one more if there is something to do. The worst come last,
/// where the reader looks first.
pub(super) fn text(findings: &[Finding], colours: bool) -> String {
    let mut findings: Vec<&Finding> = findings.iter().collect();
    findings.sort_by_key(|one| one.verdict);
    let subject = |one: &Finding| match &*one.subject {
        HERE => String::new(),
        other => other.to_owned(),
    };
    let width =
        |of: &dyn Fn(&Finding) -> usize| findings.iter().map(|one| of(one)).max().unwrap_or(0);
    let names = width(&|one| one.name.len());
    let subjects = width(&|one| subject(one).chars().count());
    let mut text = String::new();
    for one in &findings {
        let (on, off) = match one.verdict {
            Verdict::Broken if colours => ("\x1b[31m", "\x1b[0m"),
            Verdict::Slow if colours => ("\x1b[33m", "\x1b[0m"),
            _ => ("", ""),
        };
        text += &format!(
            "{on}{:7}{off}  {:names$}  {:subjects$}  {}\n",
            one.verdict.word(),
            one.name,
            subject(one),
            one.fact
        );
        if !one.advice.is_empty() {
            text += &format!("{:7}  {:names$}  -> {}\n", "", "", one.advice);
        }
    }
    let of = |verdict| count(&findings, verdict);
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
    fn text_has_a_line_for_each_fact_and_one_for_each_advice_and_ends_with_what_is_broken() {
        let findings = [
            Finding::broken("route", "there is none", "make one").about("node 2"),
            Finding::good("clock", "tsc"),
        ];
        let lines: Vec<String> = text(&findings, false).lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "good     clock          tsc");
        assert_eq!(lines[1], "BROKEN   route  node 2  there is none");
        assert_eq!(lines[2], "                -> make one");
        assert_eq!(lines[3], "1 good, 0 slow, 1 broken, 0 unknown");
        assert_eq!(lines.len(), 4);
        assert!(text(&findings, true).contains("\x1b[31mBROKEN \x1b[0m"));
    }
}
