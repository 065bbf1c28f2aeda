//! Patterns of names, as a shell's.

/// Whether a text fits a pattern with `*`, `?` and `[...]`, as a shell's.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<_>, Vec<_>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` was met, and how far the text was then.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob_one(&pattern[p..], text[t]) {
            _ if pattern.get(p) == Some(&'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(len) => {
                p += len;
                t += 1;
            }
            None => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (p, t) = (at + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// The length of the part of a pattern that fits a character.
fn glob_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '\\' if pattern.len() > 1 => (pattern[1] == c).then_some(2),
        '[' => {
            let negated = matches!(pattern.get(1), Some('^' | '!'));
            let start = 1 + usize::from(negated);
            let close = start + 1 + pattern.get(start + 1..)?.iter().position(|&c| c == ']')?;
            let set = &pattern[start..close];
            let ranges = set.windows(3).any(|range| range[1] == '-' && (range[0]..=range[2]).contains(&c));
            ((ranges || set.contains(&c)) != negated).then_some(close + 1)
        }
        &other => (other == c).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_a_shells_do() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abcabc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]]", "]", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("[a", "a", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }
}
