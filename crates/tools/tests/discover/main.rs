//! Agents that find each other: four nodes in network namespaces without a hosts file. Needs
//! root; skipped aloud without.

mod clock;
mod control;
mod join;
mod segments;
mod testbed;
