//! How long it takes to exchange rules: from the text of a file to what packets are searched with, by processors and by
//! devices. The rules are drawn, one literal each, or those of a file.

use super::{Outcome, RUNS, SEED};
use bifolio_kernels::known_answer::Draw;
use bifolio_net::rules::{RuleSet, parse};
use std::fmt::Write;
use std::time::Instant;

pub(crate) fn measure_all(rules: Option<&str>) -> Outcome {
    for count in [4500, 12_000] {
        measure(&format!("{count} drawn literals"), drawn(count).as_bytes())?;
    }
    rules.map_or(Ok(()), |file| measure(file, &std::fs::read(file)?))
}

/// Rules with a literal each, of 4 to 40 bytes: letters mostly.
fn drawn(count: u32) -> String {
    let (mut draw, mut text) = (Draw::from_seed(SEED), String::new());
    for sid in 1..=count {
        let (len, is_text) = (4 + draw.below(37) as usize, draw.below(4) != 0);
        let byte = |byte: u8| if is_text { b'a' + byte % 26 } else { byte };
        let literal: Vec<String> = draw.bytes(len).into_iter().map(|drawn| format!("{:02x}", byte(drawn))).collect();
        let nocase = if draw.below(2) == 0 { ",nocase" } else { "" };
        let literal = literal.join(" ");
        let _ = writeln!(text, "alert tcp any any -> any 80 ( content:\"|{literal}|\"{nocase}; sid:{sid}; )");
    }
    text
}

fn measure(what: &str, text: &[u8]) -> Outcome {
    let (mut times, mut told) = (Vec::new(), String::new());
    for _ in 0..RUNS {
        let begin = Instant::now();
        let read = parse(text);
        let ms = || begin.elapsed().as_secs_f64() * 1e3;
        let parsed = ms();
        let set = RuleSet::new(read)?;
        let made = ms();
        let bytes = set.automaton().words().len() * 4;
        times.push([ms(), parsed, made]);
        let (rules, literals, remarks) = (set.rules().len(), set.automaton().patterns(), set.problems().len());
        told = format!("{rules} rules, {literals} literals, {remarks} remarks, {} KiB for a device", bytes / 1024);
    }
    times.sort_by(|one, other| one[0].total_cmp(&other[0]));
    println!("reload, {what}: {told}");
    for (which, [whole, parsed, made]) in [("best", times[0]), ("median", times[times.len() / 2])] {
        let (processors, device) = (made - parsed, whole - made);
        println!(
            "    {which}: {whole:.1} ms; to read {parsed:.1}, for processors {processors:.1}, for a device {device:.1}"
        );
    }
    Ok(())
}
