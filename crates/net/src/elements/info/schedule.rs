//! ScheduleInfo: how often tasks are run.
//!
//! `ScheduleInfo(ELEMENT PARAM, ...)`, no ports: the task of ELEMENT is run PARAM times as often as others, to a 1,024th; 1 is
//! the default, and 32 the most. ELEMENT is named as seen from where the ScheduleInfo stands. Where it is a compound element,
//! PARAM multiplies what is said of the parts within it; but what is said of a part from outside (`c/i 2`) counts alone.

use crate::args::{Args, Failed, NameDb, NameKind};
use crate::element::Element;
use crate::lang::config::split_words;

/// What 1 is.
const ONE: u32 = 1 << 10;
/// What the most is.
const MAX: u32 = 1 << 15;

/// The element.
#[derive(Default)]
pub(super) struct ScheduleInfo;

impl Element for ScheduleInfo {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let scope = args.cx().element.rsplit_once('/').map_or("", |(scope, _)| scope).to_string();
        for arg in args.rest() {
            let words = split_words(&arg);
            match &words[..] {
                [] => {}
                [name, param] if let Some(tickets) = parse_param(param) => {
                    args.define_whole(NameKind::ScheduleTickets, &key(&scope, name), &tickets.to_be_bytes());
                }
                _ => _ = args.error(format_args!("expected 'ELEMENTNAME PARAM', got '{arg}'")),
            }
        }
        args.finish()
    }
}

fn parse_param(text: &str) -> Option<u32> {
    let value: f64 = text.parse().ok().filter(|value: &f64| (0.0..1e6).contains(value))?;
    Some((value * f64::from(ONE)).round() as u32)
}

/// The name under which it is kept what a scope says of an element. No element is called like that.
fn key(scope: &str, name: &str) -> String {
    format!("{scope}//{name}")
}

/// How often an element's task is run, in 1,024ths; nothing where nobody said.
pub(crate) fn tickets(names: &NameDb, element: &str) -> Option<u32> {
    let slashes: Vec<_> = element.match_indices('/').map(|(at, _)| at).collect();
    let mut factors: Vec<(usize, u32)> = Vec::new();
    // Scopes from the inner to the outer; in each, what is said of the most of the name.
    for depth in (0..=slashes.len()).rev() {
        let (scope, start) =
            if depth == 0 { ("", 0) } else { (&element[..slashes[depth - 1]], slashes[depth - 1] + 1) };
        let ends = std::iter::once(element.len()).chain(slashes[depth..].iter().rev().copied());
        let value = |end: usize| {
            let bytes = names.get(NameKind::ScheduleTickets, &key(scope, &element[start..end]), "")?;
            Some((end, u32::from_be_bytes(bytes.try_into().ok()?)))
        };
        if let Some((end, tickets)) = ends.into_iter().find_map(value) {
            // What was said further in, of the same or of what it is within, does not count.
            factors.retain(|(inner, _)| *inner > end);
            factors.push((end, tickets));
        }
    }
    let product = factors.iter().fold(u64::from(ONE), |all, (_, one)| all * u64::from(*one) / u64::from(ONE));
    (!factors.is_empty()).then_some((product as u32).clamp(1, MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::Harness;

    fn names(all: &[(&str, &str, f64)]) -> NameDb {
        let mut names = NameDb::default();
        for (scope, name, value) in all {
            let tickets = parse_param(&value.to_string()).unwrap();
            names.define(NameKind::ScheduleTickets, key(scope, name), &tickets.to_be_bytes());
        }
        names
    }

    #[test]
    fn factors_of_compound_elements_multiply() {
        let of =
            |all: &[(&str, &str, f64)], element: &str| tickets(&names(all), element).map(|t| f64::from(t) / 1024.0);
        assert_eq!(of(&[("", "a", 2.0)], "a"), Some(2.0));
        assert_eq!(of(&[("", "a", 2.0)], "b"), None);
        assert_eq!(of(&[("c", "i", 0.5), ("", "c", 4.0)], "c/i"), Some(2.0));
        assert_eq!(of(&[("c", "i", 0.5), ("", "c", 4.0), ("", "c/i", 10.5)], "c/i"), Some(10.5));
        assert_eq!(of(&[("", "c", 4.0)], "c/d/i"), Some(4.0));
        assert_eq!(of(&[("c", "d", 3.0), ("c/d", "i", 2.0), ("", "c/d", 0.5)], "c/d/i"), Some(1.0));
        assert_eq!(of(&[("", "a", 100.0)], "a"), Some(32.0));
        assert_eq!(of(&[("", "a", 0.0)], "a"), Some(1.0 / 1024.0));
    }

    #[test]
    fn parameters_are_checked() {
        Harness::new("ScheduleInfo(give 0.5, , x 2); give :: Give -> Take");
        let errors = Harness::errors("ScheduleInfo(a, b x, c -1, d 1 2, e nan)");
        assert_eq!(errors.matches("expected 'ELEMENTNAME PARAM', got ").count(), 5, "{errors}");
    }
}
