//! Rules of Snort (2 and 3) and Suricata, as far as they say what to search for.
//!
//! ```text
//!   rule       what a rule is, and how it is written
//!   parse      a file to rules: lines, headers, options
//!   content    one `content` option with its modifiers, and those that stand behind it
//!   buffers    names of buffers that contents are searched in
//!   ends       what the header says of packets: protocol, addresses, ports
//!   needle     where a content's bytes are
//!   pcre       regular expressions
//!   checks     contents and expressions of a rule, with their places
//!   apart      rules whose fast pattern is in most packets, by ports
//!   search     all rules at once: a fast pattern of each, then the rest
//!   summary    how many are evaluated as they are written
//! ```
//!
//! A rule is loaded with all that is understood of it; what is not is a [`Problem`] with its line. A rule whose tests are not
//! all evaluated matches more packets than Snort would let it, never fewer.

mod apart;
mod buffers;
mod checks;
mod content;
mod ends;
mod needle;
mod parse;
mod pcre;
mod rule;
mod search;
mod summary;
#[cfg(test)]
mod tests;

pub use checks::Text;
pub use ends::{Facts, Variables};
pub use parse::{MAX_CONTENTS, MAX_LINE, MAX_OPTIONS, MAX_PROBLEMS, MAX_RULES, Rules, parse};
pub use pcre::MAX_PCRES;
pub use rule::{Content, Header, Opt, Problem, Rule, What};
pub use search::{RuleSet, Scratch};
pub use summary::Summary;
