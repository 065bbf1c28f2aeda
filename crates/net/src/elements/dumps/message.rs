//! Message: what a configuration has to say of itself.
//!
//! `Message(MESSAGE [, TYPE])`: no ports. Says MESSAGE when it is configured; TYPE is `MESSAGE` (the default), `WARNING`, or
//! `ERROR`, which keeps the router from running.

use crate::args::{Args, Failed, Word};
use crate::element::Element;

/// Says something when it is configured.
#[derive(Default)]
pub(super) struct Message;

impl Element for Message {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut message, mut kind) = (String::new(), Word("MESSAGE".into()));
        args.must("MESSAGE", &mut message).may("TYPE", &mut kind).finish()?;
        match kind.0.as_str() {
            "MESSAGE" => args.message(message),
            "WARNING" => args.warning(message),
            "ERROR" => return Err(args.error(message)),
            _ => return Err(args.error("unrecognized message type")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn errors_keep_a_router_from_running_and_others_do_not() {
        Harness::new("Message(hello); Message(\"be careful\", WARNING); Message(x, TYPE MESSAGE)");
        let told = Harness::errors(
            "Message(\"first, this\"); Message(\"be careful\", WARNING); Message(\"it is wrong\", ERROR)",
        );
        let expected = ["first, this", "warning: be careful", "it is wrong"];
        assert!(expected.iter().all(|line| told.contains(line)), "{told}");
        assert!(Harness::errors("Message(x, FOO)").contains("unrecognized message type"));
        assert!(Harness::errors("Message").contains("MESSAGE: required argument missing"));
    }
}
