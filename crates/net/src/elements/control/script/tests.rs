use crate::elements::testing::Harness;

fn printed(config: &str) -> String {
    let mut harness = Harness::new(config);
    harness.pass(10.0);
    assert_eq!(harness.said(), Vec::<String>::new());
    harness.printed()
}

#[test]
fn a_loop_counts() {
    let config =
        "s :: Script(set x 0, label begin_loop, print $x, set x $(s.add $x 1), goto begin_loop $(s.lt $x 5), stop)";
    assert_eq!(printed(config), "0\n1\n2\n3\n4\n");
    assert_eq!(printed(&config.replace("s.add", "add").replace("s.lt", "lt")), "0\n1\n2\n3\n4\n");
}

#[test]
fn quotes_are_taken_off_where_the_instruction_says_so() {
    let config = "Give -> q :: Queue -> TakePull; Script(set x \"$(q.length)\", print $x, setq x \"$(q.length)\", print $x, \
                  print q.length, print \"q.length\", print '\"q.length\"', set y q.length, print $y, print $($y))";
    assert_eq!(printed(config), "\"0\"\n0\n0\nq.length\n\"q.length\"\nq.length\n0\n");
}

#[test]
fn a_passive_script_returns_a_value() {
    let mut harness =
        Harness::new("s :: Script(TYPE PASSIVE, return $(add $1 $2 $#)); t :: Script(TYPE PASSIVE, error \"no\")");
    assert_eq!(harness.read("s.run 3 4"), "9");
    assert_eq!(harness.read("s.run 10 20 30"), "33");
    assert_eq!(harness.write("t.run", ""), Err("\"no\"".to_owned()));
}

#[test]
fn several_stops_of_one_moment_are_waited_for_one_by_one() {
    // Symptom: a router ended at the second of two stops, with packets in its queues, as its driver was asked once.
    let config = "InfiniteSource(LIMIT 5, STOP true) -> q :: Queue; InfiniteSource(LIMIT 5, STOP true) -> q;
                  InfiniteSource(LIMIT 5, STOP true) -> q; q -> RatedUnqueue(10) -> take :: Take;
                  DriverManager(wait_stop 2, wait_stop, wait 5s, print 'done')";
    let mut harness = Harness::new(config);
    harness.pass(10.0);
    assert_eq!((harness.take("take").len(), harness.printed(), harness.runcount()), (15, "done\n".to_owned(), 0));
}

#[test]
fn times_and_steps_are_waited_for() {
    let config = "a :: Script(wait 1s, print 'a', pause, print 'b', pause 2, print 'c'); \
                  Script(wait 2s, write a.step, wait 1s, write a.step, wait 1s, printn 'd', write a.step)";
    let mut harness = Harness::new(config);
    for (time, expected) in [(0.9, ""), (0.2, "a\n"), (1.0, "b\n"), (1.0, ""), (1.0, "dc\n"), (5.0, "")] {
        harness.pass(time);
        assert_eq!(harness.printed(), expected);
    }
}

#[test]
fn a_driver_says_what_follows_when_the_router_stops() {
    let config = "DriverManager(print 'a', pause, print 'b', wait 1s, print 'c', stop); Script(wait 3s, write stop)";
    let mut harness = Harness::new(config);
    harness.pass(2.0);
    assert_eq!((harness.printed(), harness.runcount()), ("a\n".to_owned(), 1));
    harness.pass(1.5);
    assert_eq!((harness.printed(), harness.runcount()), ("b\n".to_owned(), 1));
    harness.pass(5.0);
    assert_eq!((harness.printed(), harness.runcount()), ("c\n".to_owned(), 0));
    let told = Harness::errors("DriverManager; d :: Script(TYPE DRIVER)");
    assert!(told.contains("While initializing 'd :: Script':\n  router has more than one driver script"), "{told}");
}

#[test]
fn a_script_in_a_circle_is_given_up() {
    let mut harness = Harness::new("s :: Script(label x, goto x)");
    harness.pass(1.0);
    assert_eq!(harness.said(), ["s :: Script: too many jumps, giving up"]);
    // So are two that call each other.
    let mut harness =
        Harness::new("a :: Script(TYPE PASSIVE, write b.run); b :: Script(TYPE PASSIVE, write a.run, print x)");
    harness.write("a.run", "").unwrap();
    harness.pass(1.0);
    assert!(harness.said().concat().contains("too many"), "{}", harness.printed().len());
}

#[test]
fn errors_are_told_and_the_script_goes_on() {
    let mut harness =
        Harness::new("s :: Script(write x.y 5, print $?, print $(nothing), goto z maybe, label z, print 'end')");
    harness.pass(1.0);
    assert_eq!(harness.printed(), "-22\n$(nothing)\nend\n");
    let said = harness.said().concat();
    for error in ["no element named 'x'", "no handler named 'nothing'", "bad condition 'maybe'"] {
        assert!(said.contains(error), "{error}: {said}");
    }
}

