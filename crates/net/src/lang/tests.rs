//! Texts and the graphs or errors that they mean.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;

/// Knows a few classes, and a library.
struct Known;

impl ClassInfo for Known {
    fn has_class(&self, name: &str) -> bool {
        ["Idle", "Null", "PullNull", "Print", "Paint", "Queue", "Discard", "Source", "Message"].contains(&name)
    }

    fn library(&self, name: &str, _file: &str) -> Option<Library> {
        let text = match name {
            "pair" => "elementclass Pair { $a | input -> Paint($a) -> Null -> output }",
            "bad" => "\n->",
            "self" => "require(library self) Idle",
            _ => return None,
        };
        Some(Library { file: format!("lib/{name}"), text: text.into() })
    }
}

fn parse_with(text: &str, globals: &[(&str, &str)]) -> (Option<Graph>, String) {
    let mut all = Globals::new();
    for (name, value) in globals {
        all.define(name, value);
    }
    let mut log = Log::new();
    let graph = parse(text, "f", &all, &Known, &mut log);
    (graph, log.to_string())
}

/// The graph of a text without errors.
fn graph(text: &str) -> Graph {
    let (graph, log) = parse_with(text, &[]);
    assert_eq!(log, "", "{text}");
    graph.unwrap()
}

/// The flat text, with a line for each declaration and chain, sorted.
fn flat(text: &str) -> Vec<String> {
    lines(&unparse(&graph(text)))
}

fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\n    ", " ");
    let mut lines: Vec<_> = joined.lines().filter(|line| !line.is_empty()).map(String::from).collect();
    lines.sort();
    lines
}

fn errors(text: &str) -> Vec<String> {
    let (graph, log) = parse_with(text, &[]);
    assert!(graph.is_none(), "{text}");
    log.lines().map(String::from).collect()
}

#[test]
fn declarations_and_connections() {
    assert_eq!(
        flat("a, b :: Idle(x, y); c :: Null a -> c [0] -> [1] b"),
        ["a -> c -> [1] b;", "a :: Idle(x, y);", "b :: Idle(x, y);", "c :: Null;"]
    );
    assert_eq!(
        flat("Source -> Null(1) -> d :: Discard"),
        ["Null@2 :: Null(1);", "Source@1 -> Null@2 -> d;", "Source@1 :: Source;", "d :: Discard;"]
    );
    assert_eq!(flat("Idle@2 :: Idle; Idle; Idle"), ["Idle@2 :: Idle;", "Idle@3 :: Idle;", "Idle@4 :: Idle;"]);
    assert_eq!(flat("a :: Null -> a"), ["a -> a;", "a :: Null;"]);
    assert_eq!(flat("a :: Null; a -> a -> a; a -> a"), ["a -> a;", "a :: Null;"]);
    assert_eq!(flat("Message(\"\\\\\")"), ["Message@1 :: Message(\"\\\\\");"]);
    assert_eq!(flat(""), [""; 0]);
}

#[test]
fn commas_in_connections() {
    let declared = "a, b, c :: Idle; p, q :: PullNull; ";
    let expected = [
        "a -> b -> p -> c;",
        "a :: Idle;",
        "a [1] -> b;",
        "b -> q -> [2] c;",
        "b :: Idle;",
        "c :: Idle;",
        "p -> [1] c;",
        "p :: PullNull;",
        "q :: PullNull;",
    ];
    assert_eq!(flat(&format!("{declared} a, a[1] -> b -> p, q; p -> [0]c, [1]c; q -> [2]c;")), expected);
    let expected = ["a :: Idle;", "a [1] -> c;", "a [2] -> a -> b;", "a [3] -> [1] a;", "b :: Idle;", "c :: Idle;"];
    assert_eq!(flat("a, b, c :: Idle; a => b, c, [0,1] a;"), expected);
    let expected = ["a :: Idle;", "a [1] -> b;", "a [2] -> [1] b;", "a [3] -> [2] b;", "b :: Idle;"];
    assert_eq!(flat("a, b :: Idle; a[1,] => [0,1,2]b"), expected);
    assert_eq!(flat("a, b :: Idle; a[0x1, 010] -> b"), ["a :: Idle;", "a [1] -> b;", "a [8] -> b;", "b :: Idle;"]);
}

