//! Flow tables: many rules over many fields of a packet, of which the one with the highest priority decides.
//!
//! ```text
//!   key        a packet's fields, as eight words
//!   rule       what a rule tests, and its text
//!   text  classbench  list    rules in our syntax, in ClassBench's, and files of both
//!   table      rules that are looked up and change
//!   slots  lists  prune       its hash tables, its rules, and which tables a packet need not look at
//!   image                     all of it as one array for a device
//! ```
//!
//! The structure is a tuple space with merged tuples (TupleMerge). A table hashes some bits of the fields; a rule is in a
//! table that hashes no bits but those that it tests, and rules with equal hashes are a list, the best first. Where a list
//! is long, the next rule gets a table that hashes more bits. A packet looks into tables in the order of their best rules,
//! and stops at tables that have none better than what it found. By the upper 16 bits of its addresses and its protocol it
//! knows which tables have nothing for it (tuple pruning). A batch goes from table to table, and not each packet through all
//! of them, so that loads do not wait for each other.
//!
//! Why this one: a rule is stored once, whatever others there are, so memory is linear and an update is a step in one
//! list. Decision trees (HiCuts, CutSplit) are as fast, but copy rules that lie across their cuts, and updates ruin them;
//! equivalence classes (RFC) are faster, and their tables grow with the product of the fields. All is in arrays of 32-bit
//! words (a word of 64 bits for sets of tables) and indices, as a kernel wants it.
//!
//! What is bounded: 64 tables, so 64 hashes for a packet; memory by 200 bytes for each rule, and 1 MiB. All is made anew where
//! rules have doubled, or as many were removed as there are. Ranges of ports
//! count with the bits that they have in common: rules that differ in nothing but ranges without such bits are one list, and
//! are compared one by one.
//!
//! - J. Daly and others, "TupleMerge: Fast Software Packet Processing for Online Packet Classification", IEEE/ACM
//!   Transactions on Networking 27 (2019).
//! - V. Srinivasan, S. Suri and G. Varghese, "Packet Classification using Tuple Space Search", SIGCOMM 1999.

mod classbench;
mod image;
mod key;
mod list;
mod lists;
mod prune;
mod rule;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use key::Key;
pub use list::parse_rules;
pub use rule::Rule;
pub use table::FlowTable;
