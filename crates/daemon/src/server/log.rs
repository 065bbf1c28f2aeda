//! What the server says on standard error, by `tracing`: `RUST_LOG` chooses how much of it, as a level or by modules
//! (`bifolio_daemon=debug`). Without it, what somebody has to do something about.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The variable that chooses what is said.
const VARIABLE: &str = "RUST_LOG";

/// Begins to say things. A filter that cannot be understood is told, and as if there were none.
pub(super) fn begin() {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let filter = filter(&text);
    let wrong = filter.as_ref().err().cloned();
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    // The journal has times of its own.
    let layer = if std::env::var_os("JOURNAL_STREAM").is_some() { layer.without_time().boxed() } else { layer.boxed() };
    let layer = layer.with_filter(filter.unwrap_or_else(|_| by_default()));
    // Somebody else's is as good.
    let _ = tracing_subscriber::registry().with(layer).try_init();
    if let Some(why) = wrong {
        tracing::warn!("{VARIABLE} is not understood ({why}): say a level, or module=level, with commas between");
    }
}

fn by_default() -> Targets {
    Targets::new().with_default(LevelFilter::WARN)
}

fn filter(text: &str) -> Result<Targets, String> {
    if text.trim().is_empty() {
        return Ok(by_default());
    }
    text.parse().map_err(|error: tracing_subscriber::filter::ParseError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_and_modules_choose_what_is_said_and_nonsense_is_refused() {
        let says = |text: &str, level: Level| filter(text).unwrap().would_enable("bifolio_daemon::server", &level);
        assert!(says("", Level::WARN) && !says("", Level::INFO));
        assert!(says("debug", Level::DEBUG) && !says("debug", Level::TRACE));
        assert!(says("off,bifolio_daemon=info", Level::INFO) && !says("bifolio_cache=trace", Level::ERROR));
        assert!(filter("bifolio_daemon=loud").is_err());
    }
}