#[test]
fn lists_that_do_not_match() {
    let text = "a, b, c, d :: Idle;\na [0,1] => [0,1,2] b;\nc [] => [] d;\n";
    assert_eq!(
        errors(text),
        [
            "f:2: connection mismatch: 2 outputs connected to 3 inputs",
            "f:3: at most one expandable port allowed per connection"
        ]
    );
    assert_eq!(
        errors("a, b :: Idle;\na [0,1,2] -> [0,1,2] b;"),
        ["f:2: syntax error: many-to-many connections require '=>'"]
    );
    let text = "a, b :: Idle;\na [0,1,2,] => [0,1] b;\na [0,1] => [0,1,2,] b";
    let expected = [
        "f:2: connection mismatch: 3 or more outputs connected to 2 inputs",
        "f:3: connection mismatch: 2 outputs connected to 3 or more inputs",
    ];
    assert_eq!(errors(text), expected);
    assert_eq!(
        errors("a :: Idle;\n a -> [x]a;\na -> [70000] a [0"),
        [
            "f:2: syntax error: port number should be integer",
            "f:3: port number 70000 too large, max 65535",
            "f:3: syntax error: expected ','",
            "f:3: syntax error: expected port number",
            "f:3: output ports ignored at end of chain",
        ]
    );
}

#[test]
fn compound_elements_disappear() {
    assert_eq!(
        flat("a, b :: Idle; a -> { -> } -> b; a [1] -> { [0] -> [0] } -> [1] b"),
        ["a -> b;", "a :: Idle;", "a [1] -> [1] b;", "b :: Idle;"]
    );
    assert_eq!(
        flat(
            "a, b :: Idle; a -> c :: { input -> x :: Null -> output; input [1] -> [1] output } -> b; a[1] -> [1] c [1] -> [1] b"
        ),
        ["a -> c/x -> b;", "a :: Idle;", "a [1] -> [1] b;", "b :: Idle;", "c/x :: Null;"]
    );
    let flattened = graph(
        "elementclass Foo { input -> Print(2) -> { -> Null -> } -> output } Source -> Foo -> f :: Foo -> Discard",
    );
    let names: Vec<_> = flattened.elements.iter().map(|element| element.name.as_str()).collect();
    assert_eq!(names, ["Source@1", "Discard@4", "Foo@2/Print@1", "Foo@2/@2/Null@1", "f/Print@1", "f/@2/Null@1"]);
}

#[test]
fn parameters_have_lexical_scope() {
    let text = "elementclass Foo { $a | Idle($a); } elementclass Far { $a, $b | Foo($b); } Far(wait_stop stop, stop);";
    assert_eq!(flat(text), ["Far@1/Foo@1/Idle@1 :: Idle(stop);"]);
    let text = "elementclass Foo { $a | elementclass Bar { $b | Message($a); } elementclass Baz { $a | Idle; Bar($a); } Baz(no); } Foo(stop);";
    assert_eq!(unparse(&graph(text)), "Foo@1/Baz@1/Idle@1 :: Idle;\nFoo@1/Baz@1/Bar@2/Message@1 :: Message(stop);\n\n");
}

