//! How many rules of a file are searched for as they are written, how many in part, and how many are refused.

use super::rule::{Problem, What};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Counts of rules, and why those are not searched for that are not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// All of what they say is evaluated, but for what counts as said: `flow`, and which part of a message a content is in.
    pub whole: usize,
    /// Some of their tests are not evaluated: they match more than they say.
    pub partly: usize,
    /// Not loaded.
    pub refused: usize,
    /// Of refused ones: how many for which reason.
    pub refused_for: BTreeMap<String, usize>,
    /// Of those loaded in part: how many are without which test.
    pub without: BTreeMap<String, usize>,
}

impl Summary {
    /// Of so many rules that are loaded.
    pub(super) fn new(loaded: usize, problems: &[Problem]) -> Self {
        let (mut summary, mut partly) = (Self::default(), BTreeSet::new());
        for problem in problems {
            match &problem.what {
                What::NotLoaded(reason) => {
                    summary.refused += 1;
                    *summary.refused_for.entry(reason.clone()).or_default() += 1;
                }
                What::NotEvaluated(_, tests) => {
                    partly.insert(problem.line);
                    for test in tests {
                        *summary.without.entry(test.clone()).or_default() += 1;
                    }
                }
                What::End(_) => {}
            }
        }
        (summary.whole, summary.partly) = (loaded - partly.len().min(loaded), partly.len());
        summary
    }
}

/// The most frequent ones first.
fn by_count(counts: &BTreeMap<String, usize>) -> Vec<(&str, usize)> {
    let mut all: Vec<_> = counts.iter().map(|(what, count)| (&what[..], *count)).collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} whole, {} in part, {} not loaded", self.whole, self.partly, self.refused)?;
        for (reason, count) in by_count(&self.refused_for) {
            writeln!(f, "{count} not loaded: {reason}")?;
        }
        for (test, count) in by_count(&self.without) {
            writeln!(f, "{count} without: {test}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RuleSet, parse};

    #[test]
    fn rules_are_counted_once_and_reasons_as_often_as_there_are() {
        let text = "alert tcp any any -> any any (content:\"a\"; sid:1;)\n\
                    alert http any any -> any any (content:\"a\"; byte_test:1; dsize:3; sid:2;)\n\
                    alert tcp any any -> any any (content:\"a\"; dsize:3; sid:3;)\n\
                    alert tcp any any -> any any (dsize:3; sid:4;)\nnonsense\n";
        let set = RuleSet::new(parse(text.as_bytes())).unwrap();
        let expected = "1 whole, 2 in part, 2 not loaded\n\
                        1 not loaded: it has no content to search for\n1 not loaded: it has no options in parentheses\n\
                        2 without: dsize\n1 without: byte_test\n1 without: protocol http\n";
        assert_eq!(set.summary().to_string(), expected);
    }

    /// The numbers of `docs/guide/net.md`.
    #[test]
    fn of_the_rules_of_snorts_community_few_are_refused() {
        let Some(file) = std::env::var_os("BIFOLIO_SNORT_RULES") else {
            return bifolio_testing::skip("BIFOLIO_SNORT_RULES names no file with Snort's community rules");
        };
        let summary = RuleSet::new(parse(&std::fs::read(file).unwrap())).unwrap().summary();
        println!("{summary}");
        let all = summary.whole + summary.partly + summary.refused;
        assert!(summary.refused * 20 < all && summary.whole * 2 > all, "{summary}");
    }
}
