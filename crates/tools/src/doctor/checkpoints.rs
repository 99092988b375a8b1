//! Checks whether images of processes can leave out memory that has not changed.

use super::finding::Finding;

const NAME: &str = "checkpoints";

pub(super) fn examine() -> Vec<Finding> {
    vec![judge(dipole_checkpoint::full_images_only())]
}

fn judge(obstacle: Option<String>) -> Finding {
    match obstacle {
        None => Finding::good(
            NAME,
            "images hold only what has changed since the last ones",
        ),
        Some(cause) => Finding::slow(
            NAME,
            format!("each image holds all memory, because written pages are not reported: {cause}"),
            "Linux 6.7 or newer on x86-64, and a container that permits userfaultfd",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_images_are_slower() {
        use super::super::finding::Verdict;
        assert_eq!(judge(None).verdict, Verdict::Good);
        let finding = judge(Some("Function not implemented".to_owned()));
        assert_eq!(finding.verdict, Verdict::Slow);
        assert!(finding.fact.contains("Function not implemented"));
    }
}
