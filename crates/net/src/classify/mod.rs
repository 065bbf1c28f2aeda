//! Patterns and filter expressions, compiled to decision programs.
//!
//! ```text
//!   text ── parse, primitive, names ──┐
//!   text ── pattern ──────────────────┴─> expr ──┬─ program, optimise ──> few rules: steps
//!                                                └─ cover, vector ──────> many rules: tables
//! ```
//!
//! A test of a field fails if the packet is too short to have it, with a relation and with its opposite alike; `not` in front
//! makes it succeed. The two ports of a transport header count as one field of four bytes here.

mod cover;
mod expr;
mod headers;
mod kind;
mod names;
mod optimise;
mod parse;
mod pattern;
mod primitive;
mod program;
pub(crate) mod system;
#[cfg(test)]
mod tests;
mod vector;

pub use headers::Headers;
pub use names::{BuiltIn, Names};
pub(crate) use names::{port_number, protocol_number};

use crate::Log;
use expr::Expr;
use program::{NONE, Program};
use vector::Vectors;

/// The longest program that is run as it is; more steps have tables.
const STEPS_MAX: usize = 48;
/// The longest program at all.
const PROGRAM_STEPS_MAX: usize = 1 << 22;

/// Compiled patterns: which output a packet goes to.
#[derive(Debug)]
pub struct Filter {
    program: Program,
    vectors: Option<Box<Vectors>>,
}

impl Filter {
    /// The patterns of a `Classifier`, one for each of `outputs`. Errors and warnings go to `log`; `None` after an error.
    pub fn classifier<S: AsRef<str>>(patterns: &[S], outputs: usize, log: &mut Log) -> Option<Self> {
        let errors = log.errors();
        if patterns.len() != outputs {
            log.error_here(format_args!("need {outputs} arguments, one per output port"));
            return None;
        }
        let parsed =
            patterns.iter().enumerate().map(|(slot, text)| (pattern::parse(text.as_ref(), slot, log), slot as u32));
        let rules: Vec<_> = parsed.collect();
        let filter = Self::compile(&rules, true, errors, log)?;
        filter.warn_unused(outputs, log);
        Some(filter)
    }

    /// The patterns of an `IPClassifier`, one for each of `outputs`, with names of the configuration's own.
    pub fn ip_classifier<S: AsRef<str>>(
        patterns: &[S],
        outputs: usize,
        names: &dyn Names,
        log: &mut Log,
    ) -> Option<Self> {
        if patterns.len() != outputs {
            log.error_here(format_args!("need {outputs} arguments, one per output port"));
            return None;
        }
        let rules: Vec<_> =
            patterns.iter().enumerate().map(|(slot, text)| format!("{slot} {}", text.as_ref())).collect();
        let filter = Self::ip_filter(&rules, outputs, names, log)?;
        filter.warn_unused(outputs, log);
        Some(filter)
    }

    /// The rules of an `IPFilter`: an action each (`allow`, `deny`, `drop` or one of `outputs`), and a pattern.
    pub fn ip_filter<S: AsRef<str>>(rules: &[S], outputs: usize, names: &dyn Names, log: &mut Log) -> Option<Self> {
        let errors = log.errors();
        let mut parsed = Vec::with_capacity(rules.len());
        for (slot, rule) in rules.iter().enumerate() {
            let words = parse::words(rule.as_ref());
            let Some(&action) = words.first() else {
                log.error_here(format_args!("empty pattern {slot}"));
                continue;
            };
            let verdict = parse_action(action, slot, outputs, log);
            let expr = match words[1..] {
                [] | ["-" | "any" | "all"] => Expr::constant(true),
                _ => parse::Parser::new(&words, 1, slot, names, log).parse(),
            };
            parsed.push((expr, verdict));
        }
        Self::compile(&parsed, false, errors, log)
    }

    /// Compiles rules, unless there were errors since there were `errors` of them.
    fn compile(rules: &[(Expr, u32)], raw: bool, errors: usize, log: &mut Log) -> Option<Self> {
        if log.errors() > errors {
            return None;
        }
        if rules.len() > vector::BITS_MAX {
            log.error_here(format_args!("{} patterns, at most {} are allowed", rules.len(), vector::BITS_MAX));
            return None;
        }
        let steps: usize = rules.iter().map(|(expr, _)| expr.nodes().len()).sum();
        if steps > PROGRAM_STEPS_MAX {
            log.error_here(format_args!("patterns have {steps} tests, at most {PROGRAM_STEPS_MAX} are allowed"));
            return None;
        }
        let mut program = Program::new(rules.iter().map(|(expr, verdict)| (expr, *verdict)), raw);
        program.optimise(!raw);
        program.finish();
        let mut vectors = None;
        if program.steps.len() > STEPS_MAX {
            let Ok(tables) = Vectors::new(rules) else {
                log.error_here("patterns need too much memory, use fewer ports and addresses");
                return None;
            };
            vectors = Some(Box::new(tables));
        }
        Some(Self { program, vectors })
    }

    /// The output of a packet; `None`: no pattern matches, or the first one that does says to drop it.
    #[inline]
    pub fn classify(&self, packet: &Headers<'_>) -> Option<usize> {
        let verdict = match &self.vectors {
            Some(vectors) => vectors.run(packet),
            None => self.program.run(packet),
        };
        (verdict != NONE).then_some(verdict as usize)
    }

    /// Calls `each` with the output of each packet, in order.
    pub fn classify_batch<'a>(
        &self,
        packets: impl IntoIterator<Item = Headers<'a>>,
        mut each: impl FnMut(Option<usize>),
    ) {
        let verdict = |verdict: u32| (verdict != NONE).then_some(verdict as usize);
        match &self.vectors {
            Some(vectors) => packets.into_iter().for_each(|packet| each(verdict(vectors.run(&packet)))),
            None => packets.into_iter().for_each(|packet| each(verdict(self.program.run(&packet)))),
        }
    }

    /// The program in Click's notation, for handlers: a step a line.
    pub fn program(&self) -> String {
        self.program.text()
    }

    /// How many bytes the tables of many rules take; 0 where the program runs itself.
    pub fn table_bytes(&self) -> usize {
        self.vectors.as_ref().map_or(0, |vectors| vectors.bytes())
    }

    /// Whether any packet can get to an output, as far as the program tells.
    fn warn_unused(&self, outputs: usize, log: &mut Log) {
        let mut used = vec![false; outputs];
        for verdict in self.program.verdicts() {
            if let Some(used) = used.get_mut(verdict as usize) {
                *used = true;
            }
        }
        for (output, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
            log.warning_here(format_args!("output {output} matches no packets"));
        }
    }
}

/// The verdict that an action stands for.
fn parse_action(word: &str, slot: usize, outputs: usize, log: &mut Log) -> u32 {
    let mut error = |text: String| {
        log.error_here(format_args!("pattern {slot}: {text}"));
        NONE
    };
    match word {
        "allow" if outputs == 0 => error("'allow' is meaningless, element has zero outputs".into()),
        "allow" => 0,
        "deny" if outputs > 1 => {
            log.warning_here(format_args!("pattern {slot}: meaning of 'deny' has changed (now it means 'drop')"));
            NONE
        }
        "deny" | "drop" => NONE,
        _ => match names::number(word) {
            Some(output) if (output as usize) < outputs => output,
            Some(output) => error(format!("slot '{}' out of range", output.cast_signed())),
            None => error(format!("unknown slot ID '{word}'")),
        },
    }
}
