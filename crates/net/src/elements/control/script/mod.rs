//! Script and DriverManager: instructions that read and write handlers.
//!
//! `Script(INSTRUCTION, …, [TYPE ACTIVE | PASSIVE | PROXY | DRIVER | PACKET | SIGNAL SIGNO…])`, `DriverManager(INSTRUCTION, …)`:
//! no ports. An active script runs when the router starts, a passive one when its `run` handler is called, a proxy when any
//! handler is called that it has not (`$0` is its name, `$write` whether it is written), a driver when the router stops, and a
//! signal script when this process gets a signal, one after the other where several want it. DriverManager is a driver. A packet script has inputs and outputs, push or
//! pull, and runs for each packet; `$input` is where it came in, what the script returns is where it leaves (0 at its end),
//! and `exit`, `stop`, `error` and a pause drop it. A script with inputs is one.
//!
//! ```text
//!   set VAR TEXT, init VAR TEXT             a variable, each time, or once at the start; export VAR TEXT: a handler, too
//!   print [>FILE | >>FILE] TEXT | HANDLER   to standard output, or a file; printn without a newline
//!   save HANDLER [FILE], append …           the same
//!   read HANDLER [ARG]                      prints name and value on standard error
//!   write HANDLER [ARG]                     $? is 0 if that went well
//!   wait TIME, pause [N]                    until then; until N steps were made
//!   label L, goto L [CONDITION], loop       also `goto begin`, `loop`, `end`, `exit`, `stop`, `error`
//!   return [VALUE], error [TEXT], end, exit, stop
//! ```
//!
//! Texts have `$x`, `${x}` and `$(HANDLER ARG…)` replaced; forms with `q` at the end (`setq`, `printq`) take quotes off
//! afterwards. `$args`, `$1`, `$#` are the arguments of a handler, `$?` is the status of the last `write`, `$$` this process.
//! Handlers: `run` (r/w), `step`, `goto`; `get VAR`, `shift [VAR]` (r), `set VAR TEXT` (w); and functions: `add`, `sub`, `mul`,
//! `div`, `idiv`, `mod`, `rem`, `neg`, `abs`, `min`, `max`, `lt`, `le`, `eq`, `ne`, `ge`, `gt`, `not`, `and`, `or`, `nand`, `nor`,
//! `if`, `in`, `first`, `length`, `unquote`, `sprintf`, `htons`, `htonl`, `ntohs`, `ntohl`, `random`, `now`, `readable`,
//! `writable`; and, which no socket may call, `cat FILE`, `catq FILE`, `kill SIGNO PID…`.
//!
//! A call of a handler that fails is told in the words of the handler, without Click's line of which handler it was.
//!
//! The state of a script is not the element's: handlers that a script calls may call it, and so nobody holds it while an
//! instruction does its work.

mod machine;
mod program;
#[cfg(test)]
mod tests;

use super::functions::FUNCTIONS;
use super::system;
use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed, HandlerCall};
use crate::element::{Element, Interest};
use crate::handler::{Handler, Handlers, Read, Write};
use crate::lang::config::split_words;
use crate::router::Cx;
use machine::{Beginning, Call, Machine, Step};
use program::Program;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When a script runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Kind {
    #[default]
    Active,
    Passive,
    Proxy,
    Driver,
    Packet,
    Signal(Vec<i32>),
}

impl Arg for Kind {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let words = split_words(text);
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] | ["ACTIVE"] => Ok(Self::Active),
            ["PASSIVE"] => Ok(Self::Passive),
            ["PROXY"] => Ok(Self::Proxy),
            ["DRIVER"] => Ok(Self::Driver),
            ["PACKET" | "PUSH"] => Ok(Self::Packet),
            ["SIGNAL", ref signals @ ..] => {
                let numbers: Option<Vec<_>> = signals.iter().copied().map(system::signal).collect();
                numbers.filter(|all| !all.is_empty()).map(Self::Signal).ok_or_else(|| "bad signal number".to_owned())
            }
            _ => Err("bad TYPE".to_owned()),
        }
    }
}

