//! Switch, StaticSwitch and InputSwitch: let packets go one way of several.
//!
//! `Switch([OUTPUT])`, `StaticSwitch(OUTPUT)`: push input, push outputs. Packets leave by OUTPUT; 0, and -1: they are dropped.
//! An output that is not there is an error for Switch, and drops for StaticSwitch and the handler.
//!
//! `InputSwitch([OUTPUT])`: push inputs, push output. Packets that come to the input of that number leave; 0, and -1: none. The
//! keyword is called OUTPUT, as Click's is.
//!
//! Handlers (not of StaticSwitch): `switch` (r/w), `config` (the number).

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element, which has a handler or not.
#[derive(Default)]
pub(super) struct Switch<const IS_STATIC: bool>(i32);

fn outputs(cx: &Cx<'_>) -> usize {
    cx.outputs()
}

fn inputs(cx: &Cx<'_>) -> usize {
    cx.inputs()
}

/// Reads a number of a port, and adds the handlers that change it.
fn handlers<E: Element>(
    handlers: &mut Handlers,
    ports: impl Fn(&Cx<'_>) -> usize + Send + Sync + 'static,
    error: &'static str,
    field: impl Fn(&mut E) -> &mut i32 + Clone + Send + Sync + 'static,
) {
    for name in ["switch", "config"] {
        let field = field.clone();
        handlers.read(name, move |element: &mut E, _| *field(element));
    }
    handlers.write("switch", move |element: &mut E, cx, text| {
        let port = cx.parse::<i32>(text).map_err(|_| error.to_owned())?;
        *field(element) = if port < ports(cx) as i32 { port } else { -1 };
        Ok(())
    });
}

impl<const IS_STATIC: bool> Element for Switch<IS_STATIC> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut output = 0i32;
        if IS_STATIC {
            args.must("OUTPUT", &mut output);
        } else {
            args.may("OUTPUT", &mut output);
        }
        args.finish()?;
        let outputs = args.ports().1;
        if output >= outputs as i32 && !IS_STATIC {
            return Err(args.error(format_args!("output must be < {outputs}")));
        }
        self.0 = if output >= outputs as i32 { -1 } else { output };
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        if let Ok(output) = usize::try_from(self.0) {
            cx.emit(output, packet);
        }
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        if let Ok(output) = usize::try_from(self.0) {
            cx.emit_batch(output, batch);
        }
    }

    fn reconfigures(&self) -> bool {
        !IS_STATIC
    }

    fn handlers(&self, into: &mut Handlers) {
        if !IS_STATIC {
            handlers(into, outputs, "Switch output must be integer", |switch: &mut Self| &mut switch.0);
        }
    }
}

/// The element.
#[derive(Default)]
pub(super) struct InputSwitch(i32);

impl Element for InputSwitch {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut input = 0i32;
        args.may("OUTPUT", &mut input).finish()?;
        let inputs = args.ports().0;
        if input >= inputs as i32 {
            return Err(args.error(format_args!("input must be < {inputs}")));
        }
        self.0 = input;
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        if port as i32 == self.0 {
            cx.emit(0, packet);
        }
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if port as i32 == self.0 {
            cx.emit_batch(0, batch);
        }
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, into: &mut Handlers) {
        handlers(into, inputs, "InputSwitch input must be integer", |switch: &mut Self| &mut switch.0);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn packets_leave_by_one_output() {
        let config = "give :: Give -> s :: Switch(1) -> a :: Take; s[1] -> b :: Take";
        let mut harness = Harness::new(config);
        for (output, a, b, read) in [("1", 0, 1, "1"), ("0", 1, 0, "0"), ("-1", 0, 0, "-1"), ("2", 0, 0, "-1")] {
            harness.write("s.switch", output).unwrap();
            harness.give_bytes("give", b"x");
            assert_eq!((harness.take("a").len(), harness.take("b").len()), (a, b), "{output}");
            assert_eq!((harness.read("s.switch"), harness.read("s.config")), (read.to_owned(), read.to_owned()));
        }
        assert_eq!(harness.write("s.switch", "x").unwrap_err(), "Switch output must be integer");
        let mut harness = Harness::new(&config.replace("Switch(1)", "StaticSwitch(0)"));
        harness.give_bytes("give", b"x");
        assert_eq!(harness.take("a").len(), 1);
        assert!(harness.try_read("s.switch").is_err());
        let mut harness = Harness::new(&config.replace("Switch(1)", "StaticSwitch(5)"));
        harness.give_bytes("give", b"x");
        assert_eq!((harness.take("a").len(), harness.take("b").len()), (0, 0));
        for (class, told) in [
            ("Switch(2)", "output must be < 2"),
            ("Switch(x)", "OUTPUT: invalid number"),
            ("StaticSwitch", "OUTPUT: required argument missing"),
        ] {
            let errors = Harness::errors(&config.replace("Switch(1)", class));
            assert!(errors.contains(told), "{class}: {errors}");
        }
    }

    #[test]
    fn packets_come_from_one_input() {
        let config = "a :: Give -> s :: InputSwitch -> take :: Take; b :: Give -> [1]s";
        let mut harness = Harness::new(config);
        for (input, expected) in [("0", vec![b"a"]), ("1", vec![b"b"]), ("-1", vec![]), ("9", vec![])] {
            harness.write("s.switch", input).unwrap();
            harness.give_bytes("a", b"a");
            harness.give_bytes("b", b"b");
            assert_eq!(harness.take_bytes("take"), expected);
        }
        assert_eq!(harness.write("s.switch", "x").unwrap_err(), "InputSwitch input must be integer");
        let told = Harness::errors(&config.replace("InputSwitch", "InputSwitch(2)"));
        assert!(told.contains("input must be < 2"), "{told}");
    }
}