#[test]
fn overloads_are_chosen_by_arguments_and_ports() {
    let text = "require(compact_config)
        elementclass Foo {
           $a, $b | input -> Print(1) -> output
        || $a, __REST__ $b | input -> Print(2) -> output
        || $a, TWO $b, __REST__ $c | input -> Print(3) -> output
        }
        Source(DATA \"\", LIMIT 1) -> Foo(A) -> f::Foo(A, TWO B)
        elementclass Foo { $a, $b | input -> Print(4) -> output || ... }
        f -> Foo(A, B) -> Foo(A, B, C) -> Discard";
    let expected = "require(compact_config);\n\nSource@1 :: Source(DATA \"\", LIMIT 1);\nDiscard@6 :: Discard;\nFoo@2/Print@1 :: Print(2);\n\
        f/Print@1 :: Print(1);\nFoo@4/Print@1 :: Print(4);\nFoo@5/Print@1 :: Print(2);\n\nSource@1 -> Foo@2/Print@1\n    -> f/Print@1\n    \
        -> Foo@4/Print@1\n    -> Foo@5/Print@1\n    -> Discard@6;\n";
    assert_eq!(unparse(&graph(text)), expected);
    let by_ports = "elementclass Foo { -> Print(1) -> || input[0,1] -> Print(2) -> output }
        s :: Source; s -> Foo -> d :: Discard; s[1,2] => Foo -> d";
    assert_eq!(flat(by_ports).iter().filter(|line| line.contains("::")).count(), 4);
    assert_eq!(
        flat("elementclass Null { $a | -> Null(x$a) -> || ... } Source -> Null(1) -> Null -> Discard"),
        [
            "Discard@4 :: Discard;",
            "Null@2/Null@1 :: Null(x1);",
            "Null@3 :: Null;",
            "Source@1 -> Null@2/Null@1 -> Null@3 -> Discard@4;",
            "Source@1 :: Source;"
        ]
    );
}

#[test]
fn keywords_and_rest() {
    let text = "elementclass R { A $a, B $b, __REST__ $r | Message($a, $b, $r) } R(B 1, x, A \"2, 3\", y)";
    assert_eq!(flat(text), ["R@1/Message@1 :: Message(\"2, 3\", 1, x, y);"]);
    let text = "elementclass R { $p, A $a | Message($p, $a) } R(A 1, A 2)";
    assert_eq!(flat(text), ["R@1/Message@1 :: Message(A 1, 2);"]);
    assert_eq!(flat("elementclass R { __REST__ $r | Message($r) } R"), ["R@1/Message@1 :: Message;"]);
}

#[test]
fn variables_are_indexed_defaulted_and_defined() {
    let text = "elementclass Foo { $a | Print(\"$a\", \"${a[0]}\", \"${a[2]}\", \"${a[3]}\") }
        elementclass Baz { $a | Bar(${a[1]} ${a[0]}, ${a[2]}) }
        elementclass Bar { $a, $n | Print(\"${a[$n]}\") } Foo(A B C); Bar(D E F, 2)";
    assert_eq!(errors(text), ["f:2: undeclared element 'Bar'"]);
    let text = "elementclass Foo { $a | Print(\"$a\", \"${a[0]}\", \"${a[2]}\", \"${a[3]}\") }
        elementclass Bar { $a, $n | Print(\"${a[$n]}\") }
        elementclass Baz { $a | Bar(${a[1]} ${a[0]}, ${a[2]}) } Foo(A B C); Bar(D E F, 2); Baz(G H 1)";
    assert_eq!(
        flat(text),
        [
            "Bar@2/Print@1 :: Print(\"F\");",
            "Baz@3/Bar@1/Print@1 :: Print(\"G\");",
            "Foo@1/Print@1 :: Print(\"A B C\", \"A\", \"C\", \"\");"
        ]
    );
    assert_eq!(
        flat("define($x 1, $y $x); { define($y <$y$x>) Idle(${y-3}, ${z-3}) }"),
        ["@1/Idle@1 :: Idle(<11>, 3);"]
    );
    let (graph, log) = parse_with("define($x 1, $y $x) Idle($x, $y, $z, $w)", &[("x", "2"), ("z", "a b")]);
    assert_eq!((unparse(&graph.unwrap()), log), ("Idle@1 :: Idle(2, 2, a b, $w);\n\n".into(), String::new()));
}

#[test]
fn groups_have_ports_of_their_own() {
    let expected = ["a -> c;", "a :: Idle;", "a [1] -> b;", "a [2] -> d;", "b :: Idle;", "c :: Idle;", "d :: Idle;"];
    assert_eq!(flat("a, b, c, d :: Idle; a [0,1,2] => c, b, d;"), expected);
    assert_eq!(flat("a, b, c, d :: Idle; a [0,1,2] => ( -> c ), ( -> b ), d;"), expected);
    assert_eq!(flat("a, d :: Idle; a => (-> c :: Idle), (-> b :: Idle), d;"), expected);
    let text = "analyzer, x1, x2 :: Idle; x1 -> analyzer -> x2;
        c :: Idle => [1] analyzer [1], (-> c2 :: Idle => (->), Paint(1) ->) -> post :: Idle;";
    let found: Vec<_> = flat(text).into_iter().filter(|line| line.contains("->")).collect();
    assert_eq!(
        found,
        [
            "analyzer [1] -> post;",
            "c -> [1] analyzer;",
            "c [1] -> c2 -> post;",
            "c2 [1] -> Paint@12 -> post;",
            "x1 -> analyzer -> x2;"
        ]
    );
    let text = "elementclass Foo { a, d :: Idle; a => (-> c :: Idle), (-> b :: Idle), d; } foo :: Foo;";
    let found: Vec<_> = flat(text).into_iter().filter(|line| line.contains("->")).collect();
    assert_eq!(found, ["foo/a -> foo/c;", "foo/a [1] -> foo/b;", "foo/a [2] -> foo/d;"]);
}

#[test]
fn tunnels_lead_on() {
    assert_eq!(
        flat("connectiontunnel p -> q; a, b, c :: Idle; a -> p; b -> p; q -> c; a[1] -> [1]p; q[1] -> Discard"),
        [
            "Discard@6 :: Discard;",
            "a -> c;",
            "a :: Idle;",
            "a [1] -> Discard@6;",
            "b -> c;",
            "b :: Idle;",
            "c :: Idle;"
        ]
    );
    assert_eq!(
        flat("connectiontunnel p -> q connectiontunnel r -> s; a, b :: Idle; a -> p; q -> r; s -> b, p"),
        ["a -> b;", "a :: Idle;", "b :: Idle;"]
    );
    assert_eq!(errors("connectiontunnel p -> q; Idle -> p"), ["f:1: tunnel 'p -> q' output 0 unused"]);
    assert_eq!(
        errors("connectiontunnel p -> q; i :: Idle -> p; q -> i; i -> q; p -> i"),
        ["f:1: 'q' used as input", "f:1: 'p' used as output"]
    );
    assert_eq!(
        errors("connectiontunnel p -> q\nconnectiontunnel p -> r; Idle -> p; q -> Idle"),
        ["f:2: redeclaration of connection tunnel input 'p'", "f:1: 'p' previously declared here"]
    );
}

#[test]
fn classes_of_classes() {
    assert_eq!(flat("elementclass N Null; a :: N; N"), ["N@2 :: Null;", "a :: Null;"]);
    assert_eq!(flat("elementclass A { -> Null(1) -> } elementclass B A; elementclass A { -> Null(2) -> } Source -> B -> A -> Discard").len(), 5);
    assert_eq!(
        flat("elementclass Queue { -> Queue -> Null -> } Source -> q :: Queue -> Discard"),
        [
            "Discard@3 :: Discard;",
            "Source@1 -> q/Queue@1 -> q/Null@2 -> Discard@3;",
            "Source@1 :: Source;",
            "q/Null@2 :: Null;",
            "q/Queue@1 :: Queue;"
        ]
    );
    assert_eq!(errors("{ elementclass In Null } In"), ["f:1: undeclared element 'In'"]);
    assert_eq!(errors("elementclass Rec { Rec }"), ["f:1: undeclared element 'Rec'"]);
}

#[test]
fn requirements_and_libraries() {
    let found = graph("require(package x, y, \"z\", compact_config, x); provide(a, b) require()");
    let all: Vec<_> = found.requirements.iter().map(|r| format!("{} {}", r.kind, r.value)).collect();
    assert_eq!(all, ["package x", "package y", "package z", "compact_config "]);
    assert_eq!(found.provisions, ["a", "b"]);
    assert_eq!(flat("require(library pair, library pair) Source -> Pair(3) -> Discard").len(), 5);
    assert_eq!(flat("require(library self)"), ["Idle@1 :: Idle;"]);
    assert_eq!(
        errors("require(library bad, library none, a b)\n{ require(library pair) }"),
        [
            "lib/bad:2: syntax error near '->'",
            "f:1: library 'none' not found in CLICKPATH/conf",
            "f:1: syntax error at requirement",
            "f:2: 'require library' must be used at file scope"
        ]
    );
}

#[test]
fn landmarks_follow_line_directives() {
    let found = graph("m :: Message(\n# 100 \"g\"\n\"test\");\nm2 :: Message;\n  m\n -> m2");
    let places: Vec<_> = found.elements.iter().map(|element| element.landmark.to_string()).collect();
    assert_eq!(places, ["f:1", "g:101"]);
    assert_eq!(found.connections[0].landmark.to_string(), "g:103");
    let text = unparse_with_lines(&found);
    let again = graph(&text);
    assert_eq!(again.elements, found.elements);
    assert_eq!(again.connections[0].landmark.to_string(), "f:8");
    assert!(text.starts_with("# 1 \"f\"\nm :: Message("), "{text}");
}

#[test]
fn errors_of_declarations() {
    assert_eq!(
        errors("a :: Nope; a2 :: Nope\nfoo -> Idle"),
        ["f:1: unknown element class 'Nope'", "f:2: undeclared element 'foo'"]
    );
    assert_eq!(
        errors("a :: Idle;\na :: Null"),
        ["f:2: redeclaration of element 'a'", "f:1: element 'a' previously declared here"]
    );
    assert_eq!(errors("Idle :: Null"), ["f:1: class 'Idle' used as element name"]);
    assert_eq!(errors("a :: Idle; a(1)"), ["f:1: configuration string ignored on element reference"]);
    assert_eq!(errors("a :: -> Idle"), ["f:1: missing element type in declaration", "f:1: unknown element class 'a'"]);
    assert_eq!(errors("12/3a :: Idle"), ["f:1: element name '12/3a' has all-digit component"]);
    assert_eq!(
        errors("elementclass Idle;\nelementclass -> a"),
        [
            "f:1: syntax error near ';'",
            "f:2: expected element type name",
            "f:2: syntax error near '->'",
            "f:2: undeclared element 'a'",
        ]
    );
    assert_eq!(
        errors("define(x 1, $a 1, $a 2)"),
        ["f:1: bad 'define' declaration: not a variable", "f:1: parameter '$a' multiply defined"]
    );
}

#[test]
fn errors_of_compound_elements() {
    assert_eq!(
        errors("elementclass F { input[1] -> [2]output }"),
        ["f:1: 'F' input 0 missing", "f:1: 'F' output 0 missing", "f:1: 'F' output 1 missing"]
    );
    assert_eq!(
        errors("elementclass F { output -> input }"),
        [
            "f:1: 'F' pseudoelement 'input' may only be used as output",
            "f:1: 'F' pseudoelement 'output' may only be used as input"
        ]
    );
    let text = "f :: {\n -> Null -> [0]output }\ng :: Idle; g -> [1] f";
    assert_eq!(errors(text), ["f:1: 'f' has no input 1", "f:1: 'f' input 0 unused", "f:1: 'f' output 0 unused"]);
    assert_eq!(
        errors("elementclass F { $a | } F; F(1, 2)"),
        [
            "f:1: no match for 'F[0 inputs, 0 outputs]'",
            "f:1: candidates are:",
            "f:1:   F(<arg>)[0 inputs, 0 outputs]",
            "f:1: no match for 'F[2 arguments, 0 inputs, 0 outputs]'",
            "f:1: candidates are:",
            "f:1:   F(<arg>)[0 inputs, 0 outputs]"
        ]
    );
    let order = "compound element parameters out of order";
    let correct = "(The correct order is '[positional], [keywords], [__REST__]'.)";
    let cases: [(&str, &[&str]); 5] = [
        ("{ $a, $a | }", &["parameter '$a' multiply defined"]),
        ("{ A $a, A $b | }", &["repeated keyword parameter 'A' in compound element"]),
        ("{ A $a, $b, $c | }", &[order, correct]),
        ("{ __REST__ $a, B $b | }", &[order, correct]),
        ("{ $a $b | Idle }", &["expected ',' or '|'", "syntax error near '$b'", "syntax error near '|'"]),
    ];
    for (text, expected) in cases {
        let found: Vec<_> =
            errors(&format!("elementclass F {text}")).iter().map(|line| line[5..].to_string()).collect();
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(
        errors("elementclass F { ... }"),
        ["f:1: '...' should occur last, after one or more compounds", "f:1: cannot extend unknown element class 'F'"]
    );
}

#[test]
fn syntax_errors_do_not_hide_later_ones() {
    let text = "->Null;\n) a ] :: Idle |\nb :: Idle -> \n# x\n-> c;\n{ Idle\n";
    let expected = [
        "f:1: syntax error near '->'",
        "f:2: syntax error near ')'",
        "f:2: syntax error near ']'",
        "f:2: undeclared element 'a'",
    ];
    assert_eq!(errors(text)[..4], expected);
    assert!(errors(text).contains(&"f:4: unknown preprocessor directive".to_string()));
    assert!(errors(text).contains(&"f:7: expected '}'".to_string()));
    assert_eq!(errors("a :: Idle(\n\"x)"), ["f:2: expected ')'"]);
    assert_eq!(errors("( -> Null")[0], "f:1: expected ')'");
    assert_eq!(errors("{ ( } )")[0], "f:1: syntax error near '}'");
    assert_eq!(errors("Idle \u{e9} \u{1}"), ["f:1: syntax error near '\u{e9}'", "f:1: syntax error near '\\001'"]);
    assert_eq!(errors(&")".repeat(5000)).len(), 1001);
}

#[test]
fn connections_may_start_or_end_with_nothing_within_braces() {
    let (found, log) = parse_with("{ -> Null -> Discard;\n -> Print }", &[]);
    assert!(found.is_none());
    assert_eq!(log.lines().next(), Some("f:2: warning: suggest 'input ->' or '[0] ->' to start connection"));
    assert_eq!(
        errors("Source -> { -> Null => [1], Null -> } -> Discard")[0],
        "f:1: implicit ports used in the middle of a chain"
    );
    assert_eq!(errors("Source -> { [0] } -> Discard")[0], "f:1: stranded port ignored");
}

#[test]
fn tools_take_any_class() {
    let tool = |text: &str| {
        let mut log = Log::new();
        let graph = parse(text, "f", &Globals::new(), &AnyClass, &mut log);
        (graph.is_some(), log.to_string())
    };
    assert_eq!(tool("a :: Foo -> Bar(1) -> Bar"), (true, String::new()));
    assert_eq!(
        tool("elementclass Foo {\n A -> B;\n}\nA :: Idle"),
        (false, "f:4: class 'A' used as element name\n".into())
    );
    assert_eq!(tool("elementclass Foo {\n A :: A -> B;\n}"), (false, "f:2: class 'A' used as element name\n".into()));
    assert_eq!(tool("elementclass Foo {\n A :: AA -> B;\n}\nA :: Idle"), (true, String::new()));
}

#[test]
fn variables_of_the_file_may_be_kept() {
    let program =
        resolve(&parse_syntax("define($x 1) elementclass F { $a | Idle($a, $x) } F($x)", "f"), &Known, &mut Log::new());
    let kept = flatten(&program, &[], FileVariables::Kept, &mut Log::new());
    assert_eq!(unparse(&kept), "define($x 1);\n\nF@1/Idle@1 :: Idle($x, $x);\n\n");
}

#[test]
fn what_multiplies_is_bounded() {
    let mut text = format!("elementclass C0 {{ {} }}\n", "Idle;".repeat(16));
    for i in 1..8 {
        writeln!(text, "elementclass C{i} {{ {} }}", format!("C{};", i - 1).repeat(16)).unwrap();
    }
    let expected = "compound elements expand to too many elements";
    assert_eq!(errors(&(text + "C7")).last().unwrap().split_once(": ").unwrap().1, expected);
    let mut text = String::from("elementclass C0 { Idle }\n");
    for i in 1..500 {
        writeln!(text, "elementclass C{i} {{ C{} }}", i - 1).unwrap();
    }
    assert_eq!(
        errors(&(text + "C499")).last().unwrap().split_once(": ").unwrap().1,
        "compound elements are nested too deep"
    );
    let mut text = String::from("define($a0 xxxxxxxxxx)\n");
    for i in 1..10 {
        writeln!(text, "define($a{i} {})", format!("$a{} ", i - 1).repeat(20)).unwrap();
    }
    let expected = "configuration strings are too long with the values of their variables";
    assert_eq!(errors(&(text + "Idle($a9)")).last().unwrap().split_once(": ").unwrap().1, expected);
}

#[test]
fn deep_nesting_is_an_error() {
    for (open, close) in
        [("{ -> ", " -> }"), ("( -> ", " -> )"), ("{", "}"), ("(", ")"), ("elementclass A {", "}"), ("a :: {", "}")]
    {
        for depth in [50, 200, 100_000] {
            let text = format!("{}Idle{}", open.repeat(depth), close.repeat(depth));
            let (graph, log) = parse_with(&text, &[]);
            assert_eq!(
                graph.is_none(),
                depth > 100 || log.contains("unused") || log.contains("missing"),
                "{open} {depth} {log}"
            );
            assert_eq!(log.contains("nesting depth exceeded"), depth > 100, "{open} {depth}");
            parse_with(&open.repeat(depth), &[]);
        }
    }
    let chain = format!("Idle{} -> Idle", " -> { -> }".repeat(100_000));
    assert_eq!(graph(&chain).connections.len(), 1);
    let groups = format!("Idle{} -> Idle", " -> ( -> )".repeat(20_000));
    assert_eq!(graph(&groups).connections.len(), 1);
}

/// Pieces of which texts are made that are nearly right.
const PIECES: &[&str] = &[
    "a",
    "b",
    "c",
    "Idle",
    "Null",
    "Foo",
    "input",
    "output",
    " ",
    "::",
    "->",
    "=>",
    ",",
    ";",
    "[",
    "]",
    "0",
    "1",
    "(",
    ")",
    "{",
    "}",
    "||",
    "|",
    "...",
    "$x",
    "$y",
    "${x[0]-1}",
    "__REST__",
    "A",
    "elementclass",
    "define",
    "require",
    "provide",
    "connectiontunnel",
    "\n",
    "# 3 \"f\"",
    "//",
    "/*",
    "*/",
    "\"",
    "'",
    "\\",
    "\\<",
    ">",
    "é",
    "@",
    "/",
    "library pair",
    "compact_config",
    "[0,1]",
    "[]",
];

fn nearly_right() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES), 0..60).prop_map(|pieces| pieces.join(" "))
}

/// Texts of right statements, of which each may be cut in two anywhere.
fn mutated() -> impl Strategy<Value = String> {
    let statements = prop::sample::select(
        &[
            "a, b :: Null(1);",
            "a -> b;",
            "a[1] => [0,1] b;",
            "elementclass Foo { $x, A $y | input -> Null($x) -> output || -> ( -> ) -> }",
            "Idle -> Foo(1) -> { [0] -> Print -> } -> Discard;",
            "define($x 1, $y \"$x\");",
            "connectiontunnel p -> q; a -> p; q -> b;",
            "elementclass Bar Foo;",
            "require(library pair); Pair(1);",
            "a => (-> Null), ( -> Null ) -> b;",
            "Message(\"$x\", ${y-2});",
        ][..],
    );
    let cuts = prop::collection::vec((statements, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8);
    cuts.prop_map(|cuts| {
        cuts.iter()
            .map(|(text, from, to)| {
                let (from, to) = (from.index(text.len()), to.index(text.len()));
                if from % 3 == 0 { *text } else { &text[from.min(to)..from.max(to)] }
            })
            .collect()
    })
}

fn random_graph() -> impl Strategy<Value = Graph> {
    let element = (
        prop::sample::select(&["a", "b/c", "Idle@1", "x_1", "d"][..]),
        prop::sample::select(&["Idle", "Null", "Queue"][..]),
        r#"([a-z, ]|"([a-z)(]|\\[a"\\])*"|'[)"]*'|\\<[0-9 )]*>|/\* [)a] \*/){0,5}"#,
    );
    (
        prop::collection::vec(element, 1..8),
        prop::collection::vec((any::<prop::sample::Index>(), 0..4u32, any::<prop::sample::Index>(), 0..4u32), 0..12),
    )
        .prop_map(|(elements, connections)| {
            let mut graph = Graph::default();
            for (i, (name, class, config)) in elements.into_iter().enumerate() {
                let landmark = crate::Landmark::default();
                graph.elements.push(ElementDecl { name: format!("{name}{i}"), class: class.into(), config, landmark });
            }
            for (from, from_port, to, to_port) in connections {
                let (from, to) = (from.index(graph.elements.len()), to.index(graph.elements.len()));
                graph.connections.push(Connection {
                    from,
                    from_port,
                    to,
                    to_port,
                    landmark: crate::Landmark::default(),
                });
            }
            graph.sort_connections();
            graph
        })
}

/// A graph without its landmarks.
fn placeless(mut graph: Graph) -> Graph {
    graph.elements.iter_mut().for_each(|element| element.landmark = crate::Landmark::default());
    graph.connections.iter_mut().for_each(|connection| connection.landmark = crate::Landmark::default());
    graph
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(graph in random_graph()) {
        let text = unparse(&graph);
        let (found, log) = parse_with(&text, &[]);
        prop_assert_eq!(log, "", "{}", text);
        let found = placeless(found.unwrap());
        prop_assert_eq!(&found, &graph, "{}", text);
        prop_assert_eq!(unparse(&found), text);
        let (found, _) = parse_with(&unparse_with_lines(&graph), &[]);
        prop_assert_eq!(placeless(found.unwrap()), graph);
    }

    #[test]
    fn nearly_right_texts_are_taken(text in nearly_right()) {
        survives(&text);
    }

    #[test]
    fn mutated_texts_are_taken(text in mutated()) {
        survives(&text);
    }

    #[test]
    fn any_text_is_taken(text: String) {
        survives(&text);
    }
}

/// A text has a graph that is the same when it is written and read, or an error.
fn survives(text: &str) {
    let (graph, log) = parse_with(text, &[("y", "1")]);
    assert_eq!(graph.is_none(), log.lines().any(|line| !line.contains("warning: ")), "{text}\n{log}");
    if let Some(graph) = graph {
        let (again, _) = parse_with(&unparse(&graph), &[]);
        assert_eq!(placeless(again.unwrap()), placeless(graph), "{text}");
    }
    let mut log = Log::new();
    parse(text, "f", &Globals::new(), &AnyClass, &mut log);
}
