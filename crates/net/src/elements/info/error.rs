//! Error: stands for elements whose class is not known.
//!
//! `Error(...)` takes any arguments and connections, and keeps its router from running.

use crate::args::{Args, Failed};
use crate::element::Element;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct ErrorElement;

impl Element for ErrorElement {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.rest();
        args.finish()
    }

    fn initialize(&mut self, _: &mut Cx<'_>) -> Result<(), String> {
        Err("unspecified error".into())
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn it_keeps_a_router_from_running() {
        let errors = Harness::errors("Give -> e :: Error(any, THING 3) -> Take; e[1] -> Take");
        assert!(errors.contains("While initializing 'e :: Error':"), "{errors}");
    }
}