#[test]
fn what_is_wrong_is_told_at_once() {
    let told = Harness::errors("s :: Script(foo, set x, goto nowhere, wait x, end 5, label a b, TYPE NONE)");
    for error in ["bad TYPE", "'foo'", "'set'", "'wait'", "'end'", "'label'", "no such label 'nowhere'"] {
        assert!(told.contains(error), "{error}: {told}");
    }
}

#[test]
fn files_are_written_and_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let path = path.display();
    let mut harness = Harness::new(&format!("Script(print >{path} a, printn >>{path} 'b c')"));
    harness.pass(1.0);
    harness.said();
    let mut harness = Harness::new(&format!("Script(print >{path} 'a', printn >>{path} 'b c')"));
    harness.pass(1.0);
    // Both ways of the harness write: the second begins anew.
    assert_eq!(std::fs::read_to_string(folder.path().join("out")).unwrap(), "a\nb c");
}

#[test]
fn a_packet_script_says_where_packets_go() {
    let mut harness = Harness::new(
        "give :: Give -> s :: Script(TYPE PACKET, init i 0, set j $i, set i $(mod $(add $i 1) 3), return $j);
         s[0] -> a :: Take; s[1] -> b :: Take;
         pulled :: Give -> Queue -> t :: Script(TYPE PACKET, print $input, goto exit $(eq $(n.run) 2)) -> c :: Take;
         n :: Script(TYPE PASSIVE, init x 0, set x $(add $x 1), return $x)",
    );
    let packets = || (0..7).map(|n| crate::Packet::from_slice(&[n]));
    harness.give("give", packets());
    assert_eq!(harness.take_bytes("a"), [[0], [3], [6]]);
    assert_eq!(harness.take_bytes("b"), [[1], [4]], "there is no output 2");
    harness.give("pulled", packets());
    assert_eq!(harness.take_bytes("c"), [[0], [2], [3], [4], [5], [6]]);
    assert_eq!(harness.printed(), "0\n".repeat(7));
    let told = Harness::errors("Give -> Script(TYPE PASSIVE) -> Take");
    assert!(told.contains("ports allowed only on PACKET scripts"), "{told}");
    assert!(Harness::errors("Script(TYPE PACKET)").contains("PACKET script must have inputs"));
}

#[test]
fn variables_are_read_and_written_from_outside() {
    let mut harness =
        Harness::new("s :: Script(TYPE PASSIVE, export total 5, set total $(add $total $1), return $total)");
    assert_eq!((harness.read("s.total"), harness.read("s.run 3")), ("5".to_owned(), "8".to_owned()));
    assert_eq!(harness.read("s.total"), "8");
    harness.write("s.set", "list a \"b c\" d").unwrap();
    let shifted = ["s.shift list", "s.shift list", "s.get list"].map(|handler| harness.read(handler));
    assert_eq!(shifted, ["a", "\"b c\"", "d"]);
}

#[test]
fn functions_look_at_the_router() {
    let mut harness = Harness::new("s :: Script(TYPE PASSIVE); Give -> c :: Counter -> Take; RandomSeed(1)");
    assert_eq!(harness.read("s.now"), "1000000000.000000");
    for (handlers, expected) in [
        ("readable c.count c.rate", "true"),
        ("readable c.count c.reset", "false"),
        ("writable c.reset run", "true"),
        ("readable d.count", "false"),
    ] {
        assert_eq!(harness.read(&format!("s.{handlers}")), expected);
    }
    for _ in 0..100 {
        assert!((0..5).contains(&harness.read("s.random 5").parse::<i64>().unwrap()));
        assert!((-3..=4).contains(&harness.read("s.random -3 4").parse::<i64>().unwrap()));
    }
    for text in ["4 -3", "0"] {
        assert_eq!(harness.try_read(&format!("s.random {text}")), Err("bad N".to_owned()));
    }
    assert!(harness.try_read("s.random a").is_err());
}

#[test]
fn what_is_read_is_told_with_its_whole_name() {
    let mut harness =
        Harness::new("s :: Script(readq length \"\\<0a 09 01>\", read t.length a b); t :: Script(TYPE PASSIVE)");
    harness.pass(1.0);
    assert_eq!(harness.said(), ["s.length:\n3\n", "t.length:\n3\n"]);
}