/// The handler that runs a signal script.
const SIGNALLED: &str = "signalled";

/// How many scripts of this process read each signal; a signal that nobody reads any more does what it did.
static READERS: Mutex<BTreeMap<i32, usize>> = Mutex::new(BTreeMap::new());

fn readers() -> MutexGuard<'static, BTreeMap<i32, usize>> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set of signals.
fn set_of(numbers: &[i32]) -> libc::sigset_t {
    // SAFETY: filled by `sigemptyset`, and with numbers of signals, in memory of this function's.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, *number);
        }
        set
    }
}

/// What a script that nobody called says of its end.
fn said<T>(cx: &Cx<'_>, done: Result<T, String>) {
    if let Err(error) = done
        && !error.is_empty()
    {
        cx.say(format_args!("While executing '{}':\n  {error}", cx.declaration()));
    }
}

/// The element.
#[derive(Default)]
pub(crate) struct Script {
    kind: Kind,
    machine: Arc<Machine>,
    /// Where signals are read.
    signals: Option<OwnedFd>,
    /// The router's signal scripts, this one among them, with the signals that they run for. One of them reads a signal.
    listeners: Vec<(usize, Vec<i32>)>,
}

impl Element for Script {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut kind = String::new();
        if args.has_key("TYPE", &mut kind) {
            match Kind::parse(&kind, args.cx()) {
                Ok(kind) => self.kind = kind,
                Err(error) => _ = args.error(error),
            }
        }
        let (inputs, outputs) = args.ports();
        if kind.is_empty() && inputs > 0 && self.kind == Kind::Active {
            self.kind = Kind::Packet;
        }
        match self.kind {
            Kind::Packet if inputs == 0 => return Err(args.error("PACKET script must have inputs")),
            Kind::Packet => {}
            _ if inputs + outputs > 0 => return Err(args.error("ports allowed only on PACKET scripts")),
            _ => {}
        }
        let is_driver = self.kind == Kind::Driver;
        match Program::compile(&args.rest(), is_driver) {
            Ok(program) => self.machine = Arc::new(Machine::new(program)),
            Err(errors) => errors.into_iter().for_each(|error| _ = args.error(error)),
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.machine.begin(cx);
        match &self.kind {
            Kind::Passive | Kind::Proxy | Kind::Packet => {}
            Kind::Signal(_) => self.listen(cx)?,
            Kind::Driver if !cx.drive() => return Err("router has more than one driver script".to_owned()),
            kind => match self.machine.beginning() {
                Beginning::Waits => {
                    let time = self.machine.wait(cx)?;
                    cx.timer_after(0, time);
                }
                Beginning::Pauses => {}
                // Asked at once what comes first.
                Beginning::Runs if *kind == Kind::Driver => cx.stop_driver(),
                Beginning::Runs => cx.timer_after(0, crate::Timestamp::ZERO),
            },
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        if let Some(output) = self.machine.run_packet(cx, port) {
            cx.emit_checked(output, packet);
        }
    }

    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        let packet = cx.pull(port)?;
        let output = self.machine.run_packet(cx, port)?;
        if output == port {
            return Some(packet);
        }
        if cx.output_is_push(output) {
            cx.emit(output, packet);
        }
        None
    }

    fn observes(&self) -> bool {
        self.kind == Kind::Packet
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let done = self.machine.step(cx, Step::Timer);
        said(cx, done);
    }

    fn stopped(&mut self, cx: &mut Cx<'_>) {
        let done = self.machine.step(cx, Step::Router);
        said(cx, done);
    }

