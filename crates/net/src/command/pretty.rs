//! click-pretty: a page that shows a configuration: a drawing of it, its text with links, and lists of elements and classes.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::io::Read;
use std::ops::Range;

use super::exchange;
use super::options::{Given, Known, Value};
use super::template::{Expander, Of, Port, World};
use super::tool::{Line, Tool};
use crate::draw::{escape, graph_svg};
use crate::error::reason;
use crate::lang::config::{is_comment, skip_blank};
use crate::lang::syntax::{Block, Class, Compound, Element, Item, StatementKind};
use crate::lang::{FileVariables, Graph, parse_syntax};
use crate::router;
use crate::{Landmark, Log, Registry};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Title,
    Template,
    TemplateText,
    WriteTemplate,
    Define,
    ClassDocs,
    Svg,
    Dot,
    GraphMl,
    /// What is known anyway.
    Ignored,
}

const fn own(long: &'static str, short: Option<char>, meaning: Choice, value: Value) -> Known<Choice> {
    Known { long, short, meaning, value }
}

const TOOL: Tool<Choice> = Tool {
    name: "click-pretty",
    about: "Reads a router configuration and writes an HTML page that shows it, complete in itself.",
    help: "      --title TITLE             The page's title.
  -t, --template FILE           Expand the tags of FILE, as in '<~config>'.
  -T, --template-text TEXT      Expand the tags of TEXT; with --dot, for each element.
  -d, --define NAME=TEXT        Let <~NAME> stand for TEXT.
      --write-template          Write the template.
  -u, --class-docs URL          Link classes to URL, with the class for '%s'.
      --svg                     Write the drawing only, as SVG.
      --dot                     Write the graph for Graphviz.
      --graphml                 Write the graph as GraphML.
      --userlevel, -k, --linuxmodule, -b, --bsdmodule, --package-docs PACKAGE=URL
                                These change nothing.\n",
    options: &[
        own("title", None, Choice::Title, Value::Needed),
        own("template", Some('t'), Choice::Template, Value::Needed),
        own("template-text", Some('T'), Choice::TemplateText, Value::Needed),
        own("write-template", None, Choice::WriteTemplate, Value::Negatable),
        own("define", Some('d'), Choice::Define, Value::Needed),
        own("class-docs", Some('u'), Choice::ClassDocs, Value::Needed),
        own("package-docs", None, Choice::Ignored, Value::Needed),
        own("svg", None, Choice::Svg, Value::No),
        own("dot", None, Choice::Dot, Value::Negatable),
        own("graphml", None, Choice::GraphMl, Value::No),
        own("userlevel", None, Choice::Ignored, Value::No),
        own("linuxmodule", Some('k'), Choice::Ignored, Value::No),
        own("bsdmodule", Some('b'), Choice::Ignored, Value::No),
    ],
};

/// The template where none is given. `title`, `style`, `counts`, `drawing` and the tables are tags beside Click's.
const PAGE: &str = "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title><~title></title>\
<style><~style></style></head><body>
<h1><~title></h1><p class=\"s\"><~counts></p>
<figure><~drawing></figure>
<h2>Configuration</h2>
<pre><~config></pre>
<h2>Elements</h2>
<~element-table>
<h2>Classes</h2>
<~class-table>
</body></html>
";

/// The label of an element for Graphviz.
const LABEL: &str = "<~if test='<~anonymous>' then='<~type>' else='<~name> :: <~type>'>";

const STYLE: &str = "body{margin:0 auto;max-width:1200px;padding:24px;font:15px/1.5 ui-sans-serif,system-ui,sans-serif;\
color:#1a202c;background:#fff}h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:32px 0 8px}\
figure{margin:16px 0;padding:8px;border:1px solid #e2e8f0;border-radius:8px;overflow:auto;background:#fff}\
figure svg{display:block;margin:auto;max-width:100%;height:auto}\
pre{padding:12px 16px;border:1px solid #e2e8f0;border-radius:8px;overflow:auto;font:13px/1.5 ui-monospace,monospace;\
background:#f7fafc}table{border-collapse:collapse;width:100%;font-size:14px}th,td{text-align:left;vertical-align:top;\
padding:4px 12px 4px 0;border-bottom:1px solid #e2e8f0}th{color:#4a5568;font-weight:600}td.m{font:13px/1.5 ui-monospace,\
monospace;overflow-wrap:anywhere}a{color:#2b6cb0;text-decoration:none}a:hover{text-decoration:underline}\
.c-kw{color:#805ad5}.c-cmt{color:#718096;font-style:italic}.e{font-weight:600}:target{background:#fefcbf}.s{color:#4a5568;margin:0}";

/// Runs it.
pub(super) fn main(args: &[String], registry: &Registry) -> i32 {
    TOOL.run(args, false, |line, log| run(line, registry, log))
}

