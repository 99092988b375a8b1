//! Agents that discover each other: four nodes in network namespaces without a hosts file. Needs root;
//! skipped with a message otherwise.

mod clock;
mod control;
mod join;
mod load;
mod segments;
mod testbed;
