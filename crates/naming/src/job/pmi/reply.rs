//! A line of a PMI server: fields `name=value`, separated by spaces.

use super::ServiceError;
use crate::lines::excerpt;

/// Longest line that is accepted.
pub(super) const MAX_LINE_BYTES: usize = 8192;

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    line: String,
    /// Names and values, as ranges of the line.
    fields: Vec<(String, String)>,
}

impl Reply {
    /// Parses a line without its end.
    ///
    /// The field `value` is the last one and may contain spaces. Words without `=` belong to the
    /// text of the field before them, for example of `msg`.
    ///
    /// # Errors
    /// A description of a valid line.
    pub(super) fn parse(line: &[u8]) -> Result<Reply, &'static str> {
        if line.len() > MAX_LINE_BYTES {
            return Err("a line of at most 8192 bytes");
        }
        let line = std::str::from_utf8(line).map_err(|_| "text")?;
        if line.contains(char::is_control) {
            return Err("a line without control characters");
        }
        let mut fields: Vec<(String, String)> = Vec::new();
        let mut rest = line;
        while !rest.is_empty() {
            if let Some(value) = rest.strip_prefix("value=") {
                fields.push(("value".to_owned(), value.to_owned()));
                break;
            }
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            match (word.split_once('='), fields.last_mut()) {
                (Some((name, value)), _) => fields.push((name.to_owned(), value.to_owned())),
                (None, Some((_, value))) if !word.is_empty() => {
                    value.push(' ');
                    value.push_str(word);
                }
                _ => {}
            }
            rest = after;
        }
        match fields.first() {
            Some((name, command)) if name == "cmd" && !command.is_empty() => Ok(Reply {
                line: line.to_owned(),
                fields,
            }),
            _ => Err("a line that begins with cmd="),
        }
    }

    pub(super) fn command(&self) -> &str {
        &self.fields[0].1
    }

    /// The first field with this name.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Refuses a reply that reports a failure. Some servers send no result at all for success.
    pub(super) fn check_success(&self, request: &'static str) -> Result<(), ServiceError> {
        match self.field("rc") {
            None | Some("0") => Ok(()),
            Some(_) => Err(self.unexpected(request, "rc=0")),
        }
    }

    pub(super) fn unexpected(&self, request: &'static str, expected: &'static str) -> ServiceError {
        ServiceError::Unexpected {
            request,
            line: excerpt(&self.line),
            expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(line: &str) -> Reply {
        Reply::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn lines_of_hydra_slurm_and_flux_are_understood() {
        let got = parsed("cmd=get_result rc=0 msg=success value=a b=c  d");
        assert_eq!(got.command(), "get_result");
        assert_eq!(got.field("value"), Some("a b=c  d"));
        assert_eq!(got.field("msg"), Some("success"));
        assert_eq!(got.field("rc"), Some("0"));
        assert_eq!(got.field("key"), None);
        let refused = parsed("cmd=publish_result rc=-1 msg=command not implemented");
        assert_eq!(refused.field("msg"), Some("command not implemented"));
        assert!(refused.check_success("put").is_err());
        let maxes = parsed("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024");
        assert!(maxes.check_success("get_maxes").is_ok());
        assert_eq!(maxes.field("vallen_max"), Some("1024"));
        let slurm = parsed("cmd=my_kvsname rc=0 kvsname=7.0");
        assert_eq!(slurm.field("kvsname"), Some("7.0"));
        assert_eq!(parsed("cmd=x  value=").field("value"), Some(""));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            &b""[..],
            b"cmd",
            b"cmd=",
            b"rc=0 cmd=x",
            b"value=cmd=x",
            b"cmd=\xff",
            b"cmd=x\tvalue=y",
            b"cmd=x\0",
            &[b'c'; MAX_LINE_BYTES + 1],
        ] {
            assert!(Reply::parse(line).is_err(), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_or_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(reply) = Reply::parse(&line) {
                prop_assert!(!reply.command().is_empty());
                let error = reply.unexpected("get", "rc=0").to_string();
                prop_assert!(!error.contains(char::is_control));
            }
        }

        #[test]
        fn lines_that_look_like_replies_never_fail(
            line in "cmd=[a-z_]{1,9}( [a-z]{1,5}=[a-z0-9 =]{0,9}){0,4}( value=[ -~]{0,40})?"
        ) {
            let reply = Reply::parse(line.as_bytes());
            prop_assert!(reply.is_ok(), "{line}");
        }

        #[test]
        fn a_value_comes_back_whole(value in "[ -~]{0,200}") {
            let reply = parsed(&format!("cmd=get_result rc=0 value={value}"));
            prop_assert_eq!(reply.field("value"), Some(value.as_str()));
        }
    }
}