fn run(line: &Line<Choice>, registry: &Registry, log: &mut Log) -> Option<String> {
    let template = template(line, log)?;
    if line.has(&Choice::WriteTemplate) {
        return Some(template);
    }
    let text = line.source.read(log)?;
    let graph = line.source.graph_of(&text, FileVariables::Expanded, log)?;
    if line.has(&Choice::Svg) {
        return Some(graph_svg(&graph, None));
    }
    if line.has(&Choice::GraphMl) {
        return Some(exchange::graphml(&graph));
    }
    let pulls = router::pulls(&graph, registry);
    let shown = Shown {
        title: line.values(&Choice::Title).last().unwrap_or(line.source.name()),
        docs: line.values(&Choice::ClassDocs).last(),
        pulls: pulls.as_ref().map(|pulls| pulls as _),
        text: &text,
        graph: &graph,
        registry,
    };
    let defined: Vec<_> = line.values(&Choice::Define).map(define).collect();
    let is_dot = line.has(&Choice::Dot);
    let mut expander = Expander::new(&graph, &shown, &defined, !is_dot);
    let written = if is_dot {
        let labels = (0..graph.elements.len()).map(|element| expander.expand(&template, Of::Element(element)));
        labels.collect::<Result<Vec<_>, _>>().map(|labels| exchange::dot(&graph, &labels))
    } else {
        expander.expand(&template, Of::Page)
    };
    written.map_err(|error| log.error(&Landmark::default(), error)).ok()
}

/// The template that the options ask for: of those given, the last.
fn template(line: &Line<Choice>, log: &mut Log) -> Option<String> {
    let given = line.own.iter().rev().find_map(|given| match given {
        Given::Option(Choice::TemplateText, text) => Some(Ok(text.clone())),
        Given::Option(Choice::Template, file) => {
            Some(read(file).map_err(|error| format!("{file}: {}", reason(&error))))
        }
        _ => None,
    });
    let own = || if line.has(&Choice::Dot) { LABEL } else { PAGE }.to_owned();
    given.unwrap_or_else(|| Ok(own())).map_err(|error| log.error(&Landmark::default(), error)).ok()
}

fn read(file: &str) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if file == "-" {
        std::io::stdin().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(file)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn define(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    (name.to_owned(), value.to_owned())
}

/// What is shown.
struct Shown<'a> {
    title: &'a str,
    /// The configuration as it is written, and what that means.
    text: &'a str,
    graph: &'a Graph,
    /// Where classes are described.
    docs: Option<&'a str>,
    pulls: Option<&'a dyn Fn(usize, bool, usize) -> bool>,
    registry: &'a Registry,
}

impl World for Shown<'_> {
    fn page_tag(&self, name: &str) -> Option<String> {
        let graph = self.graph;
        let mut out = String::new();
        match name {
            "title" => return Some(escape(self.title)),
            "style" => return Some(STYLE.to_owned()),
            "counts" => {
                return Some(format!("{} elements, {} connections", graph.elements.len(), graph.connections.len()));
            }
            "drawing" => return Some(graph_svg(graph, None)),
            "config" => return Some(marked_text(self.text, graph)),
            "element-table" => write_elements(&mut out, graph),
            "class-table" => write_classes(&mut out, graph, self),
            _ => return None,
        }
        Some(out)
    }

    fn docs(&self, class: &str) -> Option<String> {
        self.docs.map(|url| url.replacen("%s", class, 1))
    }

    fn processing(&self, port: Port) -> &'static str {
        match self.pulls.map(|pulls| pulls(port.element, port.is_output, port.number as usize)) {
            None => "agnostic",
            Some(true) => "pull",
            Some(false) => "push",
        }
    }
}

fn write_elements(out: &mut String, graph: &Graph) {
    let (mut inputs, mut outputs) =
        (vec![String::new(); graph.elements.len()], vec![String::new(); graph.elements.len()]);
    for c in &graph.connections {
        let (from, to) = (element_link(&graph.elements[c.from].name), element_link(&graph.elements[c.to].name));
        let _ = write!(inputs[c.to], "[{}] ← {from} [{}]<br>", c.to_port, c.from_port);
        let _ = write!(outputs[c.from], "[{}] → [{}] {to}<br>", c.from_port, c.to_port);
    }
    out.push_str("<table><tr><th>Name<th>Class<th>Configuration<th>Inputs<th>Outputs<th>Declared</tr>\n");
    for (i, element) in graph.elements.iter().enumerate() {
        let (name, class) = (escape(&element.name), escape(&element.class));
        let _ = writeln!(
            out,
            "<tr id=\"element-{name}\"><td class=\"e\">{name}<td><a href=\"#class-{class}\">{class}</a>\
             <td class=\"m\">{}<td>{}<td>{}<td>{}</tr>",
            escape(element.config.trim()),
            inputs[i],
            outputs[i],
            escape(&element.landmark.to_string())
        );
    }
    out.push_str("</table>");
}

