//! click: runs a configuration.

use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::calls::{call_handlers, exit_code};
use super::making::Making;
use super::options::{self, Given, Known, Value, integer};
use super::source::{ClickPath, Source};
use super::tool::{print, report, version, write_output};
use super::watching::Wanted;
use crate::router::{Current, Running};
use crate::watch::screen::Screen;
use crate::watch::server::Listener;
use crate::{Clock, Landmark, Log, Registry, Timestamp};

const HELP: &str = "Runs a router configuration until it is stopped: by a DriverManager, or by an interrupt.

Usage: click [OPTION]... [NAME=VALUE]... [ROUTERFILE]

Options:
  -f, --file FILE               Read router configuration from FILE.
  -e, --expression EXPR         Use EXPR as router configuration.
  -j, --threads N               Run N threads (default 1).
  -a, --affinity[=N]            Pin threads to processors, from #N on (default 0);
                                not with --no-affinity (the default).
  -p, --port PORT               Listen for control connections on TCP port; PORT+:
                                on the first one from there that is free.
  -u, --unix-socket FILE        Listen for control connections on Unix socket.
      --socket FD               Take file descriptor FD as a control connection.
  -R, --allow-reconfigure       Provide a writable 'hotconfig' handler.
  -h, --handler ELEMENT.H       Call ELEMENT's read handler H after running
                                driver and print result to standard output.
  -x, --exit-handler ELEMENT.H  Use handler ELEMENT.H value for exit status.
  -o, --output FILE             Write flat configuration to FILE.
  -q, --quit                    Do not run driver.
  -t, --time                    Print information on how long driver took.
  -w, --no-warnings             Do not print warnings.
      --simtime[=SECONDS]       Run in simulated time, which begins at SECONDS.
      --stats[=SECONDS]         Show rates of all elements once a second, or
                                once in SECONDS.
      --metrics PORT|ADDRESS:PORT|SOCKET
                                Serve metrics for Prometheus by HTTP (/metrics)
                                and a drawing (/, /graph.svg), on this host alone
                                unless an ADDRESS says otherwise.
      --graph FILE              Write an SVG drawing with rates to FILE at the end.
  -C, --clickpath PATH          Use PATH for CLICKPATH.
      --help                    Print this message and exit.
  -v, --version                 Print version number and exit.
";

const USAGE: &str = "Usage: click [OPTION]... [ROUTERFILE]\nTry 'click --help' for more information.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Affinity,
    Reconfigure,
    Clickpath,
    Expression,
    ExitHandler,
    File,
    Graph,
    Handler,
    Help,
    Metrics,
    NoAffinity,
    NoWarnings,
    Output,
    Port,
    Quit,
    SimTime,
    Socket,
    Stats,
    Threads,
    Time,
    UnixSocket,
    Version,
    Warnings,
}

const fn known(long: &'static str, short: Option<char>, meaning: Choice, value: Value) -> Known<Choice> {
    Known { long, short, meaning, value }
}

const KNOWN: &[Known<Choice>] = &[
    known("affinity", Some('a'), Choice::Affinity, Value::AllowedInteger),
    known("allow-reconfigure", Some('R'), Choice::Reconfigure, Value::Negatable),
    known("clickpath", Some('C'), Choice::Clickpath, Value::Needed),
    known("expression", Some('e'), Choice::Expression, Value::Needed),
    known("exit-handler", Some('x'), Choice::ExitHandler, Value::Needed),
    known("file", Some('f'), Choice::File, Value::Needed),
    known("graph", None, Choice::Graph, Value::Needed),
    known("handler", Some('h'), Choice::Handler, Value::Needed),
    known("help", None, Choice::Help, Value::No),
    known("metrics", None, Choice::Metrics, Value::Needed),
    known("no-affinity", None, Choice::NoAffinity, Value::No),
    known("no-warnings", Some('w'), Choice::NoWarnings, Value::No),
    known("output", Some('o'), Choice::Output, Value::Needed),
    known("port", Some('p'), Choice::Port, Value::Needed),
    known("quit", Some('q'), Choice::Quit, Value::No),
    known("simtime", None, Choice::SimTime, Value::AllowedReal),
    known("simulation-time", None, Choice::SimTime, Value::AllowedReal),
    known("socket", None, Choice::Socket, Value::Integer),
    known("stats", None, Choice::Stats, Value::Allowed),
    known("threads", Some('j'), Choice::Threads, Value::Integer),
    known("time", Some('t'), Choice::Time, Value::No),
    known("unix-socket", Some('u'), Choice::UnixSocket, Value::Needed),
    known("version", Some('v'), Choice::Version, Value::No),
    known("warnings", None, Choice::Warnings, Value::No),
];