    fn selected(&mut self, cx: &mut Cx<'_>, fd: RawFd, _: Interest) {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: as many bytes as said, which are alive.
        while unsafe { libc::read(fd, info.as_mut_ptr().cast(), info.len()) } == info.len() as isize {
            // The signal's number comes first.
            let number = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            for (script, _) in self.listeners.iter().filter(|(_, signals)| signals.contains(&number)) {
                let call = HandlerCall { element: Some(*script), handler: SIGNALLED.into(), value: String::new() };
                cx.call_later(&call);
            }
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let machine = || Arc::clone(&self.machine);
        let (run, read, step, goto) = (machine(), machine(), machine(), machine());
        handlers.free_write("run", move |cx, args| run.run(cx, Call { name: "run", args, is_write: true }).map(|_| ()));
        handlers.free_read("run", move |cx, args| read.run(cx, Call { name: "run", args, is_write: false }));
        if let Kind::Signal(_) = self.kind {
            handlers.free_write(SIGNALLED, |cx, _| {
                let id = cx.id();
                if cx.with(id, Self::signalled).is_none() {
                    cx.with(id, |driver: &mut DriverManager, cx| driver.0.signalled(cx));
                }
                Ok(())
            });
            handlers.private(SIGNALLED);
        }
        if self.kind == Kind::Proxy {
            let machine = machine();
            handlers.rest(move |name| proxied(&machine, name));
        }
        handlers.free_write("step", move |cx, text| match text.trim() {
            "router" => step.step(cx, Step::Router),
            "" => step.step(cx, Step::Times(1)),
            times => match cx.parse::<u32>(times) {
                Ok(times) => step.step(cx, Step::Times(times)),
                Err(_) => Err("syntax error".to_owned()),
            },
        });
        handlers.free_write("goto", move |cx, text| goto.goto(cx, text.trim()));
        for (name, function) in FUNCTIONS {
            handlers.free_read(name, move |_, text| function(text));
        }
        functions(handlers);
        for (name, function) in system::FUNCTIONS {
            handlers.free_read(name, move |_, text| function(text));
            handlers.private(name);
        }
        let (get, set, shift) = (machine(), machine(), machine());
        handlers.free_read("get", move |_, text| get.get(text));
        handlers.free_read("shift", move |_, text| shift.shift(text));
        handlers.free_write("set", move |_, text| set.put(text));
        for name in self.machine.exported() {
            let (machine, variable) = (machine(), name.to_owned());
            handlers.free_read(name, move |_, _| Ok(machine.variable(&variable).unwrap_or_default()));
        }
    }

    fn cleanup(&mut self, _: &mut Cx<'_>) {
        self.ignore();
    }
}

/// A handler of a proxy, by its name.
fn proxied(machine: &Arc<Machine>, name: &str) -> Handler {
    let (read, write) = (Arc::clone(machine), Arc::clone(machine));
    let (of_read, of_write) = (name.to_owned(), name.to_owned());
    Handler {
        read: Some(Read::Free(Arc::new(move |cx, args| read.run(cx, Call { name: &of_read, args, is_write: false })))),
        write: Some(Write::Free(Arc::new(move |cx, args| {
            write.run(cx, Call { name: &of_write, args, is_write: true }).map(|_| ())
        }))),
        ..Handler::default()
    }
}

/// Functions that look at the router.
fn functions(handlers: &mut Handlers) {
    handlers.free_read("now", |cx, _| Ok(cx.now().to_string()));
    handlers.free_read("random", |cx, text| {
        let numbers = split_words(text).iter().map(|word| cx.parse::<i64>(word)).collect::<Result<Vec<_>, _>>();
        let (low, high) = match numbers.as_deref() {
            Ok([]) => (0, i64::from(i32::MAX)),
            Ok([count]) if *count > 0 => (0, count - 1),
            Ok([low, high]) if low <= high => (*low, *high),
            Ok([_] | [_, _]) => return Err("bad N".to_owned()),
            Ok(_) => return Err("too many arguments".to_owned()),
            Err(_) => return Err("N: invalid number".to_owned()),
        };
        Ok(cx.rng().i64(low..=high).to_string())
    });
    for (name, can) in [
        ("readable", (|handler: &Handler| handler.read.is_some()) as fn(&Handler) -> bool),
        ("writable", |handler| handler.write.is_some()),
    ] {
        handlers.free_read(name, move |cx, text| {
            let fine = split_words(text).iter().all(|name| {
                let call = HandlerCall::parse(name, &cx.arg_cx()).ok();
                let of = |call: HandlerCall| {
                    let handlers = cx.router().handlers(call.element.unwrap_or(cx.id()))?;
                    handlers.find(&call.handler).as_ref().map(can)
                };
                call.and_then(of) == Some(true)
            });
            Ok(fine.to_string())
        });
    }
}

impl Script {
    fn numbers(&self) -> &[i32] {
        if let Kind::Signal(numbers) = &self.kind { numbers } else { &[] }
    }