fn write_classes(out: &mut String, graph: &Graph, shown: &Shown<'_>) {
    let mut classes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for element in &graph.elements {
        classes.entry(&element.class).or_default().push(&element.name);
    }
    out.push_str("<table><tr><th>Class<th>What it does<th>Elements</tr>\n");
    for (class, names) in classes {
        let summary = shown.registry.get(class).map_or("", |class| class.summary);
        let links: Vec<_> = names.iter().map(|name| element_link(name)).collect();
        let url = shown.docs(class);
        let (class, summary) = (escape(class), escape(summary));
        let name = url.map_or_else(|| class.clone(), |url| format!("<a href=\"{}\">{class}</a>", escape(&url)));
        let links = links.join(", ");
        let _ = writeln!(out, "<tr id=\"class-{class}\"><td class=\"e\">{name}<td>{summary}<td>{links}</tr>");
    }
    out.push_str("</table>");
}

fn element_link(name: &str) -> String {
    let name = escape(name);
    format!("<a href=\"#element-{name}\">{name}</a>")
}

/// The text as HTML, with names as links, and comments marked.
fn marked_text(text: &str, graph: &Graph) -> String {
    let mut marks = Marks { found: Vec::new(), graph: Names::new(graph), text };
    marks.block(&parse_syntax(text, ""), true);
    marks.comments();
    let mut found = marks.found;
    found.sort_by_key(|(span, _)| span.start);
    let mut out = String::new();
    let mut at = 0;
    for (span, tag) in found {
        // What stands within what is marked is marked already.
        let (Some(before), Some(inner)) = (text.get(at..span.start), text.get(span.clone())) else { continue };
        let (open, close) = tag;
        let _ = write!(out, "{}{open}{}{close}", escape(before), escape(inner));
        at = span.end;
    }
    out + &escape(text.get(at..).unwrap_or_default())
}

/// Names that there are links to.
struct Names<'a> {
    elements: HashSet<&'a str>,
    classes: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self {
            elements: graph.elements.iter().map(|element| element.name.as_str()).collect(),
            classes: graph.elements.iter().map(|element| element.class.as_str()).collect(),
        }
    }
}