#[test]
fn a_proxy_runs_for_handlers_that_it_has_not() {
    let mut harness = Harness::new(
        "s :: Script(TYPE PROXY, goto other $(ne $0 a), returnq \"a $args $write\", label other, goto bad $(ne $0 b),
                     set kept \"$0 $write $#\", end, label bad, error no $0);
         t :: Script(TYPE PASSIVE, return $0)",
    );
    assert_eq!(harness.read("s.a 1 2"), "a 1 2 false");
    harness.write("s.b", "x y").unwrap();
    assert_eq!(harness.read("s.get kept"), "\"b true 2\"");
    assert_eq!(harness.try_read("s.c"), Err("no c".to_owned()));
    assert_eq!(harness.write("s.c", ""), Err("no c".to_owned()));
    assert_eq!((harness.read("s.add 1 2"), harness.read("s.class")), ("3".to_owned(), "Script".to_owned()));
    assert_eq!(harness.read("t.run"), "run");
}

#[test]
fn files_are_read_and_processes_get_signals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in");
    std::fs::write(&path, "a \"b\"\n").unwrap();
    let path = path.display();
    let mut harness =
        Harness::new(&format!("s :: Script(TYPE PASSIVE, returnq $(catq {path})); p :: Script(print $$)"));
    assert_eq!(harness.read(&format!("s.cat {path}")), "a \"b\"\n");
    assert_eq!(harness.read("s.run"), "a \"b\"\n");
    let failures = [
        ("cat", "bad FILE".to_owned()),
        ("cat /nowhere/x", "/nowhere/x: No such file or directory".to_owned()),
        ("kill", "bad SIGNO".to_owned()),
        ("kill 32 1", "bad SIGNO".to_owned()),
        ("kill HUP x", "bad PID".to_owned()),
        (&format!("kill 0 {}", i32::MAX), format!("kill({}, 0): No such process", i32::MAX)),
    ];
    for (call, told) in failures {
        assert_eq!(harness.try_read(&format!("s.{call}")), Err(told));
    }
    // Signal 0 finds out whether a process is there.
    assert_eq!(harness.try_read(&format!("s.kill 0 {}", std::process::id())), Ok(String::new()));
    harness.pass(1.0);
    assert_eq!(harness.printed(), format!("{}\n", std::process::id()));
}

#[test]
fn forms_with_a_q_take_quotes_off_arguments() {
    let config = "s :: Script(printq length \"abc\", printnq length 'ab', printn length \"abc\")";
    assert_eq!(printed(config), "3\n25");
}

#[test]
fn times_of_waits_are_calculated() {
    let config = "Script(set x 1, wait $(add $x 1)s, print 'a', goto, print 'never')";
    let mut harness = Harness::new(config);
    for (time, expected) in [(1.9, ""), (0.2, "a\n"), (2.0, "a\n")] {
        harness.pass(time);
        assert_eq!(harness.printed(), expected);
    }
    let mut harness = Harness::new("Script(print 'a', wait $(nothing), print 'b')");
    harness.pass(5.0);
    assert_eq!(harness.printed(), "a\n");
    assert!(harness.said().concat().contains("syntax error at 'wait'"));
}

#[test]
fn files_may_be_left_out_where_handlers_are_saved() {
    assert_eq!(printed("q :: Script(TYPE PASSIVE, return 5); Script(save q.run, append q.run -)"), "5\n5\n");
    let sums = "q :: Script(TYPE PASSIVE, return $(add $args)); Script(save q.run 1 2 -, append q.run 3  4 -)";
    assert_eq!(printed(sums), "3\n7\n");
}

#[test]
fn whose_fault_it_is_is_said_once_a_run() {
    let mut harness = Harness::new("s :: Script(write x.y, write x.z, wait 1s, write x.y)");
    harness.pass(5.0);
    let said = harness.said().concat();
    assert_eq!(
        (said.matches("While executing 's :: Script':").count(), said.matches("no element named 'x'").count()),
        (2, 3)
    );
}

#[test]
fn variables_are_told_when_they_are_not_there() {
    let mut harness = Harness::new("s :: Script(TYPE PASSIVE)");
    let failures = [
        ("get", "no variable"),
        ("get a b", "too many arguments"),
        ("get a", "undefined variable 'a'"),
        ("shift b", "undefined variable 'b'"),
    ];
    for (call, told) in failures {
        assert_eq!(harness.try_read(&format!("s.{call}")), Err(told.to_owned()));
    }
    harness.write("s.set", "args 1 2").unwrap();
    assert_eq!((harness.read("s.shift"), harness.read("s.get args")), ("1".to_owned(), "2".to_owned()));
}

#[test]
fn packets_are_dropped_where_a_script_does_not_end() {
    for (end, expected) in
        [("end", 1), ("goto end", 1), ("exit", 0), ("stop", 0), ("error", 0), ("pause", 0), ("return x", 0)]
    {
        let mut harness = Harness::new(&format!("give :: Give -> Script(TYPE PACKET, {end}) -> take :: Take"));
        harness.give_bytes("give", b"x");
        assert_eq!(harness.take("take").len(), expected, "{end}");
    }
}
