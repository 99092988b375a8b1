//! What the manual says of each command beside its options. A test runs the examples through the
//! parser of the command line.

/// What ends a page.
pub(super) struct Notes {
    /// Lines for a shell, and what they do.
    pub(super) examples: &'static [(&'static str, &'static str)],
    pub(super) status: &'static [(&'static str, &'static str)],
    pub(super) environment: &'static [&'static str],
    /// Further pages of section 1.
    pub(super) see: &'static [&'static str],
}

const USUAL: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "failed; standard error says why"),
    ("2", "wrong usage"),
    ("141", "nobody reads the output any more"),
];
const MEASURED: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "a subject failed, or a comparison was lost"),
    ("2", "wrong usage, or nothing could be measured"),
    ("141", "nobody reads the output any more"),
];
const CALIBRATED: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "failed; standard error says why"),
    ("2", "wrong usage, or nothing could be measured"),
    ("141", "nobody reads the output any more"),
];
const PREDICTED: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "nothing was calibrated that could tell"),
    (
        "2",
        "wrong usage, or with --check nothing could be measured",
    ),
    ("141", "nobody reads the output any more"),
];
const NODE: &[&str] = &[
    "DIPOLE_NID",
    "DIPOLE_HOSTS",
    "DIPOLE_KEY",
    "DIPOLE_RUNTIME_DIR",
    "DIPOLE_LINK",
    "DIPOLE_LOG",
];