struct Marks<'a> {
    found: Vec<(Range<usize>, (String, &'static str))>,
    graph: Names<'a>,
    text: &'a str,
}

impl Marks<'_> {
    /// `is_file`: whether names are those of the graph, and not of a compound element's parts.
    fn block(&mut self, block: &Block, is_file: bool) {
        for statement in &block.statements {
            match &statement.kind {
                StatementKind::Chain(chain) => {
                    chain
                        .links
                        .iter()
                        .flat_map(|link| &link.elements)
                        .for_each(|element| self.element(element, is_file));
                }
                StatementKind::ElementClass(class) => {
                    self.keyword(&statement.span);
                    self.class(&class.class);
                }
                StatementKind::Error(_) => {}
                _ => self.keyword(&statement.span),
            }
        }
    }

    /// Marks the word with which a statement starts.
    fn keyword(&mut self, span: &Range<usize>) {
        let len = self.text[span.clone()].bytes().take_while(u8::is_ascii_alphabetic).count();
        self.found.push((span.start..span.start + len, ("<span class=\"c-kw\">".into(), "</span>")));
    }

    fn element(&mut self, element: &Element, is_file: bool) {
        match &element.item {
            Item::Name(name) => {
                let span = element.span.start..element.span.start + name.len();
                if is_file && self.graph.elements.contains(name.as_str()) {
                    let anchor =
                        if element.class.is_some() { format!(" id=\"e-{}\"", escape(name)) } else { String::new() };
                    self.link(span, "element", name, &anchor);
                } else if element.class.is_none() {
                    self.class_name(name, span);
                }
            }
            Item::Compound(compound) => self.compound(compound),
            Item::Group(group) => self.block(group, is_file),
            Item::Implicit => {}
        }
        if let Some(class) = &element.class {
            self.class(class);
        }
    }

    fn class(&mut self, class: &Class) {
        match class {
            Class::Name(name, span) => self.class_name(name, span.clone()),
            Class::Compound(compound) => self.compound(compound),
            Class::Missing => {}
        }
    }

    fn compound(&mut self, compound: &Compound) {
        compound.bodies.iter().for_each(|body| self.block(&body.block, false));
    }

    fn class_name(&mut self, name: &str, span: Range<usize>) {
        if self.graph.classes.contains(name) {
            self.link(span, "class", name, "");
        }
    }

    fn link(&mut self, span: Range<usize>, kind: &str, name: &str, anchor: &str) {
        self.found.push((span, (format!("<a href=\"#{kind}-{}\"{anchor}>", escape(name)), "</a>")));
    }

    fn comments(&mut self) {
        let text = self.text.as_bytes();
        let (mut at, mut quote) = (0, None);
        while at < text.len() {
            match text[at] {
                b'\\' if quote == Some(b'"') => at += 1,
                byte if quote == Some(byte) => quote = None,
                byte @ (b'"' | b'\'') if quote.is_none() => quote = Some(byte),
                b'/' if quote.is_none() && is_comment(text, at) => {
                    let end = skip_blank(text, at);
                    self.found.push((at..end, ("<span class=\"c-cmt\">".into(), "</span>")));
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tool::test_run;
    use proptest::prelude::*;

    fn run_standard(line: &Line<Choice>, log: &mut Log) -> Option<String> {
        run(line, &Registry::standard(), log)
    }

    #[test]
    fn a_page_has_drawing_text_and_lists() {
        let text =
            "// <why>\nelementclass P { $x | -> y :: Paint($x) -> }\na :: Idle(\"<&>\") -> P(1) -> Discard; // end";
        let page = test_run(&TOOL, &["-e", text, "--title", "a <b>"], run_standard).unwrap();
        for part in [
            "<title>a &lt;b&gt;</title>",
            "<svg ",
            "<span class=\"c-cmt\">// &lt;why&gt;\n</span><span class=\"c-kw\">elementclass</span> P { $x | -&gt; y :: <a href=\"#class-Paint\">Paint</a>($x)",
            "<a href=\"#element-a\" id=\"e-a\">a</a> :: <a href=\"#class-Idle\">Idle</a>(&quot;&lt;&amp;&gt;&quot;) -&gt; P(1) -&gt; <a href=\"#class-Discard\">Discard</a>;",
            "<tr id=\"element-P@2/y\">",
            "[0] ← <a href=\"#element-a\">a</a> [0]",
            "3 elements, 2 connections",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert!(page.contains("<tr id=\"class-Idle\"><td class=\"e\">Idle<td>"), "{page}");
        let page = test_run(&TOOL, &["-e", text, "-u", "http://x/?a&%s.html"], run_standard).unwrap();
        assert!(page.contains("<td class=\"e\"><a href=\"http://x/?a&amp;Idle.html\">Idle</a><td>"), "{page}");
        assert!(test_run(&TOOL, &["-e", text, "--svg"], run_standard).unwrap().starts_with("<svg "));
    }

    #[test]
    fn templates_are_expanded() {
        let text = "a :: Idle -> q :: Queue -> Discard";
        let run = |args: &[&str]| test_run(&TOOL, &[&["-e", text], args].concat(), run_standard);
        let ports =
            "<~elements entry='<~name><~inputs entry=\" <~processing>\"><~outputs entry=\" <~processing>\">' sep=', '>";
        assert_eq!(run(&["-T", ports]).unwrap(), "Discard@3 pull, a push, q push pull");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "<~title>: <~hi> <~config>").unwrap();
        let path = file.path().to_str().unwrap();
        let written = run(&["-T", "never", "-t", path, "-d", "hi=<~counts>", "--title", "a&b"]).unwrap();
        assert!(
            written.starts_with("a&amp;b: 3 elements, 2 connections <a href=\"#element-a\" id=\"e-a\">a</a>"),
            "{written}"
        );
        assert_eq!(run(&["-t", "/nowhere/x"]).unwrap_err(), "/nowhere/x: No such file or directory\n");
        assert_eq!(run(&["-T", "<~x>", "-d", "x=<~x>"]).unwrap_err(), "template expands to too many tags\n");
        for (args, own) in [(&[][..], PAGE), (&["--dot"], LABEL), (&["-T", "x <~y>"], "x <~y>")] {
            assert_eq!(run(&[args, &["--write-template"]].concat()).as_deref(), Ok(own));
        }
        assert!(run(&["--dot", "-T", "<~name>{"]).unwrap().contains("|q\\{|"));
        assert!(run(&["--dot", "-k"]).unwrap().contains("|q :: Queue|"));
    }

    proptest! {
        #[test]
        fn the_text_stays_the_text(text in r#"([ab ]|Idle|::|->|\{|\}|\(|\)|//|/\*|\*/|"|'|;|\n|<|&|é|elementclass|define){0,30}"#) {
            let marked = marked_text(&text, &Graph::default());
            let mut plain = String::new();
            let mut rest = marked.as_str();
            while let Some(at) = rest.find('<') {
                plain += &rest[..at];
                rest = &rest[at + rest[at..].find('>').unwrap() + 1..];
            }
            plain += rest;
            prop_assert_eq!(plain, escape(&text));
        }
    }
}
