//! Properties of a machine that an image depends on.

use std::fs;
use std::io;

use dipole_link::crc32c::crc32c;
use serde::{Deserialize, Serialize};

use crate::maps::{self, Mapping};

/// Features of the processor that compilers and libraries choose code by, as `/proc/cpuinfo` names
/// them or begins their names.
const FEATURES: [&str; 20] = [
    "sse", "ssse3", "avx", "fma", "f16c", "bmi", "abm", "aes", "vaes", "pclmul", "vpclmul",
    "popcnt", "movbe", "rdrand", "rdseed", "adx", "sha", "gfni", "cx16", "amx",
];

/// Kernel and processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Release of the kernel.
    pub(crate) kernel: String,
    features: Vec<String>,
    /// Registers that the kernel saves for a program; libraries compute the size of buffers from it.
    saved_registers: u64,
    /// Memory that the kernel maps into every process.
    pub(crate) kernel_maps: Vec<Mapping>,
    /// Checksum of the kernel's code there.
    kernel_code: u32,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn current() -> io::Result<Machine> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let info = fs::read_to_string("/proc/cpuinfo")?;
        let flags = info.lines().find(|line| line.starts_with("flags"));
        let flags = flags.and_then(|line| line.split_once(':'));
        let flags: Vec<&str> = flags
            .map_or("", |(_, rest)| rest)
            .split_whitespace()
            .collect();
        let matters = |flag: &&&str| FEATURES.iter().any(|feature| flag.starts_with(feature));
        let text = fs::read_to_string("/proc/self/maps")?;
        let maps = maps::parse(&text).ok_or_else(|| io::Error::other("unknown form of maps"))?;
        let is_moved = |mapping: &Mapping| mapping.is_of_kernel() && mapping.name != "[vsyscall]";
        let kernel_maps: Vec<Mapping> = maps.into_iter().filter(is_moved).collect();
        let code = kernel_maps.iter().find(|mapping| mapping.name == "[vdso]");
        let kernel_code = code.map_or(0, |mapping| {
            let length = usize::try_from(mapping.bytes()).unwrap_or(0);
            let start = std::ptr::with_exposed_provenance::<u8>(
                usize::try_from(mapping.start).unwrap_or(0),
            );
            // SAFETY: the kernel maps its code readable, and never changes or removes it.
            crc32c(unsafe { std::slice::from_raw_parts(start, length) })
        });
        Ok(Machine {
            kernel: release.trim().to_owned(),
            saved_registers: match flags.contains(&"xsave") {
                true => saved_registers(),
                false => 0,
            },
            features: flags
                .iter()
                .filter(matters)
                .map(|flag| (*flag).to_owned())
                .collect(),
            kernel_maps,
            kernel_code,
        })
    }

    /// Checks that an image of the machine `image` can be restored on this one.
    ///
    /// # Errors
    /// The difference that prevents it.
    pub(crate) fn accept(&self, image: &Machine) -> Result<(), String> {
        let lacks = |feature: &&String| !self.features.contains(feature);
        let missing: Vec<&str> = image
            .features
            .iter()
            .filter(lacks)
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            return Err(format!(
                "this processor lacks {}, which the program may use; restart it on machines with \
                 the same processors",
                missing.join(", ")
            ));
        }
        if self.saved_registers != image.saved_registers {
            return Err(format!(
                "this processor has other registers ({:x}, not {:x}); restart it on machines with \
                 the same processors",
                self.saved_registers, image.saved_registers
            ));
        }
        if self.kernel_code != image.kernel_code || self.shape() != image.shape() {
            return Err(format!(
                "this machine runs Linux {}, but the image needs Linux {}, whose code is part of \
                 the program",
                self.kernel, image.kernel
            ));
        }
        Ok(())
    }

    /// Names, lengths and distances of the kernel's mappings.
    fn shape(&self) -> Vec<(&str, u64, u64)> {
        let start = self.kernel_maps.first().map_or(0, |mapping| mapping.start);
        let shape = |it: &'_ Mapping| (it.bytes(), it.start - start);
        self.kernel_maps
            .iter()
            .map(|it| (it.name.as_str(), shape(it).0, shape(it).1))
            .collect()
    }
}

#[cfg(target_arch = "x86_64")]
fn saved_registers() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads the register XCR0; the caller has checked that the processor has it.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(not(target_arch = "x86_64"))]
fn saved_registers() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_accepts_images_of_itself_and_names_what_differs() {
        let own = Machine::current().expect("proc is mounted");
        assert!(!own.kernel_maps.is_empty(), "{own:?}");
        assert_eq!(own.accept(&own), Ok(()));
        let mut newer = own.clone();
        newer.features.push("avx9".to_owned());
        let reason = own.accept(&newer).expect_err("a feature is missing");
        assert!(reason.contains("lacks avx9"), "{reason}");
        assert_eq!(newer.accept(&own), Ok(()));
        let mut other = own.clone();
        other.kernel_code ^= 1;
        other.kernel = "1.0".to_owned();
        let reason = own.accept(&other).expect_err("another kernel");
        assert!(reason.contains("needs Linux 1.0"), "{reason}");
        let mut wider = own.clone();
        wider.saved_registers |= 1 << 40;
        assert!(own.accept(&wider).is_err());
    }
}
