//! RandomSeed: says where random numbers begin.
//!
//! `RandomSeed([SEED])`, no ports. With SEED (0 to 4,294,967,295), all elements' random numbers are the same in each run;
//! without, they are others each time. Handler `seed` (r/w): SEED; begins anew when it is written.
//!
//! The numbers are not those that Click has for the same SEED.

use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct RandomSeed {
    seed: Option<u32>,
}

impl RandomSeed {
    fn begin(&self, cx: &mut Cx<'_>) {
        cx.seed(self.seed.map_or_else(|| fastrand::u64(..), u64::from));
    }
}

impl Element for RandomSeed {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("SEED", &mut self.seed).finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.begin(cx);
        Ok(())
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("seed", |random: &mut Self, _| random.seed.map_or_else(String::new, |seed| seed.to_string()));
        handlers.write("seed", |random: &mut Self, cx, text| {
            random.seed = if text.trim().is_empty() { None } else { Some(cx.parse(text)?) };
            random.begin(cx);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn a_seed_is_read_and_written() {
        let mut harness = Harness::new("r :: RandomSeed(SEED 7); s :: RandomSeed; Give -> Take");
        assert_eq!((harness.read("r.seed"), harness.read("s.seed")), ("7".to_owned(), String::new()));
        harness.write("r.seed", "4294967295").unwrap();
        assert_eq!(harness.read("r.seed"), "4294967295");
        harness.write("r.seed", "").unwrap();
        assert_eq!(harness.read("r.seed"), "");
        assert!(harness.write("r.seed", "4294967296").is_err());
        assert!(Harness::errors("RandomSeed(x); Give -> Take").contains("SEED: invalid number"));
    }
}
