//! The shapes of the literature on memory models, each with all of its outcomes.
//!
//! A CPU's `Publish` and, through the cache, `Look` are nothing; for a CPU process that knows nothing, a `Look` in
//! lazy mode is somebody's sync.

use Op::{Flicker, Look, Publish, Read, Rewrite, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// The value is one that nobody else writes there.
    Write(usize, u8),
    Read(usize),
    /// Of a device: a release.
    Publish,
    /// Of a device: an acquire.
    Look,
    /// Writes the value that is there: changes nothing.
    Rewrite(usize),
    /// Writes another value and, before any release, the value that was there: changes nothing. Of a CPU: as
    /// `Rewrite`.
    Flicker(usize),
}

pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) threads: &'static [&'static [Op]],
    /// What the reads may return, thread by thread, and behind it, if `finals`, what all agree on in the end,
    /// place by place. Everything else is forbidden.
    pub(crate) outcomes: &'static [&'static str],
    /// Places whose final values are part of the outcome.
    pub(crate) finals: usize,
}

const X: usize = 0;
const Y: usize = 1;
const Z: usize = 2;

pub(crate) const PAIRS: &[Shape] = &[
    Shape {
        name: "message passing",
        threads: &[&[Write(X, 1), Publish, Write(Y, 1), Publish], &[Look, Read(Y), Look, Read(X)]],
        outcomes: &["00", "01", "11"],
        finals: 0,
    },
    Shape {
        name: "message passing by one release and one acquire",
        threads: &[&[Write(X, 1), Write(Y, 1), Publish], &[Look, Read(Y), Read(X)]],
        outcomes: &["00", "01", "11"],
        finals: 0,
    },
    Shape {
        name: "store buffering",
        threads: &[&[Write(X, 1), Publish, Look, Read(Y)], &[Write(Y, 1), Publish, Look, Read(X)]],
        outcomes: &["01", "10", "11"],
        finals: 0,
    },
    Shape {
        name: "store buffering without acquires",
        threads: &[&[Write(X, 1), Publish, Read(Y)], &[Write(Y, 1), Publish, Read(X)]],
        outcomes: &["00", "01", "10", "11"],
        finals: 0,
    },
    Shape {
        name: "load buffering",
        threads: &[&[Look, Read(X), Write(Y, 1), Publish], &[Look, Read(Y), Write(X, 1), Publish]],
        outcomes: &["00", "01", "10"],
        finals: 0,
    },
    Shape {
        name: "coherence of two reads",
        threads: &[&[Write(X, 1), Publish, Write(X, 2), Publish], &[Look, Read(X), Look, Read(X)]],
        outcomes: &["00", "01", "02", "11", "12", "22"],
        finals: 0,
    },
    Shape {
        name: "coherence of two writes",
        threads: &[&[Write(X, 1), Publish, Write(X, 2), Publish], &[Look, Read(X), Read(X)]],
        outcomes: &["002", "012", "022", "112", "122", "222"],
        finals: 1,
    },
    Shape {
        name: "coherence of a write and a read",
        threads: &[&[Write(X, 1), Read(X), Publish, Look, Read(X)], &[Write(X, 2), Publish]],
        outcomes: &["111", "112", "122", "222"],
        finals: 1,
    },
    Shape {
        name: "coherence of a read and a write",
        threads: &[&[Look, Read(X), Write(X, 1), Publish], &[Write(X, 2), Publish]],
        outcomes: &["01", "02", "21"],
        finals: 1,
    },
    Shape {
        name: "S: a write after an acquire is newer than what was acquired",
        threads: &[&[Write(X, 2), Publish, Write(Y, 1), Publish], &[Look, Read(Y), Look, Write(X, 1), Publish]],
        outcomes: &["01", "02", "11"],
        finals: 1,
    },
    Shape {
        name: "R: two races, and a read",
        threads: &[&[Write(X, 1), Publish, Write(Y, 1), Publish], &[Write(Y, 2), Publish, Look, Read(X)]],
        outcomes: &["011", "012", "111", "112"],
        finals: 2,
    },
    Shape {
        name: "2+2W: races in opposite orders",
        threads: &[&[Write(X, 1), Publish, Write(Y, 2), Publish], &[Write(Y, 1), Publish, Write(X, 2), Publish]],
        // Races for two places in two pages: each has one winner, and not the same.
        outcomes: &["11", "12", "21", "22"],
        finals: 2,
    },
    Shape {
        name: "false sharing",
        threads: &[&[Write(X, 1), Publish, Look, Read(X), Read(Y)], &[Write(Y, 1), Publish, Look, Read(Y), Read(X)]],
        outcomes: &["101111", "111011", "111111"],
        finals: 2,
    },
    Shape {
        name: "false sharing by writes between each other's releases",
        threads: &[
            &[Write(X, 1), Publish, Write(Z, 1), Publish, Write(X, 2), Publish],
            &[Write(Y, 1), Publish, Look, Write(Y, 2), Publish],
        ],
        outcomes: &["221"],
        finals: 3,
    },
    Shape {
        name: "a race for one byte",
        threads: &[&[Write(X, 1), Publish, Look, Read(X)], &[Write(X, 2), Publish, Look, Read(X)]],
        outcomes: &["111", "121", "122", "222"],
        finals: 1,
    },
    Shape {
        name: "a race for one byte beside a change of another",
        threads: &[&[Write(X, 1), Publish, Write(Y, 1), Publish], &[Write(X, 2), Publish, Write(Z, 1), Publish]],
        outcomes: &["111", "211"],
        finals: 3,
    },
    Shape {
        name: "a silent store",
        threads: &[&[Rewrite(X), Publish, Look, Read(X)], &[Write(X, 1), Publish]],
        outcomes: &["01", "11"],
        finals: 1,
    },
    Shape {
        name: "a silent store of one's own value",
        threads: &[&[Write(X, 1), Publish, Rewrite(X), Publish], &[Look, Read(X), Write(X, 2), Publish]],
        outcomes: &["01", "02", "12"],
        finals: 1,
    },
    Shape {
        name: "a value that comes and goes between releases",
        threads: &[&[Flicker(X), Publish, Flicker(Y), Publish], &[Write(X, 1), Publish, Look, Read(Y)]],
        outcomes: &["010"],
        finals: 2,
    },
    Shape {
        name: "what is not released",
        threads: &[&[Write(X, 1), Write(Y, 1)], &[Look, Read(X), Look, Read(X), Look, Read(Y)]],
        outcomes: &["000", "001", "010", "011", "110", "111"],
        finals: 0,
    },
];

