//! Firewall rules for incoming packets. Packets received by the bpf link bypass them.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::finding::Finding;

const NAME: &str = "firewall";
/// Hooks for incoming packets; the bpf link receives packets before all of them.
const HOOKS: [&str; 3] = ["ingress", "prerouting", "input"];

/// The firewall's rules, as far as they can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rules {
    /// Chains that have rules or drop by default.
    Known(Vec<String>),
    /// Why the rules cannot be read.
    Hidden(String),
}

pub(super) fn examine() -> Finding {
    judge(nft(), legacy())
}

fn judge(nft: Rules, legacy: Vec<String>) -> Finding {
    let mut chains = legacy;
    let mut hidden = None;
    match nft {
        Rules::Known(known) => chains.extend(known),
        Rules::Hidden(why) => hidden = Some(why),
    }
    match (&chains[..], hidden) {
        ([], None) => Finding::good(NAME, "no rules that the bpf link would go around"),
        ([], Some(why)) => Finding::unknown(
            NAME,
            format!(
                "its rules cannot be read: {why}; packets that the bpf link takes do not pass them"
            ),
            "look at them as root (`nft list ruleset`, `iptables -S`)",
        ),
        (chains, _) => Finding::unknown(
            NAME,
            format!(
                "packets that the bpf link takes do not pass these rules, whatever they say: {}",
                chains.join(", ")
            ),
            "if they must hold for ports of Dipole, use DIPOLE_LINK=udp and do not grant the interface",
        ),
    }
}

/// Rules reported by `nft`, including those made by `iptables-nft`.
fn nft() -> Rules {
    let output = match Command::new("nft").args(["-j", "list", "ruleset"]).output() {
        Ok(output) => output,
        Err(cause) => return Rules::Hidden(format!("`nft`: {cause}")),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or_default().trim().to_owned();
        return Rules::Hidden(format!("`nft`: {first}"));
    }
    match chains(&output.stdout) {
        Some(chains) => Rules::Known(chains),
        None => Rules::Hidden("the output of `nft` cannot be parsed".to_owned()),
    }
}

/// Chains for incoming packets that have rules or drop by default.
fn chains(json: &[u8]) -> Option<Vec<String>> {
    let ruleset: Value = serde_json::from_slice(json).ok()?;
    let all = ruleset.get("nftables")?.as_array()?;
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let key =
        |of: &Value, chain: &str| Some([text(of, "family")?, text(of, "table")?, text(of, chain)?]);
    let mut rules: BTreeMap<[String; 3], usize> = BTreeMap::new();
    for rule in all.iter().filter_map(|one| one.get("rule")) {
        *rules.entry(key(rule, "chain")?).or_default() += 1;
    }
    let mut found = Vec::new();
    for chain in all.iter().filter_map(|one| one.get("chain")) {
        let hook = text(chain, "hook").unwrap_or_default();
        if !HOOKS.contains(&&*hook) {
            continue;
        }
        let key = key(chain, "name")?;
        let count = rules.get(&key).copied().unwrap_or(0);
        let drops = text(chain, "policy").as_deref() == Some("drop");
        if count > 0 || drops {
            let policy = if drops { ", drops the rest" } else { "" };
            found.push(format!(
                "{} ({count} rules at {hook}{policy})",
                key.join(" ")
            ));
        }
    }
    Some(found)
}

/// Tables of legacy iptables that are in use, not including those of `iptables-nft`.
fn legacy() -> Vec<String> {
    let kinds = [
        ("iptables", "ip_tables_names"),
        ("ip6tables", "ip6_tables_names"),
    ];
    let tables = kinds.iter().flat_map(|(program, file)| {
        let text = std::fs::read_to_string(format!("/proc/net/{file}"));
        named(program, &text.unwrap_or_default())
    });
    tables.collect()
}

fn named(program: &str, text: &str) -> Vec<String> {
    let tables = text.lines().filter(|line| !line.trim().is_empty());
    tables
        .map(|table| format!("{program} table {table}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Good, Unknown};
    use super::*;

    const RULESET: &str = r#"{"nftables": [
        {"metainfo": {"version": "1.0.9"}},
        {"table": {"family": "inet", "name": "filter", "handle": 1}},
        {"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "inet", "table": "filter", "name": "forward", "hook": "forward", "policy": "drop"}},
        {"chain": {"family": "inet", "table": "filter", "name": "empty", "hook": "prerouting", "policy": "accept"}},
        {"chain": {"family": "inet", "table": "filter", "name": "helper"}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": []}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": []}},
        {"rule": {"family": "inet", "table": "filter", "chain": "helper", "expr": []}}]}"#;

    #[test]
    fn chains_that_incoming_packets_would_pass_are_named() {
        let found = chains(RULESET.as_bytes()).expect("understood");
        assert_eq!(
            found,
            ["inet filter input (2 rules at input, drops the rest)"]
        );
        assert_eq!(chains(b"{\"nftables\": []}"), Some(Vec::new()));
        assert_eq!(chains(b"[]"), None);
        assert_eq!(
            named("iptables", "nat\nfilter\n"),
            ["iptables table nat", "iptables table filter"]
        );
        assert!(named("iptables", "").is_empty());
    }

    #[test]
    fn rules_that_are_gone_around_are_told_and_so_is_it_that_none_can_be_read() {
        let none = judge(Rules::Known(Vec::new()), Vec::new());
        assert_eq!(none.verdict, Good);
        let known = judge(
            Rules::Known(vec!["inet filter input".to_owned()]),
            Vec::new(),
        );
        assert_eq!(known.verdict, Unknown);
        assert!(
            known.fact.contains("do not pass these rules"),
            "{}",
            known.fact
        );
        assert!(known.fact.contains("inet filter input"), "{}", known.fact);
        let hidden = Rules::Hidden("no such program".to_owned());
        let found = judge(hidden.clone(), Vec::new());
        assert!(found.fact.contains("no such program"), "{}", found.fact);
        let found = judge(hidden, named("iptables", "filter"));
        assert!(
            found.fact.contains("iptables table filter"),
            "{}",
            found.fact
        );
    }
}
