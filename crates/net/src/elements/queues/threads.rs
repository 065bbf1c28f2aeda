//! StaticThreadSched and BlockThread: who runs where, and when not.
//!
//! `StaticThreadSched(ELEMENT THREAD, ...)`: no inputs or outputs. Each argument says which thread runs the task of an element;
//! the last one counts.
//!
//! - ELEMENT: its name, or that of a compound element, for all that it consists of.
//! - THREAD: a number from 0 on. One that the router does not have is thread 0.
//!
//! `BlockThread`: no inputs or outputs. For tests.
//!
//! Handlers of BlockThread: `block` (w: a time; the thread does nothing for so long. Simulated time goes on by it).
//!
//! Unlike Click's, a THREAD of -1, which runs nothing, is an error.

use crate::args::{Arg, Args, Failed, Interval, NameKind};
use crate::element::Element;
use crate::handler::Handlers;
use crate::lang::config::split_words;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct StaticThreadSched;

/// The whole names of what a name means as seen from here: an element, or those of a compound one. Inner ones come first.
fn whole_names(args: &Args<'_>, name: &str) -> Vec<String> {
    let cx = args.cx();
    let mut scope = cx.element;
    loop {
        scope = scope.rsplit_once('/').map_or("", |(outer, _)| outer);
        let whole = if scope.is_empty() { name.to_owned() } else { format!("{scope}/{name}") };
        if cx.elements.number(&whole).is_some() {
            return vec![whole];
        }
        let inside = cx.elements.within(&whole);
        if scope.is_empty() || !inside.is_empty() {
            return inside;
        }
    }
}

impl Element for StaticThreadSched {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        for text in args.rest() {
            let words = split_words(&text);
            let [name, thread] = &words[..] else {
                args.error("expected 'ELEMENT THREAD'");
                continue;
            };
            let names = whole_names(args, name);
            match <u32 as Arg>::parse(thread, args.cx()) {
                _ if names.is_empty() => drop(args.error_of("ELEMENT", format_args!("no element named '{name}'"))),
                Ok(thread) => {
                    for name in &names {
                        args.define_whole(NameKind::HomeThread, name, &thread.to_be_bytes());
                    }
                }
                Err(error) => drop(args.error_of("THREAD", error)),
            }
        }
        args.finish()
    }
}

/// The element.
#[derive(Default)]
pub(super) struct BlockThread;

impl Element for BlockThread {
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.write("block", |_: &mut Self, cx: &mut Cx<'_>, text| {
            let time = cx.parse::<Interval>(text).map_err(|_| "bad TIME".to_owned())?.0;
            let clock = cx.router().clock();
            if clock.jumps() {
                clock.advance(clock.now() + time);
            } else {
                std::thread::sleep(clock.until(clock.now() + time));
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, build_with};
    use crate::router::Options;
    use crate::{Clock, Timestamp};

    #[test]
    fn elements_have_threads() {
        let config = "elementclass C { i :: InfiniteSource(ACTIVE false) -> d :: Discard; StaticThreadSched(i 1, u 2) }
             c :: C; i :: InfiniteSource(ACTIVE false) -> Queue -> u :: Unqueue -> Discard;
             StaticThreadSched(c/d 1, i 1, c/d 7, i 2)";
        let options = Options { threads: 3, clock: Clock::simulated(), ..Options::default() };
        let mut running = build_with(config, options);
        for (element, thread) in [("c/i", "1"), ("u", "2"), ("c/d", "0"), ("i", "2")] {
            assert_eq!(running.read(&format!("{element}.home_thread")).unwrap(), thread, "{element}");
        }
    }

    #[test]
    fn compound_elements_have_threads() {
        let config = "StaticThreadSched(a 1, b/in 2);
             a, b :: { s :: InfiniteSource(ACTIVE false) -> d :: Discard;
                       in :: { Idle -> x :: Discard; StaticThreadSched(x 0) }; t :: InfiniteSource -> Discard }";
        let options = Options { threads: 3, clock: Clock::simulated(), ..Options::default() };
        let mut running = build_with(config, options);
        for (element, thread) in [
            ("a/s", "1"),
            ("a/d", "1"),
            ("a/in/x", "0"),
            ("a/t", "1"),
            ("b/s", "0"),
            ("b/in/Idle@1", "2"),
            ("b/in/x", "0"),
        ] {
            assert_eq!(running.read(&format!("{element}.home_thread")).unwrap(), thread, "{element}");
        }
    }

    #[test]
    fn arguments_are_elements_and_threads() {
        for (config, told) in [
            ("x 1", "ELEMENT: no element named 'x'"),
            ("d -1", "THREAD: must be >= 0"),
            ("d y", "THREAD: invalid number"),
            ("d", "expected 'ELEMENT THREAD'"),
        ] {
            let errors = Harness::errors(&format!("StaticThreadSched({config}); Idle -> d :: Discard"));
            assert!(errors.contains(told), "{config}: {errors}");
        }
    }

    #[test]
    fn time_passes_while_a_thread_is_blocked() {
        let options = Options { clock: Clock::simulated(), ..Options::default() };
        let mut running = build_with("b :: BlockThread", options);
        let begin = running.router().clock().now();
        running.write("b.block", "2.5s").unwrap();
        assert_eq!(running.router().clock().now(), begin + Timestamp::new(2, 500_000_000));
        assert_eq!(running.write("b.block", "x").unwrap_err(), "bad TIME");
        let options = Options { clock: Clock::system(), ..Options::default() };
        let mut running = build_with("b :: BlockThread", options);
        running.write("b.block", "1us").unwrap();
    }
}