    /// Signals are read from a descriptor, and do not interrupt this thread or those that it starts.
    fn listen(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.listeners =
            (0..cx.router().len()).filter_map(|script| Some((script, self.signals_of(cx, script)?))).collect();
        let set = set_of(self.numbers());
        // SAFETY: a set that is alive; no memory is kept.
        let fd = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(format!("signalfd: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: fresh, and nobody else's.
        self.signals = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut readers = readers();
        self.numbers().iter().for_each(|number| *readers.entry(*number).or_default() += 1);
        cx.select(fd, Interest { read: true, write: false });
        Ok(())
    }

    /// The signals for which a script runs; nothing for other elements.
    fn signals_of(&self, cx: &mut Cx<'_>, script: usize) -> Option<Vec<i32>> {
        if script == cx.id() {
            return Some(self.numbers().to_vec());
        }
        let numbers = cx.with(script, |script: &mut Self, _| script.numbers().to_vec());
        let numbers = numbers.or_else(|| cx.with(script, |driver: &mut DriverManager, _| driver.0.numbers().to_vec()));
        numbers.filter(|numbers| !numbers.is_empty())
    }

    /// A signal came: it runs, unless it waits for something.
    fn signalled(&mut self, cx: &mut Cx<'_>) {
        let Some(fd) = self.signals.as_ref().map(AsRawFd::as_raw_fd) else { return };
        if self.machine.is_waiting() {
            return;
        }
        let done = self.machine.run(cx, Call::NONE);
        said(cx, done);
        if self.machine.ends_for_good() {
            cx.select(fd, Interest::default());
            self.ignore();
        }
    }

    /// Signals do again what they did, where no other script reads them.
    fn ignore(&mut self) {
        if self.signals.take().is_none() {
            return;
        }
        let mut readers = readers();
        let is_last = |number: &&i32| {
            let count = readers.get_mut(*number).expect("this script has counted itself");
            *count -= 1;
            *count == 0
        };
        let free: Vec<_> = self.numbers().iter().filter(is_last).copied().collect();
        let set = set_of(&free);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // A signal that came meanwhile was a script's, and does not end the process.
        // SAFETY: a set and a time that are alive.
        unsafe {
            while libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const at_once) > 0 {}
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }
}

/// A script that drives.
pub(crate) struct DriverManager(Script);

impl Default for DriverManager {
    fn default() -> Self {
        Self(Script { kind: Kind::Driver, ..Script::default() })
    }
}

impl Element for DriverManager {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0.configure(args)
    }
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.0.initialize(cx)
    }
    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        self.0.run_timer(cx, timer);
    }
    fn stopped(&mut self, cx: &mut Cx<'_>) {
        self.0.stopped(cx);
    }
    fn selected(&mut self, cx: &mut Cx<'_>, fd: RawFd, ready: Interest) {
        self.0.selected(cx, fd, ready);
    }
    fn handlers(&self, handlers: &mut Handlers) {
        self.0.handlers(handlers);
    }
    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.0.cleanup(cx);
    }
}