/// What a command line asks for.
#[derive(Debug, Default)]
struct Plan {
    source: Source,
    threads: usize,
    /// The processor of the first thread, where each has one of its own.
    affinity: Option<usize>,
    /// Configurations of ControlSockets.
    sockets: Vec<String>,
    /// Options without values.
    flags: Vec<Choice>,
    handlers: Vec<String>,
    exit_handler: Option<String>,
    output: Option<String>,
    /// Where time is simulated: the seconds at which it begins, at the least.
    simulated: Option<f64>,
    wanted: Wanted,
}

/// Runs it.
pub(super) fn main(args: &[String], registry: &Registry) -> i32 {
    let plan = match plan(args) {
        Ok(Some(plan)) => plan,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return 1;
        }
    };
    let listener = match plan.wanted.listen() {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("{error}");
            return 1;
        }
    };
    let mut log = Log::new();
    let running = start(&plan, registry, &mut log);
    report(&mut log, !plan.has(Choice::NoWarnings));
    match running {
        Some(mut running) => run(&plan, &mut running, listener),
        None => 1,
    }
}

fn plan(args: &[String]) -> Result<Option<Plan>, String> {
    let mut plan = Plan { threads: 1, ..Plan::default() };
    for given in options::parse(args, KNOWN).map_err(|error| format!("click: {error}"))? {
        match given {
            Given::Word(word) => plan.source.set_word(&word)?,
            Given::Option(Choice::Help, _) => {
                print(HELP);
                return Ok(None);
            }
            Given::Option(Choice::Version, _) => {
                print(&version("click"));
                return Ok(None);
            }
            Given::Option(choice, value) => plan.choose(choice, value)?,
            Given::Negated(choice) => plan.flags.retain(|flag| *flag != choice),
        }
    }
    Ok(Some(plan))
}

impl Plan {
    fn has(&self, flag: Choice) -> bool {
        self.flags.contains(&flag)
    }

    fn choose(&mut self, choice: Choice, value: String) -> Result<(), String> {
        match choice {
            Choice::Clickpath => self.source.path = ClickPath::new(&value),
            Choice::Expression => return self.source.set(&value, true),
            Choice::File => return self.source.set(&value, false),
            Choice::Handler => self.handlers.push(value),
            Choice::Port => return self.add_socket(Making::tcp(&value), value.ends_with('+'), &value),
            Choice::UnixSocket => return self.add_socket(Making::unix(&value), false, &value),
            Choice::Socket => {
                let fd = integer(&value).and_then(|fd| i32::try_from(fd).ok()).filter(|fd| *fd >= 0);
                let fd = fd.ok_or_else(|| format!("'{value}' is no file descriptor"))?;
                return self.add_socket(Making::socket(fd), false, &value);
            }
            Choice::Affinity => {
                let first = if value.is_empty() { Some(0) } else { integer(&value) };
                let first = first.and_then(|first| usize::try_from(first).ok()).filter(|cpu| *cpu < 1024);
                self.affinity = Some(first.ok_or_else(|| format!("'{value}' is no number of a processor"))?);
            }
            Choice::NoAffinity => self.affinity = None,
            Choice::Threads => {
                // Less than one is one, as in Click.
                let threads = integer(&value).map(|threads| threads.max(1) as usize).filter(|threads| *threads <= 1024);
                self.threads = threads.ok_or_else(|| format!("'{value}' is no number of threads"))?;
            }
            Choice::SimTime => {
                self.simulated = Some(value.parse().unwrap_or(0.0));
            }
            Choice::Stats => return self.wanted.set_stats(&value),
            Choice::Metrics => return self.wanted.set_metrics(value),
            Choice::Graph => return self.wanted.set_graph(value),
            Choice::ExitHandler => return once(&mut self.exit_handler, value, "--exit-handler specified twice"),
            Choice::Output => return once(&mut self.output, value, "output file specified twice"),
            Choice::Warnings => self.flags.retain(|flag| *flag != Choice::NoWarnings),
            flag => self.flags.push(flag),
        }
        Ok(())
    }

    /// Adds a ControlSocket; there may be several with the same arguments where each looks for a port of its own.
    fn add_socket(&mut self, socket: String, may_repeat: bool, value: &str) -> Result<(), String> {
        if !may_repeat && self.sockets.contains(&socket) {
            return Err(format!("control socket '{value}' specified twice"));
        }
        self.sockets.push(socket);
        Ok(())
    }

    fn clock(&self) -> Clock {
        match self.simulated {
            None => Clock::system(),
            Some(begin) => {
                let clock = Clock::simulated();
                clock.advance(Timestamp::from_secs_f64(begin));
                clock
            }
        }
    }
}

