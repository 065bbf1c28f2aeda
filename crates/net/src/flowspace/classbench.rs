//! Rules as ClassBench writes them: `@src/len dst/len low : high low : high proto/mask [flags/mask]`.
//!
//! Flags are 16 bits: those of TCP are in the upper 8, or they are ICMP's type and code. Packets go to output 0, or where
//! `=> PORT [PRIORITY n]` at the line's end says. A rule is about IPv4 packets; ports 0 to 65535, protocol and flags with mask
//! 0 are not tested.
//!
//! D. E. Taylor and J. S. Turner, "ClassBench: A Packet Classification Benchmark", INFOCOM 2005.

use super::key::{DESTINATION, ICMP, SOURCE, TCP};
use super::rule::Rule;
use super::text::{action, network, number, ports};

/// A number and its mask, both at most `most`.
fn masked(text: &str, most: u32) -> Option<(u32, u32)> {
    let (value, mask) = text.split_once('/')?;
    Some((number(value, most)?, number(mask, most)?))
}

/// Tests flags, if the protocol has some.
fn detail(rule: &mut Rule, protocol: (u32, u32), flags: (u32, u32)) -> Result<(), &'static str> {
    let (value, mask) = (flags.0 as u16, flags.1 as u16);
    match protocol {
        _ if mask == 0 => return Ok(()),
        (6, 255) if mask as u8 == 0 => rule.test_detail(TCP, value, mask),
        (6, 255) => return Err("flags of TCP are the upper 8 of 16 bits"),
        (1, 255) => rule.test_detail(ICMP, value, mask),
        _ => return Err("flags are of TCP or ICMP"),
    }
    Ok(())
}

/// Reads the fields of a line, without its `@`.
fn fields(text: &str, rule: &mut Rule, wrong: &mut Vec<String>) {
    // Ranges have spaces around their colons, or not.
    let spaced = text.replace(':', " : ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let [source, destination, from, ":", to, low, ":", high, protocol, flags @ ..] = &words[..] else {
        return wrong.push("expected '@SRC/LEN DST/LEN LOW : HIGH LOW : HIGH PROTO/MASK [FLAGS/MASK]'".to_owned());
    };
    rule.test_ip();
    for (word, name, text) in [(SOURCE, "source", source), (DESTINATION, "destination", destination)] {
        match network(text) {
            Some((address, mask)) => rule.test_address(word, address, mask),
            None => wrong.push(format!("bad {name} '{}'", text.escape_debug())),
        }
    }
    match ports(from, to) {
        Some(ports) => rule.test_source_ports(ports),
        None => wrong.push(format!("bad source ports '{}'", format!("{from} : {to}").escape_debug())),
    }
    match ports(low, high) {
        Some(ports) => rule.test_destination_ports(ports),
        None => wrong.push(format!("bad destination ports '{}'", format!("{low} : {high}").escape_debug())),
    }
    let Some((value, mask)) = masked(protocol, 255) else {
        return wrong.push(format!("bad protocol '{}'", protocol.escape_debug()));
    };
    rule.test_protocol(value as u8, mask as u8);
    match flags {
        [] => {}
        [flags] => match masked(flags, 0xffff).map(|flags| detail(rule, (value, mask), flags)) {
            Some(Ok(())) => {}
            Some(Err(error)) => wrong.push(error.to_owned()),
            None => wrong.push(format!("bad flags '{}'", flags.escape_debug())),
        },
        _ => wrong.push("too many fields".to_owned()),
    }
}

/// Reads a line, without its `@`. Everything that is wrong is told.
pub(super) fn parse(text: &str, outputs: usize) -> Result<Rule, Vec<String>> {
    let (mut rule, mut wrong) = (Rule::new(0, 0), Vec::new());
    let (text, arrow) = text.split_once("=>").map_or((text, None), |(text, arrow)| (text, Some(arrow)));
    fields(text, &mut rule, &mut wrong);
    (rule.output, rule.priority) = action(arrow.unwrap_or("0"), outputs, &mut wrong);
    if wrong.is_empty() { Ok(rule) } else { Err(wrong) }
}
