//! Trace files of ranks: a valid header, then blocks with a length in bytes of four for head, places
//! in the source and stacks, and the remaining bytes as data.

#![cfg_attr(fuzzing, no_main)]

use dipole_bsp::trace::{Clocks, TraceFile, VERSION};
use dipole_fuzz::fuzz_target;

const SITES_AT: usize = 4096;
const STACKS_AT: usize = SITES_AT + (64 << 10);
const BLOCKS_AT: usize = STACKS_AT + (192 << 10);

fuzz_target!(|bytes: &[u8]| {
    let _ = TraceFile::parse(bytes);
    let mut file = vec![0; BLOCKS_AT];
    file[..8].copy_from_slice(b"DPLTRACE");
    file[8..12].copy_from_slice(&VERSION.to_le_bytes());
    // A single rank on one node.
    (file[20], file[24]) = (1, 1);
    assert!(TraceFile::parse(&file).is_ok(), "the layout is another now");
    let mut rest = bytes;
    for at in [16, SITES_AT, STACKS_AT] {
        let Some((length, behind)) = rest.split_first() else {
            return;
        };
        let (piece, behind) = behind.split_at(behind.len().min(usize::from(*length) * 4));
        rest = behind;
        file[at..at + piece.len()].copy_from_slice(piece);
    }
    file.extend(rest);
    let Ok(file) = TraceFile::parse(&file) else {
        return;
    };
    let texts = file.sites.iter().flat_map(|site| [&site.call, &site.file]);
    let texts = texts.chain([&file.header.link, &file.header.host]);
    let texts = texts.chain(file.modules.iter().map(|module| &module.path));
    for text in texts {
        assert!(!text.contains(char::is_control));
    }
    let _ = Clocks::of(std::slice::from_ref(&file));
});
