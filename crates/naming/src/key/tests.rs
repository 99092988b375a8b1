//! Tests of cluster keys and their rotation.

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_saved_key_reads_back_and_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let key = ClusterKey::random().unwrap();
    key.save(&file).unwrap();
    assert_eq!(ClusterKey::load(&file).unwrap(), key);
    assert_ne!(ClusterKey::random().unwrap(), key);
    assert!(matches!(
        ClusterKey::random().unwrap().save(&file),
        Err(KeyError::System { .. })
    ));
    assert_eq!(ClusterKey::load(&file).unwrap(), key);
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    ClusterKey::random().unwrap().save(&file).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o601] {
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let error = ClusterKey::load(&file).unwrap_err();
        assert!(matches!(error, KeyError::Open { mode: found, .. } if found == mode));
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    std::fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
    assert!(ClusterKey::load(&file).is_ok());
}

#[test]
fn a_variable_that_is_empty_is_refused_and_one_that_is_not_set_means_no_key() {
    assert!(matches!(ClusterKey::from_variable(None), Ok(None)));
    let error = ClusterKey::from_variable(Some(OsString::new())).unwrap_err();
    assert!(error.to_string().contains("unset"), "{error}");
}

#[test]
fn an_invalid_key_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let digits = "0123456789abcdefABCDEF0123456789".repeat(2);
    assert!(ClusterKey::parse(&format!(" {digits}\n")).is_some());
    for (name, security) in Security::ALL {
        let key = ClusterKey::parse(&format!("{digits}\nsecurity={name}\n")).unwrap();
        assert_eq!(key.security(), security);
        assert_eq!(ClusterKey::parse(&key.text()), Some(key));
    }
    for bad in [
        String::new(),
        digits[1..].to_owned(),
        format!("{digits}00"),
        digits.replace('a', "g"),
        digits.replacen("01", "+1", 1),
        format!("{digits}\nsecurity=none\n"),
        format!("{digits}\nauth\n"),
        format!("{digits}\nsecurity=off\nsecurity=auth\n"),
        format!("{digits}\nnext={}\n", &digits[1..]),
        format!("{digits}\nnext={digits}\nold={digits}\n"),
        format!("{digits}\nolder={digits}\n"),
    ] {
        std::fs::write(&file, &bad).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(
            ClusterKey::load(&file),
            Err(KeyError::Content { .. })
        ));
    }
    let error = ClusterKey::load(directory.path()).err().unwrap();
    assert!(
        error
            .to_string()
            .ends_with("it is a directory, not a regular file"),
        "{error}"
    );
}

/// Key files of a cluster's nodes, and the keys of processes that loaded them.
struct Cluster {
    directory: tempfile::TempDir,
    keys: Vec<(ClusterKey, MacKey)>,
}

impl Cluster {
    fn new(nodes: usize) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let first = ClusterKey::random().unwrap();
        let mut cluster = Cluster {
            directory,
            keys: Vec::new(),
        };
        for node in 0..nodes {
            first.save(&cluster.file(node)).unwrap();
            let key = ClusterKey::load(&cluster.file(node)).unwrap();
            let codes = key.mac_key("test");
            cluster.keys.push((key, codes));
        }
        cluster
    }

    fn file(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("key{node}"))
    }

    /// True if every node accepts the proofs of every other.
    fn all_agree(&self) -> bool {
        let proves = |from: &MacKey, to: &MacKey| to.verify(b"hello", &from.mac(b"hello"));
        let mut pairs =
            (self.keys.iter()).flat_map(|one| self.keys.iter().map(move |two| (one, two)));
        pairs.all(|(one, two)| proves(&one.1, &two.1))
    }
}

#[test]
fn a_key_is_exchanged_in_three_steps_and_no_process_loses_another_on_the_way() {
    let cluster = Cluster::new(3);
    let [first, ..] = &cluster.keys[..] else {
        unreachable!()
    };
    let before = first.0.fingerprint();
    let roles = [Some(Role::Next), Some(Role::Old), None];
    for (step, role) in roles.into_iter().enumerate() {
        let rotated = ClusterKey::rotate(&cluster.file(0), step > 0).unwrap();
        assert_eq!(rotated.other().map(|(role, _)| role), role);
        assert!(cluster.all_agree(), "{step}");
        for node in 1..3 {
            std::fs::copy(cluster.file(0), cluster.file(node)).unwrap();
            assert!(cluster.all_agree(), "{step} {node}");
        }
        assert!(cluster.keys.iter().all(|(key, _)| *key == rotated));
        assert_eq!(first.0.fingerprint() == before, step == 0);
    }
    assert!(!cluster.directory.path().join("key0.new").exists());
    // The last step removed the first key.
    assert!(cluster.keys.iter().all(|(key, _)| key.withdrawals() == 1));
}

#[test]
fn a_step_of_an_exchange_is_not_taken_twice_by_mistake() {
    let cluster = Cluster::new(1);
    let file = cluster.file(0);
    let refused = |goes_on| {
        let before = std::fs::read(&file).unwrap();
        let error = ClusterKey::rotate(&file, goes_on).unwrap_err();
        assert_eq!(std::fs::read(&file).unwrap(), before);
        error.to_string()
    };
    assert!(refused(true).contains("leave out --continue"));
    ClusterKey::rotate(&file, false).unwrap();
    assert!(refused(false).contains("go on with --continue"));
    ClusterKey::rotate(&file, true).unwrap();
    assert!(refused(false).contains("end the exchange"));
    std::fs::write(file.with_extension("new"), "half").unwrap();
    assert!(refused(true).contains("was killed: remove it"));
}

#[test]
fn a_key_stays_in_use_when_its_file_is_removed_or_damaged() {
    let cluster = Cluster::new(2);
    let file = cluster.file(1);
    std::fs::write(&file, "no key").unwrap();
    assert!(cluster.all_agree());
    std::fs::remove_file(&file).unwrap();
    assert!(cluster.all_agree());
    // A file that others can write may not come from the owner.
    ClusterKey::random().unwrap().save(&file).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert!(cluster.all_agree());
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert!(!cluster.all_agree());
}

#[test]
fn a_code_is_bound_to_key_purpose_and_every_bit() {
    let key = ClusterKey::new([7; KEY_BYTES]);
    let one = key.mac_key("one");
    let mac = one.mac(b"hello");
    assert!(one.verify(b"hello", &mac));
    assert!(!one.verify(b"hellp", &mac));
    assert!(!one.verify(b"hello", &mac[..15]));
    assert!(!one.verify(b"hello", &[]));
    assert!(!key.mac_key("two").verify(b"hello", &mac));
    assert!(
        !ClusterKey::new([8; KEY_BYTES])
            .mac_key("one")
            .verify(b"hello", &mac)
    );
    for bit in 0..MAC_BYTES * 8 {
        let mut bad = mac;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!one.verify(b"hello", &bad), "bit {bit}");
    }
}

#[test]
fn printing_a_key_does_not_give_it_away() {
    let key = ClusterKey::random().unwrap();
    let (printed, digits) = (format!("{key:?} {:?}", key.mac_key("x")), key.text());
    let digits = &digits[..KEY_BYTES * 2];
    for part in 0..digits.len() - 8 {
        assert!(!printed.contains(&digits[part..part + 8]), "{printed}");
    }
}
