//! What a command may overwrite.

use bifolio_volume::Overwrite;
use bifolio_volume::signatures;
use clap::Args as ClapArgs;

/// What may be lost, by name.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ForceArgs {
    /// Overwrite what has these names, and lose it, such as --force=ext4 or --force=gpt,data. Without it only what is
    /// empty is written to; a refusal says the names.
    #[arg(long, value_name = "NAME,...", require_equals = true, value_delimiter = ',', value_parser = parse_name)]
    pub force: Vec<String>,
}

impl ForceArgs {
    /// As the library takes it.
    pub fn overwrite(&self) -> Overwrite {
        if self.force.is_empty() { Overwrite::Nothing } else { Overwrite::Named(self.force.clone()) }
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let names = signatures::names();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("not the name of anything that can be overwritten; the names are {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_refusal_can_say_are_taken() {
        for name in ["ext4", "luks", "md", "gpt", "mbr", "data", "cut"] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        assert!(parse_name("ext5").unwrap_err().contains("ext4"));
    }
}