pub(crate) const GROUPS: &[Shape] = &[
    Shape {
        name: "WRC: transitivity",
        threads: &[&[Write(X, 1), Publish], &[Look, Read(X), Write(Y, 1), Publish], &[Look, Read(Y), Look, Read(X)]],
        outcomes: &["000", "001", "010", "011", "100", "101", "111"],
        finals: 0,
    },
    Shape {
        name: "ISA2: transitivity over three places",
        threads: &[
            &[Write(X, 1), Publish, Write(Y, 1), Publish],
            &[Look, Read(Y), Write(Z, 1), Publish],
            &[Look, Read(Z), Look, Read(X)],
        ],
        outcomes: &["000", "001", "010", "011", "100", "101", "111"],
        finals: 0,
    },
    Shape {
        name: "RWC: a read that others must not contradict",
        threads: &[&[Write(X, 1), Publish], &[Look, Read(X), Look, Read(Y)], &[Write(Y, 1), Publish, Look, Read(X)]],
        outcomes: &["000", "001", "010", "011", "101", "110", "111"],
        finals: 0,
    },
    Shape {
        name: "three writers of neighbouring bytes",
        threads: &[
            &[Write(X, 1), Publish, Write(X, 2), Publish],
            &[Write(Y, 1), Publish, Write(Y, 2), Publish],
            &[Write(Z, 1), Publish, Look, Read(Z), Write(Z, 2), Publish],
        ],
        outcomes: &["1222"],
        finals: 3,
    },
    Shape {
        name: "a race of three",
        threads: &[&[Write(X, 1), Publish], &[Write(X, 2), Publish], &[Write(X, 3), Publish]],
        outcomes: &["1", "2", "3"],
        finals: 1,
    },
    Shape {
        name: "IRIW: two writers whose order two readers see",
        threads: &[
            &[Write(X, 1), Publish],
            &[Write(Y, 1), Publish],
            &[Look, Read(X), Look, Read(Y)],
            &[Look, Read(Y), Look, Read(X)],
        ],
        outcomes: &[
            "0000", "0001", "0010", "0011", "0100", "0101", "0110", "0111", "1000", "1001", "1011", "1100", "1101",
            "1110", "1111",
        ],
        finals: 0,
    },
];
