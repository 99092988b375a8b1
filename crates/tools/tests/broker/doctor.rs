//! Findings of `dipole doctor` about granted interfaces.

use std::process::Command;

use crate::scene::{ALICE, BOB, CAROL, MALLORY, RING_BYTES, Scene};

/// Name, subject and fact of findings.
type Findings = Vec<(String, String, String)>;

impl Scene {
    /// All findings, as a user sees them.
    fn doctor(&self, uid: u32) -> Findings {
        let program = self.program();
        let runtime = self.runtime_of(uid);
        let ask = || {
            let mut command = Command::new(&program);
            command.args([
                "--json",
                "doctor",
                "--nid",
                "1",
                "--timeout",
                "0.05",
                "--hosts",
            ]);
            command.arg(self.testbed.hosts_file());
            command.env("DIPOLE_RUNTIME_DIR", &runtime);
            command.env("DIPOLE_BROKER", self.broker());
            command.env("DIPOLE_RING_BYTES", RING_BYTES.to_string());
            command.output().expect("it runs")
        };
        let output = match uid {
            0 => self.testbed.inside(1, ask).expect("the node"),
            uid => self.being(uid, ask),
        };
        let text = String::from_utf8(output.stdout).expect("text");
        let findings = text.lines().map(|line| {
            let finding: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let field = |name: &str| finding[name].as_str().expect("text").to_owned();
            (field("name"), field("subject"), field("fact"))
        });
        findings.collect()
    }
}

fn expect(told: &Findings, name: &str, subject: &str, words: &str) {
    let mut all = told.iter();
    let found = all.any(|one| one.0 == name && one.1 == subject && one.2.contains(words));
    assert!(found, "{name} of {subject}, {words}: {told:#?}");
}

#[test]
fn doctor_reports_grants_attached_programs_and_bypasses_to_each_user() {
    let Some(mut scene) = Scene::with_broker() else {
        return;
    };
    expect(
        &scene.doctor(ALICE),
        "bpf link",
        "net0",
        "sent by the socket",
    );
    expect(&scene.doctor(CAROL), "bpf link", "net0", "raw frames");
    let told = scene.doctor(MALLORY);
    expect(&told, "bpf link", "net0", "may not use interface net0");
    expect(&told, "bpf link", "net1", "is on no interface whose rings");
    assert!(
        told.iter().all(|one| one.0 != "firewall"),
        "nothing to go around"
    );
    assert!(scene.attached().is_empty(), "it only asked");

    let grant = scene.grant(BOB).expect("he may");
    let told = scene.doctor(0);
    expect(&told, "bpf link", "net0", "by this process's capabilities");
    expect(&told, "programs", "net0", "dipole_ingress");
    let firewall = told.iter().find(|one| one.0 == "firewall");
    let fact = &firewall.expect("what it goes around").2;
    assert!(fact.contains("rules"), "{fact}");
    drop(grant);
    scene.kill_broker();
    expect(
        &scene.doctor(ALICE),
        "bpf link",
        "net0",
        "no broker grants rings",
    );
}
