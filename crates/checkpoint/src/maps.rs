//! The memory of a process, as `/proc/PID/maps` lists it.

use serde::{Deserialize, Serialize};

/// A mapping: memory with the same access and the same origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    /// Address of the first byte.
    pub(crate) start: u64,
    /// Address behind the last byte.
    pub(crate) end: u64,
    /// Whether the program may read, write and execute it, as bits of `PROT_READ`, `PROT_WRITE`
    /// and `PROT_EXEC`.
    pub(crate) access: u8,
    /// Other processes see what is written there.
    pub(crate) is_shared: bool,
    /// A file is mapped, not anonymous memory.
    pub(crate) is_file: bool,
    /// The path of the file, or the kernel's name in brackets; often empty.
    pub(crate) name: String,
}

#[cfg(test)]
impl Mapping {
    /// Private anonymous memory that can be read and written.
    pub(crate) fn anonymous(start: u64, end: u64) -> Mapping {
        Mapping {
            start,
            end,
            access: 3,
            is_shared: false,
            is_file: false,
            name: String::new(),
        }
    }
}

impl Mapping {
    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// The kernel maps it into every process: code and data of system calls that need no kernel.
    pub(crate) fn is_of_kernel(&self) -> bool {
        self.name.starts_with("[vvar") || self.name == "[vdso]" || self.name == "[vsyscall]"
    }

    /// True for the stack of the first thread, which the kernel extends downwards.
    pub(crate) fn is_stack(&self) -> bool {
        self.name == "[stack]"
    }

    /// The program only reads a file through it, such as the C library's table of character sets, which
    /// every Python program maps. Memory that programs share lies in other places.
    pub(crate) fn is_read_only_file(&self) -> bool {
        let elsewhere = ["/dev/", "/memfd:", "/SYSV", "/proc/"];
        self.is_file
            && self.access & 2 == 0
            && self.name.starts_with('/')
            && !self.name.ends_with(" (deleted)")
            && !elsewhere.iter().any(|folder| self.name.starts_with(folder))
    }

    fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let access = fields.next()?.as_bytes();
        let [read, write, execute, sharing] = *access else {
            return None;
        };
        let (_offset, _device) = (fields.next()?, fields.next()?);
        let inode = fields.next()?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        Some(Mapping {
            start,
            end,
            access: u8::from(read == b'r')
                | u8::from(write == b'w') << 1
                | u8::from(execute == b'x') << 2,
            is_shared: sharing == b's',
            is_file: inode != "0",
            name: fields.next().unwrap_or("").trim_start().to_owned(),
        })
        .filter(|mapping| mapping.start < mapping.end)
    }
}

/// Parses `/proc/PID/maps`. `None` if a line is malformed.
pub(crate) fn parse(text: &str) -> Option<Vec<Mapping>> {
    text.lines().map(Mapping::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_differs_from_a_file_that_is_only_read() {
        let is_read_only = |access: &str, name: &str| {
            let line = format!("1000-2000 {access} 00000000 fe:00 131    {name}");
            Mapping::parse(&line).is_some_and(|it| it.is_read_only_file())
        };
        assert!(is_read_only("r--s", "/usr/lib/gconv/gconv-modules.cache"));
        for (access, name) in [
            ("rw-s", "/usr/lib/gconv/gconv-modules.cache"),
            ("r--s", "/dev/shm/shared"),
            ("r--s", "/memfd:x (deleted)"),
            ("r--s", "/tmp/x (deleted)"),
            ("r--s", ""),
        ] {
            assert!(!is_read_only(access, name), "{access} {name}");
        }
    }

    #[test]
    fn lines_of_the_kernel_are_parsed() {
        let text = "\
5581c0a00000-5581c0a02000 r-xp 00001000 fe:00 131 /usr/bin/a program
7ffd0c5f6000-7ffd0c617000 rw-p 00000000 00:00 0                          [stack]
7ffd0c7a1000-7ffd0c7a3000 r-xp 00000000 00:00 0                          [vdso]
7f0000000000-7f0000001000 rw-s 00000000 00:01 77                         /memfd:x (deleted)
7f0000002000-7f0000003000 ---p 00000000 00:00 0 
";
        let maps = parse(text).expect("well formed");
        assert_eq!(maps.len(), 5);
        assert_eq!(
            (maps[0].access, maps[0].name.as_str()),
            (5, "/usr/bin/a program")
        );
        assert!(maps[0].is_file && !maps[0].is_shared && !maps[0].is_of_kernel());
        assert!(maps[1].is_stack() && !maps[1].is_file);
        assert!(maps[2].is_of_kernel());
        assert!(maps[3].is_shared && maps[3].is_file);
        assert_eq!((maps[4].access, maps[4].bytes()), (0, 4096));
        for wrong in ["x", "1-0 rw-p 0 0 0", "0-1 rw 0 0 0", "0-1 rw-p 0 0"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
        let own = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
        assert!(
            parse(&own)
                .expect("well formed")
                .iter()
                .any(Mapping::is_stack)
        );
    }
}