/// The notes of a command, by the name of its page.
pub(super) fn notes(page: &str) -> Notes {
    let notes = |examples, status, see| Notes {
        examples,
        status,
        environment: NODE,
        see,
    };
    match page {
        "dipole-run" => notes(
            &[
                (
                    "dipole run -n 4 --tag ./program",
                    "four ranks here, each line with its rank",
                ),
                (
                    "dipole run -n 8 --hosts hosts ./program",
                    "on the hosts of a file, as many on each as its slots",
                ),
                (
                    "dipole run -n 8 --hosts agent --timeout 3600 --output-dir out ./program",
                    "on the nodes that the agent knows, for an hour at most, output in out/0.out and so on",
                ),
                (
                    "dipole run -n 1 --bind ./server : -n 7 ./client",
                    "one job of two programs, each rank on cores of its own",
                ),
                (
                    "dipole run -n 8 --hosts hosts --on-loss restart ./program",
                    "goes on when ranks or hosts are lost, and starts them again",
                ),
            ],
            &[
                ("0", "all ranks returned 0"),
                (
                    "N",
                    "the status of the first rank that failed; 128 and the number of a signal; 137 also for one lost with its host",
                ),
                ("1", "the job could not be run"),
                ("2", "wrong usage"),
                ("124", "the time of --timeout was up"),
                ("126, 127", "the program cannot be started, or is not there"),
                ("141", "nobody reads the output any more"),
            ],
            &["dipole-agent"],
        ),
        "dipole-send" => notes(
            &[
                ("dipole send 2:7 original", "a file to endpoint 7 of node 2"),
                (
                    "dipole send 2:7 a b c",
                    "several, into the directory of its --out",
                ),
                ("tar c folder | dipole send 2:7", "a stream"),
            ],
            TRANSFER,
            &["dipole-recv"],
        ),
        "dipole-recv" => notes(
            &[
                (
                    "dipole recv 7 --out copy",
                    "one file, by this name once it is whole",
                ),
                (
                    "dipole recv 7 --out . --keep",
                    "files by their own names, from one sender after the other",
                ),
                (
                    "dipole recv 7 --out copy --resume",
                    "goes on where an earlier transfer was cut",
                ),
                ("dipole recv 7 | tar x", "a stream"),
            ],
            TRANSFER,
            &["dipole-send"],
        ),
        "dipole-bench" => notes(
            &[
                (
                    "dipole bench pingpong --size 64",
                    "one measurement, beside sockets",
                ),
                (
                    "dipole bench --html page.html",
                    "everything, as a page with figures",
                ),
                ("dipole --json bench rate", "the same for scripts"),
                (
                    "dipole bench server --hosts hosts --nid 2",
                    "on node 2: takes part when another node measures",
                ),
                (
                    "dipole bench --to 2 --hosts hosts",
                    "on node 1: the table, between these two hosts",
                ),
            ],
            MEASURED,
            &["dipole-doctor"],
        ),
        "dipole-calibrate" => notes(
            &[
                (
                    "dipole calibrate",
                    "every link that can be opened here, in less than a minute; as root between namespaces, and bpf too",
                ),
                ("dipole calibrate --link udp", "one of them"),
                (
                    "dipole calibrate --check",
                    "compares predictions with new measurements, from 1 byte to 4 MiB",
                ),
                (
                    "dipole calibrate supersteps",
                    "s, l and g of the BSP model, by number of ranks",
                ),
                (
                    "dipole run -n 2 --hosts hosts dipole calibrate --job",
                    "between two nodes",
                ),
                (
                    "dipole run -n 8 --hosts hosts dipole calibrate pacing",
                    "the pace of supersteps, with one process on each node",
                ),
            ],
            CALIBRATED,
            &["dipole-predict", "dipole-run"],
        ),
        "dipole-predict" => notes(
            &[
                (
                    "dipole predict --bytes 4096 --link udp",
                    "how long a message of 4 KiB takes",
                ),
                (
                    "dipole predict --ranks 2,4,8,16 --link shm --work-seconds 0.5 --volume 8000000 --supersteps 3",
                    "a program of three supersteps that exchange 8 MB each, and its speed-up",
                ),
            ],
            PREDICTED,
            &["dipole-calibrate", "dipole-calibrate"],
        ),
        "dipole-graph" => notes(
            &[
                (
                    "dipole graph paper.toml --svg paper.svg",
                    "checked and drawn",
                ),
                (
                    "dipole graph paper.toml --run",
                    "played: what arrives is checked",
                ),
                (
                    "dipole graph --watch",
                    "the edges that exist on this machine now",
                ),
            ],
            &[
                ("0", "the graph is right, and with --run all arrived"),
                ("1", "it has faults, or something did not arrive"),
                ("2", "wrong usage, or a file that cannot be read"),
                ("141", "nobody reads the output any more"),
            ],
            &["dipole-run"],
        ),
        "dipole-stats" => notes(
            &[
                ("dipole stats", "the processes of this machine, a line each"),
                (
                    "dipole stats 1:7",
                    "all counters of the process that has endpoint 7 of node 1",
                ),
                ("dipole --json stats 4711", "of process 4711, for scripts"),
                ("dipole stats --prometheus", "all, for Prometheus"),
            ],
            SHOWN,
            &["dipole-links", "dipole-graph"],
        ),
        "dipole-links" => notes(
            &[
                (
                    "dipole links",
                    "how each process of this machine reaches its peers",
                ),
                ("dipole links 4711", "and one of them"),
            ],
            SHOWN,
            &["dipole-stats", "dipole-doctor"],
        ),
        "dipole-trace" => notes(
            &[
                (
                    "dipole run -n 4 --env DIPOLE_TRACE=t ./lu; dipole trace t",
                    "where the time of a program in supersteps went, and why",
                ),
                ("dipole --json trace t", "the same for scripts"),
                (
                    "dipole trace t --html page.html --perfetto t.perfetto-trace",
                    "as a page with the superstep figure, and as a timeline",
                ),
            ],
            USUAL,
            &["dipole-run", "dipole-bsp", "dipole-top", "dipole-report"],
        ),
        "dipole-top" => notes(
            &[
                ("dipole top", "live; q ends it"),
                (
                    "dipole top --trace t",
                    "with the supersteps of a program that runs with DIPOLE_TRACE=t",
                ),
                ("dipole --json top --once", "once, for scripts"),
            ],
            USUAL,
            &["dipole-stats", "dipole-links", "dipole-trace"],
        ),
        "dipole-report" => notes(
            &[
                (
                    "dipole report out",
                    "out/report.html, and the same as JSON and CSV",
                ),
                ("dipole report out --trace t", "with a traced run"),
            ],
            USUAL,
            &["dipole-calibrate", "dipole-bsp", "dipole-trace"],
        ),
        "dipole-agent" | "dipole-agent-status" => notes(
            &[
                ("dipole agent", "answers for this node; one for each node"),
                (
                    "dipole agent --discover",
                    "finds the other nodes without a hosts file",
                ),
                (
                    "dipole agent status",
                    "which nodes are there, and which jobs",
                ),
            ],
            USUAL,
            &["dipole-run", "dipole-key"],
        ),
        "dipole-key" | "dipole-key-new" | "dipole-key-show" | "dipole-key-rotate" => notes(
            &[
                (
                    "dipole key new key",
                    "a new key; copy the file to all nodes, and set DIPOLE_KEY=key",
                ),
                (
                    "dipole key show key",
                    "its fingerprint, which tells keys apart and is no secret",
                ),
                (
                    "dipole key rotate key",
                    "a new key beside the old one; copy the file, then the same with --continue, twice",
                ),
            ],
            USUAL,
            &["dipole-agent", "dipole-doctor"],
        ),
        "dipole-mpi-env" => notes(
            &[(
                "dipole mpi-env openmpi",
                "the variables, for eval of a shell; then mpirun as ever",
            )],
            USUAL,
            &["dipole-doctor"],
        ),
        "dipole-sockets" => Notes {
            examples: &[
                (
                    "dipole sockets iperf3 -s",
                    "a server; its clients on this node may be started the same way",
                ),
                (
                    "dipole sockets python3 program.py",
                    "any program that uses the C library's sockets",
                ),
                (
                    "dipole sockets sh -c 'cat < /dev/dipole/7'",
                    "what is sent to endpoint 7 of this node; /dev/dipole/2:7 sends to node 2",
                ),
            ],
            status: &[
                ("127", "the program could not be run"),
                ("1", "the library is not installed"),
                ("else", "the program's"),
            ],
            environment: &["DIPOLE_RUNTIME_DIR"],
            see: &["dipole-doctor"],
        },
        "dipole-doctor" => notes(
            &[
                (
                    "dipole doctor --hosts hosts",
                    "this machine and every node of the file",
                ),
                (
                    "dipole doctor --strict",
                    "for scripts: fails also if something is slower than need be",
                ),
            ],
            &[
                ("0", "nothing is broken (with --strict: nor slow)"),
                ("1", "something is"),
                ("2", "wrong usage"),
                (
                    "3",
                    "nothing is broken, but nobody answers at some node: whether messages reach it is not known",
                ),
                ("141", "nobody reads the output any more"),
            ],
            &["dipole-bench"],
        ),
        "dipole-completions" => notes(
            &[(
                "dipole completions bash > ~/.local/share/bash-completion/completions/dipole",
                "for one user",
            )],
            USUAL,
            &[],
        ),
        _ => notes(
            &[
                ("dipole run -n 4 ./program", "four ranks of a program"),
                (
                    "dipole send 2:7 file",
                    "to endpoint 7 of node 2, where dipole recv 7 waits",
                ),
                ("dipole doctor", "is everything in order?"),
            ],
            USUAL,
            &[],
        ),
    }
}

const SHOWN: &[(&str, &str)] = &[
    ("0", "done"),
    (
        "1",
        "there is no such process, or its directory cannot be read",
    ),
    ("2", "wrong usage"),
    ("141", "nobody reads the output any more"),
];

const TRANSFER: &[(&str, &str)] = &[
    ("0", "everything has arrived, with the same checksum"),
    ("1", "it has not; standard error says why"),
    ("2", "wrong usage"),
    (
        "130, 143",
        "ended by SIGINT or SIGTERM; the other side was told",
    ),
    ("141", "nobody reads the output any more"),
];
