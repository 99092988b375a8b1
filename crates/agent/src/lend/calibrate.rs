//! Cards that are lent and that nobody has calibrated: measured once, beside the lending, for
//! all who ask there.

use std::path::{Path, PathBuf};

use dipole_bpf::calibrate::{Calibration, calibrate};

use super::addresses::{Address, addresses};

/// Measures the cards that have no good file in the folder, on a thread of its own.
pub(super) fn begin(cards: Vec<String>, folder: PathBuf) {
    let thread = std::thread::Builder::new().name("dipole-calibrate".to_owned());
    let begun = thread.spawn(move || {
        let all = addresses().unwrap_or_default();
        for card in cards {
            let mut of_card = all.iter().filter(|one| one.card.name == card);
            // IPv4 first: the kernel lists neighbours by it.
            let address = of_card.clone().find(|one| one.ip.is_ipv4());
            if let Some(address) = address.or_else(|| of_card.next()) {
                calibrate_one(address, &folder);
            }
        }
    });
    if let Err(cause) = begun {
        tracing::warn!(%cause, "cards are not calibrated");
    }
}

fn calibrate_one(address: &Address, folder: &Path) {
    let card = &address.card;
    if address.ip.is_loopback() || matches!(Calibration::load(folder, card), Ok(Some(_))) {
        return;
    }
    let made = calibrate(card, address.ip, &[]).map_err(|cause| cause.to_string());
    let kept = made.and_then(|found| found.save(folder).map_err(|cause| cause.to_string()));
    match kept {
        Ok(path) => {
            let path = path.display();
            tracing::info!(event = "calibrated", card = %card.name, %path, "a card is calibrated");
        }
        Err(cause) => tracing::warn!(card = %card.name, %cause, "a card is not calibrated"),
    }
}
