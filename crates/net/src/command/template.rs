//! Templates of click-pretty: a text in which tags such as `<~name>` stand for what is known of a configuration.
//!
//! A tag has attributes, `<~elements entry="<~name link>" sep=', '>`, whose values are templates, too. What Click's manual says
//! of tags holds here. Text that is no tag stays as it is, and a tag that nobody knows becomes nothing. A template may name
//! itself (`--define`), so how deep and how far tags expand has limits.

use std::collections::{BTreeMap, BTreeSet};

use crate::draw::escape;
use crate::lang::{ElementDecl, Graph};

/// As deep may tags be within each other.
const MAX_DEPTH: usize = 40;
/// As many tags are expanded.
const MAX_TAGS: usize = 1 << 20;
/// As long may the result be, in bytes.
const MAX_LEN: usize = 1 << 28;

/// What tags stand for that are about the whole configuration, or about the world outside of it.
pub(super) trait World {
    /// The text for a tag of the page.
    fn page_tag(&self, name: &str) -> Option<String>;
    /// Where a class is described.
    fn docs(&self, class: &str) -> Option<String>;
    /// Whether a port pushes or pulls.
    fn processing(&self, port: Port) -> &'static str;
}

/// A port of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) element: usize,
    pub(super) is_output: bool,
    pub(super) number: u32,
}

/// What a template is expanded for.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    Page,
    Element(usize),
    Class(&'a str),
    Port(Port),
}

impl Of<'_> {
    fn element(self) -> Option<usize> {
        match self {
            Self::Element(element) | Self::Port(Port { element, .. }) => Some(element),
            Self::Page | Self::Class(_) => None,
        }
    }
}

/// A tag, with the values of its attributes as they stand there.
#[derive(Debug, PartialEq, Eq)]
struct Tag<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
}

impl<'a> Tag<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}

/// A tag that begins with `<~`, and what is behind it. Nothing where it has no end.
fn tag(text: &str) -> Option<(Tag<'_>, &str)> {
    let (name, mut rest) = word(text.strip_prefix("<~")?);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix('>') {
            return Some((Tag { name, attributes }, rest));
        }
        let (attribute, behind) = word(rest);
        let (value, behind) = match behind.trim_start().strip_prefix('=') {
            Some(value) => value_of(value.trim_start())?,
            None => ("", behind),
        };
        if attribute.is_empty() && behind.len() == rest.len() {
            return None;
        }
        attributes.push((attribute, value));
        rest = behind;
    }
}

fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
    text.split_at(end.unwrap_or(text.len()))
}

/// The value of an attribute, in quotes or up to a space or the tag's end.
fn value_of(text: &str) -> Option<(&str, &str)> {
    match text.as_bytes().first()? {
        quote @ (b'"' | b'\'') => text[1..].split_once(char::from(*quote)),
        _ => Some(text.split_at(text.find(|c: char| c.is_whitespace() || c == '>')?)),
    }
}

/// Whether somebody wrote this name.
pub(super) fn is_anonymous(element: &ElementDecl) -> bool {
    element.name.contains('@')
}

/// Expands templates for a graph.
pub(super) struct Expander<'a> {
    graph: &'a Graph,
    world: &'a dyn World,
    /// Tags of the user's.
    defined: &'a [(String, String)],
    /// Whether names are written for HTML.
    is_html: bool,
    ports: Vec<(u32, u32)>,
    tags: usize,
    len: usize,
}

impl<'a> Expander<'a> {
    pub(super) fn new(graph: &'a Graph, world: &'a dyn World, defined: &'a [(String, String)], is_html: bool) -> Self {
        Self { graph, world, defined, is_html, ports: graph.ports(), tags: 0, len: 0 }
    }