fn once(place: &mut Option<String>, value: String, error: &str) -> Result<(), String> {
    match place.replace(value) {
        Some(_) => Err(error.into()),
        None => Ok(()),
    }
}

fn start(plan: &Plan, registry: &Registry, log: &mut Log) -> Option<Running> {
    let text = plan.source.read(log)?;
    let making = Making {
        registry: registry.clone(),
        globals: plan.source.globals.clone(),
        path: plan.source.path.clone(),
        sockets: plan.sockets.clone(),
        threads: plan.threads,
        affinity: plan.affinity,
        may_change: plan.has(Choice::Reconfigure),
    };
    making.first(text, plan.source.name(), plan.clock(), log)
}

fn run(plan: &Plan, running: &mut Running, listener: Option<Listener>) -> i32 {
    let mut log = Log::new();
    if plan.output.is_some() {
        let text = running.read("flatconfig").unwrap_or_default();
        write_output(plan.output.as_deref(), &text, &mut log);
    }
    let (cpu, since) = (cpu_times(), Instant::now());
    if !plan.has(Choice::Quit) {
        if running.router().is_empty() {
            let text = format!("{}: configuration has no elements, exiting", plan.source.name());
            log.warning(&Landmark::default(), text);
        } else {
            drive(plan, running, listener, &mut log);
        }
    }
    if plan.has(Choice::Time) {
        print(&times_text(cpu, cpu_times(), since.elapsed().as_secs_f64()));
    }
    call_handlers(&plan.handlers, running, &mut log);
    let mut code = i32::from(log.errors() > 0);
    if let Some(handler) = &plan.exit_handler {
        code = exit_code(&running.read(handler), &mut log);
    }
    report(&mut log, !plan.has(Choice::NoWarnings));
    code
}

/// Runs the router until it stops, while others watch.
fn drive(plan: &Plan, running: &mut Running, listener: Option<Listener>, log: &mut Log) {
    let watching = match plan.wanted.start(running, listener) {
        Ok(watching) => watching,
        Err(error) => return log.error(&Landmark::default(), error),
    };
    let signals = watch_signals(running.current().clone(), plan.wanted.has_screen());
    running.run();
    watching.finish(running, log);
    signals.iter().for_each(signal_hook::iterator::Handle::close);
}

