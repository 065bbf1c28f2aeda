//! Graphs for other programs: for Graphviz, and as GraphML.

use std::fmt::Write;

use crate::draw::escape;
use crate::lang::Graph;

/// A graph for Graphviz: a record for each element, with its ports above and below, and a label between them.
pub(super) fn dot(graph: &Graph, labels: &[String]) -> String {
    let mut out = String::from(
        "digraph clickrouter {\n  node [shape=record,height=.1]\n  edge [arrowhead=normal,arrowtail=none,tailclip=false]\n",
    );
    for ((element, label), (inputs, outputs)) in graph.elements.iter().zip(labels).zip(graph.ports()) {
        let parts: Vec<_> = [record_ports('i', inputs), in_record(label), record_ports('o', outputs)].into();
        let record = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("|");
        let record = if inputs + outputs > 0 { format!("{{{record}}}") } else { record };
        let _ = writeln!(out, "  \"{}\" [label=\"{record}\"];", element.name);
    }
    for c in &graph.connections {
        let (from, to) = (&graph.elements[c.from].name, &graph.elements[c.to].name);
        let _ = writeln!(out, "  \"{from}\":o{} -> \"{to}\":i{};", c.from_port, c.to_port);
    }
    out + "}\n"
}

/// A label without signs that have a meaning in records.
fn in_record(label: &str) -> String {
    let mut text = String::new();
    for sign in label.chars() {
        match sign {
            '\n' => text += "\\n",
            '{' | '}' | '|' | '<' | '>' | '"' | '\\' => text.extend(['\\', sign]),
            sign => text.push(sign),
        }
    }
    text
}

fn record_ports(letter: char, count: u32) -> String {
    let ports: Vec<_> = (0..count).map(|port| format!("<{letter}{port}>")).collect();
    if ports.is_empty() { String::new() } else { format!("{{{}}}", ports.join("|")) }
}

/// A graph as GraphML: nodes with ports, names and classes, and edges between ports.
pub(super) fn graphml(graph: &Graph) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n\
         <key id=\"kn\" for=\"node\" attr.name=\"name\" attr.type=\"string\"/>\n\
         <key id=\"kc\" for=\"node\" attr.name=\"class\" attr.type=\"string\"/>\n\
         <graph id=\"G\" edgedefault=\"directed\">\n",
    );
    for (i, (element, (inputs, outputs))) in graph.elements.iter().zip(graph.ports()).enumerate() {
        let (name, class) = (escape(&element.name), escape(&element.class));
        let _ = write!(out, "  <node id=\"n{i}\"><data key=\"kn\">{name}</data><data key=\"kc\">{class}</data>");
        for (letter, count) in [('i', inputs), ('o', outputs)] {
            for port in 0..count {
                let _ = write!(out, "<port name=\"{letter}{port}\"/>");
            }
        }
        out += "</node>\n";
    }
    for (i, c) in graph.connections.iter().enumerate() {
        let _ = writeln!(
            out,
            "  <edge id=\"e{i}\" source=\"n{}\" target=\"n{}\" sourceport=\"o{}\" targetport=\"i{}\"/>",
            c.from, c.to, c.from_port, c.to_port
        );
    }
    out + "</graph>\n</graphml>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::source::Source;
    use crate::lang::FileVariables;

    fn graph(text: &str) -> Graph {
        let mut source = Source::default();
        source.set(text, true).unwrap();
        source.graph(FileVariables::Expanded, &mut crate::Log::new()).unwrap()
    }

    #[test]
    fn graphs_for_graphviz_have_ports() {
        let graph = graph("i :: Info; a :: Idle -> t :: Tee -> Discard; t[1] -> [2]t");
        let labels = ["i :: Info", "a :: Idle", "t {|\"\n", "Discard"].map(String::from);
        let lines = dot(&graph, &labels);
        let lines: Vec<_> = lines.lines().map(str::trim).collect();
        let expected = [
            "\"i\" [label=\"i :: Info\"];",
            "\"a\" [label=\"{a :: Idle|{<o0>}}\"];",
            "\"t\" [label=\"{{<i0>|<i1>|<i2>}|t \\{\\|\\\"\\n|{<o0>|<o1>}}\"];",
            "\"Discard@4\" [label=\"{{<i0>}|Discard}\"];",
            "\"a\":o0 -> \"t\":i0;",
            "\"t\":o0 -> \"Discard@4\":i0;",
            "\"t\":o1 -> \"t\":i2;",
            "}",
        ];
        assert_eq!(&lines[3..], expected);
    }

    #[test]
    fn graphml_names_what_is_connected() {
        let text = graphml(&graph("a :: Idle -> [1]b :: Idle"));
        for part in [
            "<node id=\"n1\"><data key=\"kn\">b</data><data key=\"kc\">Idle</data><port name=\"i0\"/><port name=\"i1\"/></node>",
            "<edge id=\"e0\" source=\"n0\" target=\"n1\" sourceport=\"o0\" targetport=\"i1\"/>",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
