//! ScheduleInfo: how often tasks are run.
//!
//! `ScheduleInfo(ELEMENT PARAM, ...)`, no ports: the task of ELEMENT is run PARAM times as often as others, to a 1,024th; 1 is
//! the default, and 32 the most. ELEMENT is named as seen from where the ScheduleInfo stands. Where it is a compound element,
//! PARAM multiplies what is said of the parts within it; but what is said of a part from outside (`c/i 2`) counts alone.

use crate::args::{Args, Failed, NameDb, TICKETS};
use crate::element::Element;
use crate::lang::config::split_words;

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
                    let (kind, name) = NameDb::tickets_name(&scope, name);
                    args.define_whole(kind, &name, &tickets.to_be_bytes());
                }
                _ => _ = args.error(format_args!("expected 'ELEMENTNAME PARAM', got '{arg}'")),
            }
        }
        args.finish()
    }
}

fn parse_param(text: &str) -> Option<u32> {
    let value: f64 = text.parse().ok().filter(|value: &f64| (0.0..1e6).contains(value))?;
    Some((value * f64::from(TICKETS)).round() as u32)
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn parameters_are_checked() {
        Harness::new("ScheduleInfo(give 0.5, , x 2); give :: Give -> Take");
        let errors = Harness::errors("ScheduleInfo(a, b x, c -1, d 1 2, e nan)");
        assert_eq!(errors.matches("expected 'ELEMENTNAME PARAM', got ").count(), 5, "{errors}");
    }
}
