//! RandomSample: lets packets through by lot.
//!
//! `RandomSample([P, SAMPLE, DROP, ACTIVE])`: an input and an output, pushed or pulled; a push output 1 for what is dropped, if
//! it is connected.
//!
//! - P or SAMPLE (keyword): the probability that a packet passes, from 0 to 1; 1.
//! - DROP (keyword): the probability that it does not; not together with SAMPLE.
//! - ACTIVE (keyword): whether packets are dropped; true.
//!
//! Handlers: `sampling_prob`, `drop_prob`, `active` (all r/w), `drops`, `config` (the settings as they are).
//!
//! Unlike Click's, it may be left without arguments, and then lets everything through. It draws from numbers of its own,
//! which begin with the router's.

use super::fraction::Fraction;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

type Probability = Fraction<28>;

/// The element.
pub(super) struct RandomSample {
    passes: Probability,
    is_active: bool,
    drops: u64,
    rng: fastrand::Rng,
}

impl Default for RandomSample {
    fn default() -> Self {
        Self { passes: Fraction(Probability::ONE), is_active: true, drops: 0, rng: fastrand::Rng::with_seed(0) }
    }
}

fn other(probability: Probability) -> Probability {
    Fraction(Probability::ONE.saturating_sub(probability.0))
}

impl Element for RandomSample {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut passes, mut drops, mut is_active) = (Fraction(Probability::ONE), Fraction(0), true);
        args.may("P", &mut passes);
        let has_sample = args.has_key("SAMPLE", &mut passes);
        let has_drop = args.has_key("DROP", &mut drops);
        args.key("ACTIVE", &mut is_active).finish()?;
        if has_sample && has_drop {
            return Err(args.error("give at most one of SAMPLE and DROP"));
        }
        if passes.0 > Probability::ONE || drops.0 > Probability::ONE {
            return Err(args.error("sampling probability must be between 0 and 1"));
        }
        (self.passes, self.is_active) = (if has_drop { other(drops) } else { passes }, is_active);
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.rng = cx.rng().fork();
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if !self.is_active || self.rng.u32(..Probability::ONE) < self.passes.0 {
            return Some(packet);
        }
        self.drops += 1;
        cx.emit_checked(1, packet);
        None
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let parse = |cx: &Cx<'_>, text: &str| {
            let value = cx.parse::<Probability>(text).ok().filter(|value| value.0 <= Probability::ONE);
            value.ok_or_else(|| "Must be given a number between 0.0 and 1.0".to_owned())
        };
        handlers.read("sampling_prob", |sample: &mut Self, _| sample.passes);
        handlers.write("sampling_prob", move |sample: &mut Self, cx, text| {
            sample.passes = parse(cx, text)?;
            Ok(())
        });
        handlers.read("drop_prob", |sample: &mut Self, _| other(sample.passes));
        handlers.write("drop_prob", move |sample: &mut Self, cx, text| {
            sample.passes = other(parse(cx, text)?);
            Ok(())
        });
        handlers.data("active", |sample: &mut Self| &mut sample.is_active);
        handlers.read("drops", |sample: &mut Self, _| sample.drops);
        handlers
            .read("config", |sample: &mut Self, _| format!("SAMPLE {}, ACTIVE {}", sample.passes, sample.is_active));
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn as_many_pass_as_the_probability_says() {
        for way in ["-> s :: RandomSample(0.25)", "-> Queue -> s :: RandomSample(DROP 0.75) -> Unqueue"] {
            let mut harness = Harness::new(&format!("give :: Give {way} -> a :: Take; s[1] -> b :: Take"));
            harness.give("give", (0..1000).map(|_| Packet::from_slice(b"x")));
            let (a, b) = (harness.take("a").len(), harness.take("b").len());
            assert!((150..350).contains(&a) && a + b == 1000, "{a} {b}");
            assert_eq!(harness.read("s.drops"), b.to_string());
            assert_eq!(harness.read("s.config"), "SAMPLE 0.25, ACTIVE true");
            for (handler, value, passing) in
                [("sampling_prob", "0", 0), ("drop_prob", "0", 100), ("drop_prob", "1.0", 0), ("active", "false", 100)]
            {
                harness.write(&format!("s.{handler}"), value).unwrap();
                harness.give("give", (0..100).map(|_| Packet::from_slice(b"x")));
                assert_eq!(harness.take("a").len(), passing, "{handler} {value}");
            }
            assert_eq!(
                (harness.read("s.drop_prob"), harness.read("s.sampling_prob")),
                ("1".to_owned(), "0".to_owned())
            );
            assert!(harness.write("s.drop_prob", "1.1").unwrap_err().contains("between 0.0 and 1.0"));
        }
    }

    #[test]
    fn probabilities_are_between_zero_and_one() {
        for (config, told) in [
            ("1.5", "sampling probability must be between 0 and 1"),
            ("-1", "P: must be >= 0"),
            ("x", "P: type mismatch"),
            ("SAMPLE 0.5, DROP 0.5", "give at most one of SAMPLE and DROP"),
            ("DROP 2", "sampling probability must be between 0 and 1"),
        ] {
            let errors = Harness::errors(&format!("Give -> RandomSample({config}) -> Take"));
            assert!(errors.contains(told), "{config}: {errors}");
        }
    }
}
