//! What the test tiers share: how something missing is reported.

use std::io::Write;

/// Says that a tier cannot run here for want of a tool. `make test` installs every tool first and
/// sets `BIFOLIO_TEST_REQUIRE_ALL`, so there a missing tool is a failure.
pub(crate) fn unavailable(reason: &str) {
    let required = std::env::var_os("BIFOLIO_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "this test has to run here, and {reason}");
    skipped(reason);
}

/// Says that something is left out. It writes to the descriptor itself: the test runner swallows
/// what a passing test prints, and a skip must not be silent.
pub(crate) fn skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}