    /// The template's text for the page, or for an element. An error where it has no end.
    pub(super) fn expand(&mut self, template: &str, of: Of<'_>) -> Result<String, &'static str> {
        let mut out = String::new();
        self.text(template, of, &Tag { name: "", attributes: Vec::new() }, MAX_DEPTH, &mut out)?;
        Ok(out)
    }

    /// `scope` is the `elements` tag that this stands in, whose attributes others take.
    fn text(
        &mut self,
        text: &str,
        of: Of<'_>,
        scope: &Tag<'_>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), &'static str> {
        let mut rest = text;
        while let Some(at) = rest.find("<~") {
            self.push(&rest[..at], out)?;
            rest = &rest[at..];
            let Some((tag, behind)) = tag(rest) else { break };
            self.tags += 1;
            if self.tags > MAX_TAGS || depth == 0 {
                return Err("template expands to too many tags");
            }
            self.tag(&tag, of, scope, depth - 1, out)?;
            rest = behind;
        }
        self.push(rest, out)
    }

    fn push(&mut self, text: &str, out: &mut String) -> Result<(), &'static str> {
        self.len += text.len();
        if self.len > MAX_LEN {
            return Err("template expands to too much text");
        }
        out.push_str(text);
        Ok(())
    }

    fn tag(
        &mut self,
        tag: &Tag<'_>,
        of: Of<'_>,
        scope: &Tag<'_>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), &'static str> {
        if let Some((_, text)) = self.defined.iter().rev().find(|(name, _)| name == tag.name) {
            return self.text(text, of, scope, depth, out);
        }
        match (tag.name, of) {
            ("if", _) => {
                let then = if self.test(tag, of, scope, depth)? { "then" } else { "else" };
                self.text(tag.get(then).unwrap_or_default(), of, scope, depth, out)
            }
            ("elements", Of::Page) => self.elements(tag, depth, out),
            ("typerefs", Of::Element(_) | Of::Class(_)) => {
                let class = self.class(of).to_owned();
                let named = self.named();
                let same = named.into_values().filter(|&element| self.graph.elements[element].class == class);
                let all: Vec<_> = same.map(Of::Element).collect();
                self.list(&all, (tag, scope, ["typeref", "notyperef"]), depth, out)
            }
            ("inputs" | "outputs", Of::Element(element)) => {
                let is_output = tag.name == "outputs";
                let (inputs, outputs) = self.ports[element];
                let numbers = 0..if is_output { outputs } else { inputs };
                let all: Vec<_> = numbers.map(|number| Of::Port(Port { element, is_output, number })).collect();
                let words = if is_output { ["outputentry", "nooutputentry"] } else { ["inputentry", "noinputentry"] };
                self.list(&all, (tag, scope, words), depth, out)
            }
            ("inputconnections" | "outputconnections", Of::Port(port)) => {
                let is_output = tag.name == "outputconnections";
                let all = if port.is_output == is_output { self.connected(port) } else { Vec::new() };
                let words = if is_output {
                    ["outputconnection", "nooutputconnection"]
                } else {
                    ["inputconnection", "noinputconnection"]
                };
                self.list(&all, (tag, scope, words), depth, out)
            }
            _ => {
                let text = self.word(tag, of, scope);
                self.push(&text, out)
            }
        }
    }

    /// Elements and classes in alphabetical order, or a column of them.
    fn elements(&mut self, tag: &Tag<'_>, depth: usize, out: &mut String) -> Result<(), &'static str> {
        let graph = self.graph;
        let mut all: Vec<(&str, Of<'_>, &str)> = Vec::new();
        if let Some(entry) = tag.get("entry") {
            all.extend(self.named().into_iter().map(|(name, element)| (name, Of::Element(element), entry)));
        }
        if let Some(entry) = tag.get("typeentry") {
            let classes: BTreeSet<&str> = graph.elements.iter().map(|one| one.class.as_str()).collect();
            all.extend(classes.into_iter().map(|class| (class, Of::Class(class), entry)));
        }
        all.sort_by_key(|(name, _, _)| *name);
        let column = tag.get("column").and_then(|text| text.split_once('/'));
        let numbers =
            column.and_then(|(which, count)| Some((which.parse::<usize>().ok()?, count.parse::<usize>().ok()?)));
        if let Some((which, count)) = numbers.filter(|(which, count)| (1..=*count).contains(which)) {
            let len = all.len().div_ceil(count);
            all = all.into_iter().skip((which - 1) * len).take(len).collect();
        }
        for (i, (_, of, entry)) in all.into_iter().enumerate() {
            if i > 0 {
                self.text(tag.get("sep").unwrap_or_default(), Of::Page, tag, depth, out)?;
            }
            self.text(entry, of, tag, depth, out)?;
        }
        Ok(())
    }

    /// A list of what has an entry each, and a text where there is nothing.
    fn list(
        &mut self,
        all: &[Of<'_>],
        (tag, scope, [entry, no_entry]): (&Tag<'_>, &Tag<'_>, [&str; 2]),
        depth: usize,
        out: &mut String,
    ) -> Result<(), &'static str> {
        let of = |own: &str, scoped: &str| tag.get(own).or_else(|| scope.get(scoped)).unwrap_or_default();
        if all.is_empty() {
            return self.text(of("noentry", no_entry), Of::Page, scope, depth, out);
        }
        for (i, one) in all.iter().enumerate() {
            if i > 0 {
                self.text(tag.get("sep").unwrap_or_default(), Of::Page, scope, depth, out)?;
            }
            self.text(of("entry", entry), *one, scope, depth, out)?;
        }
        Ok(())
    }

    /// The ports at the other ends of connections.
    fn connected(&self, port: Port) -> Vec<Of<'static>> {
        let ends = self.graph.connections.iter().map(|c| {
            let output = Port { element: c.from, is_output: true, number: c.from_port };
            let input = Port { element: c.to, is_output: false, number: c.to_port };
            if port.is_output { (output, input) } else { (input, output) }
        });
        ends.filter(|(own, _)| *own == port).map(|(_, other)| Of::Port(other)).collect()
    }

    fn test(&mut self, tag: &Tag<'_>, of: Of<'_>, scope: &Tag<'_>, depth: usize) -> Result<bool, &'static str> {
        let mut left = String::new();
        self.text(tag.get("test").unwrap_or_default(), of, scope, depth, &mut left)?;
        let ways = ["eq", "ne", "gt", "lt", "ge", "le"];
        let Some((way, right)) = ways.iter().find_map(|way| tag.get(way).map(|right| (*way, right))) else {
            return Ok(!left.is_empty());
        };
        let mut other = String::new();
        self.text(right, of, scope, depth, &mut other)?;
        let order = match (left.trim().parse::<i64>(), other.trim().parse::<i64>()) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            _ => left.cmp(&other),
        };
        Ok(match way {
            "eq" => order.is_eq(),
            "ne" => order.is_ne(),
            "gt" => order.is_gt(),
            "lt" => order.is_lt(),
            "ge" => order.is_ge(),
            _ => order.is_le(),
        })
    }

    /// Elements by their names.
    fn named(&self) -> BTreeMap<&'a str, usize> {
        self.graph.elements.iter().enumerate().map(|(i, element)| (element.name.as_str(), i)).collect()
    }

    fn class<'b>(&self, of: Of<'b>) -> &'b str
    where
        'a: 'b,
    {
        match of {
            Of::Class(class) => class,
            of => of.element().map_or("", |element| self.graph.elements[element].class.as_str()),
        }
    }

    fn escaped(&self, text: &str) -> String {
        if self.is_html { escape(text) } else { text.to_owned() }
    }

    /// What a tag stands for that has no templates in it.
    fn word(&self, tag: &Tag<'_>, of: Of<'_>, scope: &Tag<'_>) -> String {
        let element = of.element().map(|element| &self.graph.elements[element]);
        match (tag.name, of, element) {
            (name, Of::Page, _) => self.world.page_tag(name).unwrap_or_default(),
            ("type", _, _) | ("name", Of::Class(_), _) => self.type_name(self.class(of), tag.get("link").is_some()),
            ("name", _, Some(element)) => match tag.get("link") {
                Some("type") => self.linked(&element.name, self.world.docs(&element.class)),
                Some(_) => self.linked(&element.name, place(element)),
                None => self.escaped(&element.name),
            },
            ("configlink", _, Some(element)) => {
                let text = tag.get("text").or_else(|| scope.get("configlink")).unwrap_or_default();
                self.linked(text, place(element))
            }
            ("anonymous", _, Some(element)) if is_anonymous(element) => "yes".to_owned(),
            ("config", _, Some(element)) => self.escaped(&config(element, tag)),
            ("ninputs" | "noutputs", Of::Element(element), _) => {
                let is_output = tag.name == "noutputs";
                let count = if is_output { self.ports[element].1 } else { self.ports[element].0 };
                let noun = if is_output { "output" } else { "input" };
                match tag.get("english") {
                    Some(_) => format!("{count} {noun}{}", if count == 1 { "" } else { "s" }),
                    None => count.to_string(),
                }
            }
            ("port", Of::Port(port), _) => port.number.to_string(),
            ("processing", Of::Port(port), _) => self.world.processing(port).to_owned(),
            _ => String::new(),
        }
    }

    fn type_name(&self, class: &str, is_linked: bool) -> String {
        self.linked(class, self.world.docs(class).filter(|_| is_linked))
    }

    fn linked(&self, text: &str, url: Option<String>) -> String {
        let text = self.escaped(text);
        url.map_or_else(|| text.clone(), |url| format!("<a href=\"{}\">{text}</a>", escape(&url)))
    }
}

/// Where an element is declared in the text, if it has a name there.
fn place(element: &ElementDecl) -> Option<String> {
    (!is_anonymous(element)).then(|| format!("#e-{}", element.name))
}

fn config(element: &ElementDecl, tag: &Tag<'_>) -> String {
    let config = element.config.trim();
    let limit = tag.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let mut text: String = config.chars().take(limit).collect();
    if text.len() < config.len() {
        text += "...";
    }
    if tag.get("parens").is_some() && !text.is_empty() { format!("({text})") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::source::Source;
    use crate::lang::FileVariables;
    use proptest::prelude::*;

    struct Fixed;

    impl World for Fixed {
        fn page_tag(&self, name: &str) -> Option<String> {
            (name == "title").then(|| "T".to_owned())
        }
        fn docs(&self, class: &str) -> Option<String> {
            Some(format!("doc/{class}"))
        }
        fn processing(&self, port: Port) -> &'static str {
            if port.is_output { "push" } else { "pull" }
        }
    }

    fn try_expand(template: &str, of: Of<'_>, defined: &[(&str, &str)]) -> Result<String, &'static str> {
        let mut source = Source::default();
        source.set("b :: X(1<2, 3) -> a :: Y; b [1] -> a; b -> [1] a; Idle -> Z", true).unwrap();
        let graph = source.graph(FileVariables::Expanded, &mut crate::Log::new()).unwrap();
        let defined: Vec<_> = defined.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        Expander::new(&graph, &Fixed, &defined, true).expand(template, of)
    }

    #[test]
    fn tags_of_the_page_list_elements_and_classes() {
        let expand = |template: &str| try_expand(template, Of::Page, &[]).unwrap();
        assert_eq!(expand("a<~title>b <~nothing> <~ <b>"), "aTb  <~ <b>");
        assert_eq!(expand("<~elements entry='<~name>' sep=', '>"), "Idle@3, Z@4, a, b");
        assert_eq!(expand("<~elements typeentry=\"<~name> \">"), "Idle X Y Z ");
        assert_eq!(expand("<~elements entry='<~name>' typeentry='(<~type>)'>"), "(Idle)Idle@3(X)(Y)(Z)Z@4ab");
        let columns = [1, 2, 3, 4].map(|n| expand(&format!("<~elements column={n}/3 entry='<~name> '>")));
        assert_eq!(columns, ["Idle@3 Z@4 ", "a b ", "", "Idle@3 Z@4 a b "]);
        assert_eq!(expand("<~elements typeentry='<~typerefs>;' typeref='<~name>'>"), "Idle@3;b;a;Z@4;");
        assert_eq!(expand("<~elements entry='<~name link> ' >").matches("<a href=\"#e-").count(), 2);
    }

    #[test]
    fn tags_of_an_element_say_what_it_is() {
        let cases = [
            ("<~name> <~type> <~config> <~anonymous>|", 0, "b X 1&lt;2, 3 |"),
            ("<~anonymous> <~name link=type>", 2, "yes <a href=\"doc/Idle\">Idle@3</a>"),
            ("<~type link><~configlink text=here>", 0, "<a href=\"doc/X\">X</a><a href=\"#e-b\">here</a>"),
            ("<~config limit=3 parens> <~config>", 0, "(1&lt;2...) 1&lt;2, 3"),
            ("<~config parens>", 1, ""),
            ("<~ninputs> <~noutputs english>, <~ninputs english>", 1, "2 0 outputs, 2 inputs"),
            ("<~noutputs english>", 2, "1 output"),
            ("<~inputs entry='<~port> <~processing>' noentry=none sep=;>", 1, "0 pull;1 pull"),
            ("<~inputs noentry=none>", 0, "none"),
            (
                "<~outputs sep=; entry='<~port><~outputconnections entry=\"-<~name><~port>\"><~inputconnections noentry=x>'>",
                0,
                "0-a0-a1x;1-a0x",
            ),
            ("<~typerefs entry='<~name>'>", 0, "b"),
        ];
        for (template, element, expected) in cases {
            assert_eq!(try_expand(template, Of::Element(element), &[]).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn conditions_compare_numbers_or_words() {
        for (test, holds) in [
            ("test=''", false),
            ("test='<~name>'", true),
            ("test=9 lt=10", true),
            ("test=9x lt=10", false),
            ("test=2 ge=2", true),
            ("test=2 gt=2", false),
            ("test=b le='<~name>'", true),
            ("test='<~name>' eq=b", true),
            ("test='<~name>' ne=b", false),
        ] {
            let template = format!("<~if {test} then=yes else=no>");
            assert_eq!(try_expand(&template, Of::Element(0), &[]).unwrap() == "yes", holds, "{test}");
        }
    }

    #[test]
    fn tags_of_ones_own_end() {
        let defined = [
            ("hi", "<~name>!"),
            ("hi", "<~name>?"),
            ("me", "<~me><~me>"),
            ("wide", "<~if test=x then='<~wide><~wide>'>"),
        ];
        assert_eq!(try_expand("<~hi>", Of::Element(0), &defined).as_deref(), Ok("b?"));
        for template in ["<~me>", "<~wide>"] {
            assert_eq!(try_expand(template, Of::Element(0), &defined), Err("template expands to too many tags"));
        }
    }

    proptest! {
        #[test]
        fn anything_is_a_template(text in r#"(<~|>|"|'|=| |name|if|test|then|elements|entry|sep|column|inputs|é|-|1/2){0,30}"#) {
            let _ = try_expand(&text, Of::Page, &[]);
            let _ = try_expand(&text, Of::Element(0), &[]);
            if !text.contains("<~") {
                prop_assert_eq!(try_expand(&text, Of::Page, &[]), Ok(text));
            }
        }
    }
}