/// The first interrupt stops the router; another one ends the program.
fn watch_signals(current: Current, has_screen: bool) -> Option<signal_hook::iterator::Handle> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).ok()?;
    let handle = signals.handle();
    std::thread::spawn(move || {
        for (count, signal) in signals.forever().enumerate() {
            if count == 0 {
                current.router().end();
                continue;
            }
            if has_screen {
                Screen::restore();
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Some(handle)
}

/// The seconds that the program has used, for itself and in the system.
fn cpu_times() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; times are the 12th and 13th field after it, in hundredths of seconds.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let seconds = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
    (seconds(11), seconds(12))
}

fn times_text(before: (f64, f64), after: (f64, f64), elapsed: f64) -> String {
    let hundredths = (elapsed * 100.0).round() as u64;
    let (minutes, rest) = (hundredths / 6000, hundredths % 6000);
    let (user, system) = (after.0 - before.0, after.1 - before.1);
    format!("{user:.3}u {system:.3}s {minutes}:{:02}.{:02}\n", rest / 100, rest % 100)
}

#[cfg(test)]
mod tests {
    use super::super::calls::{expand_handler, read_handler};
    use super::*;

    fn words(args: &[&str]) -> Vec<String> {
        args.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn command_lines_are_understood() {
        let plan = plan(&words(&[
            "-qt",
            "-h",
            "a.b",
            "-hc.d",
            "x=1",
            "-j4",
            "-p",
            "1234+",
            "-p1234+",
            "-u",
            "/s o",
            "--simtime=5",
            "-w",
            "-e",
            "Idle",
        ]));
        let plan = plan.unwrap().unwrap();
        assert_eq!((plan.flags, plan.threads), (vec![Choice::Quit, Choice::Time, Choice::NoWarnings], 4));
        assert_eq!(plan.handlers, ["a.b", "c.d"]);
        assert_eq!(plan.sockets, ["TCP, 1234+", "TCP, 1234+", "UNIX, \"/s o\""]);
        assert_eq!((plan.simulated, plan.source.name()), (Some(5.0), "config"));
        assert_eq!(plan.source.globals.values(), [("x".to_string(), "1".to_string())]);
        assert_eq!(super::plan(&words(&["-j0"])).unwrap().unwrap().threads, 1);
        let affinity = |args: &[&str]| super::plan(&words(args)).unwrap().unwrap().affinity;
        assert_eq!(
            (affinity(&["-a"]), affinity(&["--affinity=2"]), affinity(&["-a", "--no-affinity"])),
            (Some(0), Some(2), None)
        );
    }

    #[test]
    fn wrong_command_lines_are_refused() {
        for (args, error) in [
            (&["a", "b"][..], "router configuration specified twice"),
            (&["-e", "a", "-f", "b"], "router configuration specified twice"),
            (&["-o", "a", "-o", "b"], "output file specified twice"),
            (&["-x", "a", "-x", "b"], "--exit-handler specified twice"),
            (&["x=1", "x=2"], "parameter 'x' multiply defined"),
            (&["--nope"], "click: unrecognized option '--nope'"),
            (&["-p", "80", "-u", "80", "-p80"], "control socket '80' specified twice"),
            (&["-u", "/s", "--unix-socket=/s"], "control socket '/s' specified twice"),
            (&["--socket", "3", "--socket=03"], "control socket '03' specified twice"),
            (&["-j2000"], "'2000' is no number of threads"),
            (&["-jmany"], "click: '-j' expects an integer, not 'many'"),
            (&["--simtime=soon"], "click: '--simtime' expects a real number, not 'soon'"),
            (&["--socket", "-1"], "'-1' is no file descriptor"),
            (&["--affinity=-1"], "'-1' is no number of a processor"),
            (&["--affinity=first"], "click: '--affinity' expects an integer, not 'first'"),
        ] {
            assert_eq!(plan(&words(args)).unwrap_err(), error);
        }
    }

    fn started(text: &str) -> (Option<Running>, String) {
        let mut log = Log::new();
        let mut plan = Plan { threads: 1, simulated: Some(0.0), ..Plan::default() };
        plan.source.set(text, true).unwrap();
        (start(&plan, &Registry::standard(), &mut log), log.to_string())
    }

    #[test]
    fn handlers_are_found_by_name_pattern_and_class() {
        let (found, log) = started("a, b1, b2 :: Queue(3)");
        assert!(found.is_none() && log.ends_with("Router could not be initialized!\n"), "{log}");
        let (found, log) = started("a :: Unqueue -> b :: Queue(3) -> a");
        let running = found.unwrap_or_else(|| panic!("{log}"));
        let router = running.router();
        let expand = |text: &str| expand_handler(text, router);
        assert_eq!(expand("b.capacity"), Ok((vec!["b.capacity".into()], false)));
        assert_eq!(expand("list"), Ok((vec!["list".into()], false)));
        assert_eq!(expand("*.capacity"), Ok((vec!["b.capacity".into()], true)));
        assert_eq!(expand("Queue.length"), Ok((vec!["b.length".into()], true)));
        assert_eq!(expand("c.x"), Err("no element 'c'".into()));
        assert_eq!(expand("c*.x"), Err("no element matching 'c*'".into()));
        assert_eq!(expand("nothing"), Err("no 'nothing' handler".into()));
        assert_eq!(expand("stop"), Err("'stop' is a write handler".into()));
        assert_eq!(expand("b.x"), Err("no 'b.x' handler".into()));
        assert_eq!(expand("b.reset"), Err("'b.reset' is a write handler".into()));
    }

    #[test]
    fn the_config_handler_has_the_text() {
        let text = "// my router\na :: Unqueue -> b :: Queue(3) -> a";
        let mut found = started(text).0.unwrap();
        assert_eq!(read_handler("config", &mut found).unwrap(), text);
        assert_eq!(read_handler("b.capacity", &mut found).unwrap(), "3\n");
        assert_eq!(read_handler("b.config", &mut found).unwrap(), "3\n");
        let mut found = started(&format!("require(compact_config) {text}")).0.unwrap();
        assert!(read_handler("config", &mut found).unwrap().starts_with("require(compact_config);\n"));
    }

    #[test]
    fn packets_data_is_printed_as_it_is() {
        let mut found = started("s :: InfiniteSource(DATA abc, LIMIT 1) -> Discard").0.unwrap();
        assert_eq!(read_handler("s.data", &mut found).unwrap(), "abc");
        assert_eq!(read_handler("s.limit", &mut found).unwrap(), "1\n");
    }

    #[test]
    fn packages_have_to_be_there() {
        let (found, log) = started("require(nothing_of_that_name, Queue, userlevel)");
        assert!(found.is_none());
        assert_eq!(log, "can't find required package 'nothing_of_that_name'\n");
        assert!(started("provide(mine) require(mine)").0.is_some());
    }

    #[test]
    fn times_are_printed_as_a_shell_does() {
        assert_eq!(times_text((1.0, 2.0), (1.25, 2.5), 61.234), "0.250u 0.500s 1:01.23\n");
    }
}
